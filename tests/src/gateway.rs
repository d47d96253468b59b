//! A gateway process of the test's own.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use overwinter_client::Client;
use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::image::Image;
use crate::{elf, leftovers};

/// How long a gateway may take to serve.
const START_TIME: Duration = Duration::from_secs(20);

/// A gateway in a folder of its own; the folder, and what lives in it, goes with [`Gateway::end`].
pub struct Gateway {
    folder: TempDir,
    data_dir: PathBuf,
    pub image: Image,
    child: Option<Child>,
    environment: Vec<(String, String)>,
    config: PathBuf,
    supervisor: PathBuf,
    log: PathBuf,
    socket: PathBuf,
}

impl Gateway {
    /// Starts one and waits until it serves.
    ///
    /// # Errors
    /// With the end of its log when it does not.
    pub async fn start() -> anyhow::Result<Self> {
        let mut gateway = Self::prepare()?;
        gateway.run().await?;
        Ok(gateway)
    }

    /// The folders and the image; nothing runs yet.
    ///
    /// # Errors
    /// When they cannot be made.
    pub fn prepare() -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("overwinter-").tempdir()?;
        let image = Image::busybox(folder.path())?;
        let gateway = Self {
            data_dir: folder.path().join("data"),
            image,
            child: None,
            environment: Vec::new(),
            config: folder.path().join("gateway.toml"),
            supervisor: supervisor()?,
            log: folder.path().join("gateway.log"),
            socket: folder.path().join("gateway.sock"),
            folder,
        };
        gateway.set_config("")?;
        Ok(gateway)
    }

    /// Records and storage somewhere else, from the next start on: in a folder of its own that
    /// nothing else is mounted below.
    pub fn set_data_dir(&mut self, path: PathBuf) {
        self.data_dir = path;
    }

    /// For every start from now on.
    pub fn set_env(&mut self, name: &str, value: impl Into<String>) {
        self.environment.retain(|(known, _)| known != name);
        self.environment.push((name.to_owned(), value.into()));
    }

    pub fn unset_env(&mut self, name: &str) {
        self.environment.retain(|(known, _)| known != name);
    }

    /// A configuration file for every start from now on. The supervisor is added to it.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn set_config(&self, toml: &str) -> anyhow::Result<()> {
        const TABLE: &str = "[local]\n";
        let supervisor = format!("{TABLE}supervisor = {:?}\n", self.supervisor);
        let text = if toml.contains(TABLE) {
            toml.replacen(TABLE, &supervisor, 1)
        } else {
            format!("{toml}\n{supervisor}")
        };
        Ok(std::fs::write(&self.config, text)?)
    }

    /// Another program as PID 1, for every configuration that is set from now on.
    pub fn set_supervisor(&mut self, path: PathBuf) {
        self.supervisor = path;
    }

    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    #[must_use]
    pub fn data_dir(&self) -> PathBuf {
        self.data_dir.clone()
    }

    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.socket.clone()
    }

    /// Where it listens, from the next start on.
    pub fn set_socket(&mut self, path: PathBuf) {
        self.socket = path;
    }

    #[must_use]
    pub fn client(&self) -> Client {
        Client::connect(self.socket())
    }

    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().and_then(Child::id)
    }

    #[must_use]
    pub fn log_path(&self) -> PathBuf {
        self.log.clone()
    }

    /// Where its standard error goes, from the next start on.
    pub fn set_log(&mut self, path: PathBuf) {
        self.log = path;
    }

    /// The last lines of its log.
    #[must_use]
    pub fn log_tail(&self) -> String {
        if !self.log.is_file() {
            // A device may have no end.
            return String::new();
        }
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }

    /// Spawns the process without waiting for it to serve.
    ///
    /// # Errors
    /// When it cannot be spawned.
    pub fn spawn(&mut self) -> anyhow::Result<()> {
        let program = program("overwinter-gateway")?;
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log_path())?;
        let mut command = Command::new(program);
        command
            .arg("run")
            .arg("--data-dir")
            .arg(self.data_dir())
            .arg("--socket")
            .arg(self.socket())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .arg("--config")
            .arg(&self.config)
            .envs(self.environment.iter().cloned());
        if std::env::var_os("OVERWINTER_LOG").is_none() {
            command.env("OVERWINTER_LOG", "info,overwinter_gateway=debug");
        }
        self.child = Some(
            command
                .spawn()
                .context("overwinter-gateway cannot be run")?,
        );
        Ok(())
    }

    /// Spawns it and waits until it serves.
    ///
    /// # Errors
    /// With the end of its log when it does not.
    pub async fn run(&mut self) -> anyhow::Result<()> {
        self.spawn()?;
        self.serving().await
    }

    /// Waits until it serves.
    ///
    /// # Errors
    /// With the end of its log when it does not.
    pub async fn serving(&mut self) -> anyhow::Result<()> {
        let client = self.client();
        let served = tokio::time::timeout(START_TIME, async {
            loop {
                if client.gateway_status().await.is_ok() {
                    return Ok(());
                }
                if let Some(child) = &mut self.child
                    && let Some(status) = child.try_wait()?
                {
                    bail!("the gateway ended with {status}");
                }
                // No event tells that another process has begun to listen.
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await
        .unwrap_or_else(|_| Err(anyhow::anyhow!("the gateway does not serve")));
        served.with_context(|| format!("its log ends with:\n{}", self.log_tail()))
    }

    /// SIGKILL, and waits until it is reaped.
    ///
    /// # Errors
    /// When there is none.
    pub async fn kill(&mut self) -> anyhow::Result<()> {
        let mut child = self.child.take().context("no gateway runs")?;
        child.start_kill()?;
        child.wait().await?;
        Ok(())
    }

    /// Waits until it has ended by itself.
    ///
    /// # Errors
    /// When it has not within `time`.
    pub async fn ended(&mut self, time: Duration) -> anyhow::Result<std::process::ExitStatus> {
        let mut child = self.child.take().context("no gateway runs")?;
        match tokio::time::timeout(time, child.wait()).await {
            Ok(status) => Ok(status?),
            Err(_) => {
                self.child = Some(child);
                bail!("the gateway has not ended");
            }
        }
    }

    /// SIGTERM, and waits until it has ended well.
    ///
    /// # Errors
    /// When it does not, with the end of its log.
    pub async fn stop(&mut self) -> anyhow::Result<()> {
        let pid = self
            .pid()
            .and_then(|pid| i32::try_from(pid).ok())
            .context("no gateway runs")?;
        let pid = rustix::process::Pid::from_raw(pid).context("it has no pid")?;
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        let status = self.ended(Duration::from_secs(20)).await?;
        ensure!(
            status.success(),
            "the gateway ended with {status}:\n{}",
            self.log_tail()
        );
        Ok(())
    }

    /// Deletes every sandbox, ends the gateway with SIGTERM and checks that nothing is left on the
    /// host.
    ///
    /// # Errors
    /// Names what is left.
    pub async fn end(self) -> anyhow::Result<()> {
        self.end_with(|| Ok(())).await
    }

    /// As [`end`](Self::end), with a look of the caller's own at what is left, before the folder goes.
    ///
    /// # Errors
    /// Also the look's own.
    pub async fn end_with(
        mut self,
        look: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        if self.child.is_none() {
            self.run().await?;
        }
        let client = self.client();
        for sandbox in client.list().all().await? {
            client.delete(sandbox.id()).wait().await?;
        }
        let gateway_id = client.gateway_status().await?.gateway_id;
        self.stop().await?;
        leftovers::check_groups(&gateway_id)?;
        leftovers::check(self.folder.path(), &self.data_dir)?;
        look()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // A test that failed: nothing of it may stay.
            let _ = child.start_kill();
        }
        leftovers::clear(self.folder.path(), &self.data_dir);
    }
}

/// A program of this workspace, built beside this one.
///
/// # Errors
/// When it is not there.
pub fn program(name: &str) -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe()?;
    own.ancestors()
        .skip(1)
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
        .with_context(|| format!("{name} is not built (make build builds it)"))
}

/// The supervisor that sandboxes get: static, since their images have no libraries for it.
fn supervisor() -> anyhow::Result<PathBuf> {
    let path = program("overwinter-supervisor.static")
        .or_else(|_| program("overwinter-supervisor"))
        .context("the supervisor is missing")?;
    ensure!(
        elf::is_static(&path)?,
        "{} needs shared libraries: not a supervisor for sandboxes (make build builds one)",
        path.display()
    );
    Ok(path)
}
