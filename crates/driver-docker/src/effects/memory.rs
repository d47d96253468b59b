//! `freeze`, its resume, and new credentials for what runs: a pause of the container keeps its memory
//! where it is.

use std::sync::Arc;
use std::time::Duration;

use overwinter_driver::{
    Compute, Credentials, DriverError, DriverReference, EffectContext, Effected,
};
use overwinter_lifecycle::ids::SandboxId;

use super::{effected, read_reference, reference, retained};
use crate::driver::{Shared, Turn, set_paused, set_seen};
use crate::error::DockerError;
use crate::flavor::Flavor;
use crate::look::{Look, Running};

impl Shared {
    /// Halts every process where it is. Its supervisor has let go of the connection before.
    pub(crate) async fn freeze(
        self: &Arc<Self>,
        ctx: &EffectContext,
    ) -> Result<Effected, DriverError> {
        let turn = self.turns.next(ctx).await?;
        let sandbox = ctx.sandbox();
        let found = self.seen_or_running(turn.entry(), sandbox, false).await;
        let Some(running) = found.map_err(DockerError::without_effect)? else {
            return Ok(memory_is_gone(self.config.flavor, &turn));
        };
        if !running.paused {
            let refused = match self.engine.pause(&running.container.id).await {
                Ok(()) => None,
                Err(error @ DockerError::Answered { .. }) => Some(error),
                Err(error) => return Err(error.without_effect()),
            };
            if let Some(refused) = refused {
                let now = self.running(sandbox).await;
                match now.map_err(DockerError::unsettled)? {
                    Some(now) if now.paused => {}
                    Some(_) => return Err(refused.without_effect()),
                    None => return Ok(memory_is_gone(self.config.flavor, &turn)),
                }
            }
        }
        let held = running.receipt.held;
        set_paused(turn.entry(), true);
        let mut effected = effected(self.config.flavor, Compute::Frozen { held });
        effected.reference = reference(self.config.flavor, &running)
            .map_err(|error| DriverError::Unknown(error.to_string()))?;
        Ok(effected)
    }

    /// Credentials and socket first; then it runs again.
    pub(crate) async fn thaw(
        self: &Arc<Self>,
        ctx: &EffectContext,
        reference: DriverReference,
        credentials: Credentials,
    ) -> Result<Effected, DriverError> {
        let turn = self.turns.next(ctx).await?;
        let gone = || DriverError::Missing("the frozen compute is not there any more".to_owned());
        let sandbox = ctx.sandbox();
        let found = self.seen_or_running(turn.entry(), sandbox, true).await;
        let running = found
            .map_err(DockerError::without_effect)?
            .ok_or_else(gone)?;
        match read_reference(self.config.flavor, &reference) {
            Some(named) if named == retained(&running) => {}
            Some(_) => return Err(gone()),
            // Retained by a freeze whose answer was lost: what is paused was found by its receipt.
            None if reference == DriverReference::default() => {}
            None => {
                return Err(DriverError::Rejected(
                    "what was retained was not written by this driver, or by another version of it"
                        .to_owned(),
                ));
            }
        }
        let held = running.receipt.held;
        let let_in = self.let_in(&turn, &running, &credentials).await;
        let_in.map_err(DockerError::without_effect)?;
        if running.paused {
            self.unpause(sandbox, &running).await?;
        }
        set_paused(turn.entry(), false);
        Ok(effected(self.config.flavor, Compute::Live { held }))
    }

    async fn unpause(&self, sandbox: SandboxId, running: &Running) -> Result<(), DriverError> {
        match self.engine.unpause(&running.container.id).await {
            Ok(()) => Ok(()),
            Err(refused @ DockerError::Answered { .. }) => {
                match self
                    .running(sandbox)
                    .await
                    .map_err(DockerError::unsettled)?
                {
                    Some(now) if !now.paused => Ok(()),
                    Some(_) => Err(refused.without_effect()),
                    None => Err(DriverError::Missing(format!("it has ended: {refused}"))),
                }
            }
            Err(error) => Err(error.without_effect()),
        }
    }

    pub(crate) async fn reattach(
        self: &Arc<Self>,
        ctx: &EffectContext,
        credentials: Credentials,
    ) -> Result<Effected, DriverError> {
        let turn = self.turns.next(ctx).await?;
        let found = self.running(ctx.sandbox()).await;
        let Some(running) = found.map_err(DockerError::without_effect)? else {
            return Err(DriverError::Missing("no compute is there".to_owned()));
        };
        set_seen(turn.entry(), &running);
        let let_in = self.let_in(&turn, &running, &credentials).await;
        let_in.map_err(DockerError::without_effect)?;
        let held = running.receipt.held;
        Ok(effected(
            self.config.flavor,
            if running.paused {
                Compute::Frozen { held }
            } else {
                Compute::Live { held }
            },
        ))
    }

    /// After a restart of the gateway: what runs is let in again, by the credentials that it has.
    pub(crate) async fn recover(
        self: &Arc<Self>,
        sandbox: SandboxId,
        patience: Duration,
    ) -> Result<(), DriverError> {
        let entry = self.turns.entry(sandbox);
        let _alone = entry.alone(patience).await?;
        // A gateway that was killed may have asked for a start that is still to come.
        let look = self.look_after_start(sandbox).await;
        match look.map_err(DockerError::unsettled)? {
            Look::Running(running) if running.paused => set_seen(&entry, &running),
            Look::Running(running) => {
                set_seen(&entry, &running);
                let opened = self.open_the_way(&entry, sandbox, &running).await;
                opened.map_err(DockerError::unsettled)?;
            }
            Look::Nothing | Look::Remains(_) | Look::Moving(_) => entry.set_live(None),
        }
        Ok(())
    }
}

/// It ended by itself; its container and its storage stay.
fn memory_is_gone(flavor: Flavor, turn: &Turn) -> Effected {
    turn.entry().set_live(None);
    effected(flavor, Compute::Absent)
}
