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
pub(crate) use overwinter_driver::door::SUPERVISOR_ID;
const _: () = assert!(SUPERVISOR_ID == RANGE - 1);

/// A namespace whose maps are `0 base 65536` and `65536 0 1`, for id-mapped mounts.
pub(crate) fn for_mounts(base: u32) -> Result<File, LocalError> {
    with_maps(&format!("0 {base} {RANGE}\n{RANGE} 0 1\n"))
}

/// The first extent alone: for what no overlay has as its upper layer.
pub(crate) fn for_reading(base: u32) -> Result<File, LocalError> {
    with_maps(&format!("0 {base} {RANGE}\n"))
}

fn with_maps(map: &str) -> Result<File, LocalError> {
    let pause =
        Pause::start(None).at("starting a user namespace", Path::new("/proc/self/ns/user"))?;
    pause.map(map)?;
    pause.namespace("user")
}

/// A user namespace and a network namespace in it. The host's user `owner` has every right over both,
/// and so has the host's root; nobody in any other user namespace has one.
pub(crate) struct Network {
    pub(crate) user: File,
    pub(crate) net: File,
}

impl Network {
    pub(crate) fn make(owner: u32) -> Result<Self, LocalError> {
        let pause = Pause::start(Some(owner)).at(
            "starting a network namespace",
            Path::new("/proc/self/ns/net"),
        )?;
        pause.map(&format!("0 {owner} 1\n"))?;
        Ok(Self {
            user: pause.namespace("user")?,
            net: pause.namespace("net")?,
        })
    }
}

impl Network {
    /// What a network namespace of this kind is in, and the host's user that owns it.
    pub(crate) fn around(net: &File) -> Result<(Self, u32), LocalError> {
        let path = Path::new("the network namespace");
        // SAFETY: a plain call on a descriptor that lives through it; the kernel makes the new one for us.
        let user = unsafe {
            match libc::ioctl(net.as_raw_fd(), libc::NS_GET_USERNS) {
                fd if fd >= 0 => Ok(File::from_raw_fd(fd)),
                _ => Err(io::Error::last_os_error()),
            }
        };
        let user = user.at("finding the owner of", path)?;
        let mut owner: libc::uid_t = 0;
        // SAFETY: the kernel writes one number, which lives through the call.
        let told = unsafe { libc::ioctl(user.as_raw_fd(), libc::NS_GET_OWNER_UID, &raw mut owner) };
        let told = match told {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        };
        told.at("finding the owner of", path)?;
        let net = net.try_clone().at("duplicating", path)?;
        Ok((Self { user, net }, owner))
    }
}

/// A child that only waits in a user namespace of its own. Ended and reaped when dropped.
struct Pause {
    pid: libc::pid_t,
    pidfd: OwnedFd,
}

impl Pause {
    /// With an `owner`, the namespace is that user's, and a network namespace is made in it.
    fn start(owner: Option<u32>) -> io::Result<Self> {
        let (ready, say) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let parent = libc::pid_t::try_from(std::process::id()).unwrap_or(-1);
        let mut pidfd: libc::c_int = -1;
        // No SIGCHLD at its end: it is reaped by its descriptor, and nobody else should notice it.
        let flags = libc::CLONE_PIDFD as libc::c_ulong;
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
            // SAFETY: as above.
            unsafe { pause(owner, say.as_raw_fd(), parent) }
        }
        if pid < 0 {
            return Err(io::Error::last_os_error());
        }
        drop(say);
        // SAFETY: the kernel has just made this descriptor for us.
        let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
        let child = Self {
            pid: libc::pid_t::try_from(pid).unwrap_or(-1),
            pidfd,
        };
        let mut said = [0; 4];
        io::Read::read_exact(&mut File::from(ready), &mut said)?;
        match i32::from_ne_bytes(said) {
            0 => Ok(child),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    fn map(&self, map: &str) -> Result<(), LocalError> {
        for name in ["uid_map", "gid_map"] {
            let path = self.proc(name);
            fs::write(&path, map).at("writing", &path)?;
        }
        Ok(())
    }

    fn namespace(&self, kind: &str) -> Result<File, LocalError> {
        let path = self.proc("ns").join(kind);
        File::open(&path).at("opening", &path)
    }

    fn proc(&self, name: &str) -> std::path::PathBuf {
        Path::new("/proc").join(self.pid.to_string()).join(name)
    }
}

/// The child's life.
///
/// # Safety
/// Only in a child that has memory of its own.
unsafe fn pause(owner: Option<u32>, say: libc::c_int, parent: libc::pid_t) -> ! {
    // SAFETY: raw system calls alone, none of which touches memory but `said`.
    unsafe {
        let made = enter(owner);
        let said: i32 = if made { 0 } else { *libc::__errno_location() };
        // After the change of user, which takes it back. The parent's death ends it.
        libc::syscall(
            libc::SYS_prctl,
            libc::c_long::from(libc::PR_SET_PDEATHSIG),
            libc::c_long::from(libc::SIGKILL),
        );
        // Also one that came first: it is somebody else's child by now.
        if libc::syscall(libc::SYS_getppid) != libc::c_long::from(parent) {
            libc::syscall(libc::SYS_exit_group, 1);
        }
        let sent = libc::syscall(libc::SYS_write, say, &raw const said, 4_usize);
        if sent != 4 {
            libc::syscall(libc::SYS_exit_group, 1);
        }
        loop {
            let zero: libc::c_long = 0;
            libc::syscall(libc::SYS_ppoll, zero, zero, zero, zero, zero);
        }
    }
}

/// # Safety
/// As [`pause`].
unsafe fn enter(owner: Option<u32>) -> bool {
    // SAFETY: as there.
    unsafe {
        let Some(owner) = owner else {
            return libc::syscall(libc::SYS_unshare, libc::CLONE_NEWUSER) == 0;
        };
        let owner = libc::c_long::from(owner);
        // With its rights kept: where ordinary users may make no user namespaces, it still can.
        let keep = libc::c_long::from(libc::SECBIT_NO_SETUID_FIXUP);
        libc::syscall(
            libc::SYS_prctl,
            libc::c_long::from(libc::PR_SET_SECUREBITS),
            keep,
        ) == 0
            && libc::syscall(
                libc::SYS_setgroups,
                0_usize,
                std::ptr::null::<libc::gid_t>(),
            ) == 0
            && libc::syscall(libc::SYS_setresgid, owner, owner, owner) == 0
            && libc::syscall(libc::SYS_setresuid, owner, owner, owner) == 0
            && libc::syscall(libc::SYS_unshare, libc::CLONE_NEWUSER | libc::CLONE_NEWNET) == 0
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
