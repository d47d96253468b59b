//! How a simulated backend is made.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use crate::testkit::clock::{Clock, TokioClock};
use crate::testkit::fault::{CallSite, CrashPoint, FaultPlan, NoFaults};
use crate::testkit::spawn::{Spawn, TokioSpawn};
use crate::types::{Depth, Limit, SuspensionMode};

/// What a harness makes of a crash: it kills its gateway.
pub type CrashHook = Arc<dyn Fn(CallSite, CrashPoint) + Send + Sync>;

/// By default it offers `freeze` and `stop`, has every image, and nothing goes wrong.
#[derive(Clone)]
pub struct SimConfig {
    pub name: String,
    /// The label of the gateway on the computes.
    pub gateway: String,
    /// Of the secrets.
    pub seed: u64,
    pub modes: Vec<SuspensionMode>,
    /// Limits that it says it does not enforce.
    pub unenforced: Vec<(Limit, String)>,
    /// None: every name is an image.
    pub images: Option<BTreeSet<String>>,
    /// Takes a sandbox that it has never seen to have its storage, empty, as of an earlier life of
    /// this backend. Costs nothing until such a sandbox is used.
    pub presume_storage: bool,
    /// To start compute beside what is there is a violation, whoever asks, and not merely refused: for a
    /// history in which no observation says what is not so.
    pub second_is_violation: bool,
    pub clock: Arc<dyn Clock>,
    pub spawn: Arc<dyn Spawn>,
    pub faults: Arc<dyn FaultPlan>,
    pub on_crash: CrashHook,
}

impl Default for SimConfig {
    fn default() -> Self {
        Self {
            name: "sim".to_owned(),
            gateway: "sim-gateway".to_owned(),
            seed: 0,
            modes: vec![freeze_mode(), stop_mode()],
            unenforced: Vec::new(),
            images: None,
            presume_storage: false,
            second_is_violation: false,
            clock: Arc::new(TokioClock::default()),
            spawn: Arc::new(TokioSpawn),
            faults: Arc::new(NoFaults),
            on_crash: Arc::new(|_, _| {}),
        }
    }
}

impl fmt::Debug for SimConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimConfig")
            .field("name", &self.name)
            .field("seed", &self.seed)
            .field("modes", &self.modes)
            .finish_non_exhaustive()
    }
}

impl SimConfig {
    /// Every depth that there is.
    #[must_use]
    pub fn with_every_depth(mut self) -> Self {
        self.modes = vec![freeze_mode(), checkpoint_mode(), stop_mode()];
        self
    }

    pub(super) fn mode(&self, depth: Depth) -> Option<&SuspensionMode> {
        self.modes.iter().find(|mode| mode.depth == depth)
    }
}

/// Of a runtime on this host: processes halted, memory resident.
#[must_use]
pub const fn freeze_mode() -> SuspensionMode {
    SuspensionMode::of_this_host(Depth::Freeze)
}

/// Memory written to an artifact; new native compute at the resume.
#[must_use]
pub const fn checkpoint_mode() -> SuspensionMode {
    SuspensionMode::of_this_host(Depth::Checkpoint)
}

/// Root and workspace kept.
#[must_use]
pub const fn stop_mode() -> SuspensionMode {
    SuspensionMode::of_this_host(Depth::Stop)
}
