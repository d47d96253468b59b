//! What the store is asked: each method one read of one state, beside the writer.

use std::collections::BTreeMap;

use overwinter_lifecycle::Name;
use overwinter_lifecycle::ids::{Millis, OperationId, SandboxId};
use overwinter_lifecycle::operation::Operation;
use overwinter_lifecycle::record::{Debt, Sandbox};
use uuid::Uuid;

use crate::list;
use crate::rows::{debts, effects, operations, processes, sandboxes};
use crate::tx::accept;
use crate::{
    AcceptError, Accepted, Changes, Idempotency, ListFilter, OperationFilter, ProcessResult,
    Receipt, Store, StoreError,
};

impl Store {
    /// Sandboxes on which nothing runs and whose compute may exist: to be observed at start.
    ///
    /// # Errors
    /// As for every read: what the disk says.
    pub async fn awake(&self) -> Result<Vec<SandboxId>, StoreError> {
        self.read(list::awake)
    }

    /// The drivers that any living record names.
    ///
    /// # Errors
    /// As for every read.
    pub async fn drivers_in_use(&self) -> Result<Vec<String>, StoreError> {
        self.read(list::drivers_in_use)
    }

    /// Sandboxes to be deleted on which nothing runs: to be tried again.
    ///
    /// # Errors
    /// As for every read.
    pub async fn deleting_idle(&self) -> Result<Vec<SandboxId>, StoreError> {
        self.read(list::deleting_idle)
    }

    /// By id, tombstones too.
    ///
    /// # Errors
    /// As for every read.
    pub async fn get(&self, id: SandboxId) -> Result<Option<Sandbox>, StoreError> {
        match self.record_in_memory(id) {
            Some(known) => Ok(Some(Sandbox::clone(&known))),
            None => self.read(|conn| sandboxes::get(conn, id)),
        }
    }

    /// By name, among those that hold theirs.
    ///
    /// # Errors
    /// As for every read.
    pub async fn find(&self, tenant: &str, name: &Name) -> Result<Option<Sandbox>, StoreError> {
        let found = match self.read(|conn| sandboxes::holder(conn, tenant, name))? {
            Some(id) => self.get(id).await?,
            None => None,
        };
        // It may have gone in between.
        Ok(found.filter(Sandbox::holds_name))
    }

    /// The answer to an earlier call with this key, whatever the name that it used stands for now.
    /// None: there was none, or its life has ended.
    ///
    /// # Errors
    /// [`AcceptError::KeyReused`]; as for every read.
    pub async fn replay(
        &self,
        tenant: &str,
        key: &Idempotency,
        now: Millis,
    ) -> Result<Option<Accepted>, AcceptError> {
        self.read(|conn| Ok(accept::replay(conn, tenant, Some(key), now)))?
    }

    /// A page, ascending by id.
    ///
    /// # Errors
    /// As for every read.
    pub async fn list(&self, filter: ListFilter) -> Result<Vec<Sandbox>, StoreError> {
        self.read(|conn| list::list(conn, &filter))
    }

    /// How many are in each phase ([`overwinter_lifecycle::Phase::as_str`]), tombstones too; of one
    /// tenant or of all.
    ///
    /// # Errors
    /// As for every read.
    pub async fn count_by_phase(
        &self,
        tenant: Option<&str>,
    ) -> Result<BTreeMap<String, u64>, StoreError> {
        self.read(|conn| list::count_by_phase(conn, tenant))
    }

    /// What changed after `seq` and is on the disk: at most `limit` sandboxes.
    ///
    /// # Errors
    /// As for every read.
    pub async fn changes_since(&self, seq: u64, limit: usize) -> Result<Changes, StoreError> {
        // Read first: what is on the disk by now can be read by whoever begins to read after this.
        let durable = self.newest_durable();
        self.read(|conn| list::changes_since(conn, (seq, durable), limit))
    }

    /// The same with what is committed and not on the disk yet. For harnesses, that look at every commit.
    ///
    /// # Errors
    /// As for every read.
    pub async fn committed_since(&self, seq: u64, limit: usize) -> Result<Changes, StoreError> {
        self.read(|conn| list::changes_since(conn, (seq, i64::MAX.cast_unsigned()), limit))
    }

    /// By id.
    ///
    /// # Errors
    /// As for every read.
    pub async fn operation(&self, id: OperationId) -> Result<Option<Operation>, StoreError> {
        self.read(|conn| operations::get(conn, id))
    }

    /// A page, newest first.
    ///
    /// # Errors
    /// As for every read.
    pub async fn operations(&self, filter: OperationFilter) -> Result<Vec<Operation>, StoreError> {
        self.read(|conn| operations::list(conn, &filter))
    }

    /// Those that run, then those that have ended, newest first.
    ///
    /// # Errors
    /// As for every read.
    pub async fn process_results(
        &self,
        sandbox: SandboxId,
    ) -> Result<Vec<ProcessResult>, StoreError> {
        self.read(|conn| processes::all(conn, sandbox))
    }

    /// Every process that is known, and whether it runs.
    ///
    /// # Errors
    /// As for every read.
    pub async fn process_ids(&self, sandbox: SandboxId) -> Result<Vec<(Uuid, bool)>, StoreError> {
        self.read(|conn| processes::ids(conn, sandbox))
    }

    /// Of one process.
    ///
    /// # Errors
    /// As for every read.
    pub async fn process_result(
        &self,
        sandbox: SandboxId,
        process: Uuid,
    ) -> Result<Option<ProcessResult>, StoreError> {
        self.read(|conn| processes::get(conn, sandbox, process))
    }

    /// The effect with the highest (fence, serial).
    ///
    /// # Errors
    /// As for every read.
    pub async fn newest_receipt(&self, sandbox: SandboxId) -> Result<Option<Receipt>, StoreError> {
        self.read(|conn| effects::newest(conn, sandbox))
    }

    /// All of a sandbox, ascending by (fence, serial).
    ///
    /// # Errors
    /// As for every read.
    pub async fn receipts(&self, sandbox: SandboxId) -> Result<Vec<Receipt>, StoreError> {
        self.read(|conn| effects::all(conn, sandbox))
    }

    /// Debts that are due, the longest due first.
    ///
    /// # Errors
    /// As for every read.
    pub async fn debts_due(&self, now: Millis, limit: usize) -> Result<Vec<Debt>, StoreError> {
        self.read(|conn| debts::due(conn, now, limit))
    }

    /// How many debts there are, due or not; of one sandbox or of all.
    ///
    /// # Errors
    /// As for every read.
    pub async fn debt_count(&self, sandbox: Option<SandboxId>) -> Result<u64, StoreError> {
        self.read(|conn| debts::count(conn, sandbox))
    }
}
