//! A whole gateway around a simulated backend, on a real socket and a real store, and the SDK.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "shared by test crates, each of which uses its own part; what cannot go on has failed"
)]

use std::sync::Arc;
use std::time::Duration;

use overwinter_client::{Client, Sandbox};
use overwinter_driver::testkit::{CallKind, Fault, Script, SimConfig, SimDriver, SimWorld};
use overwinter_gateway::api::Api;
use overwinter_gateway::ports::Ports;
use overwinter_gateway::reconciler::Drivers;
use overwinter_gateway::run::Gateway;
use overwinter_gateway::sessions::{CredentialKey, Hub};
use overwinter_lifecycle::operation::Deadlines;
use overwinter_store::{Store, StoreOptions};
use tempfile::TempDir;
use tokio::sync::oneshot;

/// Nothing here takes long; what does has been lost.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub struct Rig {
    pub world: Arc<SimWorld>,
    pub script: Arc<Script>,
    pub store: Store,
    pub api: Api,
    pub client: Client,
    folder: TempDir,
    _stop: oneshot::Sender<()>,
}

impl Rig {
    pub async fn new() -> Self {
        let script = Arc::new(Script::new());
        Self::with(
            SimConfig {
                faults: script.clone(),
                ..SimConfig::default()
            },
            script,
        )
        .await
    }

    pub async fn with(config: SimConfig, script: Arc<Script>) -> Self {
        Self::with_deadlines(config, script, Deadlines::default()).await
    }

    pub async fn with_deadlines(
        config: SimConfig,
        script: Arc<Script>,
        deadlines: Deadlines,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let now = Ports::default().clock.wall();
        let options = StoreOptions::folder(folder.path().join("data"), now);
        let store = Store::open(options).unwrap();
        Self::up(folder, SimWorld::new(config), script, store, deadlines).await
    }

    /// Another gateway on the same records and the same backend; the one before is cut off from both
    /// its clients and its supervisors.
    pub async fn restart(self) -> Self {
        let deadlines = self.api.reconciler.deadlines;
        Self::up(self.folder, self.world, self.script, self.store, deadlines).await
    }

    async fn up(
        folder: TempDir,
        world: Arc<SimWorld>,
        script: Arc<Script>,
        store: Store,
        deadlines: Deadlines,
    ) -> Self {
        let hub = Hub::new(CredentialKey::new(store.meta().key));
        let mut drivers = Drivers::default();
        drivers
            .add(Arc::new(SimDriver::new(
                world.clone(),
                Arc::new(hub.clone()),
            )))
            .await;
        let gateway = Gateway::assemble(store.clone(), hub, drivers, Ports::default())
            .await
            .unwrap()
            .with_deadlines(deadlines);
        let socket = folder.path().join(format!("s{}", uuid::Uuid::now_v7()));
        let open = gateway.open(&socket).await.unwrap();
        let api = open.api().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        tokio::spawn(open.serve(async {
            // Dropped with the rig: that is the signal.
            let _ = stopped.await;
        }));
        Self {
            world,
            script,
            store,
            api,
            client: Client::connect(socket),
            folder,
            _stop: stop,
        }
    }

    pub async fn create(&self, name: &str) -> Sandbox {
        self.client
            .create()
            .name(name)
            .image("image")
            .limit(PATIENCE)
            .wait()
            .await
            .unwrap()
            .sandbox
    }

    pub fn fault(&self, kind: CallKind, nth: u64, fault: Fault) {
        self.script.at(kind, nth, fault);
    }

    /// Ends the test: every fault has happened, and nothing that must never be was.
    pub fn sound(self) {
        assert_eq!(
            self.script.unused(),
            0,
            "a fault that did not happen tests nothing"
        );
        self.world.assert_sound();
    }
}
