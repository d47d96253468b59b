//! The gate that a suspension closes: no new process and no new file write gets past it, and
//! whoever closes it learns when those already inside are through.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use overwinter_api::supervisor::{ExecStart, ExitResult, ProcessSpec};
use tokio::sync::watch;

use crate::error::Refusal;
use crate::process::Table;

/// How long writes in flight may take to end by themselves.
const WRITE_GRACE: Duration = Duration::from_secs(5);
/// The hook's deadline when the request sets none.
const DEFAULT_HOOK_TIMEOUT: Duration = Duration::from_secs(30);
/// The id under which the hook's result is reported.
const HOOK_ID: &str = "pre-suspend-hook";

/// Open, or closed for one suspension.
pub(crate) struct Gate {
    state: Mutex<State>,
    /// How many writes are in flight.
    writes: watch::Sender<usize>,
}

enum State {
    Open,
    Closed {
        /// Set when the writes of this period have used up their grace.
        revoked: watch::Sender<bool>,
        /// Present once this period's hook has been started; filled when it has ended.
        hook: Option<watch::Receiver<Option<ExitResult>>>,
    },
}

/// Held by a write from its admission to its end.
pub(crate) struct WritePermit {
    gate: Arc<Gate>,
}

impl Gate {
    /// An open gate.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State::Open),
            writes: watch::Sender::new(0),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Replaced as a whole, so whole after a panic too.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is closed.
    pub(crate) fn is_closed(&self) -> bool {
        match *self.state() {
            State::Open => false,
            State::Closed { .. } => true,
        }
    }

    /// Refuses while closed.
    pub(crate) fn admit(&self) -> Result<(), Refusal> {
        if self.is_closed() {
            Err(Refusal::Quiesced)
        } else {
            Ok(())
        }
    }

    /// Admits a write; the permit is held until it has ended.
    pub(crate) fn admit_write(self: &Arc<Self>) -> Result<WritePermit, Refusal> {
        self.admit()?;
        self.writes.send_modify(|count| *count += 1);
        Ok(WritePermit {
            gate: Arc::clone(self),
        })
    }

    /// Closes it; nothing when it is closed already.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        if matches!(*state, State::Open) {
            *state = State::Closed {
                revoked: watch::Sender::new(false),
                hook: None,
            };
        }
        drop(state);
        // Wakes the writes, which from now on also wait for their revocation.
        self.writes.send_modify(|_| {});
    }

    /// Opens it; the next suspension runs its hook anew.
    pub(crate) fn open(&self) {
        *self.state() = State::Open;
    }

    /// Waits until no write is in flight; after the grace they are told to fail.
    pub(crate) async fn settle_writes(&self) {
        let mut writes = self.writes.subscribe();
        let settled = tokio::time::timeout(WRITE_GRACE, writes.wait_for(|count| *count == 0))
            .await
            .is_ok();
        if !settled {
            if let State::Closed { revoked, .. } = &*self.state() {
                revoked.send_replace(true);
            }
            self.writes.send_modify(|_| {});
            // Each notices at its next message; a blocking system call may take its time, and is
            // not waited for.
            let _ = tokio::time::timeout(Duration::from_millis(500), writes.wait_for(|n| *n == 0))
                .await;
        }
    }

    /// Runs `hook` once in this period and returns its result; a later call gets the same one,
    /// waiting for it if need be. It goes on when the caller goes away. `None`: there is none.
    pub(crate) async fn run_hook(
        self: &Arc<Self>,
        table: &Arc<Table>,
        hook: Vec<String>,
        timeout: Duration,
    ) -> Option<ExitResult> {
        let mut running = {
            let mut state = self.state();
            let State::Closed { hook: known, .. } = &mut *state else {
                // Opened again in the meantime: there is nothing left to prepare for.
                return None;
            };
            match known {
                Some(running) => running.clone(),
                None if hook.is_empty() => return None,
                None => {
                    let (done, running) = watch::channel(None);
                    let table = Arc::clone(table);
                    tokio::spawn(async move {
                        done.send_replace(Some(run(&table, hook, timeout).await));
                    });
                    known.insert(running).clone()
                }
            }
        };
        let result = running.wait_for(Option::is_some).await.ok()?;
        result.clone()
    }
}

async fn run(table: &Arc<Table>, command: Vec<String>, timeout: Duration) -> ExitResult {
    let timeout = if timeout.is_zero() {
        DEFAULT_HOOK_TIMEOUT
    } else {
        timeout
    };
    let start = ExecStart {
        process_id: HOOK_ID.into(),
        process: ProcessSpec {
            command,
            ..Default::default()
        }
        .into(),
    };
    let process = match table.start_hidden(&start) {
        Ok(process) => process,
        Err(refusal) => {
            return ExitResult {
                process_id: HOOK_ID.into(),
                code: 126,
                error: refusal.to_string(),
                ..Default::default()
            };
        }
    };
    match tokio::time::timeout(timeout, process.exited()).await {
        Ok(exit) => exit,
        Err(_elapsed) => {
            // It may just have ended; then its own result stands.
            let killed = process.signal(libc::SIGKILL).is_ok();
            let mut exit = process.exited().await;
            if killed {
                exit.error = format!("did not end within {} ms", timeout.as_millis());
            }
            exit
        }
    }
}

impl WritePermit {
    /// Resolves when the suspension no longer waits for this write.
    pub(crate) async fn revoked(&self) {
        let mut writes = self.gate.writes.subscribe();
        loop {
            let revoked = match &*self.gate.state() {
                State::Open => None,
                State::Closed { revoked, .. } => Some(revoked.subscribe()),
            };
            let changed = async {
                // The sender lives as long as the gate.
                let _ = writes.changed().await;
            };
            match revoked {
                Some(mut revoked) => tokio::select! {
                    told = revoked.wait_for(|revoked| *revoked) => {
                        if told.is_ok() {
                            return;
                        }
                        // That suspension was turned back.
                        continue;
                    }
                    () = changed => {}
                },
                None => changed.await,
            }
        }
    }
}

impl Drop for WritePermit {
    fn drop(&mut self) {
        self.gate.writes.send_modify(|count| *count -= 1);
    }
}
