//! Putting a gateway together: store, drivers, reconciler, front door; in this order, and nothing is
//! served before what was left is taken up.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use overwinter_driver::ledger::{Ledger, LedgerUnavailable, Receipt};
use overwinter_driver_docker as docker;
use overwinter_driver_local as local;
use overwinter_lifecycle::ids::SandboxId;
use overwinter_lifecycle::operation::Deadlines;
use overwinter_store::{Location, Store, StoreError, StoreOptions, WriterKind};
use tokio::net::UnixListener;

use crate::api::Api;
use crate::config::{Config, EngineConfig, Pull};
use crate::crash;
use crate::ports::Ports;
use crate::reconciler::{Drivers, Reconciler};
use crate::server::{self, ServerError, Services};
use crate::sessions::{CredentialKey, Hub};
use crate::stop;
use crate::telemetry::Telemetry;

/// How long what runs may take to reach a recorded step when the gateway is asked to end.
const GOODBYE: Duration = Duration::from_secs(10);

/// Why a gateway does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Server(#[from] ServerError),
    #[error("the driver \"local\" cannot be used: {0}")]
    Local(#[from] local::OpenError),
    #[error("the driver {driver:?} cannot be used: {source}")]
    Engine {
        driver: &'static str,
        source: docker::OpenError,
    },
    #[error("no driver is enabled")]
    NoDriver,
    #[error("records name the driver {0:?}, which is not configured")]
    DriverGone(String),
    #[error(
        "the supervisor is not beside the gateway; set `local.supervisor` in the configuration, or that of the driver"
    )]
    NoSupervisor,
    #[error("signals cannot be awaited: {0}")]
    Signals(std::io::Error),
}

/// The store, as drivers see it.
struct StoreLedger(Store);

#[async_trait]
impl Ledger for StoreLedger {
    async fn newest(&self, sandbox: SandboxId) -> Result<Option<Receipt>, LedgerUnavailable> {
        match self.0.newest_receipt(sandbox).await {
            Ok(found) => Ok(found.map(|receipt| Receipt {
                key: receipt.key,
                kind: receipt.kind,
                outcome: receipt.outcome,
            })),
            Err(error) => Err(LedgerUnavailable(error.to_string())),
        }
    }
}

/// A gateway that is put together and serves nothing yet. Whoever embeds one brings the store, the
/// drivers and the ports; [`run`] makes them from a configuration.
pub struct Gateway {
    api: Api,
}

impl Gateway {
    /// The hub is the port that the drivers were given.
    ///
    /// # Errors
    /// [`StartError::NoDriver`]; [`StartError::DriverGone`], because a driver that has records cannot
    /// be taken out of the configuration.
    pub async fn assemble(
        store: Store,
        hub: Hub,
        drivers: Drivers,
        ports: Ports,
    ) -> Result<Self, StartError> {
        if drivers.default_name().is_none() {
            return Err(StartError::NoDriver);
        }
        for name in store.drivers_in_use().await? {
            if drivers.get(&name).is_none() {
                return Err(StartError::DriverGone(name));
            }
        }
        let reconciler =
            Reconciler::new(store, hub, Arc::new(drivers), ports, Telemetry::default());
        Ok(Self {
            api: Api::new(reconciler),
        })
    }

    /// Sets the deadlines of the operations that are accepted from now on.
    #[must_use]
    pub fn with_deadlines(mut self, deadlines: Deadlines) -> Self {
        self.api.reconciler.deadlines = deadlines;
        self
    }

    /// Takes up what was left, and listens nowhere: for whoever calls the services by itself
    /// ([`server::rpc`]).
    ///
    /// # Errors
    /// When the records cannot be read.
    pub async fn begin(self) -> Result<Api, StartError> {
        self.api.reconciler.take_up().await?;
        self.api.reconciler.keep_house();
        Ok(self.api)
    }

    /// Takes up what was left and listens on `socket`: from here on calls are answered once
    /// [`Open::serve`] runs.
    ///
    /// # Errors
    /// When the socket cannot be had, or the records cannot be read.
    pub async fn open(self, socket: &Path) -> Result<Open, StartError> {
        let listener = server::bind(socket)?;
        let api = self.begin().await?;
        let services = server::services(&api)?;
        Ok(Open {
            api,
            listener,
            services,
            socket: socket.to_owned(),
        })
    }
}

/// A gateway that listens.
pub struct Open {
    api: Api,
    listener: UnixListener,
    services: Services,
    socket: PathBuf,
}

impl Open {
    #[must_use]
    pub const fn api(&self) -> &Api {
        &self.api
    }

