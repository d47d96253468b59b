//! The handle: each method one transaction, or one read.

use std::collections::BTreeMap;

use overwinter_lifecycle::Name;
use overwinter_lifecycle::ids::{Fence, Millis, OperationId, SandboxId};
use overwinter_lifecycle::operation::Operation;
use overwinter_lifecycle::record::{Compute, Debt, MainExit, Sandbox};
use overwinter_lifecycle::recording::Recording;
use tokio::sync::watch;
use uuid::Uuid;

use crate::{
    Accept, AcceptError, Accepted, Changes, ListFilter, Meta, NewSandbox, OperationFilter,
    ProcessResult, Receipt, Stats, StoreError, StoreOptions, Swept, UpdateConfig, Written,
};

/// The durable store. Cheap to clone; closed when the last clone is dropped.
#[derive(Clone, Debug)]
pub struct Store {}

impl Store {
    /// Opens, migrates, takes the folder's lock and raises the epoch. Blocks for a few commits.
    ///
    /// # Errors
    /// [`StoreError::Locked`], [`StoreError::NewerSchema`], [`StoreError::UnfinishableOperation`],
    /// or what the disk says.
    pub fn open(_options: StoreOptions) -> Result<Self, StoreError> {
        unimplemented!()
    }

    /// Accepts and begins a create. Nothing is written unless it begins.
    ///
    /// # Errors
    /// [`AcceptError::NameTaken`], [`AcceptError::Denied`] (capacity), [`AcceptError::KeyReused`].
    pub async fn accept_create(&self, _new: NewSandbox) -> Result<Accepted, AcceptError> {
        unimplemented!()
    }

    /// Admits any other verb, and begins its operation when nothing else runs.
    ///
    /// # Errors
    /// [`AcceptError::Denied`], [`AcceptError::KeyReused`], [`StoreError::NotFound`].
    pub async fn accept(&self, _accept: Accept) -> Result<Accepted, AcceptError> {
        unimplemented!()
    }

    /// A call of the data plane turns back this idle suspend. False: it is not running any more,
    /// is no idle one, or is past its point of no turning back.
    ///
    /// # Errors
    /// [`StoreError::NotFound`].
    pub async fn turn_back_for_call(
        &self,
        _sandbox: SandboxId,
        _suspend: OperationId,
    ) -> Result<bool, StoreError> {
        unimplemented!()
    }

    /// One durable step of the running operation (`id`, `fence`), with the microseconds that its
    /// steps took since the last recording and the processes that ended, all in one commit.
    /// `exits` are kept even where the answer is [`Recorded::Stop`].
    ///
    /// [`Recorded::Stop`]: overwinter_lifecycle::recording::Recorded::Stop
    ///
    /// # Errors
    /// [`StoreError::NotRunning`]: the writer was fenced off; [`StoreError::NotFound`].
    pub async fn record(
        &self,
        _sandbox: SandboxId,
        _operation: (OperationId, Fence),
        _recording: Recording,
        _timings: Vec<(String, u64)>,
        _exits: Vec<ProcessResult>,
        _now: Millis,
    ) -> Result<Written, StoreError> {
        unimplemented!()
    }

    /// All sandboxes with an unfinished operation, each running one with its attempt raised.
    ///
    /// # Errors
    /// What the disk says.
    pub async fn recover(&self) -> Result<Vec<Sandbox>, StoreError> {
        unimplemented!()
    }

    /// Compute was observed while nothing ran on the sandbox. The record when that changed it.
    ///
    /// # Errors
    /// [`StoreError::NotFound`].
    pub async fn record_loss(
        &self,
        _sandbox: SandboxId,
        _observed: Compute,
        _now: Millis,
    ) -> Result<Option<Sandbox>, StoreError> {
        unimplemented!()
    }

    /// The main process has ended.
    ///
    /// # Errors
    /// [`StoreError::NotFound`].
    pub async fn record_main_exit(
        &self,
        _sandbox: SandboxId,
        _exit: MainExit,
    ) -> Result<Sandbox, StoreError> {
        unimplemented!()
    }

    /// Keeps what became of processes: the newest 1,000 of a sandbox, for a day. The first result
    /// of a process is the one that stays.
    ///
    /// # Errors
    /// [`StoreError::NotFound`].
    pub async fn save_exits(
        &self,
        _sandbox: SandboxId,
        _exits: Vec<ProcessResult>,
    ) -> Result<(), StoreError> {
        unimplemented!()
    }

    /// Changes labels and config; the config's version rises by one.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] with the version that it is at; [`StoreError::NotFound`] (also for
    /// a tombstone).
    pub async fn update(
        &self,
        _sandbox: SandboxId,
        _update: UpdateConfig,
        _now: Millis,
    ) -> Result<Sandbox, StoreError> {
        unimplemented!()
    }

    /// A debt is paid. A debt of compute that was the sandbox's last lets it start again. Paying
    /// one twice is nothing.
    ///
    /// # Errors
    /// What the disk says.
    pub async fn settle_debt(&self, _debt: Debt) -> Result<(), StoreError> {
        unimplemented!()
    }

