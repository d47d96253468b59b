//! Crash points for tests: the process ends itself by SIGKILL at a named point, as a power switch
//! would. Off unless `OVERWINTER_CRASH_AT` (a point) or `OVERWINTER_CRASH_FILE` (a file that may come
//! to hold one) is set, and loud when it is.

use std::fmt::{Display, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use overwinter_store::{CommitHook, CommitPoint};

use crate::ports::CrashPoints;

/// As the environment asks.
pub struct EnvCrashPoints {
    /// `<verb>.<depth>.<step>:<side>`, or `commit.<label>:<side>` around what is made durable.
    at: Option<String>,
    /// Read anew at each point, so that a gateway that has done something else first can be told.
    file: Option<PathBuf>,
    /// Each point that is reached is appended to this file.
    trace: Option<Mutex<std::fs::File>>,
    reached: AtomicBool,
}

impl EnvCrashPoints {
    /// None when nothing is asked for, which costs nothing from then on.
    ///
    /// # Errors
    /// When the trace file cannot be opened.
    pub fn from_env() -> std::io::Result<Option<Self>> {
        let at = std::env::var("OVERWINTER_CRASH_AT").ok();
        let trace = std::env::var_os("OVERWINTER_CRASH_TRACE").map(PathBuf::from);
        let file = std::env::var_os("OVERWINTER_CRASH_FILE").map(PathBuf::from);
        if at.is_none() && trace.is_none() && file.is_none() {
            return Ok(None);
        }
        if let Some(file) = &file {
            tracing::warn!(file = %file.display(), "this gateway will end itself where that says");
        }
        if let Some(at) = &at {
            tracing::warn!(%at, "this gateway will end itself there");
        }
        let trace = trace
            .map(|path| {
                std::fs::OpenOptions::new()
                    .create(true)
                    .append(true)
                    .open(path)
            })
            .transpose()?;
        Ok(Some(Self {
            at,
            file,
            trace: trace.map(Mutex::new),
            reached: AtomicBool::new(false),
        }))
    }
}

impl EnvCrashPoints {
    fn is_named(&self, point: &str) -> bool {
        if self.at.as_deref() == Some(point) {
            return true;
        }
        // No file, or one that cannot be read, names nothing.
        let named = self.file.as_ref().map(std::fs::read_to_string);
        matches!(named, Some(Ok(text)) if text.trim() == point)
    }
}

impl CrashPoints for EnvCrashPoints {
    fn reached(&self, what: &dyn Display, side: &'static str) {
        let mut point = String::new();
        // Writing to a string does not fail.
        let _ = write!(point, "{what}:{side}");
        if let Some(trace) = &self.trace
            && let Ok(mut file) = trace.lock()
            && let Err(error) =
                std::io::Write::write_all(&mut *file, format!("{point}\n").as_bytes())
        {
            tracing::error!(%error, "a crash point was not traced");
        }
        if self.is_named(&point) && !self.reached.swap(true, Ordering::SeqCst) {
            if let Err(error) = rustix::process::kill_process(
                rustix::process::getpid(),
                rustix::process::Signal::KILL,
            ) {
                tracing::error!(%error, "could not end itself");
            }
            // The signal is on its way: nothing may happen behind this point.
            loop {
                std::thread::park();
            }
        }
    }
}

/// Makes a point of each side of each COMMIT.
pub(crate) fn around_commits(crash: Arc<dyn CrashPoints>) -> CommitHook {
    Arc::new(move |point, label, _durability| {
        let side = match point {
            CommitPoint::Before => "before",
            CommitPoint::After => "after",
        };
        crash.reached(&format_args!("commit.{label}"), side);
    })
}
