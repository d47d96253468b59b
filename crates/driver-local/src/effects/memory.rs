//! `freeze`, its inverse, and new credentials for what runs. With runc no process is spawned, and
//! each is one piece of work off the threads that serve connections; gVisor's tasks are halted and
//! woken beside it (see `tasks`).

use std::sync::Arc;

use overwinter_driver::{
    Compute, Credentials, DriverError, DriverReference, EffectContext, Effected,
};
use overwinter_lifecycle::ids::SandboxId;

use super::{effected, read_reference, reference};
use crate::cgroup::Freezer;
use crate::compute::{ComputeRecord, Look, Running};
use crate::driver::{Shared, Turn, blocking_effect};
use crate::error::LocalError;
use crate::runtime::Kind;
use crate::{process, teardown};

impl Shared {
    /// Halts every process where it is. Its supervisor has let go of the connection before.
    pub(crate) async fn freeze(
        self: &Arc<Self>,
        ctx: &EffectContext,
    ) -> Result<Effected, DriverError> {
        let turn = Arc::new(self.turn(ctx).await?);
        let sandbox = ctx.sandbox();
        let frozen = self.freeze_all(&turn, sandbox).await?;
        match frozen.compute {
            Compute::Frozen { .. } if ctx.options.reclaim => {
                Ok(self.give_back(&turn, sandbox, frozen).await)
            }
            Compute::Frozen { .. } | Compute::Absent | Compute::Live { .. } | Compute::Unknown => {
                Ok(frozen)
            }
        }
    }

    async fn freeze_all(
        self: &Arc<Self>,
        turn: &Arc<Turn>,
        sandbox: SandboxId,
    ) -> Result<Effected, DriverError> {
        let _freezing = self.freezing.acquire().await;
        match self.kind_of(turn, sandbox).await? {
            Kind::Runc => self.freeze_group(turn, sandbox).await,
            Kind::Gvisor => {
                self.halt_to_freeze(turn, sandbox).await?;
                match self.freeze_group(turn, sandbox).await {
                    Err(error) if error.surely_no_effect() => {
                        let running = self.running_now(sandbox).await?;
                        Err(match running {
                            Some(now) => self.back_to_work(turn, &now.record, error).await,
                            None => error,
                        })
                    }
                    other => other,
                }
            }
        }
    }

    async fn freeze_group(
        self: &Arc<Self>,
        turn: &Arc<Turn>,
        sandbox: SandboxId,
    ) -> Result<Effected, DriverError> {
        let (shared, turn) = (Arc::clone(self), Arc::clone(turn));
        blocking_effect(move || {
            let Some(running) = shared.running(sandbox)? else {
                return shared.memory_is_gone(&turn, sandbox);
            };
            // On its own failure it thaws again.
            let frozen = shared
                .host
                .cgroups
                .freeze(&running.record.native, turn.until);
            if process::has_ended(&running.pidfd) {
                return shared.memory_is_gone(&turn, sandbox);
            }
            if let Err(error) = frozen {
                return match shared.running(sandbox)? {
                    Some(now) if now.freezer == Freezer::Thawed => Err(error.without_effect()),
                    Some(_) => Err(error.unsettled()),
                    None => shared.memory_is_gone(&turn, sandbox),
                };
            }
            // A sleeping sandbox needs no socket, and a host has many.
            if let Some(live) = &mut *turn.entry.live() {
                live.door = None;
            }
            let held = running.record.birth;
            let record = shared.note_sleep(sandbox, running.record, true)?;
            let mut effected = effected(Compute::Frozen { held });
            effected.reference =
                reference(&record).map_err(|error| DriverError::Unknown(error.to_string()))?;
            Ok(effected)
        })
        .await
    }

