//! What goes into a driver's calls and comes out of them.

use std::time::Duration;

pub use overwinter_lifecycle::Depth;
use overwinter_lifecycle::config::Resources;
use overwinter_lifecycle::ids::{EffectKey, Incarnation, SandboxId};
pub use overwinter_lifecycle::record::{Compute, Debt, DebtKind, DriverReference, Reclaimed};
pub use overwinter_lifecycle::steps::{Effected, Observed};
use serde::{Deserialize, Serialize};

/// What a driver is and can do, as found out now: modes are never assumed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    pub name: String,
    /// Of the driver and of what it drives, e.g. `0.1.0 (runc 1.1.5)`.
    pub version: String,
    pub features: Vec<String>,
    /// The networks that a sandbox may have, and those that it may not.
    pub networks: Vec<NetworkOffer>,
    /// What runs sandboxes, where one may be chosen; the first is the default.
    pub runtimes: Vec<RuntimeOffer>,
    pub modes: Vec<SuspensionMode>,
    /// Depths that are not there, and why.
    pub unavailable: Vec<(Depth, String)>,
    /// Limits that would not hold here, and why. A sandbox that asks for one is refused.
    pub unenforced: Vec<(Limit, String)>,
}

/// A network by name, such as `none`, `internet`, `host`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkOffer {
    pub name: String,
    /// Why it is not to be had here. None: it is.
    pub missing: Option<String>,
}

/// A runtime by name, such as `runc`, `runsc`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeOffer {
    pub name: String,
    /// Networks, by name, that are to be had here and not on this runtime, and why.
    pub without: Vec<(String, String)>,
    /// The same of depths.
    pub lacks: Vec<(Depth, String)>,
}

/// Why a sandbox cannot have the network, or the runtime, that it asks for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotOffered {
    #[error("the network {network:?}: {missing}")]
    NetworkNotHere { network: String, missing: String },
    #[error("the network {network:?} on the runtime {runtime:?}: {missing}")]
    NetworkNotOn {
        network: String,
        runtime: String,
        missing: String,
    },
    #[error("the network {network:?}: its networks: {}", there.join(", "))]
    UnknownNetwork { network: String, there: Vec<String> },
    #[error("the runtime {runtime:?}: its runtimes: {}", there.join(", "))]
    UnknownRuntime { runtime: String, there: Vec<String> },
}

impl NetworkOffer {
    #[must_use]
    pub fn of(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            missing: None,
        }
    }
}

/// A limit on what a sandbox takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    Cpu,
    Memory,
    Pids,
    Disk,
}

impl Limit {
    pub const ALL: [Self; 4] = [Self::Cpu, Self::Memory, Self::Pids, Self::Disk];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::Pids => "pids",
            Self::Disk => "disk",
        }
    }

    /// Whether `resources` ask for it; 0 is no limit.
    #[must_use]
    pub const fn is_in(self, resources: &Resources) -> bool {
        match self {
            Self::Cpu => resources.cpu_millis > 0,
            Self::Memory => resources.memory_bytes > 0,
            Self::Pids => resources.pids > 0,
            Self::Disk => resources.disk_bytes > 0,
        }
    }
}

impl Description {
    #[must_use]
    pub fn mode(&self, depth: Depth) -> Option<&SuspensionMode> {
        self.modes.iter().find(|mode| mode.depth == depth)
    }

    /// Whether a sandbox may have this network on this runtime; empty: the default one. A driver that
    /// names no runtimes has one.
    ///
    /// # Errors
    /// [`NotOffered`] says why not.
    pub fn offers(&self, network: &str, runtime: &str) -> Result<(), NotOffered> {
        let offer = self.networks.iter().find(|it| it.name == network);
        match offer.map(|offer| &offer.missing) {
            Some(None) => {}
            Some(Some(missing)) => {
                return Err(NotOffered::NetworkNotHere {
                    network: network.to_owned(),
                    missing: missing.clone(),
                });
            }
            None => {
                return Err(NotOffered::UnknownNetwork {
                    network: network.to_owned(),
                    there: self.networks.iter().map(|it| it.name.clone()).collect(),
                });
            }
        }
        let mut runtimes = self.runtimes.iter();
        let on = if runtime.is_empty() {
            runtimes.next()
        } else {
            runtimes.find(|it| it.name == runtime)
        };
        let Some(on) = on else {
            return if self.runtimes.is_empty() {
                Ok(())
            } else {
                Err(NotOffered::UnknownRuntime {
                    runtime: runtime.to_owned(),
                    there: self.runtimes.iter().map(|it| it.name.clone()).collect(),
                })
            };
        };
        let without = on.without.iter().find(|(name, _)| name == network);
        match without {
            None => Ok(()),
            Some((_, missing)) => Err(NotOffered::NetworkNotOn {
                network: network.to_owned(),
                runtime: on.name.clone(),
                missing: missing.clone(),
            }),
        }
    }

