//! Sandboxes as containers, as a user meets them: the real gateway with a Docker daemon of the test's own,
//! through the command and the SDK. Each test ends with a look at what is left in the daemon and on the host.
#![allow(clippy::unwrap_used)]

mod behind;
mod compose;
mod images;
mod interrupted;
mod life;
mod neighbours;
mod rootless;

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, ensure};
use overwinter_driver_docker::Flavor;
use overwinter_driver_docker::testkit::{Daemon, cannot_run};
use overwinter_tests::Gateway;
use uuid::Uuid;

const IMAGE: &str = "winter:latest";

/// Whether a test has to be left out; loud, so that a run that has tested nothing does not look like one
/// that has.
fn skips(why: Option<&'static str>) -> anyhow::Result<bool> {
    if let Some(why) = why {
        let strict = std::env::var_os("OVERWINTER_REQUIRE_LOCAL").is_some();
        ensure!(
            !strict,
            "OVERWINTER_REQUIRE_LOCAL is set, and this test {why}"
        );
        eprintln!("SKIPPED: {why}");
    }
    Ok(why.is_some())
}

/// For a daemon.
fn new_folder() -> anyhow::Result<PathBuf> {
    let short = Uuid::new_v4().simple().to_string()[..8].to_owned();
    let folder = std::env::temp_dir().join(format!("ow-docker-{short}"));
    fs::create_dir(&folder)?;
    Ok(folder)
}

/// A gateway with a daemon beside it.
struct Stage {
    gateway: Gateway,
    daemon: Daemon,
    flavor: Flavor,
    folder: PathBuf,
    /// By which the gateway reaches the daemon.
    socket: PathBuf,
}

impl Stage {
    /// None where no daemon can be run.
    async fn set(flavor: Flavor) -> anyhow::Result<Option<Self>> {
        let mut stage = Self::without_gateway(flavor).await?;
        if let Some(stage) = &mut stage {
            stage.gateway.run().await?;
        }
        Ok(stage)
    }

    /// The gateway is set up and does not run yet.
    async fn without_gateway(flavor: Flavor) -> anyhow::Result<Option<Self>> {
        if skips(cannot_run(flavor))? {
            return Ok(None);
        }
        let folder = new_folder()?;
        let daemon = Daemon::start(flavor, &folder).await?;
        Self::beside(daemon, flavor, folder).await.map(Some)
    }

    /// The same with a daemon that runs in this folder.
    async fn beside(daemon: Daemon, flavor: Flavor, folder: PathBuf) -> anyhow::Result<Self> {
        daemon.import(IMAGE, &[]).await?;
        let mut gateway = Gateway::prepare()?;
        // Not what whoever runs the tests is logged in to.
        let login = folder.join("login");
        gateway.set_env("DOCKER_CONFIG", login.to_string_lossy());
        let mut stage = Self {
            socket: daemon.socket(),
            gateway,
            daemon,
            flavor,
            folder,
        };
        stage.configure("never", "")?;
        Ok(stage)
    }

    /// For the next start of the gateway: when images are fetched, and tables beside the driver's.
    fn configure(&mut self, pull: &str, tables: &str) -> anyhow::Result<()> {
        let (driver, socket) = (self.flavor.name(), &self.socket);
        self.gateway.set_config(&format!(
            "{tables}[{driver}]\nenabled = true\nsocket = {socket:?}\npull = {pull:?}\n"
        ))
    }

    /// Runs the command, which must end well.
    async fn ow(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let said = self.gateway.say(arguments).await?.well();
        said.with_context(|| format!("overwinter {}", arguments.join(" ")))
    }

    /// A sandbox of the image.
    async fn create(&self, name: &str) -> anyhow::Result<()> {
        let driver = self.flavor.name();
        let create = [
            "sandbox", "create", name, "--driver", driver, "--image", IMAGE,
        ];
        self.ow(&create).await.map(drop)
    }

    /// Runs a script inside, which must end well.
    async fn sh(&self, name: &str, script: &str) -> anyhow::Result<String> {
        self.ow(&["sandbox", "exec", name, "--", "sh", "-c", script])
            .await
    }

    /// The ids of all containers that the daemon has.
    async fn containers(&self) -> anyhow::Result<Vec<String>> {
        self.daemon.containers().await.map_err(Into::into)
    }

    /// Deletes what there is; nothing may be left.
    async fn strike(self) -> anyhow::Result<()> {
        let sandboxes = self
            .gateway
            .data_dir()
            .join(self.flavor.name())
            .join("sandboxes");
        for sandbox in self.gateway.client().list().all().await? {
            self.gateway.client().delete(sandbox.id()).wait().await?;
        }
        ensure!(self.containers().await?.is_empty(), "containers are left");
        ensure!(
            fs::read_dir(&sandboxes)?.next().is_none(),
            "folders are left"
        );
        self.gateway.end().await?;
        drop(self.daemon);
        let traces = Daemon::traces(&self.folder);
        ensure!(traces.is_empty() && !self.folder.exists(), "{traces:?}");
        Ok(())
    }
}
