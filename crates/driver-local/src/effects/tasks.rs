//! gVisor: halting the tasks inside, and letting them run again.
//!
//! A frozen gVisor sandbox is halted twice: first its tasks, by the runtime, then everything, by the
//! cgroup freezer. The freezer is what says that it is frozen, and costs nothing to ask. Because the
//! tasks are halted below it, the sentry alone can be thawed, to write its memory to disk, and no
//! code of the user's runs.
//!
//! The runtime's calls are counted and its file is written after them, so each is noted before. A
//! note that is still there means that nobody has seen the call end: then the sentry is asked.

use std::sync::Arc;

use overwinter_driver::DriverError;
use overwinter_lifecycle::ids::SandboxId;

use crate::artifact;
use crate::cgroup::Freezer;
use crate::compute::{ComputeRecord, Look, Running};
use crate::driver::{Shared, Turn, blocking};
use crate::error::LocalError;
use crate::runtime::{Kind, Runtime, RuntimeState, Status, Tasks};

impl Shared {
    /// Halts every task inside. Idempotent. The group is thawed.
    ///
    /// # Errors
    /// The tasks run, or nobody knows: [`Self::wake`] makes them run in both cases.
    pub(crate) async fn halt(&self, turn: &Turn, record: &ComputeRecord) -> Result<(), LocalError> {
        match self.tasks(turn, record).await? {
            Tasks::Halted => Ok(()),
            Tasks::Running => self.turn_tasks(turn, record, Tasks::Halted).await,
        }
    }

    /// Lets the tasks run again. Idempotent. The group is thawed.
    pub(crate) async fn wake(&self, turn: &Turn, record: &ComputeRecord) -> Result<(), LocalError> {
        match record.runtime {
            Kind::Runc => return Ok(()),
            Kind::Gvisor => {}
        }
        match self.tasks(turn, record).await? {
            Tasks::Running => Ok(()),
            Tasks::Halted => {
                self.forget_taken(record).await?;
                self.turn_tasks(turn, record, Tasks::Running).await
            }
        }
    }

    /// What was written of the memory of a compute that runs on: nobody was told of it, and it
    /// does not fit what that will write.
    async fn forget_taken(&self, record: &ComputeRecord) -> Result<(), LocalError> {
        let sandbox = record.sandbox()?;
        let dir = self.host.layout.sandbox(sandbox);
        let birth = record.birth;
        blocking(move || {
            for name in artifact::taken_of(&dir, sandbox, birth)? {
                artifact::remove(&dir, &name)?;
            }
            Ok(())
        })
        .await
    }

    /// The first half of a freeze.
    pub(super) async fn halt_to_freeze(
        self: &Arc<Self>,
        turn: &Arc<Turn>,
        sandbox: SandboxId,
    ) -> Result<(), DriverError> {
        let Some(running) = self.running_now(sandbox).await? else {
            return Ok(());
        };
        match running.freezer {
            Freezer::Frozen | Freezer::Freezing => return Ok(()),
            Freezer::Thawed => {}
        }
        let Err(error) = self.halt(turn, &running.record).await else {
            return Ok(());
        };
        match self.running_now(sandbox).await? {
            // Said by the second half.
            None => Ok(()),
            Some(now) => Err(self
                .back_to_work(turn, &now.record, error.without_effect())
                .await),
        }
    }

    /// A suspend that did not happen: its tasks run again, or nobody knows.
    pub(super) async fn back_to_work(
        &self,
        turn: &Turn,
        record: &ComputeRecord,
        error: DriverError,
    ) -> DriverError {
        match self.wake(turn, record).await {
            Ok(()) => error,
            Err(worse) => DriverError::Unknown(format!("{error}; and waking it: {worse}")),
        }
    }

