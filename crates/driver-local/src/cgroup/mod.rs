//! The control groups of our computes, by their files: no process is spawned.
//!
//! Every compute has the same path, `/overwinter/<gateway>/<native name>`, in every hierarchy.

mod companion;
mod moving;
mod v1;
mod v2;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use crate::error::{At, LocalError, ignore_missing};

pub(crate) use companion::{Bounds, companion_of};

const MOUNT: &str = "/sys/fs/cgroup";
const OURS: &str = "overwinter";

/// Whether a compute's processes run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freezer {
    Thawed,
    Freezing,
    Frozen,
}

/// Memory that is in no file, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) resident: u64,
    pub(crate) swapped: u64,
}

/// How this host's hierarchies are laid out.
#[derive(Clone, Debug)]
enum Hierarchies {
    Unified(PathBuf),
    /// Controllers on v1; a v2 hierarchy without controllers may be beside them.
    Legacy {
        all: Vec<PathBuf>,
        freezer: PathBuf,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct Cgroups {
    hierarchies: Hierarchies,
    gateway: String,
    /// This process is being moved.
    moving: Arc<AtomicBool>,
}

impl Cgroups {
    /// None: no freezer on this host.
    pub(crate) fn find(gateway: &str) -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        Hierarchies::parse(&mounts).map(|hierarchies| Self {
            hierarchies,
            gateway: gateway.to_owned(),
            moving: Arc::default(),
        })
    }

    pub(crate) const fn version(&self) -> &'static str {
        match self.hierarchies {
            Hierarchies::Unified(_) => "v2",
            Hierarchies::Legacy { .. } => "v1",
        }
    }

    fn roots(&self) -> &[PathBuf] {
        match &self.hierarchies {
            Hierarchies::Unified(root) => std::slice::from_ref(root),
            Hierarchies::Legacy { all, .. } => all,
        }
    }

    /// As the runtime's configuration names it.
    pub(crate) fn path(&self, native: &str) -> String {
        format!("/{OURS}/{}/{native}", self.gateway)
    }

    fn folders<'a>(&'a self, native: &'a str) -> impl Iterator<Item = PathBuf> + 'a {
        self.roots()
            .iter()
            .map(move |root| root.join(OURS).join(&self.gateway).join(native))
    }

    fn freezer(&self, native: &str) -> PathBuf {
        let root = match &self.hierarchies {
            Hierarchies::Unified(root) => root,
            Hierarchies::Legacy { freezer, .. } => freezer,
        };
        root.join(OURS).join(&self.gateway).join(native)
    }

    /// Halts every process; returns when they are. On failure they run.
    pub(crate) fn freeze(&self, native: &str, until: Instant) -> Result<(), LocalError> {
        let folder = self.freezer(native);
        let frozen = match self.hierarchies {
            Hierarchies::Unified(_) => v2::freeze(&folder, until),
            Hierarchies::Legacy { .. } => v1::freeze(&folder, until),
        };
        if frozen.is_err() {
            let _ = self.thaw(native);
        }
        frozen.at("freezing", &folder)
    }

    /// Lets them run again. Nothing there is fine.
    pub(crate) fn thaw(&self, native: &str) -> Result<(), LocalError> {
        let folder = self.freezer(native);
        let thawed = match self.hierarchies {
            Hierarchies::Unified(_) => v2::thaw(&folder),
            Hierarchies::Legacy { .. } => v1::thaw(&folder),
        };
        ignore_missing(thawed).at("thawing", &folder)
    }

    /// None: no such group.
    pub(crate) fn state(&self, native: &str) -> Result<Option<Freezer>, LocalError> {
        let folder = self.freezer(native);
        let state = match self.hierarchies {
            Hierarchies::Unified(_) => v2::state(&folder),
            Hierarchies::Legacy { .. } => v1::state(&folder),
        };
        match state {
            Ok(state) => Ok(Some(state)),
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(error).at("reading the freezer of", &folder),
        }
    }

    /// Every process in any hierarchy: a runtime that was killed half-way has joined only some.
    pub(crate) fn pids(&self, native: &str) -> Result<BTreeSet<i32>, LocalError> {
        let mut pids = BTreeSet::new();
        for folder in self.folders(native) {
            collect_pids(&folder, &mut pids)?;
        }
        Ok(pids)
    }

    /// Kills all at once where the kernel can, frozen or not.
    pub(crate) fn kill(&self, native: &str) -> io::Result<()> {
        match self.hierarchies {
            Hierarchies::Unified(_) => ignore_missing(v2::kill(&self.freezer(native))),
            Hierarchies::Legacy { .. } => Ok(()),
        }
    }

