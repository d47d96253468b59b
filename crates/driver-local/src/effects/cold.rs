//! `create` and `start`: compute made anew, over storage that is made with it or was there.
//!
//! ```text
//! look ─┬─ this key's compute runs ──────────────► new credentials, done
//!       ├─ another's runs ───────────────────────► Unknown: the core looks, and settles it first
//!       └─ nothing, or remains ─ clear ─ note ─ credentials ─ socket ─ mounts ─ runtime ─ look ─ done
//!                                                                  any failure: clear, Rejected
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use overwinter_driver::door::{self, Door};
use overwinter_driver::{Compute, ComputeSpec, Credentials, DriverError, EffectContext, Effected};
use overwinter_lifecycle::ids::SandboxId;

use super::storage::{keep_storage, make_layer, make_storage};
use super::{effected, owed};
use crate::artifact::Generation;
use crate::bundle::Bundle;
use crate::compute::{ComputeRecord, Look, Running};
use crate::driver::{Shared, Turn, blocking};
use crate::error::{At, LocalError};
use crate::host::{Host, folder};
use crate::image::{self, Root};
use crate::lock::SandboxLock;
use crate::mounts::{Mounted, Plan};
use crate::network::{Joined, Joining, Network};
use crate::runtime::{Kind, Runtime};
use crate::teardown;

/// What remains of a deadline that is up is too little to clear up in.
const CLEAR_WITHIN: Duration = Duration::from_secs(5);

impl Shared {
    pub(crate) async fn create(
        self: &Arc<Self>,
        ctx: &EffectContext,
        spec: ComputeSpec,
        credentials: Credentials,
    ) -> Result<Effected, DriverError> {
        admit(&self.host, &spec)?;
        self.host.cgroups.expect_move();
        let mut turn = self.turn(ctx).await?;
        let sandbox = ctx.sandbox();
        let had_storage = self.host.has_storage(sandbox);
        if turn.lock.is_none() {
            let host = Arc::clone(&self.host);
            let lock = blocking(move || {
                let dir = host.layout.sandbox(sandbox);
                folder(&dir.kept, 0o700)?;
                SandboxLock::take(&dir.lock(), Duration::ZERO)
            })
            .await;
            match lock {
                Ok(lock) => turn.lock = Some(lock),
                Err(error) => {
                    self.remove_storage(sandbox, turn.until)
                        .await
                        .map_err(LocalError::unsettled)?;
                    return Err(error.without_effect());
                }
            }
        }
        let made = self
            .bring_up(&turn, ctx, spec, credentials, Storage::Make)
            .await;
        match made {
            Err(failed) if failed.surely_no_effect() && !had_storage => {
                self.remove_storage(sandbox, Instant::now() + CLEAR_WITHIN)
                    .await
                    .map_err(LocalError::unsettled)?;
                self.turns.forget(sandbox);
                Err(failed)
            }
            other => other,
        }
    }

    pub(crate) async fn start(
        self: &Arc<Self>,
        ctx: &EffectContext,
        spec: ComputeSpec,
        credentials: Credentials,
    ) -> Result<Effected, DriverError> {
        admit(&self.host, &spec)?;
        self.host.cgroups.expect_move();
        let turn = self.turn(ctx).await?;
        if !self.host.has_storage(ctx.sandbox()) {
            return Err(DriverError::Missing("its storage is not there".to_owned()));
        }
        let mut started = self
            .bring_up(&turn, ctx, spec, credentials, Storage::Keep)
            .await?;
        // Memory of before does not fit what runs now.
        started.leftovers = owed(&self.host.layout.sandbox(ctx.sandbox()), ctx.key)?;
        Ok(started)
    }

    async fn bring_up(
        self: &Arc<Self>,
        turn: &Turn,
        ctx: &EffectContext,
        spec: ComputeSpec,
        credentials: Credentials,
        storage: Storage,
    ) -> Result<Effected, DriverError> {
        let sandbox = ctx.sandbox();
        let native = ctx.key.native_name();
        match self.clear_for(turn, sandbox).await? {
            Some(running) if running.record.native == native => {
                return self.again(turn, running, &credentials).await;
            }
            Some(_) => return Err(another_runs()),
            None => {}
        }

        let begun = self.make(turn, ctx, spec, credentials, storage).await;
        match begun {
            Ok(remark) => {
                let mut effected = effected(Compute::Live {
                    held: ctx.incarnation,
                });
                effected.remarks.extend(remark);
                Ok(effected)
            }
            Err(error) => {
                turn.entry.set_live(None);
                let hung = matches!(error, LocalError::RuntimeHung { .. });
                let host = Arc::clone(&self.host);
                let cleared = blocking(move || {
                    teardown::end(&host, &native, Instant::now() + CLEAR_WITHIN)?;
                    teardown::forget(&host, sandbox)
                })
                .await;
                match cleared {
                    Ok(()) if !hung => Err(error.without_effect()),
                    Ok(()) => Err(error.unsettled()),
                    Err(left) => Err(DriverError::Unknown(format!(
                        "{error}; and clearing up: {left}"
                    ))),
                }
            }
        }
    }

