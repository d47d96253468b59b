//! `checkpoint`: memory goes to disk, and then the compute goes.
//!
//! ```text
//! look ─┬─ this key's artifact is there ─────────────────────────────► end what lives, done
//!       ├─ nothing lives ────────────────────────────────────────────► Missing
//!       └─ halt ─ note ─ write it plain, and seal ─ (there) ─ end ───► done
//!                      any failure before (there): as it was, Rejected
//! ```
//!
//! The compute is kept, halted, until the artifact is there: so whatever fails, and whenever the
//! gateway dies, there is the one or the other. No code of the user's runs in between, also where it
//! was frozen before: then the sentry alone is thawed.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use overwinter_driver::{Compute, DriverError, DriverReference, EffectContext, Effected};
use overwinter_lifecycle::ids::SandboxId;

use super::{DRIVER, FORMAT, effected, owed_but};
use crate::artifact::{self, Belongs, Manifest, Sealing, Staging};
use crate::cgroup::Freezer;
use crate::compute::{ComputeRecord, Running, Saving};
use crate::describe;
use crate::driver::{Shared, Turn, blocking};
use crate::error::{At, LocalError};
use crate::host::{folder, read_spec};
use crate::image;
use crate::process;
use crate::teardown;

/// Between two looks at whether the sentry still writes: of what another process has open, nothing
/// tells.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// For the runtime's own state beside the memory that the group holds.
const BESIDE_MEMORY: u64 = 32 << 20;

/// Of the parts of taking an artifact.
#[derive(Clone, Copy, Debug)]
struct Took {
    /// By the runtime, plain.
    written: Duration,
    /// The storage that it lies over.
    synced: Duration,
    /// Packed, encrypted and synced, as far as that took longer.
    sealed: Duration,
}

impl Shared {
    pub(crate) async fn checkpoint(
        self: &Arc<Self>,
        ctx: &EffectContext,
    ) -> Result<Effected, DriverError> {
        let turn = Arc::new(self.turn(ctx).await?);
        let sandbox = ctx.sandbox();
        let name = ctx.key.native_name();
        if let Some(manifest) = self.taken(sandbox, &name).await? {
            return self.end_and_tell(&turn, ctx, &manifest, None).await;
        }
        let Some(running) = self.running_now(sandbox).await? else {
            return Err(DriverError::Missing("no compute is there".to_owned()));
        };
        describe::can_checkpoint(&self.host, running.record.runtime)?;
        self.can_come_back(sandbox).await?;
        match self.take(&turn, ctx, &running).await {
            Ok((manifest, took, staging)) => {
                // As long as the memory itself takes to be given back.
                let plain = tokio::task::spawn_blocking(move || drop(staging));
                let told = self.end_and_tell(&turn, ctx, &manifest, Some(took)).await;
                let _ = plain.await;
                told
            }
            Err(error) => Err(self.undo(&turn, sandbox, error).await),
        }
    }

    /// Refuses memory that could not be put back, since what it lies over is another by now.
    pub(crate) async fn can_come_back(&self, sandbox: SandboxId) -> Result<(), DriverError> {
        let host = Arc::clone(&self.host);
        let root = blocking(move || {
            let spec = read_spec(&host.layout.sandbox(sandbox))?;
            image::root(&host.layout, &spec.image)
        });
        match root.await {
            Ok(_) => Ok(()),
            Err(error @ (LocalError::ImageMissing { .. } | LocalError::Image { .. })) => {
                Err(DriverError::Rejected(format!(
                    "no checkpoint of this sandbox: {error}; its memory could not be resumed. \
                     Suspend it at depth stop, or start it anew"
                )))
            }
            Err(error) => Err(error.without_effect()),
        }
    }

    /// The artifact that this effect has taken already.
    async fn taken(
        self: &Arc<Self>,
        sandbox: SandboxId,
        name: &str,
    ) -> Result<Option<Manifest>, DriverError> {
        let dir = self.host.layout.sandbox(sandbox);
        let name = name.to_owned();
        let found = blocking(move || artifact::found(&dir, sandbox, &name));
        found.await.map_err(LocalError::unsettled)
    }

    /// Everything up to an artifact that is there.
    async fn take(
        self: &Arc<Self>,
        turn: &Arc<Turn>,
        ctx: &EffectContext,
        running: &Running,
    ) -> Result<(Manifest, Took, Staging), LocalError> {
        let lock = turn.lock.as_ref().ok_or(LocalError::BrokenOff)?;
        let sandbox = ctx.sandbox();
        let dir = self.host.layout.sandbox(sandbox);
        let runtime = self.runtime_for(&running.record)?;
        let native = &running.record.native;
        match running.freezer {
            // Its tasks are halted below: only the sentry runs.
            Freezer::Frozen | Freezer::Freezing => self.host.cgroups.thaw(native)?,
            Freezer::Thawed => {}
        }
        self.halt(turn, &running.record).await?;
        if running.record.saving.is_some() {
            self.saved(running, turn.until).await?;
        }
        let spec = read_spec(&dir)?;
        let saving = ComputeRecord {
            turning: false,
            saving: Some(Saving {
                limit: self.limit_of(&running.record),
            }),
            ..running.record.clone()
        };
        saving.write(&dir)?;
        if !dir.artifacts().is_dir() {
            folder(&dir.artifacts(), 0o700)?;
            // Capacity of the host's, not of the sandbox's own disk.
            if let Some(quota) = &self.host.quota {
                quota.exempt(&dir.artifacts())?;
            }
        }
        let needed = self.host.cgroups.memory_used(native).unwrap_or(0) + BESIDE_MEMORY;
        let staging = Staging::make(&dir, &ctx.key.native_name(), needed)?;
        // What is staged in memory counts as the sandbox's own, beside what it has already.
        self.host
            .cgroups
            .set_memory_limit(native, self.host.cgroups.unlimited())?;
        let call = self.host.call(&dir, &running.record, lock, turn.until);
        let belongs = Belongs {
            sandbox,
            name: ctx.key.native_name(),
            generation: running.record.birth,
            runtime: runtime.build().to_owned(),
            supervisor: content_id(&running.record.supervisor),
            spec,
        };
        let storage = dir.workspace();
        let begun = Instant::now();
        let sealing = Sealing::begin(&dir, staging.path(), belongs)?;
        let ended = runtime.checkpoint(&call, staging.path()).await;
        let written = begun.elapsed();
        blocking(move || {
            if let Err(error) = ended {
                drop(sealing);
                return Err(error);
            }
            let begun = Instant::now();
            let aside = sealing.finish()?;
            let sealed = begun.elapsed();
            let begun = Instant::now();
            sync_storage(&storage)?;
            let synced = begun.elapsed();
            let manifest = aside.named()?;
            let took = Took {
                written,
                synced,
                sealed,
            };
            Ok((manifest, took, staging))
        })
        .await
    }