    /// Removes the group, children first. Busy for a moment after the last process: v1 has no
    /// event for that, so it is tried again until the deadline.
    pub(crate) fn remove(&self, native: &str, until: Instant) -> Result<(), LocalError> {
        for folder in self.folders(native) {
            let mut pause = Duration::from_micros(200);
            loop {
                match remove_tree(&folder) {
                    Ok(()) => break,
                    Err(error)
                        if error.raw_os_error() == Some(libc::EBUSY) && Instant::now() < until =>
                    {
                        std::thread::sleep(pause);
                        pause = (pause * 2).min(Duration::from_millis(10));
                    }
                    Err(error) => return Err(error).at("removing", &folder),
                }
            }
        }
        Ok(())
    }

    /// Native names that have a group of this gateway's.
    pub(crate) fn own(&self) -> Result<BTreeSet<String>, LocalError> {
        self.names(&self.gateway)
    }

    /// (gateway, native name) of every other gateway's.
    pub(crate) fn foreign(&self) -> Result<BTreeSet<(String, String)>, LocalError> {
        let mut found = BTreeSet::new();
        for root in self.roots() {
            for gateway in children(&root.join(OURS))? {
                if gateway != self.gateway {
                    let natives = self.names(&gateway)?.into_iter();
                    found.extend(natives.map(|native| (gateway.clone(), native)));
                }
            }
        }
        Ok(found)
    }

    fn names(&self, gateway: &str) -> Result<BTreeSet<String>, LocalError> {
        let mut found = BTreeSet::new();
        for root in self.roots() {
            let groups = children(&root.join(OURS).join(gateway))?.into_iter();
            found.extend(groups.map(|group| companion::compute_of(&group).to_owned()));
        }
        Ok(found)
    }

    /// Makes the folders above the groups: while this gateway's is there, no other gateway can
    /// remove what is above it, and the runtime has only the group itself to make.
    pub(crate) fn prepare(&self) -> Result<(), LocalError> {
        for root in self.roots() {
            crate::host::folder(&root.join(OURS).join(&self.gateway), 0o755)?;
        }
        Ok(())
    }

    /// Removes the folders above the groups once they are empty.
    pub(crate) fn prune(&self) {
        for root in self.roots() {
            // Not empty, or another gateway's: stays.
            let _ = fs::remove_dir(root.join(OURS).join(&self.gateway));
            let _ = fs::remove_dir(root.join(OURS));
        }
    }

    /// The file of the memory controller that has this name on v1, or that on v2. None: no such
    /// controller.
    fn memory_file(&self, native: &str, v1: &str, v2: &str) -> Option<PathBuf> {
        let name = match self.hierarchies {
            Hierarchies::Unified(_) => v2,
            Hierarchies::Legacy { .. } => v1,
        };
        let mut files = self.folders(native).map(|folder| folder.join(name));
        files.find(|file| file.exists())
    }

    /// Bytes that it holds. None: not known.
    pub(crate) fn memory_used(&self, native: &str) -> Option<u64> {
        let file = self.memory_file(native, "memory.usage_in_bytes", "memory.current")?;
        fs::read_to_string(file).ok()?.trim().parse().ok()
    }

    /// What it keeps that is in no file. None: no memory controller counts it.
    pub(crate) fn memory_held(&self, native: &str) -> Option<Held> {
        let file = self.memory_file(native, "memory.stat", "memory.stat")?;
        let text = fs::read_to_string(&file).ok()?;
        let field = |name: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once(' '));
            lines.find_map(|(it, value)| (it == name).then(|| value.parse::<u64>().ok())?)
        };
        match self.hierarchies {
            Hierarchies::Legacy { .. } => Some(Held {
                resident: field("total_rss")? + field("total_shmem").unwrap_or(0),
                swapped: field("total_swap")?,
            }),
            Hierarchies::Unified(_) => {
                let swapped =
                    fs::read_to_string(file.with_file_name("memory.swap.current")).ok()?;
                Some(Held {
                    resident: field("anon")? + field("shmem").unwrap_or(0),
                    swapped: swapped.trim().parse().ok()?,
                })
            }
        }
    }

    /// The limit of its memory, in the kernel's words. None: there is no such controller.
    pub(crate) fn memory_limit(&self, native: &str) -> Option<String> {
        let file = self.memory_file(native, "memory.limit_in_bytes", "memory.max")?;
        let text = fs::read_to_string(file).ok()?;
        Some(text.trim().to_owned())
    }

    pub(crate) fn set_memory_limit(&self, native: &str, limit: &str) -> Result<(), LocalError> {
        match self.memory_file(native, "memory.limit_in_bytes", "memory.max") {
            Some(file) => fs::write(&file, limit).at("writing", &file),
            None => Ok(()),
        }
    }

    /// What stands for no limit.
    pub(crate) const fn unlimited(&self) -> &'static str {
        match self.hierarchies {
            Hierarchies::Unified(_) => "max",
            Hierarchies::Legacy { .. } => "-1",
        }
    }

    /// Controllers that are there, for `doctor`.
    pub(crate) fn controllers(&self) -> BTreeSet<String> {
        match &self.hierarchies {
            Hierarchies::Unified(root) => fs::read_to_string(root.join("cgroup.controllers"))
                .unwrap_or_default()
                .split_whitespace()
                .map(str::to_owned)
                .collect(),
            Hierarchies::Legacy { all, .. } => all
                .iter()
                .filter_map(|root| root.file_name())
                .flat_map(|name| {
                    name.to_string_lossy()
                        .split(',')
                        .map(str::to_owned)
                        .collect::<Vec<_>>()
                })
                .collect(),
        }
    }
}

