//! `/usr` of this host as a sandbox's own, of which nothing can be read inside that not every user of
//! the host may read.
//!
//! ```text
//! usr            overlay: writes go to the sandbox's layer        looks with all rights
//!  └─ usr-shown  overlay, read-only: shows, and refuses           looks with no right over files
//!      └─ usr-host   this host's, ids mapped: its root is the sandbox's root
//! ```
//!
//! With the ids mapped, root inside owns what the host's root owns: it may replace it, as on a host of
//! its own; and so it could read what is the host's root's alone. Overlay looks twice, though: first
//! whether who asks may, then, at the file below, whether who mounted it may. So the middle one is
//! mounted by a thread that is, to those files, anybody: the host's root, whom the mapping makes a
//! stranger to all of them, without the capabilities that pass over modes. What only an owner or a
//! group may read, it does not hand up: not to read, run or map, and not to be copied up by a chmod.
//! See "permission model" in the kernel's Documentation/filesystems/overlayfs.rst.

use std::ffi::CString;
use std::path::Path;

use rustix::mount::{MountFlags, mount};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

use super::{READ_ONLY, bind, private_folder, upper_over};
use crate::error::{At, LocalError};
use crate::userns;

/// The mount that the sandbox gets.
pub(super) const POINT: &str = "usr";
const HOST: &str = "usr-host";
const SHOWN: &str = "usr-shown";
/// An overlay that nothing is written to has two layers at least.
const EMPTY: &str = "usr-empty";

/// Mounts `usr` below `at`, where the sandbox's storage is mounted as `data`. Every folder down to
/// `at`, itself included, must let the host's root through by its mode.
pub(super) fn mount_at(at: &Path, usr: &Path, base: u32) -> Result<(), LocalError> {
    for (name, mode) in [
        (POINT, 0o700),
        (HOST, 0o700),
        (SHOWN, 0o700),
        (EMPTY, 0o755),
    ] {
        private_folder(&at.join(name), mode)?;
    }
    // Not even the host's root of a sandbox's storage: no file here is anybody's of the host.
    let namespace = userns::for_reading(base)?;
    bind(usr, &at.join(HOST), READ_ONLY, Some(&namespace))?;
    show(at)?;
    upper_over(at, SHOWN, "data/usr", POINT, MountFlags::NOSUID)
}

/// The overlay in the middle.
fn show(at: &Path) -> Result<(), LocalError> {
    let text = at
        .to_str()
        .ok_or(LocalError::Layers("the path is not UTF-8"))?;
    let options = CString::new(format!(
        "lowerdir={text}/{HOST}:{text}/{EMPTY},index=off,redirect_dir=off,metacopy=off"
    ))
    .map_err(|_| LocalError::Layers("the path holds a NUL"))?;
    let shown = at.join(SHOWN);
    let flags = MountFlags::RDONLY | MountFlags::NODEV | MountFlags::NOSUID;
    as_anybody(|| {
        mount("overlay", &shown, "overlay", flags, options.as_c_str()).at("mounting on", &shown)
    })
}

/// On a thread that gives up every capability but the one to mount, and ends: capabilities are a
/// thread's own.
fn as_anybody<T: Send>(
    work: impl FnOnce() -> Result<T, LocalError> + Send,
) -> Result<T, LocalError> {
    let stripped = move || {
        let all = capabilities(None).at(
            "reading the capabilities of",
            Path::new("/proc/thread-self"),
        )?;
        let fewer = CapabilitySets {
            effective: CapabilitySet::SYS_ADMIN,
            ..all
        };
        set_capabilities(None, fewer)
            .at("giving up capabilities of", Path::new("/proc/thread-self"))?;
        work()
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("mount".to_owned());
        let spawned = thread
            .spawn_scoped(scope, stripped)
            .at("starting a thread for", Path::new("mount"))?;
        spawned.join().unwrap_or(Err(LocalError::BrokenOff))
    })
}
