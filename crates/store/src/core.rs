//! The one connection that writes: transactions in, one COMMIT for all that came together.
//!
//! ```text
//!  BEGIN IMMEDIATE ─ job ─ job ─ … ─ COMMIT ─ answers
//!   a job fails        it has written nothing: its answer is kept, the others go on
//!                      it has written: ROLLBACK, and all the others again without it
//!   the disk is full   ROLLBACK, give the reserve up, and the essential ones again
//! ```
//!
//! What only has to be on the disk [`Durability::Soon`] is committed without waiting for the disk, unless
//! something that has to be there goes with it. The log is written in order, so the next commit that
//! waits has all before it on the disk as well.
//!
//! No savepoints: a refusal comes before the first write nearly always, and a savepoint would copy
//! every page that each job touches.

use std::cell::Cell;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use overwinter_lifecycle::capacity::Limits;
use rusqlite::Connection;
use tokio::sync::{oneshot, watch};

use crate::error::Failure;
use crate::records::{InTransaction, Pending, Records};
use crate::reserve::Reserve;
use crate::{CommitHook, CommitPoint, Durability, FullHook, Stats, StoreError};

/// What a transaction sees.
pub(crate) struct Tx<'a> {
    pub(crate) conn: &'a Connection,
    pub(crate) limits: &'a Limits,
    pub(crate) records: InTransaction<'a>,
    seq: &'a Cell<u64>,
    for_disk: &'a Cell<bool>,
}

impl Tx<'_> {
    /// What it writes has to be on the disk before its caller is answered, whatever was thought before.
    pub(crate) fn wait_for_disk(&self) {
        self.for_disk.set(true);
    }

    /// The next number of the change sequence. One that is rolled back is never used again.
    pub(crate) fn next_seq(&self) -> u64 {
        self.seq.set(self.seq.get() + 1);
        self.seq.get()
    }

    pub(crate) fn seq(&self) -> u64 {
        self.seq.get()
    }
}

/// Whether a transaction is carried out on a full disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// Not before there is room again.
    Ordinary,
    /// Out of the reserve: it frees room, or records what has already happened.
    Essential,
    /// It takes none.
    NeedsNoRoom,
}

/// One transaction with its caller.
pub(crate) struct Job {
    pub(crate) label: &'static str,
    pub(crate) urgency: Urgency,
    pub(crate) durability: Durability,
    /// It has its answer, and is not run again.
    settled: bool,
    work: Box<dyn Work>,
}