impl Hierarchies {
    fn parse(mountinfo: &str) -> Option<Self> {
        let mut all = Vec::new();
        let mut freezer = None;
        for line in mountinfo.lines() {
            let Some((left, right)) = line.split_once(" - ") else {
                continue;
            };
            let mut left = left.split(' ').skip(3);
            let (Some(root), Some(point)) = (left.next(), left.next()) else {
                continue;
            };
            // A part of a hierarchy, mounted for somebody else.
            if root != "/" || !point.starts_with(MOUNT) {
                continue;
            }
            let mut right = right.split(' ');
            match (right.next(), right.nth(1)) {
                (Some("cgroup2"), _) if point == MOUNT => {
                    return Some(Self::Unified(PathBuf::from(MOUNT)));
                }
                (Some("cgroup2"), _) => all.push(PathBuf::from(point)),
                (Some("cgroup"), Some(options)) => {
                    all.push(PathBuf::from(point));
                    if options.split(',').any(|option| option == "freezer") {
                        freezer = Some(PathBuf::from(point));
                    }
                }
                _ => {}
            }
        }
        freezer.map(|freezer| Self::Legacy { all, freezer })
    }
}

fn is_gone(error: &io::Error) -> bool {
    // ENODEV: removed while its file was open.
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ENODEV)
}

fn collect_pids(folder: &Path, pids: &mut BTreeSet<i32>) -> Result<(), LocalError> {
    match fs::read_to_string(folder.join("cgroup.procs")) {
        Ok(text) => pids.extend(text.lines().filter_map(|line| line.parse::<i32>().ok())),
        Err(error) if is_gone(&error) => return Ok(()),
        Err(error) => return Err(error).at("reading the processes of", folder),
    }
    for name in children(folder)? {
        collect_pids(&folder.join(name), pids)?;
    }
    Ok(())
}

/// The groups right below one; none where it is gone.
fn children(folder: &Path) -> Result<Vec<String>, LocalError> {
    child_names(folder).at("reading", folder)
}

fn child_names(folder: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if is_gone(&error) => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = match entry {
            Err(error) if is_gone(&error) => break,
            entry => entry?,
        };
        if entry.file_type()?.is_dir() {
            names.extend(entry.file_name().into_string().ok());
        }
    }
    Ok(names)
}

fn remove_tree(folder: &Path) -> io::Result<()> {
    match fs::remove_dir(folder) {
        // A group made inside the compute, or processes that are not quite gone.
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
            for name in child_names(folder)? {
                remove_tree(&folder.join(name))?;
            }
            ignore_missing(fs::remove_dir(folder))
        }
        other => ignore_missing(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gateways_that_come_and_go_do_not_pull_the_folder_from_under_one_another() {
        let root = tempfile::tempdir().expect("a folder");
        let of = |gateway: &str| Cgroups {
            hierarchies: Hierarchies::Unified(root.path().to_owned()),
            gateway: gateway.to_owned(),
            moving: Arc::default(),
        };
        std::thread::scope(|scope| {
            for gateway in ["one", "two"] {
                let own = of(gateway);
                scope.spawn(move || {
                    for _ in 0..2_000 {
                        own.prepare().expect("prepared beside the other");
                        fs::create_dir(own.freezer("native")).expect("only the group is missing");
                        fs::remove_dir(own.freezer("native")).expect("the group is there");
                        own.prune();
                    }
                });
            }
        });
        assert!(
            children(root.path()).expect("readable").is_empty(),
            "the last has removed it"
        );
    }

    #[test]
    fn hybrid_and_unified_hosts_are_told_apart() {
        let hybrid = "30 29 0:26 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer\n\
                      31 29 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
                      32 29 0:28 /part /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n";
        let unified = "30 29 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n";
        match Hierarchies::parse(hybrid) {
            Some(Hierarchies::Legacy { all, freezer }) => {
                assert_eq!(freezer, Path::new("/sys/fs/cgroup/freezer"));
                assert_eq!(all.len(), 2);
            }
            other => panic!("{other:?}"),
        }
        assert!(matches!(
            Hierarchies::parse(unified),
            Some(Hierarchies::Unified(_))
        ));
        assert!(Hierarchies::parse("1 1 0:1 / / rw - ext4 x rw\n").is_none());
    }
}
