//! An exec that outlives its connection.
//!
//! ```text
//!   Exec, ExecStdin, ExecControl          (the caller's handles)
//!        │ events   │ stdin   │ signals, sizes
//!   ┌────┴──────────┴─────────┴────┐
//!   │ Session: one task            │   counts bytes both ways, keeps unacknowledged stdin
//!   └──────────────┬───────────────┘
//!                Link               one bidi stream; replaced when it breaks
//! ```
//!
//! A stream that breaks, since the sandbox went to sleep or the gateway was restarted, is replaced
//! by one that attaches at the offsets seen so far. Dropping [`Exec`] leaves the process running.

mod link;
mod session;
mod stdin;

use std::time::Duration;

use bytes::Bytes;
use overwinter_api::v1;
use tokio::sync::{mpsc, oneshot};

use crate::error::{Code, Error, Result, reason};

pub(crate) use session::Session;

/// How long an exec tries to get back to its process after its stream broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reattach {
    /// While the sandbox sleeps; `None`: until it is awake again. Zero: not at all.
    pub suspended: Option<Duration>,
    /// While the gateway cannot be reached, or refuses; zero: not at all.
    pub unreachable: Duration,
}

impl Reattach {
    /// A broken stream is an error at once.
    pub const NEVER: Self = Self {
        suspended: Some(Duration::ZERO),
        unreachable: Duration::ZERO,
    };
}

impl Default for Reattach {
    /// As long as the sandbox sleeps, and half a minute while the gateway cannot be reached.
    fn default() -> Self {
        Self {
            suspended: None,
            unreachable: Duration::from_secs(30),
        }
    }
}

/// What comes out of an exec.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ExecEvent {
    /// The process wrote to stdout, or to its terminal.
    Stdout(Bytes),
    /// The process wrote to stderr.
    Stderr(Bytes),
    /// So many bytes of its output were lost: it wrote more than is kept while nobody was attached.
    Gap {
        /// Of stderr, else of stdout.
        stderr: bool,
        /// How many.
        bytes: u64,
    },
    /// The stream broke, for this reason; the session is trying to get back.
    Interrupted {
        /// The stable reason code.
        reason: String,
    },
    /// It is attached again.
    Reattached,
}

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Exit {
    /// As a shell reports it: the exit code, or 128 + signal.
    pub code: i32,
    /// The signal that ended it, if one did.
    pub signal: Option<i32>,
    /// What ended it.
    pub cause: ExitCause,
    /// Why it could not be started (code 126 or 127).
    pub error: Option<String>,
    /// How much it wrote to stdout, in bytes.
    pub stdout_bytes: u64,
    /// How much it wrote to stderr, in bytes.
    pub stderr_bytes: u64,
}

/// What ended a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ExitCause {
    /// Itself, or a signal that someone sent.
    Own,
    /// A suspension.
    Suspension,
    /// Its compute went away.
    Lost,
}

impl From<v1::ExitResult> for Exit {
    fn from(it: v1::ExitResult) -> Self {
        Self {
            code: it.code,
            signal: Some(it.signal).filter(|&signal| signal != 0),
            cause: match it.cause.as_known() {
                Some(v1::ExitCause::EXIT_CAUSE_SUSPENSION) => ExitCause::Suspension,
                Some(v1::ExitCause::EXIT_CAUSE_LOST) => ExitCause::Lost,
                Some(v1::ExitCause::EXIT_CAUSE_OWN | v1::ExitCause::EXIT_CAUSE_UNSPECIFIED)
                | None => ExitCause::Own,
            },
            error: Some(it.error).filter(|error| !error.is_empty()),
            stdout_bytes: it.stdout_bytes,
            stderr_bytes: it.stderr_bytes,
        }
    }
}

/// A process that is being kept in touch with; see [`Command::exec`](crate::Command::exec).
///
/// Output must be read: a process whose output nobody takes is halted by back-pressure.
#[derive(Debug)]
pub struct Exec {
    process_id: String,
    events: mpsc::Receiver<ExecEvent>,
    exit: oneshot::Receiver<Result<Exit>>,
    ended: Option<Exit>,
    stdin: Option<ExecStdin>,
    control: ExecControl,
}

impl Exec {
    /// The process's UUID, by which anyone can attach to it or ask how it ended.
    pub fn process_id(&self) -> &str {
        &self.process_id
    }

    /// Its stdin, once. Dropping it closes the process's stdin; it is connected only where
    /// [`Command::stdin`](crate::Command::stdin) said so.
    pub fn take_stdin(&mut self) -> Option<ExecStdin> {
        self.stdin.take()
    }

    /// A handle to signal and resize it with, also while another task reads its output.
    pub fn control(&self) -> ExecControl {
        self.control.clone()
    }

    /// The next thing that comes out; `None` when nothing more will: then [`wait`](Self::wait)
    /// answers at once. Can be dropped and called again without losing anything.
    pub async fn next(&mut self) -> Option<ExecEvent> {
        self.events.recv().await
    }

    /// How it ended. Output that has not been read is discarded, so that it can end.
    ///
    /// # Errors
    /// When the stream broke and could not be had back.
    pub async fn wait(&mut self) -> Result<Exit> {
        if let Some(exit) = &self.ended {
            return Ok(exit.clone());
        }
        while self.events.recv().await.is_some() {}
        let exit = (&mut self.exit).await.unwrap_or_else(|_| {
            Err(Error::new(
                Code::Canceled,
                reason::CONNECTION_LOST,
                "the session was ended with its runtime",
            ))
        })?;
        self.ended = Some(exit.clone());
        Ok(exit)
    }
}

/// The stdin of an [`Exec`].
#[derive(Debug)]
pub struct ExecStdin(mpsc::Sender<Bytes>);

impl ExecStdin {
    /// Sends data, waiting while the process does not take what was sent before. `false`: it has
    /// ended, and nothing more will be taken.
    pub async fn send(&self, data: impl Into<Bytes>) -> bool {
        let mut data: Bytes = data.into();
        while !data.is_empty() {
            let piece = data.split_to(data.len().min(stdin::PIECE));
            if self.0.send(piece).await.is_err() {
                return false;
            }
        }
        true
    }

    /// As [`send`](Self::send), for a thread that is not part of a runtime.
    pub fn blocking_send(&self, data: impl Into<Bytes>) -> bool {
        let mut data: Bytes = data.into();
        while !data.is_empty() {
            let piece = data.split_to(data.len().min(stdin::PIECE));
            if self.0.blocking_send(piece).is_err() {
                return false;
            }
        }
        true
    }
}

/// Signals and resizes an [`Exec`]. What is asked while its stream is broken is done after.
#[derive(Clone, Debug)]
pub struct ExecControl(mpsc::UnboundedSender<Control>);

#[derive(Clone, Copy, Debug)]
pub(crate) enum Control {
    Signal(i32),
    Resize { rows: u32, columns: u32 },
}

impl ExecControl {
    /// Sends a signal, by number, to the process's group. Does nothing once it has ended.
    pub fn signal(&self, signal: i32) {
        // An error means that the session is over: there is nobody left to signal.
        let _ = self.0.send(Control::Signal(signal));
    }

    /// Tells its terminal the window's new size.
    pub fn resize(&self, rows: u32, columns: u32) {
        let _ = self.0.send(Control::Resize { rows, columns });
    }
}
