//! `overwinter sandbox exec`

use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use overwinter_client::{Command, Reattach};
use overwinter_client::{Exec as Running, ExecControl, ExecEvent, ExecStdin, Exit, ExitCause};
use tokio::sync::{mpsc, oneshot};

use crate::context::Context;
use crate::failure::Failure;
use crate::output::say;
use crate::signals::{self, Asked, Insisting, Signals};
use crate::terminal::{self, RawMode};
use crate::text::{parse_duration, parse_pair, printable};

/// How long a process that was told of a broken pipe may take to end, and our last remark to be
/// read.
const FAREWELL: Duration = Duration::from_secs(1);
const DEFAULT_SIZE: (u32, u32) = (24, 80);

/// Told under the options of exec and connect.
pub(super) const SIGNALS: &str = "\
Signals:
  SIGINT, SIGTERM, SIGHUP and SIGQUIT are passed on to the command. These end `overwinter` itself,
  with 128 + the signal, and leave the command running:
  - any of them, until the command has started
  - SIGTERM and SIGHUP, while its sandbox sleeps or cannot be reached
  - three of any kind within 3 s, always";

#[derive(Debug, Args)]
pub(crate) struct Exec {
    /// The sandbox; may be left out where there is just one
    name: Option<String>,
    /// On a terminal of its own
    #[arg(short, long)]
    tty: bool,
    /// Leave it running, and print its process id
    #[arg(short, long, conflicts_with_all = ["tty", "interactive"])]
    detach: bool,
    /// Connect stdin although it is a terminal
    #[arg(short, long)]
    interactive: bool,
    #[command(flatten)]
    how: How,
    /// A command whose `--` was left out: taken in so that it can be told
    #[arg(hide = true, value_name = "WORD")]
    stray: Vec<String>,
    /// The command
    #[arg(last = true, required_unless_present = "stray", value_name = "CMD")]
    command: Vec<String>,
}

/// How a command is run; the same for exec and connect.
#[derive(Debug, Args)]
pub(super) struct How {
    /// Where; without it /workspace
    #[arg(short, long, value_name = "DIR")]
    workdir: Option<String>,
    /// As whom: a name, a uid, or uid:gid
    #[arg(short, long)]
    user: Option<String>,
    /// A variable, over the sandbox's own; may be repeated
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = parse_pair)]
    env: Vec<(String, String)>,
    /// How long to wait for a sandbox that was put to sleep meanwhile; without it, until it is
    /// awake. 0 ends at once
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    reattach: Option<Duration>,
}

impl How {
    pub(super) fn apply(&self, mut command: Command) -> Command {
        if let Some(workdir) = &self.workdir {
            command = command.workdir(workdir);
        }
        if let Some(user) = &self.user {
            command = command.user(user);
        }
        for (key, value) in &self.env {
            command = command.env(key, value);
        }
        command.reattach(match self.reattach {
            Some(Duration::ZERO) => Reattach::NEVER,
            suspended => Reattach {
                suspended,
                ..Reattach::default()
            },
        })
    }
}

pub(crate) async fn run(context: &Context, args: Exec) -> Result<u8, Failure> {
    if !args.stray.is_empty() {
        return Err(Failure::NoDashes {
            name: args.name.unwrap_or_default(),
            command: [args.stray, args.command].concat().join(" "),
        });
    }
    let sandbox = context.sandbox(args.name).await?;
    let command = context.client.command(sandbox, args.command);
    let command = args.how.apply(command);
    if args.detach {
        let process = command.start().await?;
        if let Some(exit) = process.exit.as_option()
            && !exit.error.is_empty()
        {
            return Err(Failure::Unstartable {
                code: u8::try_from(exit.code).unwrap_or(1),
                message: exit.error.clone(),
            });
        }
        say(&process.process_id)?;
        return Ok(0);
    }
    let stdin = args.tty || args.interactive || !io::stdin().is_terminal();
    attached(command, args.tty, stdin).await
}

