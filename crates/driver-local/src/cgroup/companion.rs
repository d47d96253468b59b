//! The group beside a compute's: of what serves it from outside. It is not frozen with it, and ends
//! with it.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use super::{Cgroups, Hierarchies, OURS};
use crate::bundle::{PERIOD, quota};
use crate::error::{At, LocalError};
use crate::process;

const SUFFIX: &str = ".net";

/// Its name, where the compute's is `native`.
pub(crate) fn companion_of(native: &str) -> String {
    format!("{native}{SUFFIX}")
}

/// The compute's name, of a group that is its own or its companion's.
pub(super) fn compute_of(name: &str) -> &str {
    name.strip_suffix(SUFFIX).unwrap_or(name)
}

/// What a companion may take, where the host has the controllers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) memory_bytes: u64,
    pub(crate) pids: u32,
    /// 0: none.
    pub(crate) cpu_millis: u32,
}

impl Cgroups {
    /// Makes the group. A process that writes `0` to each of the files is in it.
    pub(crate) fn make_companion(
        &self,
        native: &str,
        bounds: Bounds,
    ) -> Result<Vec<File>, LocalError> {
        self.prepare()?;
        self.delegate();
        let companion = companion_of(native);
        let mut joins = Vec::new();
        for folder in self.folders_that_count(&companion) {
            crate::host::folder(&folder, 0o755)?;
            bound(&folder, bounds)?;
            let procs = folder.join("cgroup.procs");
            let file = File::options().write(true).open(&procs);
            joins.push(file.at("opening", &procs)?);
        }
        Ok(joins)
    }

    /// The process in the group that is beside the compute's. None: nothing is there.
    pub(crate) fn carrier(&self, native: &str) -> Result<Option<OwnedFd>, LocalError> {
        let companion = companion_of(native);
        for pid in self.pids(&companion)? {
            if let Some(pidfd) = process::open_pid(pid)?
                // The descriptor is of whoever had the number now; still in the group means still it.
                && self.pids(&companion)?.contains(&pid)
                && !process::has_ended(&pidfd)
            {
                return Ok(Some(pidfd));
            }
        }
        Ok(None)
    }

    /// On v1 not those of `cpuset`, which take nobody in before more is written to them.
    fn folders_that_count(&self, name: &str) -> Vec<PathBuf> {
        const COUNT: [&str; 4] = ["freezer", "memory", "cpu", "pids"];
        let counts = |root: &&PathBuf| match self.hierarchies {
            Hierarchies::Unified(_) => true,
            Hierarchies::Legacy { .. } => root.file_name().is_some_and(|controllers| {
                let mut controllers = controllers.to_str().unwrap_or_default().split(',');
                controllers.any(|it| COUNT.contains(&it))
            }),
        };
        let roots = self.roots().iter().filter(counts);
        roots
            .map(|root| root.join(OURS).join(&self.gateway).join(name))
            .collect()
    }

    /// On v2 a controller is there only where the group above hands it on. The runtime does the same
    /// for the compute's own group, later.
    fn delegate(&self) {
        let Hierarchies::Unified(root) = &self.hierarchies else {
            return;
        };
        let ours = root.join(OURS);
        for folder in [root.clone(), ours.clone(), ours.join(&self.gateway)] {
            for controller in ["+memory", "+cpu", "+pids"] {
                // One that this host has not: then nothing is bounded by it.
                let _ = fs::write(folder.join("cgroup.subtree_control"), controller);
            }
        }
    }
}

fn bound(folder: &std::path::Path, bounds: Bounds) -> Result<(), LocalError> {
    let mut limits = vec![
        ("memory.limit_in_bytes", bounds.memory_bytes.to_string()),
        ("memory.max", bounds.memory_bytes.to_string()),
        ("pids.max", bounds.pids.to_string()),
    ];
    if bounds.cpu_millis > 0 {
        let quota = quota(bounds.cpu_millis);
        limits.extend([
            ("cpu.cfs_period_us", PERIOD.to_string()),
            ("cpu.cfs_quota_us", quota.to_string()),
            ("cpu.max", format!("{quota} {PERIOD}")),
        ]);
    }
    for (file, limit) in limits {
        let path = folder.join(file);
        if path.exists() {
            fs::write(&path, limit).at("writing", &path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_companion_is_told_by_its_name() {
        assert_eq!(compute_of(&companion_of("abc.1.2")), "abc.1.2");
        assert_eq!(compute_of("abc.1.2"), "abc.1.2");
    }
}
