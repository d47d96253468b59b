//! The watcher itself is tried: it would be silent as well if it were blind.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::{Context, ensure};
use overwinter_tests::watcher::{Seen, Watcher};

const SANDBOX: &str = "0123456789abcdef0123456789abcdef";
/// Time for many samples, on a host that is busy too.
const LOOK: Duration = Duration::from_millis(300);

/// Groups as a gateway makes them, with a process in each.
struct Groups {
    gateway: PathBuf,
    made: Vec<(PathBuf, Child)>,
}

impl Groups {
    fn new() -> Self {
        let v1 = Path::new("/sys/fs/cgroup/freezer");
        let root = if v1.exists() {
            v1
        } else {
            Path::new("/sys/fs/cgroup")
        };
        let gateway = root.join(format!("overwinter/eye-{}", std::process::id()));
        Self {
            gateway,
            made: Vec::new(),
        }
    }

    fn add(&mut self, native: &str) -> anyhow::Result<()> {
        let group = self.gateway.join(native);
        // A gateway that ends meanwhile removes what is empty above it.
        while let Err(error) = std::fs::create_dir_all(&group) {
            ensure!(error.kind() == std::io::ErrorKind::NotFound, error);
        }
        let child = Command::new("sleep").arg("60").spawn()?;
        let pid = child.id().to_string();
        self.made.push((group.clone(), child));
        std::fs::write(group.join("cgroup.procs"), pid).context("joining a cgroup")
    }

    fn end_one(&mut self) -> anyhow::Result<()> {
        let (group, mut child) = self.made.pop().context("none is left")?;
        child.kill()?;
        child.wait()?;
        let _ = std::fs::remove_dir(group);
        Ok(())
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        while !self.made.is_empty() {
            let _ = self.end_one();
        }
        let _ = std::fs::remove_dir(&self.gateway);
        // Other gateways may be at home there.
        let _ = self.gateway.parent().map(std::fs::remove_dir);
    }
}

fn look() -> anyhow::Result<Seen> {
    let watcher = Watcher::start()?;
    std::thread::sleep(LOOK);
    watcher.finish()
}

/// Two live computes of one sandbox are seen, and nothing else is taken for them.
pub(crate) fn sees() -> anyhow::Result<()> {
    let of_ours = |seen: &Seen| {
        let mut pairs = seen.violations.keys();
        pairs.any(|(one, _)| one.starts_with(SANDBOX))
    };
    let mut groups = Groups::new();
    groups.add(&format!("{SANDBOX}-1-1"))?;
    groups.add(&format!("{}-1-1", "f".repeat(SANDBOX.len())))?;
    ensure!(
        !of_ours(&look()?),
        "two sandboxes are no two computes of one"
    );
    groups.add(&format!("{SANDBOX}-2-1"))?;
    let seen = look()?;
    ensure!(
        of_ours(&seen),
        "two computes were not seen in {} samples",
        seen.samples
    );
    groups.end_one()?;
    ensure!(!of_ours(&look()?), "one that has ended is none");
    Ok(())
}
