//! What is done in a network namespace before anything of a sandbox is: rules, a setting, a mount.

use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::command;
use crate::error::{At, LocalError};

/// Has `rules` hold, and gives the `/sys` of the namespace.
pub(super) fn prepare(
    net: &File,
    nft: &Path,
    rules: &str,
    until: Instant,
) -> Result<OwnedFd, LocalError> {
    within(net, || {
        // The sandbox's root has no right over the namespace, and is to have this one.
        let ports = Path::new("/proc/sys/net/ipv4/ip_unprivileged_port_start");
        fs::write(ports, "0").at("writing", ports)?;
        load(nft, rules, until)?;
        sysfs()
    })
}

/// Adds to the rules that hold.
pub(super) fn add(net: &File, nft: &Path, more: &str, until: Instant) -> Result<(), LocalError> {
    within(net, || load(nft, more, until))
}

fn load(nft: &Path, rules: &str, until: Instant) -> Result<(), LocalError> {
    let mut nft = Command::new(nft);
    nft.args(["-f", "-"]).env_clear().current_dir("/");
    command::start("nft", nft, Some(rules))?.ended(until)
}

/// A thread's network namespace is its own, and its children's.
fn within<T: Send>(
    net: &File,
    work: impl FnOnce() -> Result<T, LocalError> + Send,
) -> Result<T, LocalError> {
    let entered = || {
        move_into_link_name_space(net.as_fd(), Some(LinkNameSpaceType::Network))
            .at("entering", Path::new("the network namespace"))?;
        work()
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("network".to_owned());
        let worker = thread
            .spawn_scoped(scope, entered)
            .at("starting", Path::new("a thread"))?;
        // A panic is a bug, and then nothing is known.
        worker.join().unwrap_or(Err(LocalError::BrokenOff))
    })
}

/// A `/sys` that shows the network namespace of this thread, mounted nowhere.
pub(super) fn sysfs() -> Result<OwnedFd, LocalError> {
    let name = Path::new("sysfs");
    let context = fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC).at("opening", name)?;
    fsconfig_create(&context).at("making", name)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes).at("mounting", name)
}
