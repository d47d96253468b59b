//! A process inside: its streams with their offsets, and how it ended.

use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures::future::AbortHandle;
use overwinter_api::supervisor as wire;
use tokio::sync::watch;

/// What is kept of the output for whoever attaches later.
const REPLAY: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct Process {
    pub(super) start: wire::ExecStart,
    pub(super) pid: i32,
    pub(super) started_at_ms: i64,
    /// One place for state and for the event of its change.
    pub(super) streams: watch::Sender<Streams>,
    task: Mutex<Option<AbortHandle>>,
}

#[derive(Debug, Default)]
pub(super) struct Streams {
    /// Bytes of output that are not kept any more.
    dropped: u64,
    output: Vec<u8>,
    pub(super) stdin: Vec<u8>,
    /// Bytes of stdin that were taken in all.
    pub(super) taken: u64,
    pub(super) stdin_ended: bool,
    pub(super) exit: Option<wire::ExitResult>,
}

impl Streams {
    pub(super) const fn written(&self) -> u64 {
        self.dropped + self.output.len() as u64
    }

    pub(super) const fn oldest(&self) -> u64 {
        self.dropped
    }

    /// The output from `offset` on, which is not older than what is kept.
    pub(super) fn from(&self, offset: u64) -> Bytes {
        let at = offset.saturating_sub(self.dropped) as usize;
        Bytes::copy_from_slice(self.output.get(at..).unwrap_or_default())
    }
}

impl Process {
    pub(super) fn new(start: wire::ExecStart, pid: i32, now_ms: i64) -> Self {
        let streams = Streams {
            stdin_ended: !start.process.stdin,
            ..Streams::default()
        };
        Self {
            start,
            pid,
            started_at_ms: now_ms,
            streams: watch::Sender::new(streams),
            task: Mutex::new(None),
        }
    }

    pub(super) fn id(&self) -> &str {
        &self.start.process_id
    }

    pub(super) fn runs(&self) -> bool {
        self.streams.borrow().exit.is_none()
    }

    fn task(&self) -> MutexGuard<'_, Option<AbortHandle>> {
        self.task.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn runs_as(&self, task: AbortHandle) {
        *self.task() = Some(task);
    }

    pub(super) fn stop_task(&self) {
        if let Some(task) = self.task().take() {
            task.abort();
        }
    }

    pub(super) fn write(&self, data: &[u8]) {
        self.streams.send_modify(|streams| {
            streams.output.extend_from_slice(data);
            let over = streams.output.len().saturating_sub(REPLAY);
            streams.output.drain(..over);
            streams.dropped += over as u64;
        });
    }

    pub(super) fn feed(&self, stdin: &wire::StdinData) {
        self.streams.send_if_modified(|streams| {
            // What was taken already comes again after a reconnection.
            let skip = streams.taken.saturating_sub(stdin.offset) as usize;
            let new = stdin.data.get(skip..).unwrap_or_default();
            let ends = stdin.eof && !streams.stdin_ended;
            if streams.stdin_ended || streams.exit.is_some() {
                return false;
            }
            streams.stdin.extend_from_slice(new);
            streams.taken += new.len() as u64;
            streams.stdin_ended = ends;
            ends || !new.is_empty()
        });
    }

    /// The first end counts. Answers with the result when it was this one.
    pub(super) fn end(
        &self,
        code: i32,
        signal: i32,
        cause: wire::ExitCause,
        error: &str,
        now_ms: i64,
    ) -> Option<wire::ExitResult> {
        let mut result = None;
        self.streams.send_if_modified(|streams| {
            if streams.exit.is_some() {
                return false;
            }
            let exit = wire::ExitResult {
                process_id: self.id().to_owned(),
                code,
                signal,
                cause: cause.into(),
                error: error.to_owned(),
                stdout_bytes: streams.written(),
                stderr_bytes: 0,
                exited_at_ms: now_ms,
            };
            result = Some(exit.clone());
            streams.exit = Some(exit);
            true
        });
        result
    }

    pub(super) fn info(&self) -> wire::ProcessInfo {
        let exit = self.streams.borrow().exit.clone();
        let spec = &self.start.process;
        wire::ProcessInfo {
            process_id: self.id().to_owned(),
            command: spec.command.clone(),
            pid: self.pid,
            running: exit.is_none(),
            exit: exit.into(),
            started_at_ms: self.started_at_ms,
            tty: spec.tty.is_set(),
            main: spec.main,
            user: spec.user.clone(),
        }
    }
}
