//! The handle, and what writes: each method one transaction. What only reads is in [`crate::reads`].

use std::fmt;
use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use overwinter_lifecycle::admission::Request;
use overwinter_lifecycle::ids::{Fence, Incarnation, Millis, OperationId, SandboxId};
use overwinter_lifecycle::record::{Compute, Debt, MainExit, Sandbox};
use overwinter_lifecycle::recording::{Ending, Recording};
use rusqlite::Connection;
use tokio::sync::watch;

use crate::core::{Counters, Job, Tx, Urgency};
use crate::error::Failure;
use crate::readers::{Readers, snapshot};
use crate::records::Records;
use crate::rows::{debts, idempotency, processes};
use crate::tx::record::Record;
use crate::tx::{accept, record, sweep, upkeep};
use crate::writer::Writer;
use crate::{
    Accept, AcceptError, Accepted, Durability, Meta, NewSandbox, ProcessResult, Stats, StoreError,
    StoreOptions, Swept, UpdateConfig, Written,
};
use crate::{label, open};

/// The durable store. Cheap to clone; closed when the last clone is dropped.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

/// Dropped from first to last: the lock goes after everything that it guards.
struct Inner {
    readers: Option<Readers>,
    writer: Writer,
    _lock: Option<File>,
    meta: Meta,
    counters: Arc<Counters>,
    records: Arc<Records>,
    newest: watch::Sender<u64>,
    synced: Arc<AtomicBool>,
    /// Up to which change the sweeps of this process have looked for surplus operations.
    trimmed: Mutex<Option<u64>>,
}

impl Store {
    /// Opens, migrates, takes the folder's lock and raises the epoch. Blocks for a few commits.
    ///
    /// # Errors
    /// [`StoreError::Locked`], [`StoreError::NewerSchema`], [`StoreError::UnfinishableOperation`],
    /// or what the disk says.
    pub fn open(options: StoreOptions) -> Result<Self, StoreError> {
        let opened = open::open(&options)?;
        let readers = opened.path.as_deref().map(Readers::new).transpose()?;
        let counters = Arc::clone(&opened.core.counters);
        let newest = opened.core.newest.clone();
        let records = Arc::clone(&opened.core.records);
        let synced = Arc::clone(&opened.core.synced);
        Ok(Self {
            inner: Arc::new(Inner {
                readers,
                writer: Writer::new(options.writer, opened.core, options.pace)?,
                _lock: opened.lock,
                meta: opened.meta,
                counters,
                records,
                newest,
                synced,
                trimmed: Mutex::new(None),
            }),
        })
    }

    /// Accepts and begins a create. Nothing is written unless it begins.
    ///
    /// # Errors
    /// [`AcceptError::NameTaken`], [`AcceptError::Denied`] (capacity), [`AcceptError::KeyReused`].
    pub async fn accept_create(&self, new: NewSandbox) -> Result<Accepted, AcceptError> {
        self.write(label::ACCEPT_CREATE, Urgency::Ordinary, move |tx| {
            accept::create(tx, &new)
        })
        .await
    }

    /// Admits any other verb, and begins its operation when nothing else runs.
    ///
    /// # Errors
    /// [`AcceptError::Denied`], [`AcceptError::KeyReused`], [`StoreError::NotFound`].
    pub async fn accept(&self, accept: Accept) -> Result<Accepted, AcceptError> {
        let urgency = match accept.request {
            // It is what makes room.
            Request::Delete { .. } => Urgency::Essential,
            Request::Suspend { .. } | Request::Resume { .. } | Request::Start => Urgency::Ordinary,
        };
        let durability = accept.durability;
        self.write_so(label::ACCEPT, (urgency, durability), move |tx| {
            accept::accept(tx, &accept)
        })
        .await
    }

    /// A call of the data plane turns back this idle suspend. False: it is not running any more,
    /// is no idle one, or is past its point of no turning back.
    ///
    /// # Errors
    /// [`StoreError::NotFound`].
    pub async fn turn_back_for_call(
        &self,
        sandbox: SandboxId,
        suspend: OperationId,
    ) -> Result<bool, StoreError> {
        self.write(label::TURN_BACK, Urgency::Ordinary, move |tx| {
            accept::turn_back_for_call(tx, sandbox, suspend)
        })
        .await
    }

