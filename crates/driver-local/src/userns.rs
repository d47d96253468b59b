//! A user namespace's descriptor, without a process that stays in it.
//!
//! The maps of storage have two extents. The first gives a sandbox its 65,536 host ids. The second lets the
//! host's root appear as id 65536 on disk: overlay's mounter owns its work folder and whiteouts by
//! it. Storage then holds plain ids whatever the range, and can move to another one unchanged.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

use rustix::process::{Signal, pidfd_send_signal};

use crate::error::{At, LocalError};

/// Ids of one sandbox. Inside they are 0 to 65535; the last is the supervisor's.
pub(crate) const RANGE: u32 = 65_536;
/// PID 1's user id inside, which no workload gets.
pub(crate) const SUPERVISOR_ID: u32 = RANGE - 1;

/// A namespace whose maps are `0 base 65536` and `65536 0 1`, for id-mapped mounts.
pub(crate) fn for_mounts(base: u32) -> Result<File, LocalError> {
    with_maps(&format!("0 {base} {RANGE}\n{RANGE} 0 1\n"))
}

/// The first extent alone: for what no overlay has as its upper layer.
pub(crate) fn for_reading(base: u32) -> Result<File, LocalError> {
    with_maps(&format!("0 {base} {RANGE}\n"))
}

fn with_maps(map: &str) -> Result<File, LocalError> {
    let pause = Pause::start().at("starting a user namespace", Path::new("/proc/self/ns/user"))?;
    let proc = Path::new("/proc").join(pause.pid.to_string());
    for name in ["uid_map", "gid_map"] {
        let path = proc.join(name);
        fs::write(&path, map).at("writing", &path)?;
    }
    let path = proc.join("ns/user");
    File::open(&path).at("opening", &path)
}

/// A child that only waits in a user namespace of its own. Ended and reaped when dropped.
struct Pause {
    pid: libc::pid_t,
    pidfd: OwnedFd,
}

impl Pause {
    fn start() -> io::Result<Self> {
        let mut pidfd: libc::c_int = -1;
        // No SIGCHLD at its end: it is reaped by its descriptor, and nobody else should notice it.
        let flags = (libc::CLONE_NEWUSER | libc::CLONE_PIDFD) as libc::c_ulong;
        // SAFETY: without CLONE_VM the child has memory of its own. It calls nothing but raw system
        // calls, which is what a child of a process with many threads may do.
        let pid = unsafe {
            libc::syscall(
                libc::SYS_clone,
                flags,
                std::ptr::null_mut::<libc::c_void>(),
                &raw mut pidfd,
                std::ptr::null_mut::<libc::c_void>(),
                0 as libc::c_ulong,
            )
        };
        if pid == 0 {
            // SAFETY: as above. The parent's death ends it, also when that came first.
            unsafe {
                libc::syscall(
                    libc::SYS_prctl,
                    libc::c_long::from(libc::PR_SET_PDEATHSIG),
                    libc::c_long::from(libc::SIGKILL),
                );
                loop {
                    let zero: libc::c_long = 0;
                    libc::syscall(libc::SYS_ppoll, zero, zero, zero, zero, zero);
                }
            }
        }
        if pid < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made this descriptor for us.
        let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
        Ok(Self {
            pid: libc::pid_t::try_from(pid).unwrap_or(-1),
            pidfd,
        })
    }
}

impl Drop for Pause {
    fn drop(&mut self) {
        // Neither can fail for a child that is ours; there is nothing to do about it if they do.
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
        // A child that ends without a signal is waited for with __WCLONE or __WALL alone, which
        // waitid takes for a pidfd too.
        // SAFETY: a plain wait on a descriptor that we own.
        unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            libc::waitid(
                libc::P_PIDFD,
                self.pidfd.as_raw_fd() as libc::id_t,
                &raw mut info,
                libc::WEXITED | libc::__WALL,
            );
        }
    }
}