    /// Credentials and socket first; then it runs again.
    pub(crate) async fn thaw(
        self: &Arc<Self>,
        ctx: &EffectContext,
        reference: DriverReference,
        credentials: Credentials,
    ) -> Result<Effected, DriverError> {
        let turn = Arc::new(self.turn(ctx).await?);
        let (shared, sandbox) = (Arc::clone(self), ctx.sandbox());
        let taken = Arc::clone(&turn);
        let prefetch = ctx.options.prefetch;
        let _paging = match prefetch {
            true => Some(self.paging.acquire().await),
            false => None,
        };
        let effected = blocking_effect(move || {
            let turn = taken;
            let gone =
                || DriverError::Missing("the frozen compute is not there any more".to_owned());
            let running = shared.running(sandbox)?.ok_or_else(gone)?;
            match read_reference(&reference) {
                Some(retained) if retained.is_same(&running.record) => {}
                Some(_) => return Err(gone()),
                // Retained by a freeze whose answer was lost. What is frozen was found by its own
                // note, identity and boot, so it is what was retained.
                None if reference == DriverReference::default() => {}
                None => {
                    return Err(DriverError::Rejected(
                        "what was retained was not written by this driver, or by another version of it".to_owned(),
                    ));
                }
            }
            let held = running.record.birth;
            let native = running.record.native.clone();
            let fetched = prefetch.then(|| shared.bring_in(&turn, &native));
            shared.note_sleep(sandbox, running.record.clone(), false)?;
            let remark = shared.mend_network(&turn, sandbox, &running);
            shared
                .let_in(&turn, sandbox, running, &credentials)
                .map_err(LocalError::without_effect)?;
            shared.host.cgroups.thaw(&native).map_err(LocalError::unsettled)?;
            let mut effected = effected(Compute::Live { held });
            effected.remarks.extend(fetched.into_iter().chain(remark));
            Ok(effected)
        })
        .await?;
        self.wake_now(&turn, sandbox).await?;
        Ok(effected)
    }

    /// The second half of a thaw.
    async fn wake_now(
        self: &Arc<Self>,
        turn: &Turn,
        sandbox: SandboxId,
    ) -> Result<(), DriverError> {
        match self.kind_of(turn, sandbox).await? {
            Kind::Runc => Ok(()),
            Kind::Gvisor => match self.running_now(sandbox).await? {
                Some(running) => {
                    let woken = self.wake(turn, &running.record).await;
                    woken.map_err(LocalError::unsettled)
                }
                None => Err(DriverError::Unknown("it ended as it was woken".to_owned())),
            },
        }
    }

    /// gVisor: whether its tasks are to stay halted, so that whoever finds the group thawed knows.
    fn note_sleep(
        &self,
        sandbox: SandboxId,
        record: ComputeRecord,
        asleep: bool,
    ) -> Result<ComputeRecord, DriverError> {
        if record.runtime == Kind::Runc || record.asleep == asleep {
            return Ok(record);
        }
        let record = ComputeRecord { asleep, ..record };
        record
            .write(&self.host.layout.sandbox(sandbox))
            .map_err(LocalError::unsettled)?;
        Ok(record)
    }

    pub(crate) async fn reattach(
        self: &Arc<Self>,
        ctx: &EffectContext,
        credentials: Credentials,
    ) -> Result<Effected, DriverError> {
        let turn = Arc::new(self.turn(ctx).await?);
        let (shared, sandbox) = (Arc::clone(self), ctx.sandbox());
        let taken = Arc::clone(&turn);
        let effected = blocking_effect(move || {
            let turn = taken;
            let Some(running) = shared.running(sandbox)? else {
                return Err(DriverError::Missing("no compute is there".to_owned()));
            };
            let held = running.record.birth;
            let compute = match running.freezer {
                Freezer::Thawed => Compute::Live { held },
                Freezer::Frozen => Compute::Frozen { held },
                Freezer::Freezing => Compute::Unknown,
            };
            let remark = shared.mend_network(&turn, sandbox, &running);
            shared
                .let_in(&turn, sandbox, running, &credentials)
                .map_err(LocalError::without_effect)?;
            let mut effected = effected(compute);
            effected.remarks.extend(remark);
            Ok(effected)
        })
        .await?;
        match effected.compute {
            // A suspend that was broken off may have left its tasks halted.
            Compute::Live { .. } => self.wake_now(&turn, sandbox).await?,
            Compute::Frozen { .. } | Compute::Absent | Compute::Unknown => {}
        }
        Ok(effected)
    }

    fn running(&self, sandbox: SandboxId) -> Result<Option<Running>, DriverError> {
        match self.host.look(sandbox).map_err(LocalError::unsettled)? {
            Look::Running(running) => Ok(Some(running)),
            Look::Nothing | Look::Remains(_) => Ok(None),
        }
    }

    /// It ended by itself: what is left of it is cleared away, and its storage stays.
    fn memory_is_gone(&self, turn: &Turn, sandbox: SandboxId) -> Result<Effected, DriverError> {
        turn.entry.set_live(None);
        teardown::end_others(&self.host, sandbox, None, turn.until)
            .and_then(|()| teardown::forget(&self.host, sandbox))
            .map_err(LocalError::unsettled)?;
        Ok(effected(Compute::Absent))
    }
}