    /// What runs; where nothing does, nothing is left either when this returns.
    pub(super) async fn clear_for(
        self: &Arc<Self>,
        turn: &Turn,
        sandbox: SandboxId,
    ) -> Result<Option<Running>, DriverError> {
        let host = Arc::clone(&self.host);
        let until = turn.until;
        let look = blocking(move || {
            let look = host.look(sandbox)?;
            if let Look::Nothing | Look::Remains(_) = look {
                teardown::end_others(&host, sandbox, None, until)?;
            }
            Ok(look)
        })
        .await
        .map_err(LocalError::unsettled)?;
        Ok(match look {
            Look::Running(running) => Some(running),
            Look::Nothing | Look::Remains(_) => {
                turn.entry.set_live(None);
                None
            }
        })
    }

    /// The call is repeated and what it makes is there: only its credentials may be new.
    pub(super) async fn again(
        self: &Arc<Self>,
        turn: &Turn,
        running: Running,
        credentials: &Credentials,
    ) -> Result<Effected, DriverError> {
        let held = running.record.birth;
        self.let_in(turn, credentials.sandbox, running, credentials)
            .map_err(LocalError::unsettled)?;
        Ok(effected(Compute::Live { held }))
    }

    /// Answers with what there is to tell of it.
    async fn make(
        self: &Arc<Self>,
        turn: &Turn,
        ctx: &EffectContext,
        mut spec: ComputeSpec,
        credentials: Credentials,
        storage: Storage,
    ) -> Result<Option<String>, LocalError> {
        let Some(lock) = &turn.lock else {
            return Err(LocalError::BrokenOff);
        };
        let sandbox = ctx.sandbox();
        let native = ctx.key.native_name();
        let runtime = self.runtime_of(&spec)?;
        let record = ComputeRecord {
            native: native.clone(),
            birth: ctx.incarnation,
            boot_id: self.host.boot_id.clone(),
            supervisor: self.host.supervisor.clone(),
            first: None,
            runtime: runtime.kind,
            turning: false,
            asleep: false,
            saving: None,
        };
        let dir = self.host.layout.sandbox(sandbox);
        let (scene, remark) = {
            let (shared, ctx, record) = (Arc::clone(self), ctx.clone(), record.clone());
            blocking(move || {
                let dir = shared.host.layout.sandbox(sandbox);
                Generation::raise(&dir, ctx.incarnation)?;
                let current = image::current(&shared.host.layout, &spec.image)?;
                spec.image = current.image;
                let from = (&spec, &current.root);
                let scene = shared.set_the_stage(&ctx, from, &credentials, storage, &record)?;
                Ok((scene, current.remark))
            })
            .await?
        };
        let Scene {
            door,
            mounted,
            network,
        } = scene;
        // Beside the runtime, which takes longer.
        let kept = match storage {
            Storage::Make => {
                let dir = self.host.layout.sandbox(sandbox);
                Some(tokio::task::spawn_blocking(move || keep_storage(&dir)))
            }
            Storage::Keep => None,
        };
        {
            let _starting = self.starting.read().await;
            self.host.cgroups.prepare()?;
            let call = self.host.call(&dir, &record, lock, turn.until);
            runtime.run(&call).await?;
        }
        if let Some(kept) = kept {
            kept.await.map_err(|_| LocalError::BrokenOff)??;
        }
        // The sandbox has its own by now, and nobody waits for this.
        let detaching = Arc::clone(&self.host);
        tokio::task::spawn_blocking(move || {
            drop((mounted, network));
            drop(detaching);
        });
        self.watch_new(turn, sandbox, record, &runtime, door)
            .await?;
        Ok(remark)
    }

    fn runtime_of(&self, spec: &ComputeSpec) -> Result<Arc<Runtime>, LocalError> {
        let found = self.host.runtimes.named(&spec.runtime);
        found.cloned().ok_or_else(|| LocalError::NoRuntime {
            runtime: spec.runtime.clone(),
            there: self.host.runtimes.names(),
        })
    }

