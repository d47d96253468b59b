//! An equivalent container, by the runtime's own commands.
//!
//! Its `config.json` is the one that the local driver wrote for a sandbox: the same namespaces,
//! mappings, seccomp profile, limits and mounts, over mounts of its own. PID 1 is a `sleep`.

use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use serde_json::{Value, json};

const RUNTIME: &str = "runc";
const NAME: &str = "bare";
/// One level of its own in each hierarchy, removed at the end.
const CGROUP: &str = "overwinter-bench";

/// A bundle, and the runtime's state of it. Removed when dropped.
pub struct Bare {
    folder: PathBuf,
}

impl Bare {
    /// From the bundle of a sandbox that is awake.
    ///
    /// # Errors
    /// When it cannot be prepared.
    pub fn like(sandbox: &Path, image: &Path, folder: PathBuf) -> anyhow::Result<Self> {
        let text = std::fs::read(sandbox.join("bundle/config.json"))?;
        let mut config: Value = serde_json::from_slice(&text)?;
        let base = config["linux"]["uidMappings"][0]["hostID"].as_u64();
        let base = u32::try_from(base.context("it has no user namespace")?)?;
        let bare = Self { folder };
        let at = |name: &str| bare.folder.join(name);
        let inside = [
            ".overwinter",
            "run",
            "run/overwinter",
            "workspace",
            "proc",
            "sys",
            "dev",
        ];
        for name in ["upper", "work", "root", "workspace", "empty", "runtime"] {
            std::fs::create_dir_all(at(name))?;
        }
        // The runtime's child is the mapped root: what it must make, or mount on, is there already.
        for name in inside {
            let made = at("upper").join(name);
            std::fs::create_dir_all(&made)?;
            chown(made, Some(base), Some(base))?;
        }
        chown(at("upper"), Some(base), Some(base))?;
        let options = format!(
            "lowerdir={},upperdir={},workdir={}",
            image.display(),
            at("upper").display(),
            at("work").display()
        );
        let options = std::ffi::CString::new(options)?;
        mount(
            "overlay",
            at("root"),
            "overlay",
            MountFlags::empty(),
            options.as_c_str(),
        )?;
        config["root"]["path"] = json!(at("root"));
        config["process"]["args"] = json!(["/bin/sleep", "1000000"]);
        config["annotations"] = json!({});
        config["linux"]["cgroupsPath"] = json!(format!("/{CGROUP}/{NAME}"));
        let mounts = config["mounts"]
            .as_array_mut()
            .context("it has no mounts")?;
        for mounted in mounts
            .iter_mut()
            .filter(|mounted| mounted["type"] == "bind")
        {
            let own = if mounted["destination"] == "/workspace" {
                "workspace"
            } else {
                "empty"
            };
            mounted["source"] = json!(at(own));
        }
        std::fs::write(at("config.json"), serde_json::to_vec(&config)?)?;
        Ok(bare)
    }

    fn runtime(&self, words: &[&str]) -> Command {
        let mut command = Command::new(RUNTIME);
        command
            .arg("--root")
            .arg(self.folder.join("runtime"))
            .args(words)
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }

    fn timed(&self, words: &[&str]) -> anyhow::Result<Duration> {
        let mut command = self.runtime(words);
        let began = Instant::now();
        let status = command.status().context(RUNTIME)?;
        let took = began.elapsed();
        ensure!(
            status.success(),
            "`{RUNTIME} {}` ended with {status}",
            words.join(" ")
        );
        Ok(took)
    }

    /// `runc create`, `runc start`.
    ///
    /// # Errors
    /// When either fails.
    pub fn bring_up(&self) -> anyhow::Result<Duration> {
        Ok(self.timed(&["create", NAME])? + self.timed(&["start", NAME])?)
    }

    /// `runc exec bare /bin/true`.
    ///
    /// # Errors
    /// When it fails.
    pub fn exec(&self) -> anyhow::Result<Duration> {
        self.timed(&["exec", NAME, "/bin/true"])
    }

    /// Ends and removes the container.
    ///
    /// # Errors
    /// When it is not there.
    pub fn take_down(&self) -> anyhow::Result<Duration> {
        self.timed(&["delete", "--force", NAME])
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        // All of it is best effort: the run may have failed anywhere.
        let _ = self.runtime(&["delete", "--force", NAME]).status();
        let _ = unmount(self.folder.join("root"), UnmountFlags::DETACH);
        let Ok(hierarchies) = std::fs::read_dir("/sys/fs/cgroup") else {
            return;
        };
        let _ = std::fs::remove_dir(Path::new("/sys/fs/cgroup").join(CGROUP));
        for hierarchy in hierarchies.flatten() {
            let _ = std::fs::remove_dir(hierarchy.path().join(CGROUP));
        }
    }
}