    /// A debt could not be paid: try again at `due`.
    ///
    /// # Errors
    /// What the disk says.
    pub async fn defer_debt(&self, _debt: Debt, _due: Millis) -> Result<(), StoreError> {
        unimplemented!()
    }

    /// Removes what has had its time, in small transactions: tombstones with their receipts and
    /// operations after seven days (not while debts of theirs remain), idempotency keys at the end
    /// of their life, process results after a day, ended operations beyond a sandbox's newest 100.
    ///
    /// # Errors
    /// What the disk says.
    pub async fn sweep(&self, _now: Millis) -> Result<Swept, StoreError> {
        unimplemented!()
    }

    /// Sandboxes on which nothing runs and whose compute may exist: to be observed at start.
    ///
    /// # Errors
    /// As for every read: what the disk says.
    pub async fn awake(&self) -> Result<Vec<SandboxId>, StoreError> {
        unimplemented!()
    }

    /// Sandboxes to be deleted on which nothing runs: to be tried again.
    ///
    /// # Errors
    /// As for every read.
    pub async fn deleting_idle(&self) -> Result<Vec<SandboxId>, StoreError> {
        unimplemented!()
    }

    /// By id, tombstones too.
    ///
    /// # Errors
    /// As for every read.
    pub async fn get(&self, _id: SandboxId) -> Result<Option<Sandbox>, StoreError> {
        unimplemented!()
    }

    /// By name, among those that hold theirs.
    ///
    /// # Errors
    /// As for every read.
    pub async fn find(&self, _tenant: &str, _name: &Name) -> Result<Option<Sandbox>, StoreError> {
        unimplemented!()
    }

    /// A page, ascending by id.
    ///
    /// # Errors
    /// As for every read.
    pub async fn list(&self, _filter: ListFilter) -> Result<Vec<Sandbox>, StoreError> {
        unimplemented!()
    }

    /// How many are in each phase ([`overwinter_lifecycle::Phase::as_str`]), tombstones too; of one
    /// tenant or of all.
    ///
    /// # Errors
    /// As for every read.
    pub async fn count_by_phase(
        &self,
        _tenant: Option<&str>,
    ) -> Result<BTreeMap<String, u64>, StoreError> {
        unimplemented!()
    }

    /// What changed after `seq`: at most `limit` sandboxes.
    ///
    /// # Errors
    /// As for every read.
    pub async fn changes_since(&self, _seq: u64, _limit: usize) -> Result<Changes, StoreError> {
        unimplemented!()
    }

    /// The number of the newest change, updated after each commit that changed a sandbox.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        unimplemented!()
    }

    /// By id.
    ///
    /// # Errors
    /// As for every read.
    pub async fn operation(&self, _id: OperationId) -> Result<Option<Operation>, StoreError> {
        unimplemented!()
    }

    /// A page, newest first.
    ///
    /// # Errors
    /// As for every read.
    pub async fn operations(&self, _filter: OperationFilter) -> Result<Vec<Operation>, StoreError> {
        unimplemented!()
    }

    /// Newest first.
    ///
    /// # Errors
    /// As for every read.
    pub async fn process_results(
        &self,
        _sandbox: SandboxId,
    ) -> Result<Vec<ProcessResult>, StoreError> {
        unimplemented!()
    }

    /// Of one process.
    ///
    /// # Errors
    /// As for every read.
    pub async fn process_result(
        &self,
        _sandbox: SandboxId,
        _process: Uuid,
    ) -> Result<Option<ProcessResult>, StoreError> {
        unimplemented!()
    }

    /// The effect with the highest (fence, serial).
    ///
    /// # Errors
    /// As for every read.
    pub async fn newest_receipt(&self, _sandbox: SandboxId) -> Result<Option<Receipt>, StoreError> {
        unimplemented!()
    }

    /// All of a sandbox, ascending by (fence, serial).
    ///
    /// # Errors
    /// As for every read.
    pub async fn receipts(&self, _sandbox: SandboxId) -> Result<Vec<Receipt>, StoreError> {
        unimplemented!()
    }

    /// Debts that are due, the longest due first.
    ///
    /// # Errors
    /// As for every read.
    pub async fn debts_due(&self, _now: Millis, _limit: usize) -> Result<Vec<Debt>, StoreError> {
        unimplemented!()
    }

    /// How many debts there are, due or not; of one sandbox or of all.
    ///
    /// # Errors
    /// As for every read.
    pub async fn debt_count(&self, _sandbox: Option<SandboxId>) -> Result<u64, StoreError> {
        unimplemented!()
    }

    /// What the store is.
    #[must_use]
    pub fn meta(&self) -> &Meta {
        unimplemented!()
    }

    /// What it has done since it was opened.
    #[must_use]
    pub fn stats(&self) -> Stats {
        unimplemented!()
    }
}
