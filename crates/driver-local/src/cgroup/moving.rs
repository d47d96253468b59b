//! Moving a process into a group, without the wait that goes before the first.
//!
//! While the kernel moves a process, nobody may fork or end: it takes one lock for writing, which waits
//! until every processor has been seen to be outside of it (an RCU grace period, some 7 to 20 ms). For a
//! while after that the next one to take it waits for nothing (`kernel/cgroup/cgroup.c`,
//! `cgroup_attach_lock`; `kernel/rcu/sync.c`). A runtime moves what it starts some ten milliseconds after
//! it is started itself, and then waits so long. So somebody is moved beforehand: this process, to where
//! it is.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Cgroups, Hierarchies};

const OWN: &str = "/proc/self/cgroup";

impl Cgroups {
    /// A runtime is about to be started. Nothing depends on it, and nobody waits for it.
    pub(crate) fn expect_move(&self) {
        if self.moving.swap(true, Ordering::AcqRel) {
            return;
        }
        let (moving, hierarchies) = (Arc::clone(&self.moving), self.hierarchies.clone());
        tokio::task::spawn_blocking(move || {
            if let Some(group) = hierarchies.own_group(&fs::read_to_string(OWN).unwrap_or_default())
            {
                // Where it is not allowed, the runtime waits.
                let _ = fs::write(group.join("cgroup.procs"), "0");
            }
            moving.store(false, Ordering::Release);
        });
    }
}

impl Hierarchies {
    /// Where this process is, of the hierarchy that has the freezer; `own` as `/proc/<pid>/cgroup` says
    /// (cgroups(7)).
    fn own_group(&self, own: &str) -> Option<PathBuf> {
        let is_it = |controllers: &str| match self {
            Self::Unified(_) => controllers.is_empty(),
            Self::Legacy { .. } => controllers.split(',').any(|name| name == "freezer"),
        };
        let root = match self {
            Self::Unified(root) => root,
            Self::Legacy { freezer, .. } => freezer,
        };
        let path = own.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let controllers = parts.next()?;
            parts.next().filter(|_| is_it(controllers))
        })?;
        // Outside of what is mounted here, as seen from a namespace: a path with `..`.
        let path = path.strip_prefix('/')?;
        let inside = path.split('/').all(|part| part != "..");
        inside.then(|| root.join(path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_group_is_looked_up_in_the_hierarchy_with_the_freezer() {
        let legacy = Hierarchies::Legacy {
            all: Vec::new(),
            freezer: PathBuf::from("/sys/fs/cgroup/freezer"),
        };
        let unified = Hierarchies::Unified(PathBuf::from("/sys/fs/cgroup"));
        let own = "9:name=systemd:/\n6:cpu,freezer:/a/b:c\n4:memory:/m\n0::/u/service\n";
        assert_eq!(
            legacy.own_group(own),
            Some(PathBuf::from("/sys/fs/cgroup/freezer/a/b:c"))
        );
        assert_eq!(
            unified.own_group(own),
            Some(PathBuf::from("/sys/fs/cgroup/u/service"))
        );
        assert_eq!(legacy.own_group("0::/u/service\n"), None);
        assert_eq!(unified.own_group("0::/../outside\n"), None);
    }
}
