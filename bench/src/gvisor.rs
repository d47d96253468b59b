//! The same by gVisor's own commands: a container of the image with the memory that a sandbox has.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::json;

const RUNTIME: &str = "runsc";
/// As the local driver calls it, so that the sentry does the same.
const FLAGS: [&str; 3] = ["--platform=systrap", "--network=none", "--overlay2=none"];
/// Longer than any of it takes.
const PATIENCE: Duration = Duration::from_secs(600);

/// Whether it is installed.
#[must_use]
pub fn is_there() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(RUNTIME).is_file())
}

/// A bundle and the runtime's state of it. Removed when dropped.
pub struct Gvisor {
    folder: PathBuf,
    /// What lives, by its number.
    lives: Option<u32>,
}

impl Gvisor {
    /// # Errors
    /// When the folder cannot be made.
    pub fn new(image: &Path, folder: PathBuf, script: &str) -> anyhow::Result<Self> {
        for name in ["shared", "state"] {
            std::fs::create_dir_all(folder.join(name))?;
        }
        let config = json!({
            "ociVersion": "1.0.2",
            "process": {
                "user": { "uid": 0, "gid": 0 },
                "args": ["/bin/sh", "-c", script],
                "env": ["PATH=/bin"],
                "cwd": "/",
            },
            "root": { "path": image, "readonly": true },
            "mounts": [
                { "destination": "/proc", "type": "proc", "source": "proc" },
                { "destination": "/dev", "type": "tmpfs", "source": "tmpfs" },
                { "destination": "/workspace", "type": "bind", "source": folder.join("shared"), "options": ["rw"] },
            ],
            "linux": { "namespaces": [
                { "type": "pid" }, { "type": "network" }, { "type": "ipc" }, { "type": "uts" }, { "type": "mount" },
            ] },
        });
        std::fs::write(folder.join("config.json"), serde_json::to_vec(&config)?)?;
        Ok(Self {
            folder,
            lives: None,
        })
    }

    /// A file of the folder that is `/workspace` inside.
    #[must_use]
    pub fn shared(&self, name: &str) -> PathBuf {
        self.folder.join("shared").join(name)
    }

    fn image(&self) -> PathBuf {
        self.folder.join("memory")
    }

    fn run(&self, words: &[&str], number: u32) -> anyhow::Result<()> {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.folder.join("log"))?;
        let status = Command::new(RUNTIME)
            .arg("--root")
            .arg(self.folder.join("state"))
            .args(FLAGS)
            .args(words)
            .arg(format!("bare-{number}"))
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .status()
            .context(RUNTIME)?;
        let said = || std::fs::read_to_string(self.folder.join("log")).unwrap_or_default();
        ensure!(
            status.success(),
            "{words:?} ended with {status}: {}",
            said()
        );
        Ok(())
    }

    /// `runsc run`; returns when its script has made `ready`.
    ///
    /// # Errors
    /// When it does not come to that.
    pub fn start(&mut self) -> anyhow::Result<()> {
        let ready = self.shared("ready");
        self.lives = Some(0);
        self.run(&["run", "--detach", "--bundle", "."], 0)?;
        until(&ready)
    }

    /// `runsc pause`: it takes nothing of what is measured meanwhile.
    ///
    /// # Errors
    /// When it fails.
    pub fn pause(&self) -> anyhow::Result<()> {
        self.run(&["pause"], self.lives.context("nothing lives")?)
    }

    /// `runsc resume`, after a pause.
    ///
    /// # Errors
    /// When it fails.
    pub fn resume(&self) -> anyhow::Result<()> {
        self.run(&["resume"], self.lives.context("nothing lives")?)
    }

    /// `runsc checkpoint`, which ends it. What it wrote is on the disk when this returns, so that nobody
    /// else waits for it; that is not in the time.
    ///
    /// # Errors
    /// When it fails.
    pub fn checkpoint(&mut self) -> anyhow::Result<Duration> {
        let number = self.lives.context("nothing lives")?;
        let _ = std::fs::remove_dir_all(self.image());
        let path = self.image().display().to_string();
        let began = Instant::now();
        self.run(&["checkpoint", "--image-path", &path], number)?;
        let took = began.elapsed();
        rustix::fs::syncfs(std::fs::File::open(&path)?)?;
        self.run(&["delete", "--force"], number)?;
        // The next is another: counters go on after a restore.
        self.lives = Some(number + 1);
        Ok(took)
    }

    /// Bytes of what the last checkpoint wrote.
    ///
    /// # Errors
    /// When there was none.
    pub fn written(&self) -> anyhow::Result<u64> {
        let mut bytes = 0;
        for entry in std::fs::read_dir(self.image())? {
            bytes += entry?.metadata()?.len();
        }
        Ok(bytes)
    }

    /// `runsc create` and `runsc restore`; returns when its script has removed `tick`.
    ///
    /// # Errors
    /// When it does not come back.
    pub fn restore(&mut self) -> anyhow::Result<Duration> {
        let number = self.lives.context("nothing was written")?;
        let tick = self.shared("tick");
        std::fs::write(&tick, "")?;
        let path = self.image().display().to_string();
        let began = Instant::now();
        self.run(&["create", "--bundle", "."], number)?;
        let restore = [
            "restore",
            "--detach",
            "--bundle",
            ".",
            "--image-path",
            &path,
        ];
        self.run(&restore, number)?;
        while tick.exists() {
            ensure!(began.elapsed() < PATIENCE, "it does not run on");
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(began.elapsed())
    }
}

fn until(path: &Path) -> anyhow::Result<()> {
    let began = Instant::now();
    while !path.exists() {
        ensure!(began.elapsed() < PATIENCE, "it does not become ready");
        // What another kernel does is no event here.
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

impl Drop for Gvisor {
    fn drop(&mut self) {
        if let Some(number) = self.lives {
            // Best effort: the run may have failed anywhere.
            let _ = self.run(&["delete", "--force"], number);
        }
    }
}
