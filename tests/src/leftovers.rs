//! What a gateway with a data folder has left on the host: mounts, cgroups, processes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::bail;
use sha2::{Digest, Sha256};

use crate::compute::FREEZERS;

/// Where cgroups of every hierarchy are mounted.
fn hierarchies() -> Vec<PathBuf> {
    let Ok(mounts) = std::fs::read_to_string("/proc/self/mounts") else {
        return Vec::new();
    };
    mounts
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ');
            let (point, kind) = (words.nth(1)?, words.next()?);
            matches!(kind, "cgroup" | "cgroup2").then(|| PathBuf::from(point))
        })
        .collect()
}

/// Mount points below a folder, deepest first.
fn mounts_below(folder: &Path) -> Vec<PathBuf> {
    let Ok(mounts) = std::fs::read_to_string("/proc/self/mounts") else {
        return Vec::new();
    };
    let mut below: Vec<PathBuf> = mounts
        .lines()
        .filter_map(|line| line.split(' ').nth(1).map(PathBuf::from))
        .filter(|point| point.starts_with(folder) && point != folder)
        .collect();
    below.sort_by_key(|point| std::cmp::Reverse(point.components().count()));
    below
}

/// The name of the folders in memory that the local driver has for a state.
fn folder_name(data_dir: &Path) -> Option<String> {
    let state = std::fs::canonicalize(data_dir.join("local")).ok()?;
    let digest = Sha256::digest(state.as_os_str().as_encoded_bytes());
    let name = digest[..8].iter().map(|byte| format!("{byte:02x}"));
    Some(name.collect())
}

/// Where the local driver mounts what it starts, and has what a reboot of the host ends: of its own and of
/// gVisor's runtime. Gone with the gateway's last sandbox and an orderly end.
fn run_folders(data_dir: &Path) -> Vec<PathBuf> {
    let name = folder_name(data_dir).into_iter();
    name.flat_map(|name| {
        ["mnt", "sandboxes", "runsc"]
            .map(|kind| Path::new("/run/overwinter").join(kind).join(&name))
    })
    .collect()
}

/// Where it has what a reboot of the host ends, in folders named by sandbox; none where it has never
/// been.
#[must_use]
pub fn volatile_folder(data_dir: &Path) -> Option<PathBuf> {
    folder_name(data_dir).map(|name| Path::new("/run/overwinter/sandboxes").join(name))
}

/// The cgroups of the sandboxes whose storage lies in a gateway's data folder.
fn cgroups_in(data_dir: &Path) -> Vec<PathBuf> {
    let Ok(sandboxes) = std::fs::read_dir(data_dir.join("local/sandboxes")) else {
        return Vec::new();
    };
    cgroups_of(sandboxes.filter_map(|entry| entry.ok()?.file_name().into_string().ok()))
}

/// The cgroups of sandboxes, by their ids, in every hierarchy.
pub(crate) fn cgroups_of(ids: impl Iterator<Item = String>) -> Vec<PathBuf> {
    let mut found = BTreeSet::new();
    let ids: Vec<String> = ids.map(|id| id.replace('-', "")).collect();
    for root in hierarchies() {
        let Ok(gateways) = std::fs::read_dir(root.join("overwinter")) else {
            continue;
        };
        for gateway in gateways.flatten() {
            let Ok(groups) = std::fs::read_dir(gateway.path()) else {
                continue;
            };
            for group in groups.flatten() {
                let name = group.file_name().to_string_lossy().into_owned();
                if ids.iter().any(|id| name.contains(id.as_str())) {
                    found.insert(group.path());
                }
            }
        }
    }
    found.into_iter().collect()
}

/// Processes that have a file or their root below a folder.
fn processes_in(folder: &Path) -> Vec<i32> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    let own = std::process::id();
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_string_lossy().parse::<i32>().ok())
        .filter(|pid| u32::try_from(*pid) != Ok(own))
        .filter(|pid| {
            let text = format!("/proc/{pid}/cmdline");
            std::fs::read_to_string(text)
                .is_ok_and(|line| line.contains(&*folder.to_string_lossy()))
        })
        .collect()
}

/// # Errors
/// Names the cgroups that a gateway, which has none of its sandboxes left, has kept.
pub fn check_groups(gateway_id: &str) -> anyhow::Result<()> {
    let own = hierarchies()
        .into_iter()
        .map(|root| root.join("overwinter").join(gateway_id));
    let left: Vec<_> = own.filter(|group| group.exists()).collect();
    if left.is_empty() {
        Ok(())
    } else {
        bail!("left behind: {left:?}")
    }
}

/// # Errors
/// Names everything that is left.
pub fn check(folder: &Path, data_dir: &Path) -> anyhow::Result<()> {
    let mut left = Vec::new();
    let mounts = mounts_below(folder)
        .into_iter()
        .chain(mounts_below(data_dir));
    left.extend(mounts.map(|path| format!("mount {}", path.display())));
    left.extend(
        cgroups_in(data_dir)
            .into_iter()
            .map(|path| format!("cgroup {}", path.display())),
    );
    left.extend(
        processes_in(folder)
            .into_iter()
            .map(|pid| format!("process {pid}")),
    );
    let kept = std::fs::read_dir(data_dir.join("local/sandboxes"));
    let kept = kept.into_iter().flatten().flatten();
    left.extend(kept.map(|entry| format!("folder {}", entry.path().display())));
    let run = run_folders(data_dir).into_iter().filter(|it| it.exists());
    left.extend(run.map(|folder| format!("folder {}", folder.display())));
    left.sort();
    left.dedup();
    if left.is_empty() {
        Ok(())
    } else {
        bail!("left behind:\n  {}", left.join("\n  "))
    }
}

/// Clears all that after a test that failed, so that it spoils no other.
pub fn clear(folder: &Path, data_dir: &Path) {
    for group in cgroups_in(data_dir) {
        let Ok(pids) = std::fs::read_to_string(group.join("cgroup.procs")) else {
            continue;
        };
        for pid in pids.lines().filter_map(|line| line.parse::<i32>().ok()) {
            if let Some(pid) = rustix::process::Pid::from_raw(pid) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
        for (file, thawed) in FREEZERS {
            if group.join(file).exists() {
                let _ = std::fs::write(group.join(file), thawed);
            }
        }
    }
    for point in mounts_below(folder)
        .into_iter()
        .chain(mounts_below(data_dir))
    {
        let _ = rustix::mount::unmount(&point, rustix::mount::UnmountFlags::DETACH);
    }
    for folder in run_folders(data_dir) {
        for point in mounts_below(&folder).iter().chain([&folder]) {
            let _ = rustix::mount::unmount(point, rustix::mount::UnmountFlags::DETACH);
        }
        let _ = std::fs::remove_dir_all(folder);
    }
    for group in cgroups_in(data_dir) {
        for _ in 0..50 {
            match std::fs::remove_dir(&group) {
                Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {
                    std::thread::sleep(std::time::Duration::from_millis(10));
                }
                Ok(()) | Err(_) => break,
            }
        }
        // The gateway's own, with its last sandbox.
        if let Some(gateway) = group.parent() {
            let _ = std::fs::remove_dir(gateway);
        }
    }
}
