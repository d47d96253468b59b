//! `freeze`, its inverse, and new credentials for what runs. No process is spawned.

use std::sync::{Arc, PoisonError};

use overwinter_driver::{
    Compute, Credentials, DriverError, DriverReference, EffectContext, Effected,
};
use overwinter_lifecycle::ids::SandboxId;

use super::{effected, read_reference, reference};
use crate::cgroup::Freezer;
use crate::compute::{Look, Running};
use crate::driver::{Shared, Turn, blocking};
use crate::error::LocalError;
use crate::teardown;

impl Shared {
    /// Halts every process where it is. Its supervisor has let go of the connection before.
    pub(crate) async fn freeze(
        self: &Arc<Self>,
        ctx: &EffectContext,
    ) -> Result<Effected, DriverError> {
        let turn = self.turn(ctx).await?;
        let Some(running) = self.running(ctx.sandbox()).await? else {
            return self.memory_is_gone(&turn, ctx.sandbox()).await;
        };
        let record = running.record.clone();
        let host = Arc::clone(&self.host);
        let (native, until) = (record.native.clone(), turn.until);
        let sandbox = ctx.sandbox();
        let looked = blocking(move || {
            // Its own failure thaws again.
            host.cgroups.freeze(&native, until)?;
            host.look(sandbox)
        })
        .await;
        match looked {
            Ok(Look::Running(Running {
                freezer: Freezer::Frozen,
                ..
            })) => {}
            Ok(Look::Nothing | Look::Remains(_)) => {
                return self.memory_is_gone(&turn, ctx.sandbox()).await;
            }
            Ok(Look::Running(_)) => {
                return Err(DriverError::Unknown(
                    "it was frozen and runs again".to_owned(),
                ));
            }
            // A process that died at this moment looks like this too.
            Err(error) => {
                return match self.running(ctx.sandbox()).await? {
                    Some(running) if running.freezer == Freezer::Thawed => {
                        Err(error.without_effect())
                    }
                    Some(_) => Err(error.unsettled()),
                    None => self.memory_is_gone(&turn, ctx.sandbox()).await,
                };
            }
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
        let held = record.birth;
        let mut effected = effected(Compute::Frozen { held });
        effected.reference =
            reference(&record).map_err(|error| DriverError::Unknown(error.to_string()))?;
        Ok(effected)
    }

    /// Credentials and socket first; then it runs again.
    pub(crate) async fn thaw(
        self: &Arc<Self>,
        ctx: &EffectContext,
        reference: DriverReference,
        credentials: Credentials,
    ) -> Result<Effected, DriverError> {
        let turn = self.turn(ctx).await?;
        let gone = || DriverError::Missing("the frozen compute is not there any more".to_owned());
        let Some(running) = self.running(ctx.sandbox()).await? else {
            return Err(gone());
        };
        match read_reference(&reference) {
            Some(retained) if retained == running.record => {}
            Some(_) => return Err(gone()),
            None => {
                return Err(DriverError::Rejected(
                    "what was retained was not written by this driver, or by another version of it"
                        .to_owned(),
                ));
            }
        }
        let held = running.record.birth;
        let native = running.record.native.clone();
        self.let_in(&turn, ctx.sandbox(), running, &credentials)
            .map_err(LocalError::without_effect)?;
        let host = Arc::clone(&self.host);
        blocking(move || host.cgroups.thaw(&native))
            .await
            .map_err(LocalError::unsettled)?;
        Ok(effected(Compute::Live { held }))
    }

    pub(crate) async fn reattach(
        self: &Arc<Self>,
        ctx: &EffectContext,
        credentials: Credentials,
    ) -> Result<Effected, DriverError> {
        let turn = self.turn(ctx).await?;
        let Some(running) = self.running(ctx.sandbox()).await? else {
            return Err(DriverError::Missing("no compute is there".to_owned()));
        };
        let held = running.record.birth;
        let compute = match running.freezer {
            Freezer::Thawed => Compute::Live { held },
            Freezer::Frozen => Compute::Frozen { held },
            Freezer::Freezing => Compute::Unknown,
        };
        self.let_in(&turn, ctx.sandbox(), running, &credentials)
            .map_err(LocalError::without_effect)?;
        Ok(effected(compute))
    }

    async fn running(self: &Arc<Self>, sandbox: SandboxId) -> Result<Option<Running>, DriverError> {
        let host = Arc::clone(&self.host);
        match blocking(move || host.look(sandbox))
            .await
            .map_err(LocalError::unsettled)?
        {
            Look::Running(running) => Ok(Some(running)),
            Look::Nothing | Look::Remains(_) => Ok(None),
        }
    }

    /// It ended by itself: what is left of it is cleared away, and its storage stays.
    async fn memory_is_gone(
        self: &Arc<Self>,
        turn: &Turn,
        sandbox: SandboxId,
    ) -> Result<Effected, DriverError> {
        turn.entry.set_live(None);
        let (host, until) = (Arc::clone(&self.host), turn.until);
        blocking(move || {
            teardown::end_others(&host, sandbox, None, until)?;
            teardown::forget(&host, sandbox)
        })
        .await
        .map_err(LocalError::unsettled)?;
        Ok(effected(Compute::Absent))
    }
}