/// Says on stderr what the code alone does not, and answers with the code.
fn ended(exit: Exit) -> Result<u8, Failure> {
    let code = u8::try_from(exit.code).unwrap_or(1);
    if let Some(message) = exit.error {
        return Err(Failure::Unstartable { code, message });
    }
    match exit.cause {
        ExitCause::Suspension => note("the suspension of the sandbox ended it"),
        ExitCause::Lost => note("it went with the sandbox's compute"),
        _ => {}
    }
    Ok(code)
}

/// Runs a command in touch with our own stdin, stdout, stderr, terminal and signals; answers with
/// its exit code.
pub(super) async fn attached(command: Command, tty: bool, stdin: bool) -> Result<u8, Failure> {
    let mut command = command.stdin(stdin);
    if tty {
        let (rows, columns) = terminal::size().unwrap_or(DEFAULT_SIZE);
        command = command.tty(rows, columns);
        if let Ok(term) = std::env::var("TERM") {
            command = command.env("TERM", term);
        }
    }
    let mut signals = Signals::new().map_err(|error| Failure::local("signals", error))?;
    let process_id = command.id().to_owned();
    let mut running = tokio::select! {
        biased;
        running = command.exec() => running?,
        // Nothing runs yet that could take it.
        signal = signals.end() => {
            part(&format!("left it before it had started; if it starts after all, as {process_id}"));
            return Ok(signals::exit_code(signal));
        }
    };
    // Only now: a failure to start is told on a terminal that is as it was.
    let raw = if tty {
        RawMode::enter().map_err(|error| Failure::local("the terminal", error))?
    } else {
        None
    };
    if let Some(sink) = running.take_stdin()
        && stdin
    {
        std::thread::spawn(move || feed(&sink));
    }
    let carried = carry(&mut running, &mut signals, raw.is_some()).await;
    drop(raw);
    match carried? {
        Carried::Exited(exit) => ended(exit),
        Carried::Left { signal } => {
            part(&format!("left it running, as {process_id}"));
            Ok(signals::exit_code(signal))
        }
        Carried::Unread { signal } => Ok(signals::exit_code(signal)),
    }
}

enum Carried {
    Exited(Exit),
    /// It runs on without us.
    Left {
        signal: i32,
    },
    /// It has ended, and our reader does not take what is left of its output.
    Unread {
        signal: i32,
    },
}

/// Sends our stdin, on a thread of its own since reading it blocks.
fn feed(sink: &ExecStdin) {
    let mut stdin = io::stdin().lock();
    let mut buffer = vec![0; 64 << 10];
    loop {
        match stdin.read(&mut buffer) {
            // An error is an end as well: there is nothing more to send.
            Ok(0) => return,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
            Ok(read) => {
                if !sink.blocking_send(Bytes::copy_from_slice(&buffer[..read])) {
                    return;
                }
            }
        }
    }
}

/// Carries output and signals until the process ends, or there is a reason to leave it.
async fn carry(
    running: &mut Running,
    signals: &mut Signals,
    raw: bool,
) -> Result<Carried, Failure> {
    let control = running.control();
    let (writer, mut written) = Writer::start();
    let mut insisting = Insisting::default();
    let mut interrupted = false;
    // What could not be handed to the writer yet: a reader of ours that is slow must not keep
    // signals from the process.
    let mut waiting = None;
    loop {
        tokio::select! {
            event = running.next(), if waiting.is_none() => match event {
                Some(event) => {
                    match event {
                        ExecEvent::Interrupted { .. } => interrupted = true,
                        ExecEvent::Reattached => interrupted = false,
                        _ => {}
                    }
                    waiting = Piece::of(event, raw);
                }
                None => break,
            },
            permit = writer.0.reserve(), if waiting.is_some() => match (permit, waiting.take()) {
                (Ok(permit), Some(piece)) => permit.send(piece),
                (Ok(_), None) => {}
                (Err(_), _) => return Err(abandon(running, &control, (&mut written).await).await),
            },
            error = &mut written => return Err(abandon(running, &control, error).await),
            signal = signals.next() => match signal {
                Asked::Resize => {
                    if let Some((rows, columns)) = terminal::size() {
                        control.resize(rows, columns);
                    }
                }
                // The process cannot be told before its sandbox is awake, which may be never.
                Asked::Signal(number) if interrupted && signals::is_farewell(number) => {
                    return Ok(Carried::Left { signal: number });
                }
                Asked::Signal(number) => {
                    control.signal(number);
                    if insisting.leaves() {
                        return Ok(Carried::Left { signal: number });
                    }
                }
            },
        }
    }
    drop(writer);
    // The process's exit counts only when all of its output is out.
    tokio::select! {
        biased;
        outcome = written => if let Ok(Some(error)) = outcome {
            return Err(Failure::output(error));
        },
        signal = signals.end() => return Ok(Carried::Unread { signal }),
    }
    Ok(Carried::Exited(running.wait().await?))
}

