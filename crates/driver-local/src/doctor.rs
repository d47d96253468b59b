//! What this host has, what it lacks, and what to do about it. Changes nothing.

mod networks;

use std::fs;
use std::path::Path;

use rustix::process::geteuid;

use crate::cgroup::Cgroups;
use crate::quota::Quota;
use crate::reclaim::Swaps;
use crate::runtime::{version, which};

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Ok,
    /// Works, with less.
    Warn,
    /// The driver cannot work without it.
    Missing,
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    pub name: &'static str,
    pub status: Status,
    /// What was found.
    pub detail: String,
    /// What to do; empty where nothing needs to be done.
    pub fix: String,
}

impl Check {
    fn new(
        name: &'static str,
        status: Status,
        detail: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self {
            name,
            status,
            detail: detail.into(),
            fix: fix.into(),
        }
    }

    fn ok(name: &'static str, detail: impl Into<String>) -> Self {
        Self::new(name, Status::Ok, detail, "")
    }
}

/// Examines this host for a driver whose state folder is (or will be) `state_dir` and whose runtime
/// is `runtime`.
#[must_use]
pub fn doctor(state_dir: &Path, runtime: &Path) -> Vec<Check> {
    let there = state_dir
        .ancestors()
        .find(|path| path.is_dir())
        .unwrap_or(Path::new("/"));
    let mut checks = vec![privileges(), cgroups(), chosen_runtime(runtime)];
    checks.extend(other_runtimes(runtime));
    checks.push(memory_on_disk(runtime));
    checks.push(networks::internet());
    checks.extend(networks::carried(state_dir));
    checks.extend([
        user_namespaces(),
        overlay(),
        id_mapped_mounts(there),
        image_host(),
        seccomp(),
        quotas(there),
        swap(),
        limit(
            "inotify instances",
            "/proc/sys/fs/inotify/max_user_instances",
            128,
        ),
        limit("process ids", "/proc/sys/kernel/pid_max", 32_768),
        limit("keys", "/proc/sys/kernel/keys/maxkeys", 200),
    ]);
    checks
}

fn privileges() -> Check {
    let uid = geteuid();
    if uid.is_root() {
        Check::ok("privileges", "root")
    } else {
        Check::new(
            "privileges",
            Status::Missing,
            format!("user {}", uid.as_raw()),
            "run the gateway as root: it mounts and maps user ids",
        )
    }
}

fn cgroups() -> Check {
    let Some(cgroups) = Cgroups::find("doctor") else {
        return Check::new(
            "cgroups",
            Status::Missing,
            "no freezer under /sys/fs/cgroup",
            "mount cgroup v2 at /sys/fs/cgroup (boot with systemd.unified_cgroup_hierarchy=1)",
        );
    };
    let there = cgroups.controllers();
    let wanted = ["cpu", "memory", "pids"];
    let absent: Vec<_> = wanted
        .into_iter()
        .filter(|name| !there.contains(*name))
        .collect();
    let detail = format!(
        "{} ({})",
        cgroups.version(),
        join(there.iter().map(String::as_str))
    );
    if absent.is_empty() {
        Check::ok("cgroups", detail)
    } else {
        Check::new(
            "cgroups",
            Status::Warn,
            detail,
            format!(
                "limits that need {} are refused; enable these controllers",
                join(absent)
            ),
        )
    }
}

fn chosen_runtime(runtime: &Path) -> Check {
    match which(runtime) {
        Some(path) => Check::ok("runtime", describe(&path)),
        None => Check::new(
            "runtime",
            Status::Missing,
            format!("`{}` is not in PATH", runtime.display()),
            "install it (Debian: apt-get install runc)",
        ),
    }
}

fn other_runtimes(chosen: &Path) -> Vec<Check> {
    ["runc", "crun"]
        .into_iter()
        .filter(|name| Path::new(name) != chosen)
        .map(|name| match which(Path::new(name)) {
            Some(path) => Check::ok("other runtime", describe(&path)),
            None => Check::ok("other runtime", format!("{name}: not installed")),
        })
        .collect()
}

/// The depth `checkpoint` needs gVisor's runtime: the chosen one, or one that a sandbox may name.
fn memory_on_disk(chosen: &Path) -> Check {
    const NAME: &str = "checkpoint";
    let found = [chosen, Path::new("runsc")]
        .into_iter()
        .filter_map(which)
        .map(|path| describe(&path))
        .find(|description| description.starts_with("runsc "));
    match found {
        Some(description) => Check::ok(NAME, description),
        None => Check::new(
            NAME,
            Status::Warn,
            match which(Path::new("criu")) {
                None => "gVisor's runsc is not installed: no memory is written to disk",
                Some(_) => {
                    "gVisor's runsc is not installed: no memory is written to disk; criu is there, and \
                     is not used"
                }
            },
            "install gVisor's runsc and put it in PATH (Debian 12: the package runsc of bookworm-backports)",
        ),
    }
}

