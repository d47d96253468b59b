//! Processes by descriptors: a number may be another's by now, a pidfd never is.

use std::fs;
use std::os::fd::OwnedFd;
use std::process::Child;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

/// A process, told apart from a later one of the same number by when it started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub(crate) pid: i32,
    /// Clock ticks since boot, as in /proc/PID/stat.
    pub(crate) start: u64,
}

/// The process if it lives. None: it has ended, also if nobody has reaped it.
pub(crate) fn open(identity: Identity) -> Option<OwnedFd> {
    let pidfd = open_pid(identity.pid)?;
    // Read after the descriptor was had: both speak of the same process, or of an ended one.
    (start_time(identity.pid)? == identity.start && !has_ended(&pidfd)).then_some(pidfd)
}

/// One that nobody has reaped: only what the host has too little of can fail.
pub(crate) fn open_child(child: &Child) -> rustix::io::Result<OwnedFd> {
    pidfd_open(Pid::from_child(child), PidfdFlags::empty())
}

pub(crate) fn open_pid(pid: i32) -> Option<OwnedFd> {
    pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()
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
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
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
pub(crate) fn identify(pid: i32, group: &str) -> Option<Identity> {
    let start = start_time(pid)?;
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let ours = groups.lines().any(|line| line.ends_with(group));
    ours.then_some(Identity { pid, start })
}

/// Whether the process has a file open for writing that gVisor writes memory to.
pub(crate) fn writes_memory(pid: i32) -> bool {
    const NAMES: [&str; 3] = ["/checkpoint.img", "/pages_meta.img", "/pages.img"];
    let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else {
        return false;
    };
    descriptors.flatten().any(|descriptor| {
        let target = fs::read_link(descriptor.path()).unwrap_or_default();
        let target = target.to_string_lossy();
        let target = target.trim_end_matches(" (deleted)");
        NAMES.iter().any(|name| target.ends_with(name))
            && is_writable(pid, &descriptor.file_name().to_string_lossy())
    })
}

fn is_writable(pid: i32, descriptor: &str) -> bool {
    let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{descriptor}")).unwrap_or_default();
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    flags
        .and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok())
        .is_some_and(|flags| flags & libc::O_ACCMODE != libc::O_RDONLY)
}

/// Field 22 of /proc/PID/stat. The name, field 2, may hold anything, also parentheses.
fn start_time(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?
        .1
        .split_whitespace()
        .nth(19)?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_with_another_start_is_another_process() -> Result<(), Box<dyn std::error::Error>> {
        let pid = i32::try_from(std::process::id())?;
        let start = start_time(pid).ok_or("no start time")?;
        assert!(open(Identity { pid, start }).is_some());
        assert!(
            open(Identity {
                pid,
                start: start + 1
            })
            .is_none()
        );
        Ok(())
    }
}
