//! Each fault of the simulated backend shows itself as it is described, and nothing that never may
//! be so comes of it.

#![allow(clippy::unwrap_used)]

mod effects;
mod inside;
mod plans;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use overwinter_driver::agent::AgentError;
use overwinter_driver::attach::AttachRefused;
use overwinter_driver::testkit::conformance::TestPort;
use overwinter_driver::testkit::{
    CallKind, CallSite, CrashPoint, Dials, Fault, FaultPlan as _, Late, Script, Seeded, SimConfig,
    SimDriver, SimWorld, Violation,
};
use overwinter_driver::{
    Agent, Compute, ComputeSpec, Credentials, Depth, Driver as _, DriverError, EffectContext,
    Effected, Observed, PinnedImage, Token, Unusable,
};
use overwinter_lifecycle::config::Resources;
use overwinter_lifecycle::ids::{EffectKey, Fence, Incarnation, SandboxId, Serial};
use uuid::Uuid;

const MINUTE: Duration = Duration::from_secs(60);

/// A sandbox on a simulated backend, driven call by call.
struct Bed {
    world: Arc<SimWorld>,
    driver: SimDriver,
    port: Arc<TestPort>,
    script: Arc<Script>,
    crashes: Arc<Mutex<Vec<(CallSite, CrashPoint)>>>,
    id: SandboxId,
}

impl Bed {
    fn new() -> Self {
        let script = Arc::new(Script::new());
        let crashes = Arc::new(Mutex::new(Vec::new()));
        let seen = crashes.clone();
        let world = SimWorld::new(SimConfig {
            faults: script.clone(),
            on_crash: Arc::new(move |site, point| seen.lock().unwrap().push((site, point))),
            ..SimConfig::default().with_every_depth()
        });
        let port = TestPort::new();
        Self {
            driver: SimDriver::new(world.clone(), port.clone()),
            world,
            port,
            script,
            crashes,
            id: SandboxId(Uuid::from_u128(7)),
        }
    }

    fn ctx(&self, fence: u64, incarnation: u64) -> EffectContext {
        EffectContext {
            key: EffectKey {
                sandbox: self.id,
                fence: Fence(fence),
                serial: Serial(1),
            },
            incarnation: Incarnation(incarnation),
            deadline: MINUTE,
            options: overwinter_driver::EffectOptions::default(),
        }
    }

    fn spec() -> ComputeSpec {
        ComputeSpec {
            name: "it".into(),
            image: PinnedImage {
                image: "any".into(),
                digest: String::new(),
                main: Vec::new(),
            },
            resources: Resources::default(),
            network: "none".into(),
            runtime: String::new(),
        }
    }

    fn credentials(&self, incarnation: u64) -> Credentials {
        Credentials {
            sandbox: self.id,
            incarnation: Incarnation(incarnation),
            token: Token(format!("token-{incarnation}")),
        }
    }

    async fn create(&self) -> Result<Effected, DriverError> {
        let credentials = self.credentials(1);
        self.port.issue(&credentials, false);
        let ctx = self.ctx(1, 1);
        self.driver.create(&ctx, &Self::spec(), &credentials).await
    }

    async fn start(&self, fence: u64, incarnation: u64) -> Result<Effected, DriverError> {
        let credentials = self.credentials(incarnation);
        self.port.issue(&credentials, false);
        let ctx = self.ctx(fence, incarnation);
        self.driver.start(&ctx, &Self::spec(), &credentials).await
    }

    async fn stop(&self, fence: u64) -> Result<Effected, DriverError> {
        self.driver.suspend(&self.ctx(fence, 1), Depth::Stop).await
    }

    async fn observed(&self) -> Observed {
        self.driver.observe(self.id).await.unwrap().observed
    }

    async fn agent(&self, incarnation: u64) -> Arc<dyn Agent> {
        self.port.attached(self.id, Incarnation(incarnation)).await
    }

    /// Every fault that was asked for has happened, and nothing that never may.
    fn check(&self) {
        assert_eq!(self.script.unused(), 0);
        self.world.assert_sound();
    }
}

const LIVE: Observed = Observed::Live {
    held: Incarnation(1),
};

fn is_unknown(result: &Result<Effected, DriverError>) -> bool {
    matches!(result, Err(DriverError::Unknown(_)))
}
