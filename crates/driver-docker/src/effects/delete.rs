//! `delete` and the removal of debts: the container with its root layer first, then the workspace.

use std::sync::Arc;
use std::time::Duration;

use overwinter_driver::{Compute, Debt, DebtKind, DriverError, EffectContext, Effected};
use overwinter_lifecycle::ids::SandboxId;

use super::effected;
use crate::driver::{Shared, blocking};
use crate::error::DockerError;
use crate::look::Look;

/// For an effect that is under way.
const DEBT_WITHIN: Duration = Duration::from_secs(30);
const NOT_FOUND: u16 = 404;

impl Shared {
    pub(crate) async fn delete(
        self: &Arc<Self>,
        ctx: &EffectContext,
    ) -> Result<Effected, DriverError> {
        let turn = self.turns.next(ctx).await?;
        turn.entry().set_live(None);
        self.remove_all(ctx.sandbox())
            .await
            .map_err(DockerError::unsettled)?;
        Ok(effected(self.config.flavor, Compute::Absent))
    }

    pub(crate) async fn discard(self: &Arc<Self>, debt: &Debt) -> Result<(), DriverError> {
        let sandbox = debt.key.sandbox;
        let entry = self.turns.entry(sandbox);
        let _alone = entry.alone(DEBT_WITHIN).await?;
        match debt.kind {
            // A run is all that there is of compute, and a container holds more than that.
            DebtKind::Compute => {
                let found = self.running(sandbox).await;
                match found.map_err(DockerError::unsettled)? {
                    Some(running) if running.receipt.effect == debt.reference => {
                        entry.set_live(None);
                        let ended = self.engine.kill(&running.container.id).await;
                        ended.map_err(DockerError::unsettled)
                    }
                    Some(_) | None => Ok(()),
                }
            }
            DebtKind::Storage => {
                entry.set_live(None);
                self.remove_all(sandbox)
                    .await
                    .map_err(DockerError::unsettled)
            }
            // None is ever written.
            DebtKind::Artifact => Ok(()),
        }
    }

    /// Container and folders of a sandbox, whatever there is of them. Another gateway's container stays.
    pub(crate) async fn remove_all(
        self: &Arc<Self>,
        sandbox: SandboxId,
    ) -> Result<(), DockerError> {
        if let Some(container) = self.look_for_own(sandbox).await?.container() {
            match self.engine.remove(&container.id).await {
                Ok(()) => {}
                Err(error) if error.status() == Some(NOT_FOUND) => {}
                // Somebody else removes it already, or it could not be: a look tells.
                Err(error) => match self.look_for_own(sandbox).await? {
                    Look::Nothing => {}
                    Look::Remains(_) | Look::Running(_) | Look::Moving(_) => return Err(error),
                },
            }
        }
        let shared = Arc::clone(self);
        blocking(move || shared.home.remove(sandbox)).await
    }
}
