//! Processes inside a sandbox: a command run, started, or kept in touch with.

use bytes::Bytes;
use overwinter_api::v1;

use crate::client::{Client, repeatable};
use crate::error::{Error, Result};
use crate::exec::{Exec, Exit, Reattach, Session};
use crate::types::SandboxRef;

/// A command to run inside; see [`Client::command`].
#[derive(Clone, Debug)]
#[must_use]
pub struct Command {
    client: Client,
    start: v1::ExecStart,
    input: Bytes,
    reattach: Reattach,
}

/// What [`Command::run`] brought back.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Ran {
    /// How it ended.
    pub exit: Exit,
    /// The first MiB that it wrote to stdout.
    pub stdout: Bytes,
    /// The first MiB that it wrote to stderr.
    pub stderr: Bytes,
    /// More was written than is here.
    pub truncated: bool,
}

impl Client {
    /// A command for a sandbox that is awake. `argv[0]` is looked up in PATH when it has no slash.
    pub fn command(
        &self,
        sandbox: impl Into<SandboxRef>,
        argv: impl IntoIterator<Item = impl Into<String>>,
    ) -> Command {
        Command {
            client: self.clone(),
            start: v1::ExecStart {
                sandbox: sandbox.into().message().into(),
                process_id: uuid::Uuid::new_v4().to_string(),
                process: v1::ProcessSpec {
                    command: argv.into_iter().map(Into::into).collect(),
                    ..Default::default()
                }
                .into(),
            },
            input: Bytes::new(),
            reattach: Reattach::default(),
        }
    }

    /// The live processes and the kept results. On a sleeping sandbox: the results alone.
    ///
    /// # Errors
    /// `NotFound` when there is no such sandbox.
    pub async fn processes(&self, sandbox: impl Into<SandboxRef>) -> Result<Vec<v1::ProcessInfo>> {
        let request = v1::ListProcessesRequest {
            sandbox: sandbox.into().message().into(),
        };
        let answer = repeatable(|| self.rpc.processes.list_processes(request.clone())).await?;
        Ok(answer.into_owned().processes)
    }

    /// One process, alive or ended.
    ///
    /// # Errors
    /// `NotFound` when there is none of that id, or its result has been forgotten.
    pub async fn process(
        &self,
        sandbox: impl Into<SandboxRef>,
        process_id: &str,
    ) -> Result<v1::ProcessInfo> {
        let request = v1::GetProcessRequest {
            sandbox: sandbox.into().message().into(),
            process_id: process_id.to_owned(),
        };
        let answer = repeatable(|| self.rpc.processes.get_process(request.clone())).await?;
        answer
            .into_owned()
            .process
            .into_option()
            .ok_or_else(|| Error::protocol("no process"))
    }

    /// Sends a signal, by number, to a process's group. Not repeated by itself.
    ///
    /// # Errors
    /// `NotFound` when there is no such process.
    pub async fn signal_process(
        &self,
        sandbox: impl Into<SandboxRef>,
        process_id: &str,
        signal: i32,
    ) -> Result<()> {
        let request = v1::SignalProcessRequest {
            sandbox: sandbox.into().message().into(),
            process_id: process_id.to_owned(),
            signal,
        };
        self.rpc.processes.signal_process(request).await?;
        Ok(())
    }
}

impl Command {
    /// A variable, over the sandbox's own.
    pub fn env(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.spec().env.insert(key.into(), value.into());
        self
    }

    /// Where it runs; without it `/workspace`.
    pub fn workdir(mut self, workdir: impl Into<String>) -> Self {
        self.spec().workdir = workdir.into();
        self
    }

    /// As whom it runs: a name, a uid, or uid:gid; without it the sandbox's default user.
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.spec().user = user.into();
        self
    }

    /// On a pseudo-terminal of that size; its stderr then comes as stdout.
    pub fn tty(mut self, rows: u32, columns: u32) -> Self {
        self.spec().tty = v1::WindowSize { rows, columns }.into();
        self
    }

    /// Whether [`exec`](Self::exec) connects stdin; without it, it is `/dev/null`.
    pub fn stdin(mut self, connected: bool) -> Self {
        self.spec().stdin = connected;
        self
    }

    /// All of stdin, for [`run`](Self::run).
    pub fn input(mut self, input: impl Into<Bytes>) -> Self {
        self.input = input.into();
        self.spec().stdin = true;
        self
    }

    /// The id of the process, a UUID, instead of a random one: starting is idempotent by it.
    pub fn process_id(mut self, id: impl Into<String>) -> Self {
        self.start.process_id = id.into();
        self
    }

    /// The id that the process has once it is started.
    pub fn id(&self) -> &str {
        &self.start.process_id
    }

    /// How long [`exec`](Self::exec) tries to get back to its process when the stream breaks.
    pub fn reattach(mut self, reattach: Reattach) -> Self {
        self.reattach = reattach;
        self
    }

    /// Runs it to its end and answers with what it printed. Dropping the future leaves it running.
    ///
    /// # Errors
    /// When the sandbox is not awake. A command that cannot be started is no error: its exit has
    /// code 126 or 127 and says why.
    pub async fn run(self) -> Result<Ran> {
        let request = v1::RunProcessRequest {
            start: self.start.into(),
            stdin: self.input,
        };
        let answer = self.client.rpc.processes.run_process(request).await?;
        let answer = answer.into_owned();
        let exit = answer.exit.into_option();
        Ok(Ran {
            exit: Exit::from(exit.ok_or_else(|| Error::protocol("no exit"))?),
            stdout: answer.stdout,
            stderr: answer.stderr,
            truncated: answer.truncated,
        })
    }

    /// Starts it and leaves it running.
    ///
    /// # Errors
    /// When the sandbox is not awake.
    pub async fn start(self) -> Result<v1::ProcessInfo> {
        let request = v1::StartProcessRequest {
            start: self.start.into(),
        };
        // Starting is idempotent by the process's id.
        let answer =
            repeatable(|| self.client.rpc.processes.start_process(request.clone())).await?;
        answer
            .into_owned()
            .process
            .into_option()
            .ok_or_else(|| Error::protocol("no process"))
    }

    /// Starts it and stays in touch: input, output, signals, exit. Answers when it has started.
    ///
    /// # Errors
    /// When the sandbox is not awake. A command that cannot be started is no error: its exit has
    /// code 126 or 127 and says why.
    pub async fn exec(self) -> Result<Exec> {
        Session::begin(self.client, self.start, self.reattach).await
    }

    fn spec(&mut self) -> &mut v1::ProcessSpec {
        self.start.process.get_or_insert_default()
    }
}
