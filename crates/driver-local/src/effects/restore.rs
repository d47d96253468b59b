//! `resume` from memory on disk.
//!
//! ```text
//! look ─┬─ this key's compute runs ─────────────────────► new credentials, done
//!       ├─ another's runs ──────────────────────────────► Unknown
//!       └─ check ─ stage ─┬─ open the artifact ─┬─ raise generation ─ restore ─ look ─ done
//!                         └─ make a container ──┘            ▲
//!          any failure up to here: clear, Rejected ──────────┘
//! ```
//!
//! The artifact is opened while the runtime makes the container, in which nothing runs yet. From the
//! raised generation on something may have run: then only the runtime's own refusal proves that
//! nothing did, and the generation goes back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use overwinter_driver::{
    Compute, Credentials, DriverError, DriverReference, EffectContext, Effected, Unusable,
};

use super::cold::{Scene, Storage, another_runs};
use super::{DRIVER, FORMAT, effected, owed};
use crate::artifact::{self, ArtifactError, Generation, Manifest, Staging};
use crate::compute::ComputeRecord;
use crate::driver::{Shared, Turn, blocking};
use crate::error::LocalError;
use crate::host::Host;
use crate::image;
use crate::runtime::{Kind, Runtime};
use crate::teardown;

/// What remains of a deadline that is up is too little to clear up in.
const CLEAR_WITHIN: Duration = Duration::from_secs(5);

/// How a restore failed.
enum Failed {
    /// Nothing ran.
    Refused(DriverError),
    /// Something may have.
    Unsettled(LocalError),
}

impl From<LocalError> for Failed {
    fn from(error: LocalError) -> Self {
        ArtifactError::Local(error).into()
    }
}

impl From<ArtifactError> for Failed {
    fn from(error: ArtifactError) -> Self {
        Self::Refused(error.without_effect())
    }
}

impl Shared {
    pub(crate) async fn restore(
        self: &Arc<Self>,
        ctx: &EffectContext,
        reference: DriverReference,
        credentials: Credentials,
    ) -> Result<Effected, DriverError> {
        self.host.cgroups.expect_move();
        let turn = self.turn(ctx).await?;
        let sandbox = ctx.sandbox();
        let native = ctx.key.native_name();
        let dir = self.host.layout.sandbox(sandbox);
        if !self.host.has_storage(sandbox) {
            return Err(DriverError::Missing("its storage is not there".to_owned()));
        }
        match self.clear_for(&turn, sandbox).await? {
            Some(running) if running.record.native == native => {
                self.wake(&turn, &running.record)
                    .await
                    .map_err(LocalError::unsettled)?;
                let mut effected = self.again(&turn, running, &credentials).await?;
                effected.leftovers = owed(&dir, ctx.key)?;
                return Ok(effected);
            }
            Some(_) => return Err(another_runs()),
            None => {}
        }
        let manifest = self.chosen(ctx, &reference).await?;
        match self.bring_back(&turn, ctx, manifest, credentials).await {
            Ok(()) => {
                let mut effected = effected(Compute::Live {
                    held: ctx.incarnation,
                });
                effected.leftovers = owed(&dir, ctx.key)?;
                Ok(effected)
            }
            Err(failed) => {
                turn.entry.set_live(None);
                let host = Arc::clone(&self.host);
                let cleared = blocking(move || {
                    teardown::end(&host, &native, Instant::now() + CLEAR_WITHIN)?;
                    teardown::forget(&host, sandbox)
                })
                .await;
                Err(match (failed, cleared) {
                    (Failed::Refused(error), Ok(())) => error,
                    (Failed::Unsettled(error), Ok(())) => error.unsettled(),
                    (Failed::Refused(error), Err(left)) => {
                        DriverError::Unknown(format!("{error}; and clearing up: {left}"))
                    }
                    (Failed::Unsettled(error), Err(left)) => {
                        DriverError::Unknown(format!("{error}; and clearing up: {left}"))
                    }
                })
            }
        }
    }

    /// The artifact that the reference names, if it fits what is here.
    async fn chosen(
        &self,
        ctx: &EffectContext,
        reference: &DriverReference,
    ) -> Result<Manifest, DriverError> {
        let sandbox = ctx.sandbox();
        let named = if *reference == DriverReference::default() {
            // Retained by a checkpoint whose answer was lost: the newest that is there.
            None
        } else if reference.driver == DRIVER && reference.format == FORMAT {
            Some(String::from_utf8_lossy(&reference.data).into_owned())
        } else {
            return Err(DriverError::Unusable {
                why: Unusable::Foreign,
                message: "what was retained was not written by this driver, or by another version \
                          of it"
                    .to_owned(),
            });
        };
        let host = Arc::clone(&self.host);
        let checked = blocking(move || Ok(check(&host, sandbox, named)));
        let checked = checked.await.map_err(LocalError::without_effect)?;
        checked.map_err(ArtifactError::without_effect)
    }

