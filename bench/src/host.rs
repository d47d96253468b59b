//! The real gateway, as a process, on a folder of the run's own; driver `local`.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use overwinter_client::Client;
use overwinter_tests::gateway::program;
use overwinter_tests::{Image, leftovers};
use tempfile::TempDir;
use tokio::process::{Child, Command};

const START_TIME: Duration = Duration::from_secs(20);
/// Below the folder of the run.
const DATA: &str = "data";

/// Goes with [`Host::end`], which checks that nothing is left.
pub struct Host {
    folder: TempDir,
    pub image: Image,
    child: Option<Child>,
}

impl Host {
    /// # Errors
    /// When it does not serve.
    pub async fn start(below: &Path) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("overwinter-bench-")
            // The bare runtime's child walks to its root as an unprivileged user.
            .permissions(std::fs::Permissions::from_mode(0o711))
            .tempdir_in(below)?;
        let image = Image::busybox(folder.path())?;
        let log = std::fs::File::create(folder.path().join("gateway.log"))?;
        let child = Command::new(program("overwinter-gateway")?)
            .arg("run")
            .arg("--data-dir")
            .arg(folder.path().join(DATA))
            .arg("--socket")
            .arg(folder.path().join("gateway.sock"))
            .env("OVERWINTER_LOG", "warn")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .context("overwinter-gateway cannot be run")?;
        let mut host = Self {
            folder,
            image,
            child: Some(child),
        };
        host.serving().await?;
        Ok(host)
    }

    async fn serving(&mut self) -> anyhow::Result<()> {
        let client = self.client();
        let served = tokio::time::timeout(START_TIME, async {
            while client.gateway_status().await.is_err() {
                if let Some(child) = &mut self.child
                    && let Some(status) = child.try_wait()?
                {
                    bail!("the gateway ended with {status}");
                }
                // No event tells that another process has begun to listen.
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            Ok(())
        });
        match served.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(error.context(self.log())),
            Err(_) => bail!("the gateway does not serve: {}", self.log()),
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("gateway.log")).unwrap_or_default()
    }

    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn data_dir(&self) -> PathBuf {
        self.folder.path().join(DATA)
    }

    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("gateway.sock")
    }

    #[must_use]
    pub fn client(&self) -> Client {
        Client::connect(self.socket())
    }

    /// Where the local driver has what belongs to a sandbox's compute.
    ///
    /// # Errors
    /// When the driver has no folder yet.
    pub fn sandbox_folder(&self, id: &str) -> anyhow::Result<PathBuf> {
        let volatile = leftovers::volatile_folder(&self.data_dir());
        Ok(volatile.context("the driver has no state")?.join(id))
    }

    /// Makes a sandbox and answers its id.
    ///
    /// # Errors
    /// When it cannot be made.
    pub async fn create(&self, client: &Client, name: &str) -> anyhow::Result<String> {
        let made = client.create().name(name).image(self.image.name()).wait();
        Ok(made.await?.sandbox.id().to_owned())
    }

    /// Deletes every sandbox and ends the gateway.
    ///
    /// # Errors
    /// Names what is left on the host.
    pub async fn end(mut self) -> anyhow::Result<()> {
        let client = self.client();
        for sandbox in client.list().all().await? {
            client.delete(sandbox.id()).wait().await?;
        }
        let mut child = self.child.take().context("no gateway runs")?;
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
        let pid = pid
            .and_then(rustix::process::Pid::from_raw)
            .context("it has ended")?;
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        let status = tokio::time::timeout(START_TIME, child.wait()).await??;
        ensure!(
            status.success(),
            "the gateway ended with {status}: {}",
            self.log()
        );
        leftovers::check(self.folder.path(), &self.data_dir())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // A section that failed: nothing of it may stay.
            let _ = child.start_kill();
            leftovers::clear(self.folder.path(), &self.data_dir());
        }
    }
}