    /// One durable step of the running operation (`id`, `fence`), with the microseconds that its
    /// steps took since the last recording and what was learnt of processes, all in one commit.
    /// `exits` are kept even where the answer is [`Recorded::Stop`].
    ///
    /// [`Recorded::Stop`]: overwinter_lifecycle::recording::Recorded::Stop
    ///
    /// # Errors
    /// [`StoreError::NotRunning`]: the writer was fenced off; [`StoreError::NotFound`].
    pub async fn record(
        &self,
        sandbox: SandboxId,
        operation: (OperationId, Fence),
        recording: Recording,
        timings: Vec<(String, u64)>,
        exits: Vec<ProcessResult>,
        now: Millis,
    ) -> Result<Written, StoreError> {
        let asked = Record {
            sandbox,
            operation,
            recording,
            timings,
            exits,
            now,
        };
        let label = label::of(&asked.recording);
        // Of these alone there can be some that need not wait; the transaction says whether they do.
        let durability = match asked.recording {
            Recording::End(Ending::Ready { .. }) => Durability::Soon,
            Recording::Intent { .. } if overwinter_lifecycle::mutant!(IntentNotAwaited) => {
                Durability::Soon
            }
            Recording::End(_)
            | Recording::Intent { .. }
            | Recording::Terminated
            | Recording::Reattach(_)
            | Recording::GiveUpMemory
            | Recording::FallBack => Durability::Before,
        };
        self.write_so(label, (Urgency::Essential, durability), move |tx| {
            record::record(tx, &asked)
        })
        .await
    }

