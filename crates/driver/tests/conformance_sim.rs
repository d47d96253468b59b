//! The conformance suite against the simulated backend: once with every depth, and once with the
//! least that a driver may offer.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use overwinter_driver::testkit::conformance::{self, Backend, TestLedger, TestPort};
use overwinter_driver::testkit::sim::stop_mode;
use overwinter_driver::testkit::{SimConfig, SimDriver, SimWorld};
use overwinter_driver::{Driver, PinnedImage};
use overwinter_lifecycle::ids::SandboxId;

struct Sim {
    world: Arc<SimWorld>,
    driver: Mutex<Arc<SimDriver>>,
    port: Arc<TestPort>,
    ledger: Arc<TestLedger>,
}

impl Sim {
    fn new(config: SimConfig) -> Self {
        let world = SimWorld::new(SimConfig {
            images: Some(BTreeSet::from(["sim".to_owned()])),
            ..config
        });
        let port = TestPort::new();
        Self {
            driver: Mutex::new(Arc::new(SimDriver::new(world.clone(), port.clone()))),
            world,
            port,
            ledger: Arc::default(),
        }
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.world.assert_sound();
        }
    }
}

#[async_trait]
impl Backend for Sim {
    fn driver(&self) -> Arc<dyn Driver> {
        self.driver.lock().unwrap().clone()
    }

    fn port(&self) -> Arc<TestPort> {
        self.port.clone()
    }

    fn ledger(&self) -> Arc<TestLedger> {
        self.ledger.clone()
    }

    async fn image(&self) -> String {
        "sim".to_owned()
    }

    async fn vanished_image(&self) -> PinnedImage {
        PinnedImage {
            image: "gone".to_owned(),
            digest: "sim:gone".to_owned(),
            main: Vec::new(),
        }
    }

    fn counter(&self) -> Vec<String> {
        vec!["counter".to_owned(), "50".to_owned()]
    }

    async fn kill(&self, sandbox: SandboxId) {
        assert!(self.world.kill(sandbox));
    }

    async fn restart(&self) {
        *self.driver.lock().unwrap() =
            Arc::new(SimDriver::new(self.world.clone(), self.port.clone()));
    }

    async fn leftovers(&self) -> Vec<String> {
        self.world.leftovers()
    }
}

async fn every_depth() -> Sim {
    Sim::new(SimConfig::default().with_every_depth())
}

overwinter_driver::conformance!(every_depth);

#[tokio::test]
async fn the_least_that_a_driver_may_offer_conforms_as_well() {
    let mut mode = stop_mode();
    mode.preserves.root = false;
    let report = conformance::run(|| async {
        Sim::new(SimConfig {
            modes: vec![mode.clone()],
            ..SimConfig::default()
        })
    })
    .await;
    assert!(report.failed.is_empty(), "{report}");
}