    /// All that must be there before the runtime is called: the note first, by which whatever comes
    /// of it will be found.
    pub(super) fn set_the_stage(
        &self,
        ctx: &EffectContext,
        (spec, root): (&ComputeSpec, &Root),
        credentials: &Credentials,
        storage: Storage,
        record: &ComputeRecord,
    ) -> Result<Scene, LocalError> {
        let host = &self.host;
        let sandbox = ctx.sandbox();
        let dir = host.layout.sandbox(sandbox);
        let base = host.ranges.take(sandbox)?;
        match storage {
            Storage::Make => {
                make_storage(host, sandbox, base, spec)?;
            }
            Storage::Keep => {}
        }
        folder(&dir.volatile, 0o700)?;
        folder(&dir.attach(), 0o711)?;
        door::give(&dir.attach(), base)?;
        folder(&dir.bundle(), 0o700)?;
        let state = host.layout.runtime_root(record.runtime, &record.native);
        match record.runtime {
            Kind::Runc => {}
            Kind::Gvisor => folder(&state, 0o700)?,
        }
        let path = dir.spec();
        fs::write(&path, serde_json::to_vec(spec).at("writing", &path)?).at("writing", &path)?;
        record.write(&dir)?;
        door::write(&dir.attach(), base, credentials)?;
        let user = record.runtime.peer(base);
        let door = Door::open(&dir.attach(), sandbox, base, user, Arc::clone(&self.port))?;
        let network = Network::parse(&spec.network).unwrap_or(Network::None);
        let cpus = spec.resources.cpu_millis;
        let joining = (host.networks).join(&host.cgroups, &record.native, network, cpus)?;
        let mounted = prepare(host, ctx, (spec, root), record.runtime, base, &joining)?;
        let network = joining.ready(&host.cgroups)?;
        Ok(Scene {
            door,
            mounted,
            network,
        })
    }
}

/// What the runtime needs, and only while it starts something.
pub(super) struct Scene {
    pub(super) door: Door,
    pub(super) mounted: Mounted,
    pub(super) network: Joined,
}

/// A start is never issued beside another compute.
pub(super) fn another_runs() -> DriverError {
    DriverError::Unknown("compute of an earlier effect is still there".to_owned())
}

#[derive(Clone, Copy)]
pub(super) enum Storage {
    Make,
    Keep,
}

fn admit(host: &Host, spec: &ComputeSpec) -> Result<(), DriverError> {
    let Some(runtime) = host.runtimes.named(&spec.runtime) else {
        return Err(DriverError::Unsupported(format!(
            "the runtime `{}`: this driver has {}",
            spec.runtime,
            host.runtimes.names()
        )));
    };
    match host.networks.admit(&spec.network, runtime.kind) {
        Ok(_) => Ok(()),
        Err(why) => Err(DriverError::Unsupported(format!(
            "the network `{}`: {why}",
            spec.network
        ))),
    }
}

/// Everything that the runtime reads.
fn prepare(
    host: &Host,
    ctx: &EffectContext,
    (spec, root): (&ComputeSpec, &Root),
    runtime: Kind,
    base: u32,
    network: &Joining,
) -> Result<Mounted, LocalError> {
    let native = ctx.key.native_name();
    let dir = host.layout.sandbox(ctx.sandbox());
    if root.usr.is_some() {
        make_layer(&dir.root().join("usr"))?;
    }
    let mounted = Mounted::make(&Plan {
        at: host.layout.mounts_of(&native),
        base,
        lower: &root.lower,
        usr: root.usr.as_deref(),
        root: &dir.root(),
        workspace: &dir.workspace(),
        attach: &dir.attach(),
        supervisor: &host.supervisor,
    })?;
    if let Some(sysfs) = network.sysfs() {
        mounted.add_sysfs(sysfs)?;
    }
    let config = Bundle {
        ctx,
        spec,
        runtime,
        mounted: &mounted,
        network: network.joined(),
        base,
        gateway: &host.config.gateway_id,
        cgroup: &host.cgroups.path(&native),
        default_pids: host.config.default_pids,
        open_files: host.open_files,
        init_args: host.config.init_args.as_deref(),
    }
    .config();
    let path: PathBuf = dir.bundle().join("config.json");
    write_config(&path, &config)?;
    Ok(mounted)
}

fn write_config(path: &Path, config: &serde_json::Value) -> Result<(), LocalError> {
    let bytes = serde_json::to_vec(config)
        .map_err(std::io::Error::from)
        .at("writing", path)?;
    fs::write(path, bytes).at("writing", path)
}