    async fn turn_tasks(
        &self,
        turn: &Turn,
        record: &ComputeRecord,
        to: Tasks,
    ) -> Result<(), LocalError> {
        let sandbox = record.sandbox()?;
        let runtime = self.runtime_for(record)?;
        let lock = turn.lock.as_ref().ok_or(LocalError::BrokenOff)?;
        let dir = self.host.layout.sandbox(sandbox);
        let noted = ComputeRecord {
            turning: true,
            ..record.clone()
        };
        RuntimeState::keep(&self.host.layout, &record.native)?;
        noted.write(&dir)?;
        let call = self.host.call(&dir, record, lock, turn.to_settle());
        let turned = match to {
            Tasks::Halted => runtime.pause(&call).await,
            Tasks::Running => runtime.resume(&call).await,
        };
        // Ended by itself, with or without an error: its file says what is so.
        let cut_short = matches!(
            turned,
            Err(LocalError::RuntimeHung { .. } | LocalError::RuntimeKilled { .. })
        );
        if !cut_short {
            settled(record).write(&dir)?;
        }
        turned
    }

    /// What is so inside, and the runtime's file says the same afterwards.
    async fn tasks(&self, turn: &Turn, record: &ComputeRecord) -> Result<Tasks, LocalError> {
        let sandbox = record.sandbox()?;
        let layout = self.host.layout.clone();
        let native = record.native.clone();
        let (state, turning) = blocking(move || {
            let noted = ComputeRecord::read(&layout.sandbox(sandbox))?;
            let turning = noted.is_some_and(|noted| noted.turning);
            if turning {
                RuntimeState::repair(&layout, &native)?;
            }
            Ok((RuntimeState::read(&layout, &native)?, turning))
        })
        .await?;
        let said = match state.map(|state| state.status) {
            Some(Status::Paused) => Tasks::Halted,
            Some(Status::Made | Status::Started) | None => Tasks::Running,
        };
        if !turning {
            return Ok(said);
        }
        let runtime = self.runtime_for(record)?;
        let lock = turn.lock.as_ref().ok_or(LocalError::BrokenOff)?;
        let dir = self.host.layout.sandbox(sandbox);
        let call = self.host.call(&dir, record, lock, turn.to_settle());
        let found = runtime.tasks(&call).await?;
        if found != said {
            let status = match found {
                Tasks::Halted => Status::Paused,
                Tasks::Running => Status::Started,
            };
            RuntimeState::correct(&self.host.layout, &record.native, status)?;
        }
        settled(record).write(&dir)?;
        Ok(found)
    }

    /// Which runtime a sandbox's compute is of, so that runc's need not wait for a look.
    pub(super) async fn kind_of(
        self: &Arc<Self>,
        turn: &Turn,
        sandbox: SandboxId,
    ) -> Result<Kind, DriverError> {
        if let Some(kind) = turn.entry.live().as_ref().map(|live| live.runtime) {
            return Ok(kind);
        }
        let running = self.running_now(sandbox).await?;
        Ok(running.map_or(Kind::Runc, |running| running.record.runtime))
    }

    pub(super) async fn running_now(
        self: &Arc<Self>,
        sandbox: SandboxId,
    ) -> Result<Option<Running>, DriverError> {
        let host = Arc::clone(&self.host);
        let look = blocking(move || host.look(sandbox)).await;
        match look.map_err(LocalError::unsettled)? {
            Look::Running(running) => Ok(Some(running)),
            Look::Nothing | Look::Remains(_) => Ok(None),
        }
    }

    /// The runtime that knows what has started this compute.
    pub(crate) fn runtime_for(&self, record: &ComputeRecord) -> Result<Arc<Runtime>, LocalError> {
        let found = self.host.runtimes.of(record.runtime);
        found.cloned().ok_or_else(|| LocalError::NoRuntime {
            runtime: match record.runtime {
                Kind::Runc => "runc",
                Kind::Gvisor => "runsc",
            }
            .to_owned(),
            there: self.host.runtimes.names(),
        })
    }
}

fn settled(record: &ComputeRecord) -> ComputeRecord {
    ComputeRecord {
        turning: false,
        ..record.clone()
    }
}

impl ComputeRecord {
    fn sandbox(&self) -> Result<SandboxId, LocalError> {
        crate::host::Host::sandbox_of(&self.native).ok_or(LocalError::BrokenOff)
    }
}
