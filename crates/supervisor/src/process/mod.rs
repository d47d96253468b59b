//! One process: what was asked for, its streams, and how it ended.
//!
//! ```text
//!   fork ─► Pending ─► Running ─► reaped ─► output read to its end ─► exit result
//!              └─────► Failed ───────┘      (or 100 ms after the exit)
//! ```
//!
//! All state is behind one lock that is never held across an await; whoever waits is woken by
//! `changed` (something to tell a reader) or by `room` (a reader took something, or left).

mod attachment;
mod output;
mod stdin;
mod table;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use overwinter_api::supervisor::{ExitCause, ExitResult, ProcessInfo};
use tokio::sync::{Notify, watch};

use crate::error::Refusal;
use crate::replay::{Budget, Replay, STREAM_REPLAY_BYTES};
use crate::spawn::{Program, StartFailure};

pub(crate) use attachment::Attachment;
pub(crate) use table::{Event, Table};

/// Which of the two output streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    Stdout = 0,
    Stderr = 1,
}

/// How a child's way to its program went.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Startup {
    Pending,
    Running,
    Failed { code: i32, message: String },
}

/// What never changes about a process.
#[derive(Clone, Debug)]
pub(crate) struct Description {
    pub id: String,
    /// Of the whole start: the same id with another hash is another process.
    pub hash: [u8; 32],
    pub program: Program,
    pub user: String,
    pub main: bool,
}

/// A process, live or ended.
pub(crate) struct Process {
    pub description: Description,
    /// 0: it was never forked.
    pub pid: i32,
    pub started_at_ms: i64,
    state: Mutex<State>,
    stdin: tokio::sync::Mutex<stdin::Stdin>,
    /// The terminal's master, for its window size.
    terminal: Option<std::os::fd::OwnedFd>,
    changed: Notify,
    room: Notify,
    reaped: watch::Sender<bool>,
}

struct State {
    startup: Startup,
    outputs: [Replay; 2],
    readers: Vec<Reader>,
    next_reader: u64,
    stdin_taken: u64,
    wait_status: Option<i32>,
    /// Set before a suspension signals it; decides the cause of its exit.
    suspending: bool,
    /// Readers no longer hold its output back.
    released: bool,
    exit: Option<ExitResult>,
}

struct Reader {
    id: u64,
    positions: [u64; 2],
}

