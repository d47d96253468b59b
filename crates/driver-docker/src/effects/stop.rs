//! `stop`: every process ends, the container stays, and what is on disk is synced.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use overwinter_driver::{Compute, DriverError, EffectContext, Effected};
use overwinter_lifecycle::ids::SandboxId;

use super::effected;
use crate::driver::{Shared, blocking};
use crate::error::{At, DockerError};
use crate::look::{Look, State};

impl Shared {
    pub(crate) async fn stop(
        self: &Arc<Self>,
        ctx: &EffectContext,
    ) -> Result<Effected, DriverError> {
        let turn = self.turns.next(ctx).await?;
        turn.entry().set_live(None);
        let sandbox = ctx.sandbox();
        // An end is only one if nothing can start it afterwards.
        let forbidden = self.home.forbid_start(sandbox);
        forbidden.map_err(DockerError::without_effect)?;
        self.end(sandbox).await?;
        let begun = Instant::now();
        self.sync(sandbox).await.map_err(DockerError::unsettled)?;
        let took = begun.elapsed().as_secs_f64() * 1000.0;
        let mut effected = effected(self.config.flavor, Compute::Absent);
        effected.remarks.push(format!("sync={took:.1}ms"));
        Ok(effected)
    }

    /// Ends what runs in the container, whoever started it.
    async fn end(&self, sandbox: SandboxId) -> Result<(), DriverError> {
        let look = self.look(sandbox).await;
        let look = look.map_err(DockerError::without_effect)?;
        let Some(container) = look.container() else {
            return Ok(());
        };
        let answer = match container.state {
            State::Still => return Ok(()),
            State::Running => self.engine.stop(&container.id).await,
            State::Paused | State::Moving => self.engine.kill(&container.id).await,
        };
        match answer {
            Ok(()) | Err(DockerError::Answered { .. }) => {}
            Err(error @ DockerError::Away { .. }) => return Err(error.without_effect()),
            Err(error) => return Err(error.unsettled()),
        }
        match self.look(sandbox).await.map_err(DockerError::unsettled)? {
            Look::Nothing => Ok(()),
            Look::Remains(now) if now.state == State::Still => Ok(()),
            Look::Remains(_) | Look::Running(_) | Look::Moving(_) => Err(match answer {
                Err(error) => error.unsettled(),
                Ok(()) => DriverError::Unknown("it was killed, and runs".to_owned()),
            }),
        }
    }

    /// Workspace and root layer, which may be on two filesystems.
    async fn sync(&self, sandbox: SandboxId) -> Result<(), DockerError> {
        let root = self.engine.identity()?.map(|daemon| daemon.root);
        let storage = self.home.sandbox(sandbox).workspace();
        blocking(move || {
            let mut synced: Option<u64> = None;
            let there = |path: &PathBuf| path.is_dir();
            for path in [Some(storage), root].into_iter().flatten().filter(there) {
                let folder = File::open(&path).at("opening", &path)?;
                let device = rustix::fs::fstat(&folder).at("looking at", &path)?.st_dev;
                if synced != Some(device) {
                    rustix::fs::syncfs(&folder).at("syncing", &path)?;
                    synced = Some(device);
                }
            }
            Ok(())
        })
        .await
    }
}