    /// Whether all that was committed is on the disk.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        self.inner.synced.load(Ordering::Acquire)
    }

    /// Has all that was committed before this on the disk, and its changes seen. Nothing to do where it is
    /// there.
    ///
    /// # Errors
    /// What the disk says. The store then takes nothing any more: nobody knows what is on the disk.
    pub async fn sync(&self) -> Result<(), StoreError> {
        if self.is_synced() {
            return Ok(());
        }
        self.write(label::SYNC, Urgency::NeedsNoRoom, |_| Ok(()))
            .await
    }

    /// All sandboxes with an unfinished operation, each running one with its attempt raised.
    ///
    /// # Errors
    /// What the disk says.
    pub async fn recover(&self) -> Result<Vec<Sandbox>, StoreError> {
        self.write(label::RECOVER, Urgency::Essential, upkeep::recover)
            .await
    }

    /// Compute was observed while nothing ran on the sandbox and `issued` was its newest incarnation.
    /// The record when that changed it.
    ///
    /// # Errors
    /// [`StoreError::NotFound`].
    pub async fn record_loss(
        &self,
        sandbox: SandboxId,
        observed: Compute,
        issued: Incarnation,
        now: Millis,
    ) -> Result<Option<Sandbox>, StoreError> {
        self.write(label::LOSS, Urgency::Essential, move |tx| {
            upkeep::record_loss(tx, sandbox, observed, issued, now)
        })
        .await
    }

    /// Compute that holds `held` was seen frozen while nothing ran on the sandbox, whose newest fence
    /// was `fence`, and its record says that it runs. The record when that changed it.
    ///
    /// # Errors
    /// [`StoreError::NotFound`].
    pub async fn record_frozen(
        &self,
        sandbox: SandboxId,
        held: Incarnation,
        fence: Fence,
        now: Millis,
    ) -> Result<Option<Sandbox>, StoreError> {
        self.write(label::LOSS, Urgency::Essential, move |tx| {
            upkeep::record_frozen(tx, sandbox, held, fence, now)
        })
        .await
    }

    /// The main process has ended.
    ///
    /// # Errors
    /// [`StoreError::NotFound`].
    pub async fn record_main_exit(
        &self,
        sandbox: SandboxId,
        exit: MainExit,
    ) -> Result<Sandbox, StoreError> {
        self.write(label::MAIN_EXIT, Urgency::Ordinary, move |tx| {
            upkeep::record_main_exit(tx, sandbox, exit)
        })
        .await
    }

    /// Keeps what was learnt of processes, of each sandbox the newest 1,000 and ended ones for a
    /// day. The first end of a process is the one that stays. What runs in a sandbox without compute
    /// is lost. A sandbox that is not there any more has no processes.
    ///
    /// # Errors
    /// What the disk says.
    pub async fn save_processes(
        &self,
        learnt: Vec<(SandboxId, Vec<ProcessResult>)>,
        now: Millis,
    ) -> Result<(), StoreError> {
        self.write(label::EXITS, Urgency::Ordinary, move |tx| {
            upkeep::save_processes(tx, &learnt, now)
        })
        .await
    }

    /// Changes labels and config; the config's version rises by one.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] with the version that it is at; [`StoreError::NotFound`] (also for
    /// a tombstone).
    pub async fn update(
        &self,
        sandbox: SandboxId,
        update: UpdateConfig,
        now: Millis,
    ) -> Result<Sandbox, StoreError> {
        self.write(label::UPDATE, Urgency::Ordinary, move |tx| {
            upkeep::update(tx, sandbox, &update, now)
        })
        .await
    }

    /// A debt is paid. A debt of compute that was the sandbox's last lets it start again. Paying
    /// one twice is nothing.
    ///
    /// # Errors
    /// What the disk says.
    pub async fn settle_debt(&self, debt: Debt) -> Result<(), StoreError> {
        self.write(label::DEBT, Urgency::Essential, move |tx| {
            upkeep::settle_debt(tx, &debt)
        })
        .await
    }

    /// A debt could not be paid: try again at `due`, which is an hour ahead at most. One that turns out
    /// to be further ahead was deferred before the clock was set back, and is due.
    ///
    /// # Errors
    /// What the disk says.
    pub async fn defer_debt(&self, debt: Debt, due: Millis) -> Result<(), StoreError> {
        self.write(label::DEBT, Urgency::Ordinary, move |tx| {
            debts::defer(tx, &debt, due)
        })
        .await
    }

    /// Removes what has had its time, in small transactions: tombstones with their receipts and
    /// operations after seven days (not while debts of theirs remain), idempotency keys at the end
    /// of their life, process results after a day, ended operations beyond a sandbox's newest 100.
    ///
    /// # Errors
    /// What the disk says.
    pub async fn sweep(&self, now: Millis) -> Result<Swept, StoreError> {
        Ok(Swept {
            tombstones: self.sweep_tombstones(now).await?,
            operations: self.sweep_operations(now).await?,
            idempotency_keys: self
                .sweep_rows(move |tx| idempotency::expire(tx, now, sweep::CHUNK))
                .await?,
            process_results: self
                .sweep_rows(move |tx| {
                    processes::expire(tx, sweep::results_before(now), sweep::CHUNK)
                })
                .await?,
        })
    }

    /// The number of the newest change that is on the disk, updated after each commit that changed a
    /// sandbox.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.inner.newest.subscribe()
    }

    /// What the store is.
    #[must_use]
    pub fn meta(&self) -> &Meta {
        &self.inner.meta
    }

    /// What it has done since it was opened.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.inner.counters.read()
    }

    pub(crate) fn newest_durable(&self) -> u64 {
        *self.inner.newest.borrow()
    }

    async fn write<T, E, F>(&self, label: &'static str, urgency: Urgency, work: F) -> Result<T, E>
    where
        T: Send + 'static,
        E: Failure,
        F: Fn(&Tx<'_>) -> Result<T, E> + Send + 'static,
    {
        self.write_so(label, (urgency, Durability::Before), work)
            .await
    }

    async fn write_so<T, E, F>(
        &self,
        label: &'static str,
        so: (Urgency, Durability),
        work: F,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: Failure,
        F: Fn(&Tx<'_>) -> Result<T, E> + Send + 'static,
    {
        let (job, answer) = Job::new(label, so, work);
        self.inner.writer.submit(job).await?;
        answer
            .await
            .unwrap_or_else(|_| Err(StoreError::Closed.into()))
    }

    pub(crate) fn record_in_memory(&self, id: SandboxId) -> Option<Arc<Sandbox>> {
        self.inner.records.get(id)
    }

    pub(crate) fn read<T>(
        &self,
        query: impl FnOnce(&Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        match &self.inner.readers {
            Some(readers) => readers.read(query),
            None => snapshot(&self.inner.writer.core().conn, query),
        }
    }

    async fn sweep_tombstones(&self, now: Millis) -> Result<u64, StoreError> {
        let mut removed = 0;
        loop {
            let due = self.read(|conn| sweep::due_tombstones(conn, now))?;
            if due.is_empty() {
                return Ok(removed);
            }
            removed += self
                .write(label::SWEEP, Urgency::Essential, move |tx| {
                    sweep::bury(tx, &due)
                })
                .await?;
        }
    }

    async fn sweep_operations(&self, now: Millis) -> Result<u64, StoreError> {
        let mut removed = 0;
        loop {
            let after = *self.trimmed();
            let surplus = self.read(|conn| sweep::find_surplus(conn, after))?;
            let (up_to, more) = (surplus.up_to, surplus.more);
            removed += self
                .write(label::SWEEP, Urgency::Essential, move |tx| {
                    sweep::trim(tx, &surplus, now)
                })
                .await?;
            *self.trimmed() = Some(up_to);
            if !more {
                return Ok(removed);
            }
        }
    }

    async fn sweep_rows<F>(&self, remove: F) -> Result<u64, StoreError>
    where
        F: Fn(&Tx<'_>) -> Result<usize, StoreError> + Copy + Send + 'static,
    {
        let mut removed = 0;
        loop {
            let rows = self.write(label::SWEEP, Urgency::Essential, remove).await?;
            removed += rows as u64;
            if rows < sweep::CHUNK {
                return Ok(removed);
            }
        }
    }

    fn trimmed(&self) -> MutexGuard<'_, Option<u64>> {
        let trimmed = self.inner.trimmed.lock();
        trimmed.unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("meta", &self.inner.meta)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
