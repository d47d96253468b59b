//! `freeze`, its inverse, and new credentials for what runs. No process is spawned, and each is one
//! piece of work off the threads that serve connections.

use std::sync::{Arc, PoisonError};

use overwinter_driver::{
    Compute, Credentials, DriverError, DriverReference, EffectContext, Effected,
};
use overwinter_lifecycle::ids::SandboxId;

use super::{effected, read_reference, reference};
use crate::cgroup::Freezer;
use crate::compute::{Look, Running};
use crate::driver::{Shared, Turn, blocking_effect};
use crate::error::LocalError;
use crate::{process, teardown};

impl Shared {
    /// Halts every process where it is. Its supervisor has let go of the connection before.
    pub(crate) async fn freeze(
        self: &Arc<Self>,
        ctx: &EffectContext,
    ) -> Result<Effected, DriverError> {
        let turn = self.turn(ctx).await?;
        let (shared, sandbox) = (Arc::clone(self), ctx.sandbox());
        let _freezing = self.freezing.acquire().await;
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
            if let Some(live) = &mut *turn
                .entry
                .live
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
            {
                live.door = None;
            }
            let held = running.record.birth;
            let mut effected = effected(Compute::Frozen { held });
            effected.reference = reference(&running.record)
                .map_err(|error| DriverError::Unknown(error.to_string()))?;
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
        let turn = self.turn(ctx).await?;
        let (shared, sandbox) = (Arc::clone(self), ctx.sandbox());
        blocking_effect(move || {
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
            shared
                .let_in(&turn, sandbox, running, &credentials)
                .map_err(LocalError::without_effect)?;
            shared.host.cgroups.thaw(&native).map_err(LocalError::unsettled)?;
            Ok(effected(Compute::Live { held }))
        })
        .await
    }

    pub(crate) async fn reattach(
        self: &Arc<Self>,
        ctx: &EffectContext,
        credentials: Credentials,
    ) -> Result<Effected, DriverError> {
        let turn = self.turn(ctx).await?;
        let (shared, sandbox) = (Arc::clone(self), ctx.sandbox());
        blocking_effect(move || {
            let Some(running) = shared.running(sandbox)? else {
                return Err(DriverError::Missing("no compute is there".to_owned()));
            };
            let held = running.record.birth;
            let compute = match running.freezer {
                Freezer::Thawed => Compute::Live { held },
                Freezer::Frozen => Compute::Frozen { held },
                Freezer::Freezing => Compute::Unknown,
            };
            shared
                .let_in(&turn, sandbox, running, &credentials)
                .map_err(LocalError::without_effect)?;
            Ok(effected(compute))
        })
        .await
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
