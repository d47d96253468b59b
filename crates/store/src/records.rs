//! The newest committed records, in memory: a step need not read and understand what the step
//! before it wrote.
//!
//! Only the writer writes, so what it has committed is what is there. A record that a transaction
//! changes is taken out before its commit and put back after it: whoever reads in between reads the
//! database, and nobody ever sees an older record than somebody before.

use std::cell::RefCell;
use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lru::LruCache;
use overwinter_lifecycle::ids::SandboxId;
use overwinter_lifecycle::record::Sandbox;

/// Some kilobytes each. A sandbox is in use for minutes, and few of many are.
const KEPT: NonZeroUsize = NonZeroUsize::new(1_024).unwrap();

pub(crate) struct Records {
    committed: Mutex<LruCache<SandboxId, Arc<Sandbox>>>,
}

impl Default for Records {
    fn default() -> Self {
        Self {
            committed: Mutex::new(LruCache::new(KEPT)),
        }
    }
}

impl Records {
    /// None: it is not kept, whether it exists or not.
    pub(crate) fn get(&self, id: SandboxId) -> Option<Arc<Sandbox>> {
        self.lock().get(&id).cloned()
    }

    pub(crate) fn before_commit(&self, pending: &Pending) {
        let mut committed = self.lock();
        for id in pending.0.borrow().keys() {
            committed.pop(id);
        }
    }

    pub(crate) fn after_commit(&self, pending: &Pending) {
        let mut committed = self.lock();
        for (id, written) in pending.0.borrow_mut().drain() {
            if let Some(sandbox) = written {
                committed.put(id, sandbox);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, LruCache<SandboxId, Arc<Sandbox>>> {
        self.committed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the open transaction has written; None: removed.
#[derive(Default)]
pub(crate) struct Pending(RefCell<HashMap<SandboxId, Option<Arc<Sandbox>>>>);

impl Pending {
    /// It was rolled back.
    pub(crate) fn clear(&self) {
        self.0.borrow_mut().clear();
    }
}

/// The records as a transaction sees them.
#[derive(Clone, Copy)]
pub(crate) struct InTransaction<'a> {
    committed: &'a Records,
    pending: &'a Pending,
}

impl<'a> InTransaction<'a> {
    pub(crate) const fn new(committed: &'a Records, pending: &'a Pending) -> Self {
        Self { committed, pending }
    }

    /// None: it is not known here, whether it exists or not.
    pub(crate) fn find(&self, id: SandboxId) -> Option<Arc<Sandbox>> {
        match self.pending.0.borrow().get(&id) {
            Some(written) => written.clone(),
            None => self.committed.get(id),
        }
    }

    pub(crate) fn wrote(&self, sandbox: &Sandbox) {
        let written = Some(Arc::new(sandbox.clone()));
        self.pending.0.borrow_mut().insert(sandbox.id, written);
    }

    pub(crate) fn removed(&self, id: SandboxId) {
        self.pending.0.borrow_mut().insert(id, None);
    }
}
