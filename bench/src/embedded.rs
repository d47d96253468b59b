//! A gateway on the simulated driver: the real store on a real folder, the real reconciler, API and
//! socket; the driver costs nothing, so what is measured is the gateway.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use overwinter_client::Client;
use overwinter_driver::testkit::fault::{CallKind, CallSite, Fault, FaultPlan};
use overwinter_driver::testkit::sim::{SimConfig, SimDriver, SimWorld};
use overwinter_gateway::ports::Ports;
use overwinter_gateway::reconciler::Drivers;
use overwinter_gateway::run::{Gateway, Open};
use overwinter_gateway::sessions::{CredentialKey, Hub};
use overwinter_store::{Stats, Store, StoreOptions};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Every delete takes this long.
struct SlowDeletes(Duration);

impl FaultPlan for SlowDeletes {
    fn decide(&self, call: &CallSite) -> Option<Fault> {
        (call.kind == CallKind::Delete).then_some(Fault::Delay(self.0))
    }

    fn is_active(&self) -> bool {
        !self.0.is_zero()
    }
}

/// Puts one together and listens.
///
/// # Errors
/// When the store cannot be opened, or the socket cannot be had.
pub async fn open(
    folder: &Path,
    socket: &Path,
    slow_deletes: Duration,
) -> anyhow::Result<(Store, Open)> {
    let ports = Ports::default();
    let store = Store::open(StoreOptions::folder(folder, ports.clock.wall()))?;
    let hub = Hub::new(CredentialKey::new(store.meta().key));
    let world = SimWorld::new(SimConfig {
        // Those that were written straight into the store have never been here.
        presume_storage: true,
        faults: Arc::new(SlowDeletes(slow_deletes)),
        ..SimConfig::default()
    });
    let mut drivers = Drivers::default();
    drivers
        .add(Arc::new(SimDriver::new(world, Arc::new(hub.clone()))))
        .await;
    let gateway = Gateway::assemble(store.clone(), hub, drivers, ports).await?;
    Ok((store, gateway.open(socket).await?))
}

/// One in this process.
pub struct Embedded {
    store: Store,
    socket: PathBuf,
    stop: oneshot::Sender<()>,
    served: JoinHandle<()>,
}

impl Embedded {
    /// Serves on a socket in `folder`.
    ///
    /// # Errors
    /// As [`open`].
    pub async fn start(folder: &Path) -> anyhow::Result<Self> {
        let socket = folder.join("gateway.sock");
        let (store, open) = open(&folder.join("data"), &socket, Duration::ZERO).await?;
        let (stop, stopped) = oneshot::channel();
        let served = tokio::spawn(open.serve(async {
            // Dropped or sent: it is time.
            let _ = stopped.await;
        }));
        Ok(Self {
            store,
            socket,
            stop,
            served,
        })
    }

    #[must_use]
    pub fn client(&self) -> Client {
        Client::connect(&self.socket)
    }

    #[must_use]
    pub fn stats(&self) -> Stats {
        self.store.stats()
    }

    /// # Errors
    /// When it has panicked.
    pub async fn end(self) -> anyhow::Result<()> {
        let _ = self.stop.send(());
        self.served.await.context("the embedded gateway")
    }
}
