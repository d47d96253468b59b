//! The gateway in a container of its own, as `examples/compose` sets it up, beside the daemon that has the
//! sandboxes.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use bollard::query_parameters::{KillContainerOptions, ListContainersOptions};
use overwinter_client::Client;
use overwinter_driver_docker::Flavor;
use overwinter_driver_docker::testkit::{Daemon, cannot_run};
use overwinter_tests::gateway::program;
use tokio::process::Command;

use crate::{IMAGE, new_folder, skips};

const COMPOSE: &str = "/usr/bin/docker-compose";
const BASE: &str = "base:latest";
/// For the gateway to serve.
const PATIENCE: Duration = Duration::from_secs(60);

struct Project {
    daemon: Daemon,
    /// The daemon's.
    folder: PathBuf,
    /// The example, and what it mounts.
    own: tempfile::TempDir,
}

impl Project {
    /// None where it cannot be run. The example is as it is, with the programs where `make install` puts
    /// them, and a base with the libraries of this build.
    async fn set() -> anyhow::Result<Option<Self>> {
        let compose = Path::new(COMPOSE).exists();
        let missing = (!compose).then_some("needs docker-compose (Debian: docker-compose)");
        if skips(cannot_run(Flavor::Docker).or(missing))? {
            return Ok(None);
        }
        let folder = new_folder()?;
        let daemon = Daemon::start(Flavor::Docker, &folder).await?;
        daemon.import(IMAGE, &[]).await?;
        daemon.import_tar(BASE, libraries().await?, &[]).await?;
        let own = tempfile::Builder::new().prefix("ow-compose-").tempdir()?;
        let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/compose");
        for name in ["bin", "data", "run"] {
            fs::create_dir(own.path().join(name))?;
        }
        for name in ["compose.yaml", "Dockerfile", "gateway.toml"] {
            fs::copy(example.join(name), own.path().join(name))?;
        }
        for (built, name) in [
            ("overwinter-gateway", "overwinter-gateway"),
            ("overwinter", "overwinter"),
            ("overwinter-supervisor.static", "overwinter-supervisor"),
        ] {
            fs::copy(program(built)?, own.path().join("bin").join(name))?;
        }
        Ok(Some(Self {
            daemon,
            folder,
            own,
        }))
    }

    fn at(&self, name: &str) -> PathBuf {
        self.own.path().join(name)
    }

    async fn compose(&self, arguments: &[&str]) -> anyhow::Result<()> {
        let daemon = format!("unix://{}", self.daemon.socket().display());
        let output = Command::new(COMPOSE)
            .args(["--project-name", "overwinter", "--file"])
            .arg(self.at("compose.yaml"))
            .args(arguments)
            .env("DOCKER_HOST", daemon)
            .env("DOCKER_CONFIG", self.at("login"))
            .env("DOCKER_SOCKET", self.daemon.socket())
            .env("DOCKER_ROOT", self.folder.join("data"))
            .env("OVERWINTER_BASE", BASE)
            .env("OVERWINTER_DATA", self.at("data"))
            .env("OVERWINTER_RUN", self.at("run"))
            .output()
            .await?;
        ensure!(output.status.success(), "docker-compose: {output:?}");
        Ok(())
    }

    fn socket(&self) -> PathBuf {
        self.at("run/gateway.sock")
    }