    /// Serves until `stop` resolves, then drains. Sandboxes stay as they are: ending the gateway
    /// ends no compute.
    pub async fn serve(self, stop: impl Future<Output = ()>) {
        server::serve(self.listener, self.services, stop).await;
        let running = self.api.reconciler.at_work();
        if running > 0 {
            tracing::info!(
                running,
                "stopping: waiting for what runs, {} s at most; asked once more, it stops at once",
                GOODBYE.as_secs()
            );
        } else {
            tracing::info!("stopping: nothing runs");
        }
        match self.api.drain(GOODBYE).await {
            Ok(unfinished) if unfinished.is_empty() => tracing::info!("ended"),
            Ok(unfinished) => {
                tracing::info!(
                    unfinished = unfinished.len(),
                    "ended; the next start goes on"
                );
            }
            Err(_) => tracing::warn!("ended; what is unfinished could not be counted"),
        }
        let _ = std::fs::remove_file(self.socket);
    }
}

/// Runs a gateway until SIGTERM or SIGINT; a second one ends the process as a crash would.
///
/// # Errors
/// [`StartError`]; once it serves, it ends without one.
pub async fn run(config: Config, ports: Ports) -> Result<(), StartError> {
    let data_dir = config.data_dir();
    let socket = config.socket();
    // Before anything is begun for a gateway that nobody could reach.
    server::check_path(&socket)?;
    let store = Store::open(StoreOptions {
        location: Location::Folder(data_dir.clone()),
        writer: WriterKind::Thread,
        limits: config.limits,
        now: ports.clock.wall(),
        identity: None,
        full: None,
        pace: None,
        on_commit: ports.crash.clone().map(crash::around_commits),
    })?;
    let meta = store.meta().clone();
    let hub = Hub::new(CredentialKey::new(meta.key));
    let mut drivers = Drivers::default();
    let mut local = None;
    if config.local.enabled {
        let driver = open_local(&config, &data_dir, &meta.gateway.to_string(), &hub, &store)?;
        drivers.add(driver.clone()).await;
        local = Some(driver);
    }
    for (flavor, engine) in [
        (docker::Flavor::Docker, &config.docker),
        (docker::Flavor::Podman, &config.podman),
    ] {
        if engine.enabled {
            let supervisor = supervisor(&[&engine.supervisor, &config.local.supervisor])?;
            let settings = docker::DockerConfig::new(
                flavor,
                data_dir.join(flavor.name()),
                supervisor,
                meta.gateway.to_string(),
            );
            drivers
                .add(open_engine(engine, settings, &hub, &store)?)
                .await;
        }
    }
    let gateway = Gateway::assemble(store, hub, drivers, ports)
        .await?
        .with_deadlines(config.deadlines.into());
    let open = gateway.open(&socket).await?;
    tracing::info!(
        socket = %socket.display(),
        data_dir = %data_dir.display(),
        gateway = %meta.gateway,
        epoch = meta.epoch,
        "serving"
    );
    open.serve(stop::first_signal().map_err(StartError::Signals)?)
        .await;
    if let Some(local) = local {
        local.close();
    }
    Ok(())
}

fn open_local(
    config: &Config,
    data_dir: &Path,
    gateway: &str,
    hub: &Hub,
    store: &Store,
) -> Result<Arc<local::LocalDriver>, StartError> {
    let supervisor = supervisor(&[&config.local.supervisor])?;
    let mut settings =
        local::LocalConfig::new(data_dir.join("local"), supervisor, gateway.to_owned());
    settings.runtime = config.local.runtime.clone().into();
    if let Some(concurrency) = config.local.runtime_concurrency {
        settings.runtime_concurrency = concurrency;
    }
    settings.network = local::NetworkConfig {
        allow: config.local.network.allow.clone(),
        host: config.local.network.host,
        dns: config.local.network.dns.clone(),
        ..local::NetworkConfig::default()
    };
    let ledger = Arc::new(StoreLedger(store.clone()));
    Ok(local::LocalDriver::open(
        settings,
        Arc::new(hub.clone()),
        ledger,
    )?)
}

fn open_engine(
    config: &EngineConfig,
    usual: docker::DockerConfig,
    hub: &Hub,
    store: &Store,
) -> Result<Arc<docker::DockerDriver>, StartError> {
    let settings = docker::DockerConfig {
        socket: config.socket.clone().unwrap_or(usual.socket),
        pull: match config.pull {
            Pull::Always => docker::PullPolicy::Always,
            Pull::Missing => docker::PullPolicy::Missing,
            Pull::Never => docker::PullPolicy::Never,
        },
        registry_config: config.registry_config.clone(),
        ..usual
    };
    let driver = settings.flavor.name();
    let ledger = Arc::new(StoreLedger(store.clone()));
    let port = Arc::new(hub.clone());
    docker::DockerDriver::open(settings, port, ledger)
        .map_err(|source| StartError::Engine { driver, source })
}

/// The first that is set, else the one that was installed with the gateway.
fn supervisor(set: &[&Option<PathBuf>]) -> Result<PathBuf, StartError> {
    let set = set.iter().find_map(|path| path.as_ref()).cloned();
    set.or_else(|| beside("overwinter-supervisor"))
        .ok_or(StartError::NoSupervisor)
}

/// A program that was installed with this one.
fn beside(name: &str) -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    let path = own.parent()?.join(name);
    path.is_file().then_some(path)
}
