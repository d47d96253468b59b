//! `delete` and the removal of debts: nothing is left, in this order: processes, the key to memory on
//! disk, storage, and only then the range of ids. Nothing here needs space on the disk.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use overwinter_driver::{Compute, Debt, DebtKind, DriverError, EffectContext, Effected};
use overwinter_lifecycle::ids::SandboxId;
use tokio::sync::oneshot;

use super::effected;
use crate::artifact;
use crate::driver::{Shared, blocking};
use crate::error::{At, LocalError, ignore_missing};
use crate::teardown;

/// For the processes that a debt names.
const DEBT_WITHIN: Duration = Duration::from_secs(30);

impl Shared {
    pub(crate) async fn delete(
        self: &Arc<Self>,
        ctx: &EffectContext,
    ) -> Result<Effected, DriverError> {
        let turn = self.turn(ctx).await?;
        turn.entry.set_live(None);
        self.remove_storage(ctx.sandbox(), turn.until)
            .await
            .map_err(LocalError::unsettled)?;
        Ok(effected(Compute::Absent))
    }

    pub(crate) async fn discard(self: &Arc<Self>, debt: &Debt) -> Result<(), DriverError> {
        let sandbox = debt.key.sandbox;
        let entry = self.turns.entry(sandbox);
        let _alone = entry.alone(DEBT_WITHIN).await?;
        match debt.kind {
            DebtKind::Compute => {
                let (host, native) = (Arc::clone(&self.host), debt.reference.clone());
                if crate::host::Host::sandbox_of(&native) != Some(sandbox) || native.contains('/') {
                    return Err(DriverError::Rejected(format!(
                        "`{native}` names no compute of this sandbox"
                    )));
                }
                blocking(move || teardown::end(&host, &native, Instant::now() + DEBT_WITHIN))
                    .await
                    .map_err(LocalError::unsettled)
            }
            DebtKind::Storage => {
                entry.set_live(None);
                self.remove_storage(sandbox, Instant::now() + DEBT_WITHIN)
                    .await
                    .map_err(LocalError::unsettled)
            }
            DebtKind::Artifact => {
                let name = debt.reference.clone();
                if crate::host::Host::sandbox_of(&name) != Some(sandbox) || name.contains('/') {
                    return Err(DriverError::Rejected(format!(
                        "`{name}` names no artifact of this sandbox"
                    )));
                }
                let dir = self.host.layout.sandbox(sandbox);
                blocking(move || artifact::remove(&dir, &name))
                    .await
                    .map_err(LocalError::unsettled)
            }
        }
    }

    /// Removes compute and storage of a sandbox, whatever there is.
    pub(crate) async fn remove_storage(
        self: &Arc<Self>,
        sandbox: SandboxId,
        until: Instant,
    ) -> Result<(), LocalError> {
        {
            let _ending = self.ending.acquire().await;
            let host = Arc::clone(&self.host);
            blocking(move || teardown::end_others(&host, sandbox, None, until)).await?;
        }
        let shared = Arc::clone(self);
        background("remove", move || {
            let host = &shared.host;
            let dir = host.layout.sandbox(sandbox);
            artifact::destroy_key(&dir)?;
            artifact::sweep(&dir)?;
            for folder in [&dir.volatile, &dir.kept] {
                ignore_missing(fs::remove_dir_all(folder)).at("removing", folder)?;
            }
            host.ranges.release(sandbox)?;
            if host.sandboxes()?.is_empty()
                && let Ok(_nothing_starts) = shared.starting.try_write()
            {
                host.prune();
            }
            Ok(())
        })
        .await
    }
}

/// On a thread of its own and behind everything else: a large tree takes seconds.
async fn background<F>(name: &'static str, work: F) -> Result<(), LocalError>
where
    F: FnOnce() -> Result<(), LocalError> + Send + 'static,
{
    let (sender, receiver) = oneshot::channel();
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || {
            // Of this thread alone. Refused: it goes on as everybody else.
            let _ = rustix::process::setpriority_process(None, 10);
            // Nobody may be waiting any more; then nobody is told.
            let _ = sender.send(work());
        })
        .at("starting a thread to", std::path::Path::new(name))?;
    receiver.await.unwrap_or(Err(LocalError::BrokenOff))
}