trait Work: Send {
    /// Runs it; it may be run again after a rollback.
    fn run(&mut self, tx: &Tx<'_>) -> Ran;
    /// Settles the answer without running it.
    fn refuse(&mut self, error: StoreError);
    /// Sends the answer, once it is known whether the commit is durable.
    fn answer(self: Box<Self>, committed: Result<(), StoreError>);
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Ran {
    Done,
    Failed,
    Full,
}

/// Why a batch was not committed.
enum Stopped {
    /// A job failed after it had written. It has its answer; the others are to be run again.
    Spoiled,
    Failed(StoreError),
}

impl From<StoreError> for Stopped {
    fn from(error: StoreError) -> Self {
        Self::Failed(error)
    }
}

struct Task<T, E, F> {
    work: F,
    result: Option<Result<T, E>>,
    caller: oneshot::Sender<Result<T, E>>,
}

impl<T, E, F> Work for Task<T, E, F>
where
    T: Send + 'static,
    E: Failure,
    F: Fn(&Tx<'_>) -> Result<T, E> + Send,
{
    fn run(&mut self, tx: &Tx<'_>) -> Ran {
        let result = (self.work)(tx);
        let ran = match &result {
            Ok(_) => Ran::Done,
            Err(error) if error.is_full() => Ran::Full,
            Err(_) => Ran::Failed,
        };
        self.result = Some(result);
        ran
    }

    fn refuse(&mut self, error: StoreError) {
        self.result = Some(Err(error.into()));
    }

    fn answer(self: Box<Self>, committed: Result<(), StoreError>) {
        let answer = match (self.result, committed) {
            // What was refused stays refused, with its own reason.
            (Some(Err(error)), Ok(())) => Err(error),
            (Some(Ok(value)), Err(_)) if overwinter_lifecycle::mutant!(CommitUnchecked) => {
                Ok(value)
            }
            (_, Err(error)) => Err(error.into()),
            (Some(Ok(value)), Ok(())) => Ok(value),
            (None, Ok(())) => Err(StoreError::Closed.into()),
        };
        // The caller may have gone; what was committed stays committed.
        drop(self.caller.send(answer));
    }
}

impl Job {
    pub(crate) fn new<T, E, F>(
        label: &'static str,
        (urgency, durability): (Urgency, Durability),
        work: F,
    ) -> (Self, oneshot::Receiver<Result<T, E>>)
    where
        T: Send + 'static,
        E: Failure,
        F: Fn(&Tx<'_>) -> Result<T, E> + Send + 'static,
    {
        let (caller, answer) = oneshot::channel();
        let work = Box::new(Task {
            work,
            result: None,
            caller,
        });
        (
            Self {
                label,
                urgency,
                durability,
                settled: false,
                work,
            },
            answer,
        )
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    transactions: AtomicU64,
    commits: AtomicU64,
}

impl Counters {
    pub(crate) fn read(&self) -> Stats {
        Stats {
            transactions: self.transactions.load(Ordering::Relaxed),
            commits: self.commits.load(Ordering::Relaxed),
        }
    }
}

pub(crate) struct Core {
    pub(crate) conn: Connection,
    pub(crate) limits: Limits,
    /// None in memory.
    pub(crate) reserve: Option<Reserve>,
    pub(crate) hook: Option<CommitHook>,
    pub(crate) full: Option<FullHook>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) newest: watch::Sender<u64>,
    pub(crate) seq: Cell<u64>,
    pub(crate) records: Arc<Records>,
    /// What the open transaction has written.
    pub(crate) pending: Pending,
    /// The write-ahead log; none in memory.
    pub(crate) log: Option<File>,
    /// Whether all that was committed is on the disk.
    pub(crate) synced: Arc<AtomicBool>,
    /// Whether the connection waits for the disk at each commit.
    pub(crate) waits: Cell<bool>,
    /// Whether this commit is to be waited for all the same.
    pub(crate) for_disk: Cell<bool>,
    /// The disk has lost what was written to it: what was committed may be gone, and nothing may be
    /// built on it.
    pub(crate) broken: Option<StoreError>,
}

impl Core {
    /// Runs jobs in one commit and answers each.
    pub(crate) fn run(&mut self, mut jobs: Vec<Job>) {
        if let Some(reserve) = &mut self.reserve {
            reserve.restore();
        }
        let durability = jobs.iter().map(|job| job.durability).max();
        let durability = durability.unwrap_or(Durability::Soon);
        let mut committed = self
            .begin(durability)
            .and_then(|()| self.attempt(&mut jobs));
        if committed == Err(StoreError::Full) && self.reserve.as_mut().is_some_and(Reserve::release)
        {
            committed = self.attempt(&mut jobs);
        }
        if committed.is_ok() && (durability == Durability::Before || self.for_disk.get()) {
            committed = self.sync();
        }
        for job in jobs {
            job.work.answer(committed.clone());
        }
    }

    /// Before a transaction: how its commit is to be.
    fn begin(&self, durability: Durability) -> Result<(), StoreError> {
        if let Some(broken) = &self.broken {
            return Err(broken.clone());
        }
        self.for_disk.set(false);
        let waits = durability == Durability::Before;
        if self.waits.get() != waits {
            let level = if waits { "FULL" } else { "NORMAL" };
            self.conn.pragma_update(None, "synchronous", level)?;
            self.waits.set(waits);
        }
        Ok(())
    }

    /// Has all that was committed on the disk, and lets its changes be seen.
    fn sync(&mut self) -> Result<(), StoreError> {
        if let (false, Some(log)) = (self.synced.load(Ordering::Acquire), &self.log)
            && let Err(error) = log.sync_data()
        {
            let broken = StoreError::io("state.db-wal".as_ref(), &error);
            self.broken = Some(broken.clone());
            return Err(broken);
        }
        self.synced.store(true, Ordering::Release);
        let seq = self.seq.get();
        self.newest.send_if_modified(|newest| {
            let newer = *newest < seq;
            *newest = seq;
            newer
        });
        Ok(())
    }

    /// Until all that can be committed together is.
    fn attempt(&self, jobs: &mut [Job]) -> Result<(), StoreError> {
        loop {
            let stopped = match self.transact(jobs) {
                Ok(()) => return Ok(()),
                Err(stopped) => stopped,
            };
            if !overwinter_lifecycle::mutant!(RolledBackIsKept) {
                self.pending.clear();
            }
            if !self.conn.is_autocommit() {
                self.execute("ROLLBACK")?;
            }
            match stopped {
                Stopped::Spoiled => {}
                Stopped::Failed(error) => return Err(error),
            }
        }
    }

    fn transact(&self, jobs: &mut [Job]) -> Result<(), Stopped> {
        let only_essential = self.reserve.as_ref().is_some_and(Reserve::is_spent);
        let tx = Tx {
            conn: &self.conn,
            limits: &self.limits,
            records: InTransaction::new(&self.records, &self.pending),
            seq: &self.seq,
            for_disk: &self.for_disk,
        };
        let mut wrote = Vec::new();
        if self.conn.is_autocommit() {
            self.execute("BEGIN IMMEDIATE")?;
        }
        for job in jobs.iter_mut().filter(|job| !job.settled) {
            if only_essential && job.urgency == Urgency::Ordinary {
                job.work.refuse(StoreError::Full);
                continue;
            }
            let needs_room = job.urgency != Urgency::NeedsNoRoom;
            if let Some(full) = self.full.as_ref().filter(|_| needs_room)
                && full(job.label, only_essential)
            {
                return Err(StoreError::Full.into());
            }
            let before = self.conn.total_changes();
            let ran = job.work.run(&tx);
            if ran == Ran::Full {
                return Err(StoreError::Full.into());
            }
            if self.conn.is_autocommit() {
                // SQLite has rolled everything back by itself, the neighbours' work too.
                return Err(Stopped::Failed(StoreError::Sqlite {
                    code: rusqlite::ffi::SQLITE_ABORT_ROLLBACK,
                    message: "the transaction was rolled back".to_owned(),
                }));
            }
            match (ran, self.conn.total_changes() > before) {
                (Ran::Failed, true) => {
                    job.settled = true;
                    return Err(Stopped::Spoiled);
                }
                (Ran::Done, true) => wrote.push(job.label),
                (Ran::Done | Ran::Failed | Ran::Full, _) => {}
            }
        }
        // Where the disk is full, it is often the commit itself that meets it.
        if let (Some(full), Some(label)) = (&self.full, wrote.first())
            && full(label, only_essential)
        {
            return Err(StoreError::Full.into());
        }
        self.call_hook(CommitPoint::Before, &wrote);
        self.records.before_commit(&self.pending);
        if !(overwinter_lifecycle::mutant!(CommitLate) && wrote == [crate::label::ACCEPT]) {
            self.execute("COMMIT")?;
        }
        if !wrote.is_empty() {
            // Where this one has waited for the disk, all before it is there as well.
            self.synced.store(self.waits.get(), Ordering::Release);
        }
        self.records.after_commit(&self.pending);
        self.call_hook(CommitPoint::After, &wrote);
        if !wrote.is_empty() {
            let counters = &self.counters;
            counters
                .transactions
                .fetch_add(wrote.len() as u64, Ordering::Relaxed);
            counters.commits.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn execute(&self, sql: &'static str) -> Result<(), StoreError> {
        self.conn.prepare_cached(sql)?.execute([])?;
        Ok(())
    }

    fn call_hook(&self, point: CommitPoint, labels: &[&'static str]) {
        if let Some(hook) = &self.hook {
            let durability = if self.waits.get() || self.for_disk.get() {
                Durability::Before
            } else {
                Durability::Soon
            };
            for label in labels {
                hook(point, label, durability);
            }
        }
    }
}