    async fn up(&self) -> anyhow::Result<()> {
        self.compose(&["up", "--build", "--detach"]).await?;
        let client = Client::connect(self.socket());
        let serves = tokio::time::timeout(PATIENCE, async {
            while client.gateway_status().await.is_err() {
                // No event tells that another process has begun to listen.
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        serves.await.context("the gateway does not serve")
    }

    /// SIGKILL, which its restart policy takes for the wish of whoever sent it.
    async fn kill(&self) -> anyhow::Result<()> {
        let client = self.daemon.client().await?;
        let running = client
            .list_containers(None::<ListContainersOptions>)
            .await?;
        let gateway = running
            .into_iter()
            .find(|it| it.image.as_deref() == Some("overwinter-gateway"))
            .and_then(|it| it.id)
            .context("the gateway has no container")?;
        client
            .kill_container(&gateway, None::<KillContainerOptions>)
            .await?;
        Ok(())
    }

    /// The command outside, which must end well.
    async fn ow(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let mut command = Command::new(program("overwinter")?);
        command.arg("--socket").arg(self.socket()).args(arguments);
        let output = command.output().await?;
        ensure!(output.status.success(), "{arguments:?}: {output:?}");
        Ok(String::from_utf8(output.stdout)?)
    }
}

/// A root with what the gateway of this build is linked to.
async fn libraries() -> anyhow::Result<Vec<u8>> {
    let gateway = program("overwinter-gateway")?;
    let linked = Command::new("ldd").arg(&gateway).output().await?;
    ensure!(linked.status.success(), "ldd: {linked:?}");
    let linked = String::from_utf8(linked.stdout)?;
    let mut tar = tar::Builder::new(Vec::new());
    for library in linked.split_whitespace().filter(|it| it.starts_with('/')) {
        let bytes = fs::read(library)?;
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o755);
        header.set_size(bytes.len() as u64);
        tar.append_data(&mut header, library.trim_start_matches('/'), &bytes[..])?;
    }
    Ok(tar.into_inner()?)
}

#[tokio::test]
async fn a_gateway_in_a_container_has_its_sandboxes_beside_it() -> anyhow::Result<()> {
    let Some(project) = Project::set().await? else {
        return Ok(());
    };
    project.up().await?;
    // It sees the daemon's folder, without which a stop could not be synced.
    let drivers = project.ow(&["driver", "list"]).await?;
    let stop = drivers.lines().find(|it| it.contains("stop"));
    ensure!(
        stop.is_some_and(|it| it.contains("power_loss")),
        "{drivers}"
    );
    let create = [
        "sandbox", "create", "box", "--driver", "docker", "--image", IMAGE,
    ];
    project.ow(&create).await?;
    let sh = |script| ["sandbox", "exec", "box", "--", "sh", "-c", script];
    let write =
        sh("echo kept > /workspace/file; echo kept > /root-file; sleep 1000 & echo $! > /tmp/pid");
    project.ow(&write).await?;

    // Awake, the sandbox does not notice that its gateway has gone.
    project.kill().await?;
    ensure!(project.ow(&["sandbox", "get", "box"]).await.is_err());
    project.up().await?;
    let runs = sh("grep -q ^sleep /proc/$(cat /tmp/pid)/cmdline && cat /workspace/file /root-file");
    ensure!(project.ow(&runs).await? == "kept\nkept\n");

    for depth in ["freeze", "stop"] {
        let suspend = ["sandbox", "suspend", "box", "--depth", depth];
        project.ow(&suspend).await?;
        project.kill().await?;
        project.up().await?;
        let got = project.ow(&["sandbox", "get", "box"]).await?;
        ensure!(got.contains(depth), "{got}");
        project.ow(&["sandbox", "resume", "box"]).await?;
        let kept = project.ow(&sh("cat /workspace/file /root-file")).await?;
        ensure!(kept == "kept\nkept\n", "after {depth}: {kept:?}");
    }
    project.ow(&["sandbox", "delete", "box"]).await?;
    let sandboxes = fs::read_dir(project.at("data/docker/sandboxes"))?;
    ensure!(sandboxes.count() == 0, "folders are left");
    project.compose(&["down"]).await?;
    let left = project.daemon.containers().await?;
    ensure!(left.is_empty(), "containers are left: {left:?}");
    let Project {
        daemon,
        folder,
        own,
    } = project;
    drop(daemon);
    let traces = Daemon::traces(&folder);
    ensure!(traces.is_empty() && !folder.exists(), "{traces:?}");
    Ok(own.close()?)
}