    /// The artifact is there: the compute goes, and what is left of earlier ones is owed.
    async fn end_and_tell(
        self: &Arc<Self>,
        turn: &Turn,
        ctx: &EffectContext,
        manifest: &Manifest,
        took: Option<Took>,
    ) -> Result<Effected, DriverError> {
        turn.entry.set_live(None);
        let sandbox = ctx.sandbox();
        let until = turn.until;
        {
            let _ending = self.ending.acquire().await;
            let host = Arc::clone(&self.host);
            blocking(move || {
                teardown::end_others(&host, sandbox, None, until)?;
                teardown::forget(&host, sandbox)
            })
            .await
            .map_err(LocalError::unsettled)?;
        }
        let name = ctx.key.native_name();
        let mut effected = effected(Compute::Absent);
        effected.size_bytes = manifest.size_bytes;
        effected.remarks = vec![format!(
            "memory={}B artifact={}B",
            manifest.plain_bytes(),
            manifest.size_bytes
        )];
        if let Some(took) = took {
            effected.remarks.push(format!(
                "written={:.1}ms sealed={:.1}ms",
                took.written.as_secs_f64() * 1000.0,
                took.sealed.as_secs_f64() * 1000.0
            ));
            let synced = took.synced.as_secs_f64() * 1000.0;
            effected.remarks.push(format!("sync={synced:.1}ms"));
        }
        effected.leftovers = owed_but(&self.host.layout.sandbox(sandbox), ctx.key, Some(&name))?;
        effected.reference = DriverReference {
            driver: DRIVER.to_owned(),
            format: FORMAT,
            location: String::new(),
            data: name.into_bytes(),
        };
        Ok(effected)
    }

    /// No artifact came of it: the compute is made what it was.
    async fn undo(
        self: &Arc<Self>,
        turn: &Arc<Turn>,
        sandbox: SandboxId,
        error: LocalError,
    ) -> DriverError {
        let error = error.without_effect();
        let running = match self.running_now(sandbox).await {
            Ok(Some(running)) => running,
            Ok(None) => return DriverError::Unknown(format!("{error}; and its compute has ended")),
            Err(unknown) => return unknown,
        };
        match self.undone(turn, sandbox, running).await {
            Ok(()) => error,
            Err(worse) => DriverError::Unknown(format!("{error}; and undoing it: {worse}")),
        }
    }

    /// After a checkpoint that did not come to its end: the sentry writes no more, its limit holds,
    /// nothing plain is left, and it is frozen or runs as it did.
    pub(crate) async fn undone(
        self: &Arc<Self>,
        turn: &Turn,
        sandbox: SandboxId,
        running: Running,
    ) -> Result<(), LocalError> {
        let mut record = running.record.clone();
        if let Some(saving) = &record.saving {
            self.saved(&running, turn.to_settle()).await?;
            let dir = self.host.layout.sandbox(sandbox);
            artifact::sweep(&dir)?;
            if let Some(limit) = &saving.limit {
                self.host.cgroups.set_memory_limit(&record.native, limit)?;
            }
            record.saving = None;
            record.write(&dir)?;
        }
        if record.asleep {
            let (host, native, until) = (
                Arc::clone(&self.host),
                record.native.clone(),
                turn.to_settle(),
            );
            blocking(move || host.cgroups.freeze(&native, until)).await
        } else {
            self.wake(turn, &record).await
        }
    }

    /// Waits until the sentry has none of the files open that it writes memory to. Two at a time
    /// would end it.
    async fn saved(&self, running: &Running, until: Instant) -> Result<(), LocalError> {
        let Some(record) = running.record.first else {
            return Ok(());
        };
        while process::writes_memory(record.pid)? && !process::has_ended(&running.pidfd) {
            if Instant::now() >= until {
                return Err(LocalError::StillThere { left: 1 });
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(())
    }

    /// The limit to go back to; what an earlier try has noted is older than what it has set.
    fn limit_of(&self, record: &ComputeRecord) -> Option<String> {
        match &record.saving {
            Some(saving) => saving.limit.clone(),
            None => self.host.cgroups.memory_limit(&record.native),
        }
    }
}

/// A supervisor's folder is named by its content.
fn content_id(folder: &Path) -> String {
    let name = folder.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

fn sync_storage(folder: &Path) -> Result<(), LocalError> {
    let opened = std::fs::File::open(folder).at("opening", folder)?;
    rustix::fs::syncfs(&opened).at("syncing", folder)
}