    async fn bring_back(
        self: &Arc<Self>,
        turn: &Turn,
        ctx: &EffectContext,
        manifest: Manifest,
        credentials: Credentials,
    ) -> Result<(), Failed> {
        let lock = turn.lock.as_ref().ok_or(LocalError::BrokenOff)?;
        let sandbox = ctx.sandbox();
        let dir = self.host.layout.sandbox(sandbox);
        let runtimes = &self.host.runtimes;
        let runtime: Arc<Runtime> = (runtimes.of_build(&manifest.belongs().runtime))
            .cloned()
            .ok_or(LocalError::BrokenOff)?;
        let record = ComputeRecord {
            native: ctx.key.native_name(),
            birth: ctx.incarnation,
            boot_id: self.host.boot_id.clone(),
            supervisor: manifest.needs(&self.host.layout, runtimes)?,
            first: None,
            runtime: Kind::Gvisor,
            turning: false,
            asleep: false,
            saving: None,
        };
        let manifest = Arc::new(manifest);
        let scene = {
            let (shared, ctx, record) = (Arc::clone(self), ctx.clone(), record.clone());
            let spec = manifest.belongs().spec.clone();
            blocking(move || {
                let root = image::root(&shared.host.layout, &spec.image)?;
                let from = (&spec, &root);
                shared.set_the_stage(&ctx, from, &credentials, Storage::Keep, &record)
            })
            .await?
        };
        let call = self.host.call(&dir, &record, lock, turn.until);
        let made = async {
            let _starting = self.starting.read().await;
            self.host.cgroups.prepare()?;
            runtime.create(&call).await
        };
        let (made, staging) = tokio::join!(made, self.opened(ctx, &manifest));
        made?;
        let staging = staging?;
        let before = manifest.belongs().generation;
        {
            let (dir, to) = (dir.clone(), ctx.incarnation);
            blocking(move || Generation::write(&dir, to)).await?;
        }
        match runtime.restore(&call, staging.path()).await {
            Ok(()) => {}
            // It has ended by itself and says that it did not come to it.
            Err(refused @ LocalError::Runtime { .. }) => {
                Generation::write(&dir, before).map_err(Failed::Unsettled)?;
                return Err(refused.into());
            }
            Err(error) => return Err(Failed::Unsettled(error)),
        }
        let Scene {
            door,
            mounted,
            network,
        } = scene;
        // The sandbox has its own by now, and nobody waits for either.
        tokio::task::spawn_blocking(move || {
            drop((mounted, network));
            drop(staging);
        });
        self.watch_new(turn, sandbox, record, &runtime, door)
            .await
            .map_err(Failed::Unsettled)
    }

    async fn opened(
        &self,
        ctx: &EffectContext,
        manifest: &Arc<Manifest>,
    ) -> Result<Staging, Failed> {
        let dir = self.host.layout.sandbox(ctx.sandbox());
        let (manifest, name) = (Arc::clone(manifest), ctx.key.native_name());
        let opened = tokio::task::spawn_blocking(move || {
            let staging = Staging::make(&dir, &name, manifest.plain_bytes())?;
            artifact::open(&dir, &manifest, staging.path())?;
            Ok::<_, ArtifactError>(staging)
        });
        let opened = opened.await.map_err(|_| LocalError::BrokenOff)?;
        Ok(opened?)
    }
}

/// All that can be known before anything is made.
fn check(
    host: &Host,
    sandbox: overwinter_lifecycle::ids::SandboxId,
    named: Option<String>,
) -> Result<Manifest, ArtifactError> {
    let dir = host.layout.sandbox(sandbox);
    let now = Generation::read(&dir)?;
    let manifest = match named {
        Some(name) if Host::sandbox_of(&name) != Some(sandbox) || name.contains('/') => {
            return Err(ArtifactError::Foreign);
        }
        Some(name) => Manifest::read(&dir, sandbox, &name)?,
        None => artifact::whole(&dir, sandbox)?
            .into_iter()
            .find(|manifest| Some(manifest.belongs().generation) == now)
            .ok_or(ArtifactError::Missing)?,
    };
    let taken = manifest.belongs().generation;
    match now {
        Some(now) if now == taken => {}
        Some(now) => return Err(ArtifactError::Generation { taken, now }),
        None => return Err(ArtifactError::Damaged("what it belongs to is not noted")),
    }
    manifest.needs(&host.layout, &host.runtimes)?;
    Ok(manifest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nothing_ran_after_is_a_refusal_and_not_unknown() {
        let Failed::Refused(refused) = Failed::from(ArtifactError::Truncated) else {
            panic!("unsettled");
        };
        assert!(refused.surely_no_effect());
    }
}