impl Process {
    fn new(
        description: Description,
        pid: i32,
        startup: Startup,
        stdin: stdin::Stdin,
        terminal: Option<std::os::fd::OwnedFd>,
        budget: &Arc<Budget>,
    ) -> Self {
        Self {
            description,
            pid,
            started_at_ms: now_ms(),
            state: Mutex::new(State {
                startup,
                outputs: [Replay::new(budget.clone()), Replay::new(budget.clone())],
                readers: Vec::new(),
                next_reader: 0,
                stdin_taken: 0,
                wait_status: None,
                suspending: false,
                released: false,
                exit: None,
            }),
            stdin: tokio::sync::Mutex::new(stdin),
            terminal,
            changed: Notify::new(),
            room: Notify::new(),
            reaped: watch::Sender::new(false),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic ends the process in the shipped build; in others the state is still whole,
        // because nothing under the lock is half done between two statements that can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its exit, once known.
    pub(crate) fn exit(&self) -> Option<ExitResult> {
        self.state().exit.clone()
    }

    /// Whether it has a living child still, or output of it to be read.
    pub(crate) fn is_live(&self) -> bool {
        self.state().exit.is_none()
    }

    /// Resolves when its exit is known.
    pub(crate) async fn exited(&self) -> ExitResult {
        self.when(|state| state.exit.clone()).await
    }

    /// Resolves when it runs, or when it has failed to.
    pub(crate) async fn settled(&self) {
        self.when(|state| match state.startup {
            Startup::Pending => None,
            Startup::Running => Some(()),
            Startup::Failed { .. } => state.exit.as_ref().map(|_| ()),
        })
        .await
    }

    async fn when<T>(&self, ready: impl Fn(&State) -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(value) = ready(&self.state()) {
                return value;
            }
            changed.await;
        }
    }

    /// For listings.
    pub(crate) fn info(&self) -> ProcessInfo {
        let exit = self.exit();
        ProcessInfo {
            process_id: self.description.id.clone(),
            command: self.description.program.command.clone(),
            pid: self.pid,
            running: exit.is_none(),
            exit: exit.into(),
            started_at_ms: self.started_at_ms,
            tty: self.description.program.tty.is_some(),
            main: self.description.main,
            user: self.description.user.clone(),
        }
    }

    /// Sends `signal` to its process group.
    pub(crate) fn signal(&self, signal: i32) -> Result<(), Refusal> {
        if !(1..=64).contains(&signal) {
            return Err(Refusal::Invalid(format!("signal {signal}")));
        }
        // Once reaped, the number may name another process.
        if self.state().wait_status.is_some() || self.pid <= 0 {
            return Err(Refusal::ProcessEnded(self.description.id.clone()));
        }
        // SAFETY: plain numbers; the child is not reaped, so its group is still its own.
        if unsafe { libc::kill(-self.pid, signal) } < 0 {
            // Between fork and setsid the group does not exist yet.
            // SAFETY: as above.
            unsafe { libc::kill(self.pid, signal) };
        }
        Ok(())
    }

    /// Sets the window size of its terminal; nothing where it has none.
    pub(crate) fn resize(&self, rows: u32, columns: u32) {
        if let Some(terminal) = &self.terminal
            && let Err(error) = crate::pty::resize(terminal, rows, columns)
        {
            eprintln!("overwinter-supervisor: resize: {error}");
        }
    }

    /// From now on its end counts as the suspension's, and no reader holds it up.
    pub(crate) fn mark_suspending(&self) {
        let mut state = self.state();
        if state.wait_status.is_none() {
            state.suspending = true;
        }
        state.released = true;
        drop(state);
        self.room.notify_waiters();
    }

    fn set_startup(&self, failure: Option<StartFailure>) {
        self.state().startup = match failure {
            None => Startup::Running,
            Some(failure) => Startup::Failed {
                code: failure.exit_code(),
                message: failure.message(&self.description.program),
            },
        };
        self.changed.notify_waiters();
    }

    /// Takes what `waitpid` said.
    fn set_reaped(&self, wait_status: i32) {
        self.state().wait_status = Some(wait_status);
        self.reaped.send_replace(true);
    }

    async fn reaped(&self) {
        // The sender lives in self, so this cannot fail.
        let _ = self.reaped.subscribe().wait_for(|reaped| *reaped).await;
    }

    /// Records the exit: everything that will be read has been read.
    fn conclude(&self) -> ExitResult {
        let mut state = self.state();
        let status = state.wait_status.unwrap_or(0);
        let (code, signal) = if libc::WIFSIGNALED(status) {
            let signal = libc::WTERMSIG(status);
            (128 + signal, signal)
        } else {
            (libc::WEXITSTATUS(status), 0)
        };
        let (code, error) = match &state.startup {
            Startup::Failed { code, message } => (*code, message.clone()),
            Startup::Pending | Startup::Running => (code, String::new()),
        };
        let cause = if state.suspending {
            ExitCause::Suspension
        } else {
            ExitCause::Own
        };
        let exit = ExitResult {
            process_id: self.description.id.clone(),
            code,
            signal,
            cause: cause.into(),
            error,
            stdout_bytes: state.outputs[0].end(),
            stderr_bytes: state.outputs[1].end(),
            exited_at_ms: now_ms(),
        };
        state.exit = Some(exit.clone());
        for output in &mut state.outputs {
            output.shrink();
        }
        drop(state);
        self.changed.notify_waiters();
        exit
    }

    /// Drops the replay of an ended process that nobody reads.
    fn forget_output(&self) -> bool {
        let mut state = self.state();
        let forgettable = state.exit.is_some() && state.readers.is_empty();
        if forgettable {
            state.outputs.iter_mut().for_each(Replay::forget);
        }
        forgettable
    }
}

impl State {
    /// How much more of `stream` may be read now.
    fn room(&self, stream: Stream) -> usize {
        let output = &self.outputs[stream as usize];
        let slowest = self
            .readers
            .iter()
            .map(|reader| reader.positions[stream as usize])
            .min();
        match slowest {
            Some(position) if !self.released => output.room(position),
            // Nobody waits for it: the oldest bytes make way.
            Some(_) | None => STREAM_REPLAY_BYTES,
        }
    }
}

/// Unix milliseconds of the sandbox's clock.
pub(crate) fn now_ms() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as i64)
}