/// Our reader is gone: the process is told as it would be here, and we end as a command would.
async fn abandon(
    running: &mut Running,
    control: &ExecControl,
    error: Result<Option<io::Error>, oneshot::error::RecvError>,
) -> Failure {
    control.signal(rustix::process::Signal::PIPE.as_raw());
    // Whether it ends or not, there is nothing more to do here.
    let _ = tokio::time::timeout(FAREWELL, running.wait()).await;
    match error {
        Ok(Some(error)) => Failure::output(error),
        Ok(None) | Err(_) => Failure::BrokenPipe,
    }
}

/// Something to be written, in its turn.
enum Piece {
    Stdout(Bytes),
    Stderr(Bytes),
    /// A remark of ours between the process's output.
    Remark(String),
}

impl Piece {
    fn of(event: ExecEvent, raw: bool) -> Option<Self> {
        let remark = match event {
            ExecEvent::Stdout(data) => return Some(Self::Stdout(data)),
            ExecEvent::Stderr(data) => return Some(Self::Stderr(data)),
            ExecEvent::Interrupted { reason }
                if reason == overwinter_client::reason::SANDBOX_SUSPENDED =>
            {
                "the sandbox sleeps; this goes on when it is awake".to_owned()
            }
            ExecEvent::Interrupted { reason } => {
                format!("interrupted ({}); trying to get back", printable(&reason))
            }
            ExecEvent::Reattached => "this goes on".to_owned(),
            ExecEvent::Gap { stderr, bytes } => {
                let stream = if stderr { "stderr" } else { "stdout" };
                format!("{bytes} bytes of {stream} were lost")
            }
            // A kind of event that is new says nothing to us.
            _ => return None,
        };
        // A raw terminal does not return to the line's beginning by itself.
        let end = if raw { "\r" } else { "" };
        Some(Self::Remark(format!("{remark}{end}")))
    }

    fn write(&self) -> io::Result<()> {
        match self {
            Self::Stdout(data) => {
                let mut stdout = io::stdout().lock();
                stdout.write_all(data)?;
                stdout.flush()
            }
            Self::Stderr(data) => io::stderr().write_all(data),
            Self::Remark(text) => {
                note(text);
                Ok(())
            }
        }
    }
}

fn note(text: &str) {
    // Whoever cannot read it does not miss it. In one piece, as others may write there too.
    let _ = io::stderr().write_all(format!("overwinter: {text}\n").as_bytes());
}

/// The last remark before we go, which must not wait for a reader that does not read.
fn part(text: &str) {
    let (done, told) = std::sync::mpsc::channel();
    let text = text.to_owned();
    std::thread::spawn(move || {
        note(&text);
        let _ = done.send(());
    });
    let _ = told.recv_timeout(FAREWELL);
}

/// Writes output, on a thread of its own since that blocks while our reader is slow.
struct Writer(mpsc::Sender<Piece>);

impl Writer {
    /// Also answers with what tells of the first error, or that all is written.
    fn start() -> (Self, oneshot::Receiver<Option<io::Error>>) {
        let (sender, mut pieces) = mpsc::channel::<Piece>(4);
        let (done, written) = oneshot::channel();
        std::thread::spawn(move || {
            let mut failed = None;
            while let Some(piece) = pieces.blocking_recv() {
                if let Err(error) = piece.write() {
                    failed = Some(error);
                    break;
                }
            }
            // Nobody waits for it when we have left.
            let _ = done.send(failed);
        });
        (Self(sender), written)
    }
}
