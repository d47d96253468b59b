//! A daemon of the run's own (Docker or Podman), a gateway that drives it, and containers that are made,
//! stopped and started by the daemon's API and by its command.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use bollard::Docker;
use bollard::models::{ContainerCreateBody, HostConfig};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, StartContainerOptions, StopContainerOptionsBuilder,
};
use overwinter_client::Client;
use overwinter_driver_docker::Flavor;
use overwinter_driver_docker::testkit::Daemon;
use overwinter_tests::Gateway;

const IMAGE: &str = "bench:latest";

/// Goes with [`Engine::end`], which checks that nothing is left.
pub struct Engine {
    flavor: Flavor,
    folder: PathBuf,
    daemon: Daemon,
    api: Docker,
    gateway: Gateway,
}

impl Engine {
    /// # Errors
    /// When one of them does not serve.
    pub async fn start(flavor: Flavor, below: &Path) -> anyhow::Result<Self> {
        let name = format!(
            "ow-bench-{}",
            &uuid::Uuid::new_v4().simple().to_string()[..8]
        );
        let folder = below.join(name);
        std::fs::create_dir(&folder)?;
        let daemon = Daemon::start(flavor, &folder).await?;
        daemon.import(IMAGE, &[]).await?;
        let api = daemon.client().await?;
        let mut gateway = Gateway::prepare()?;
        gateway.set_config(&format!(
            "[{}]\nenabled = true\nsocket = {:?}\npull = \"never\"\n",
            flavor.name(),
            daemon.socket()
        ))?;
        gateway.run().await?;
        Ok(Self {
            flavor,
            folder,
            daemon,
            api,
            gateway,
        })
    }

    #[must_use]
    pub fn client(&self) -> Client {
        self.gateway.client()
    }

    /// Makes a sandbox and answers its id.
    ///
    /// # Errors
    /// When it cannot be made.
    pub async fn create(&self, name: &str) -> anyhow::Result<String> {
        let client = self.client();
        let create = client.create().name(name).driver(self.flavor.name());
        let made = create.image(IMAGE).wait().await?;
        Ok(made.sandbox.id().to_owned())
    }

    /// A container of the same image that runs, without a network as the sandboxes are.
    ///
    /// # Errors
    /// What the daemon says.
    pub async fn bare(&self, name: &str) -> anyhow::Result<()> {
        let options = CreateContainerOptionsBuilder::default().name(name).build();
        let body = ContainerCreateBody {
            image: Some(IMAGE.to_owned()),
            cmd: Some(["/bin/sleep", "1000000"].map(str::to_owned).to_vec()),
            host_config: Some(HostConfig {
                network_mode: Some("none".to_owned()),
                ..HostConfig::default()
            }),
            ..ContainerCreateBody::default()
        };
        self.api.create_container(Some(options), body).await?;
        self.bare_start(name).await.map(drop)
    }

    /// # Errors
    /// What the daemon says.
    pub async fn bare_start(&self, name: &str) -> anyhow::Result<Duration> {
        let began = Instant::now();
        let options = None::<StartContainerOptions>;
        self.api.start_container(name, options).await?;
        Ok(began.elapsed())
    }

    /// Without grace, as a sandbox in which nothing runs has none.
    ///
    /// # Errors
    /// What the daemon says.
    pub async fn bare_stop(&self, name: &str) -> anyhow::Result<Duration> {
        let options = StopContainerOptionsBuilder::default().t(0).build();
        let began = Instant::now();
        self.api.stop_container(name, Some(options)).await?;
        Ok(began.elapsed())
    }

    /// # Errors
    /// What the daemon says.
    pub async fn bare_pause(&self, name: &str) -> anyhow::Result<Duration> {
        let began = Instant::now();
        self.api.pause_container(name).await?;
        Ok(began.elapsed())
    }

    /// # Errors
    /// What the daemon says.
    pub async fn bare_unpause(&self, name: &str) -> anyhow::Result<Duration> {
        let began = Instant::now();
        self.api.unpause_container(name).await?;
        Ok(began.elapsed())
    }

    /// The daemon's own command, to its end.
    ///
    /// # Errors
    /// When it fails.
    pub fn command(&self, words: &[&str]) -> anyhow::Result<Duration> {
        let url = format!("unix://{}", self.daemon.socket().display());
        let (program, flag) = match self.flavor {
            // Another of the same name may come first on the PATH.
            Flavor::Docker => ("/usr/bin/docker", "--host"),
            Flavor::Podman => ("/usr/bin/podman", "--url"),
        };
        let mut command = Command::new(program);
        command.arg(flag).arg(url).args(words);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let began = Instant::now();
        let output = command.stderr(Stdio::piped()).output().context(program)?;
        let took = began.elapsed();
        ensure!(
            output.status.success(),
            "`{program} {}`: {}",
            words.join(" "),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(took)
    }

    /// # Errors
    /// Names what is left.
    pub async fn end(self) -> anyhow::Result<()> {
        let client = self.client();
        for sandbox in client.list().all().await? {
            client.delete(sandbox.id()).wait().await?;
        }
        for container in self.daemon.containers().await? {
            self.daemon.remove(&container).await?;
        }
        self.gateway.end().await?;
        drop(self.daemon);
        let traces = Daemon::traces(&self.folder);
        ensure!(traces.is_empty() && !self.folder.exists(), "{traces:?}");
        Ok(())
    }
}
