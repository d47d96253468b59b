//! Processes by descriptors: a number may be another's by now, a pidfd never is.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use crate::error::{At, LocalError};

/// A process, told apart from a later one of the same number by when it started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub(crate) pid: i32,
    /// Clock ticks since boot, as in /proc/PID/stat.
    pub(crate) start: u64,
}

/// The process if it lives. None: it has ended, also if nobody has reaped it.
///
/// # Errors
/// When that cannot be told: this process may have no descriptor left, and what cannot be looked at
/// is not gone.
pub(crate) fn open(identity: Identity) -> Result<Option<OwnedFd>, LocalError> {
    let Some(pidfd) = open_pid(identity.pid)? else {
        return Ok(None);
    };
    // Read after the descriptor was had: both speak of the same process, or of an ended one.
    let same = start_time(identity.pid)? == Some(identity.start);
    Ok((same && !has_ended(&pidfd)).then_some(pidfd))
}

/// One that nobody has reaped: only what the host has too little of can fail.
pub(crate) fn open_child(child: &Child) -> rustix::io::Result<OwnedFd> {
    pidfd_open(Pid::from_child(child), PidfdFlags::empty())
}

/// None: no process has that number.
pub(crate) fn open_pid(pid: i32) -> Result<Option<OwnedFd>, LocalError> {
    let Some(number) = Pid::from_raw(pid) else {
        return Ok(None);
    };
    match pidfd_open(number, PidfdFlags::empty()) {
        Ok(pidfd) => Ok(Some(pidfd)),
        // EINVAL: a thread of another process has it by now.
        Err(Errno::SRCH | Errno::INVAL) => Ok(None),
        Err(error) => Err(error).at("opening the process of", &proc_of(pid)),
    }
}

fn proc_of(pid: i32) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}"))
}

/// Reads what /proc has of a process. None: it has ended.
fn read<T>(
    pid: i32,
    name: &str,
    read: impl FnOnce(&Path) -> io::Result<T>,
) -> Result<Option<T>, LocalError> {
    let path = proc_of(pid).join(name);
    match read(&path) {
        Ok(read) => Ok(Some(read)),
        Err(error) if has_gone(&error) => Ok(None),
        Err(error) => Err(error).at("reading", &path),
    }
}

/// ESRCH: it ended while its file was open.
fn has_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || error.raw_os_error() == Some(Errno::SRCH.raw_os_error())
}

pub(crate) fn kill(pidfd: &OwnedFd) {
    // Fails only for one that has ended.
    let _ = pidfd_send_signal(pidfd, Signal::KILL);
}

pub(crate) fn has_ended(pidfd: &OwnedFd) -> bool {
    wait(pidfd, Instant::now())
}

/// Waits until it has ended. False: the time is up.
pub(crate) fn wait(pidfd: &OwnedFd, until: Instant) -> bool {
    loop {
        let timeout = left(until).unwrap_or(Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        });
        match poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&timeout)) {
            Ok(0) if left(until).is_none() => return false,
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return true,
            // Cannot be for a descriptor that is open; nothing is known then.
            Err(_) => return false,
        }
    }
}

/// What is left until then; None: nothing.
pub(crate) fn left(until: Instant) -> Option<Timespec> {
    let left = until.checked_duration_since(Instant::now())?;
    (!left.is_zero()).then(|| Timespec {
        tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: left.subsec_nanos().into(),
    })
}

/// A process by its number, where that is one in the control group `group` now.
pub(crate) fn identify(pid: i32, group: &str) -> Result<Option<Identity>, LocalError> {
    let Some(start) = start_time(pid)? else {
        return Ok(None);
    };
    let groups = read(pid, "cgroup", |path| fs::read_to_string(path))?.unwrap_or_default();
    let ours = groups.lines().any(|line| line.ends_with(group));
    Ok(ours.then_some(Identity { pid, start }))
}

/// Whether the process has a file open for writing that gVisor writes memory to.
pub(crate) fn writes_memory(pid: i32) -> Result<bool, LocalError> {
    const NAMES: [&str; 3] = ["/checkpoint.img", "/pages_meta.img", "/pages.img"];
    for descriptor in read(pid, "fd", crate::host::entries)?.unwrap_or_default() {
        let name = format!("fd/{descriptor}");
        let target = read(pid, &name, |path| fs::read_link(path))?.unwrap_or_default();
        let target = target.to_string_lossy();
        let target = target.trim_end_matches(" (deleted)");
        if NAMES.iter().any(|name| target.ends_with(name)) && is_writable(pid, &descriptor)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn is_writable(pid: i32, descriptor: &str) -> Result<bool, LocalError> {
    let name = format!("fdinfo/{descriptor}");
    let info = read(pid, &name, |path| fs::read_to_string(path))?.unwrap_or_default();
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    Ok(flags
        .and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok())
        .is_some_and(|flags| flags & libc::O_ACCMODE != libc::O_RDONLY))
}

/// Field 22 of /proc/PID/stat. The name, field 2, may hold anything, also parentheses and bytes that
/// are no text. None: it has ended.
fn start_time(pid: i32) -> Result<Option<u64>, LocalError> {
    let Some(stat) = read(pid, "stat", |path| fs::read(path))? else {
        return Ok(None);
    };
    let stat = String::from_utf8_lossy(&stat);
    let start = stat
        .rsplit_once(')')
        .and_then(|(_, rest)| rest.split_whitespace().nth(19)?.parse().ok());
    let unreadable = || io::Error::from(io::ErrorKind::InvalidData);
    Some(start.ok_or_else(unreadable).at("reading", &proc_of(pid))).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_with_another_start_is_another_process() -> Result<(), Box<dyn std::error::Error>> {
        let pid = i32::try_from(std::process::id())?;
        let start = start_time(pid)?.ok_or("no start time")?;
        assert!(open(Identity { pid, start })?.is_some());
        let start = start + 1;
        assert!(open(Identity { pid, start })?.is_none());
        assert!(open_pid(i32::MAX)?.is_none());
        Ok(())
    }
}
