//! What must be so of one sandbox, kept beside the gateway by those who use it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use overwinter_client::{Depth, Sandbox};
use sha2::{Digest, Sha256};

/// Whether it is said to sleep with its memory.
pub(crate) fn keeps_memory(sandbox: &Sandbox) -> bool {
    matches!(sandbox.depth(), Some(Depth::Freeze | Depth::Checkpoint))
}

/// What a file holds, or that there is none.
pub(crate) type Contents = Option<[u8; 32]>;

#[must_use]
pub(crate) fn digest(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// A sandbox, and all that its users have been promised of it.
pub(crate) struct Ledger {
    pub(crate) id: String,
    /// As its create answered.
    pub(crate) name: String,
    /// What it was asked to run on.
    pub(crate) runtime: &'static str,
    ends: Mutex<Ends>,
    deleting: AtomicBool,
    life: Mutex<Option<Seen>>,
    /// One for each client; nobody else touches its files.
    pub(crate) drawers: Vec<tokio::sync::Mutex<Drawer>>,
}

/// When processes may have ended: whenever somebody who ends them was at it.
#[derive(Default)]
struct Ends {
    epoch: u64,
    under_way: u32,
}

/// The main process as it was met in an epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Life {
    pub(crate) process: String,
    pub(crate) pid: i32,
    /// Made up by this life of it, and in its memory alone.
    pub(crate) word: String,
    pub(crate) count: u64,
}

struct Seen {
    epoch: u64,
    life: Life,
}

/// What one client has in a sandbox.
#[derive(Default)]
pub(crate) struct Drawer {
    pub(crate) files: BTreeMap<String, Versions>,
    /// A process that was left running, with the epoch it was started in.
    pub(crate) process: Option<(u64, String)>,
}

/// What a file may hold.
#[derive(Clone, Debug, Default)]
pub(crate) struct Versions {
    /// What was acknowledged last.
    acknowledged: Contents,
    /// What was sent since, without an answer.
    sent: Vec<Contents>,
}

impl Versions {
    pub(crate) fn send(&mut self, contents: Contents) {
        self.sent.push(contents);
    }

    pub(crate) fn acknowledge(&mut self, contents: Contents) {
        self.acknowledged = contents;
        self.sent.clear();
    }

    pub(crate) fn may_be(&self, found: Contents) -> bool {
        self.acknowledged == found || self.sent.contains(&found)
    }

    pub(crate) const fn is_certain(&self) -> bool {
        self.sent.is_empty()
    }
}

impl Ledger {
    pub(crate) fn new(sandbox: &Sandbox, runtime: &'static str, clients: usize) -> Self {
        Self {
            id: sandbox.id().to_owned(),
            name: sandbox.name().to_owned(),
            runtime,
            ends: Mutex::default(),
            deleting: AtomicBool::new(false),
            life: Mutex::default(),
            drawers: (0..clients)
                .map(|_| tokio::sync::Mutex::default())
                .collect(),
        }
    }

    fn ends(&self) -> MutexGuard<'_, Ends> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From before something that may end its processes is asked for until it is known to be over.
    pub(crate) fn ending(&self) -> Ending<'_> {
        let mut ends = self.ends();
        ends.epoch += 1;
        ends.under_way += 1;
        Ending(self)
    }

    /// The epoch, when nobody is about to end a process. Processes met in one epoch live while it
    /// lasts.
    pub(crate) fn steady(&self) -> Option<u64> {
        let ends = self.ends();
        (ends.under_way == 0).then_some(ends.epoch)
    }

    /// Before the first delete is asked for.
    pub(crate) fn delete(&self) {
        self.deleting.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_deleted(&self) -> bool {
        self.deleting.load(Ordering::SeqCst)
    }

    /// Puts down a life that was met in `epoch`.
    ///
    /// # Errors
    /// With what was known, when it is not the one that lives in this epoch.
    pub(crate) fn met(&self, epoch: u64, life: Life) -> Result<(), Life> {
        let mut known = self.life.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *known {
            Some(seen) if seen.epoch == epoch => {
                let same = seen.life.word == life.word
                    && seen.life.pid == life.pid
                    && seen.life.process == life.process;
                if !same {
                    return Err(seen.life.clone());
                }
                // Two clients ask at once: the count may have been read in either order.
                seen.life.count = seen.life.count.max(life.count);
            }
            Some(seen) if seen.epoch > epoch => {}
            _ => *known = Some(Seen { epoch, life }),
        }
        Ok(())
    }

    /// How far the main process had counted when it was last met, if it was in this epoch.
    pub(crate) fn counted(&self, epoch: u64) -> Option<u64> {
        let known = self.life.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = known.as_ref().filter(|seen| seen.epoch == epoch);
        seen.map(|seen| seen.life.count)
    }

    /// Whether a process was met in this epoch: then compute that is gone was lost by nobody's hand.
    pub(crate) fn lives_in(&self, epoch: u64) -> bool {
        let known = self.life.lock().unwrap_or_else(PoisonError::into_inner);
        known.as_ref().is_some_and(|seen| seen.epoch == epoch)
    }
}

/// See [`Ledger::ending`].
pub(crate) struct Ending<'a>(&'a Ledger);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let mut ends = self.0.ends();
        ends.epoch += 1;
        ends.under_way -= 1;
    }
}