    /// The first limit in `resources` that would not hold, and why.
    #[must_use]
    pub fn unenforced_in(&self, resources: &Resources) -> Option<&(Limit, String)> {
        let mut unenforced = self.unenforced.iter();
        unenforced.find(|(limit, _)| limit.is_in(resources))
    }
}

/// One depth that a driver offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SuspensionMode {
    pub depth: Depth,
    pub preserves: Preserves,
    pub releases: Releases,
    pub survives: Survives,
    /// Whether a resume gives the same native compute.
    pub same_compute: bool,
    /// The longest time after sending at which the backend may still carry out a request whose
    /// reply was lost. Zero on a local runtime whose lock settles it.
    pub lost_request_life: Duration,
    /// Whether memory that it keeps resident can be given back when a suspend asks for it.
    pub reclaim: Reclaim,
}

/// Whether resident memory can be given back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reclaim {
    /// Nothing stays resident, or the backend has no way.
    No,
    Offered,
    /// Not here, and why.
    Missing(String),
}

impl SuspensionMode {
    /// As a runtime on this host has it that keeps both root and workspace: what is resident outlives
    /// the gateway alone, what is on disk is synced, and a lock settles what was asked for.
    #[must_use]
    pub const fn of_this_host(depth: Depth) -> Self {
        let resident = matches!(depth, Depth::Freeze);
        let memory = depth.keeps_memory();
        Self {
            depth,
            preserves: Preserves {
                processes: memory,
                memory,
                root: true,
                workspace: true,
                addresses: resident,
            },
            releases: Releases {
                cpu: true,
                memory: !resident,
            },
            survives: Survives {
                gateway_restart: true,
                host_reboot: !resident,
                power_loss: !resident,
            },
            same_compute: resident,
            lost_request_life: Duration::ZERO,
            reclaim: Reclaim::No,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Preserves {
    pub processes: bool,
    pub memory: bool,
    pub root: bool,
    pub workspace: bool,
    pub addresses: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Releases {
    pub cpu: bool,
    pub memory: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Survives {
    pub gateway_restart: bool,
    pub host_reboot: bool,
    pub power_loss: bool,
}

/// With every effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EffectContext {
    /// Its receipt is durable before the call.
    pub key: EffectKey,
    /// What the compute that comes of it is to attach as.
    pub incarnation: Incarnation,
    /// From the call on. A driver that cannot answer in time answers `Unknown`.
    pub deadline: Duration,
    pub options: EffectOptions,
}

/// What is asked of an effect beside its depth; the same at every call under one key. A driver whose
/// mode does not offer it is not asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EffectOptions {
    /// A freeze: give the memory back, as far as that goes, and say in [`Effected::reclaimed`] how
    /// far it went. Its failure is a remark and not the freeze's.
    pub reclaim: bool,
    /// The resume of a freeze: bring in what was given back, before anything runs.
    pub prefetch: bool,
    /// A start: where the root layer that was kept is gone, go on with a new one. Without it the start
    /// is refused as [`Unusable::RootLost`](crate::Unusable::RootLost), and changes nothing.
    pub new_root: bool,
}

impl EffectContext {
    #[must_use]
    pub const fn sandbox(&self) -> SandboxId {
        self.key.sandbox
    }
}

/// What compute is made from. The same for create and for every later cold start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComputeSpec {
    /// Also the hostname.
    pub name: String,
    pub image: PinnedImage,
    pub resources: Resources,
    /// One of [`Description::networks`]; empty: `none`.
    pub network: String,
    /// Names one of the driver's runtimes; empty: its default.
    #[serde(default)]
    pub runtime: String,
}

/// An image as it was found at create.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinnedImage {
    /// As asked for.
    pub image: String,
    /// By content or by identity, as the driver can; opaque to the core.
    pub digest: String,
    /// argv of what it runs by itself; empty where it says nothing.
    #[serde(default)]
    pub main: Vec<String>,
}

/// How far the fetching of an image has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImageProgress {
    /// Those that are whole on the backend.
    pub layers_done: u32,
    /// Those that are known of so far.
    pub layers: u32,
    /// Fetched of all layers, compressed.
    pub bytes: u64,
}

/// What is so, by looking. Carries the boot id of the host or backend that it was seen on: resident
/// memory never outlives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    pub observed: Observed,
    pub boot_id: String,
    /// Whether the storage is there.
    pub storage: bool,
}

/// One compute that a listing found under this gateway's labels or another's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// None: not one of any gateway's.
    pub gateway: Option<String>,
    pub sandbox: Option<SandboxId>,
    pub birth: Option<Incarnation>,
    pub native_name: String,
    pub observed: Observed,
}

/// Something has happened to a sandbox's compute; what, tells an observation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changed {
    pub sandbox: SandboxId,
    /// The incarnation that the compute was started with.
    pub held: Incarnation,
}