fn describe(path: &Path) -> String {
    let version = version(path).unwrap_or_else(|| "does not tell its version".to_owned());
    format!("{version}, {}", path.display())
}

fn user_namespaces() -> Check {
    match read("/proc/sys/user/max_user_namespaces").and_then(|text| text.parse::<u64>().ok()) {
        Some(0) => Check::new(
            "user namespaces",
            Status::Missing,
            "switched off (user.max_user_namespaces = 0)",
            "sysctl -w user.max_user_namespaces=65536",
        ),
        Some(most) => Check::ok("user namespaces", format!("at most {most}")),
        None => Check::new(
            "user namespaces",
            Status::Missing,
            "the kernel has none",
            "use a kernel with CONFIG_USER_NS",
        ),
    }
}

fn overlay() -> Check {
    let known = read("/proc/filesystems")
        .is_some_and(|text| text.lines().any(|line| line.ends_with("\toverlay")));
    if known {
        Check::ok("overlay", "in the kernel")
    } else {
        Check::new("overlay", Status::Missing, "not loaded", "modprobe overlay")
    }
}

/// What only root can try. None: it can be tried.
fn untried(name: &'static str) -> Option<Check> {
    (!geteuid().is_root()).then(|| {
        let why = "not tried: needs root";
        Check::new(name, Status::Warn, why, "run doctor as root")
    })
}

/// Tried out where the storage will be: whether a filesystem can do it is not written anywhere.
fn id_mapped_mounts(folder: &Path) -> Check {
    const NAME: &str = "id-mapped mounts";
    if let Some(untried) = untried(NAME) {
        return untried;
    }
    match crate::mounts::try_mapping(folder) {
        Ok(()) => Check::ok(NAME, format!("on the filesystem of {}", folder.display())),
        Err(error) => Check::new(
            NAME,
            Status::Missing,
            error.to_string(),
            "put the state folder on ext4, xfs or btrfs, with Linux 5.19 or later",
        ),
    }
}

/// `--image host` takes this host's own `/usr`.
fn image_host() -> Check {
    const NAME: &str = "image `host`";
    if let Some(untried) = untried(NAME) {
        return untried;
    }
    match crate::image::host::check(Path::new("/")) {
        Ok(()) => Check::ok(NAME, "made of /usr"),
        Err(error) => Check::new(
            NAME,
            Status::Warn,
            error.to_string(),
            "no sandboxes with --image host; other images work",
        ),
    }
}

fn seccomp() -> Check {
    match read("/proc/sys/kernel/seccomp/actions_avail") {
        Some(actions) if actions.contains("errno") => Check::ok("seccomp", "filters"),
        Some(_) | None => Check::new(
            "seccomp",
            Status::Missing,
            "no filters",
            "use a kernel with CONFIG_SECCOMP_FILTER",
        ),
    }
}

fn quotas(folder: &Path) -> Check {
    const NAME: &str = "disk limits";
    match Quota::find(folder) {
        Some(_) => Check::ok(NAME, "project quotas are on"),
        None => Check::new(
            NAME,
            Status::Warn,
            format!(
                "no project quotas on the filesystem of {}",
                folder.display()
            ),
            "a sandbox can fill the disk; on ext4: tune2fs -O project,quota, then mount with prjquota",
        ),
    }
}

/// Where memory of frozen sandboxes may go.
fn swap() -> Check {
    const NAME: &str = "swap";
    let text = read("/proc/swaps").unwrap_or_default();
    let devices = join(
        text.lines()
            .skip(1)
            .filter_map(|line| line.split_whitespace().next()),
    );
    match Swaps::find() {
        Ok(_) => Check::ok(
            NAME,
            format!("{devices}: freezes can give memory back (--reclaim)"),
        ),
        Err(why) => Check::new(
            NAME,
            Status::Warn,
            why.to_string(),
            "frozen sandboxes keep all their memory; with swap on zram, and no other, \
             `sandbox suspend --depth freeze --reclaim` gives it back (Debian: apt-get install zram-tools)",
        ),
    }
}

fn limit(name: &'static str, path: &str, least: u64) -> Check {
    match read(path).and_then(|text| text.parse::<u64>().ok()) {
        Some(value) if value >= least => Check::ok(name, value.to_string()),
        Some(value) => Check::new(
            name,
            Status::Warn,
            value.to_string(),
            format!("many sandboxes need more: write a larger number to {path}"),
        ),
        None => Check::new(name, Status::Warn, format!("{path} cannot be read"), ""),
    }
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path)
        .ok()
        .map(|text| text.trim_end().to_owned())
}

fn join<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    words.into_iter().collect::<Vec<_>>().join(", ")
}
