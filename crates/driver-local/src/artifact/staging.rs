//! The runtime's own files, plain, for as long as one effect: in memory, or where memory is short on
//! the disk.

use std::ffi::CString;
use std::fs;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, mount};

use super::{entries, remove_folder};
use crate::error::{At, LocalError};
use crate::host;
use crate::layout::SandboxDir;
use crate::mounts;

const PLAIN: &str = ".plain.";
/// Left to everybody else beside what is staged.
const SPARE: u64 = 256 << 20;

/// A folder that is gone, with all in it, when this is dropped.
#[derive(Debug)]
pub(crate) struct Staging {
    path: PathBuf,
    mounted: bool,
}

impl Staging {
    /// For `bytes` and a little more. `name`: of the effect. What is made for one is never in the
    /// place of another's, which may be let go late.
    pub(crate) fn make(dir: &SandboxDir, name: &str, bytes: u64) -> Result<Self, LocalError> {
        sweep(dir)?;
        if available().is_some_and(|free| free > bytes.saturating_add(SPARE)) {
            let path = dir.staging().join(name);
            host::folder(&path, 0o700)?;
            let staging = Self {
                path,
                mounted: true,
            };
            // No limit of its own: what it holds is limited by what the sandbox has.
            let options = CString::new("mode=0700,size=100%")
                .map_err(|_| LocalError::Layers("the options hold a NUL"))?;
            let flags = MountFlags::NODEV | MountFlags::NOSUID | MountFlags::NOEXEC;
            mount("tmpfs", &staging.path, "tmpfs", flags, options.as_c_str())
                .at("mounting on", &staging.path)?;
            return Ok(staging);
        }
        let path = dir.artifacts().join(format!("{PLAIN}{name}"));
        host::folder(&path, 0o700)?;
        Ok(Self {
            path,
            mounted: false,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        let removed = if self.mounted {
            let detached = mounts::detach(&self.path);
            forget_empty(self.path.parent());
            detached
        } else {
            remove_folder(&self.path)
        };
        if let Err(error) = removed {
            tracing::warn!(%error, "plain memory is left behind until the sandbox is looked after");
        }
    }
}

/// Removes what an effect that was cut short has left.
pub(super) fn sweep(dir: &SandboxDir) -> Result<(), LocalError> {
    let staging = dir.staging();
    for name in entries(&staging)? {
        mounts::detach(&staging.join(name))?;
    }
    forget_empty(Some(&staging));
    for name in entries(&dir.artifacts())? {
        if name.starts_with(PLAIN) {
            remove_folder(&dir.artifacts().join(name))?;
        }
    }
    Ok(())
}

/// The folder of all of them goes with the last.
fn forget_empty(folder: Option<&Path>) {
    if let Some(folder) = folder {
        let _ = fs::remove_dir(folder);
    }
}

/// Bytes of memory that could be had without swapping.
fn available() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use overwinter_lifecycle::ids::SandboxId;

    use super::*;
    use crate::layout::Layout;

    /// After a restore its staging is let go when nobody waits for that any more.
    #[test]
    fn one_that_is_let_go_late_takes_nothing_of_the_next() -> Result<(), LocalError> {
        if !rustix::process::geteuid().is_root() {
            assert!(
                std::env::var_os("OVERWINTER_REQUIRE_LOCAL").is_none(),
                "OVERWINTER_REQUIRE_LOCAL is set, and this is not root"
            );
            eprintln!("SKIPPED: needs root, to mount");
            return Ok(());
        }
        let state = tempfile::tempdir().at("making", Path::new("a folder"))?;
        let layout = Layout::new(state.path().to_owned(), PathBuf::from("/"));
        let dir = layout.sandbox(SandboxId(Default::default()));
        let first = Staging::make(&dir, "first", 1)?;
        assert!(first.mounted, "this host has hardly any memory");
        let second = Staging::make(&dir, "second", 1)?;
        let memory = second.path().join("memory");
        fs::write(&memory, b"of the second").at("writing", &memory)?;
        drop(first);
        assert_eq!(fs::read(&memory).at("reading", &memory)?, b"of the second");
        drop(second);
        assert!(!dir.staging().exists(), "something is left");
        let left = &layout.volatile;
        fs::remove_dir_all(left).at("removing", left)
    }
}
