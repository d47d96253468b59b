//! What runs a sandbox on this host, seen from outside: its PID 1, and its freezer.

use std::collections::BTreeSet;
use std::path::PathBuf;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

use crate::leftovers::cgroups_of;

/// The file that freezes a cgroup, and what thaws it: version 1 and version 2.
pub(crate) const FREEZERS: [(&str, &str); 2] =
    [("freezer.state", "THAWED"), ("cgroup.freeze", "0")];

/// How long a thawed process may take to end before it is thawed again.
const AGAIN: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};

const AGAIN_AT_MOST: usize = 200;

/// Why it is not killed.
#[derive(Debug, thiserror::Error)]
pub enum NoCompute {
    #[error("it has no compute")]
    None,
    #[error("it has more than one compute: {0:?}")]
    Many(BTreeSet<i32>),
    #[error("process {0} does not die")]
    Immortal(i32),
    #[error(transparent)]
    Kernel(#[from] rustix::io::Errno),
}

/// The native compute of one sandbox.
#[derive(Debug)]
pub struct Compute {
    /// Its PID 1, as the host numbers it.
    pub pid: i32,
    /// Its cgroups in the hierarchies that could freeze it; with both versions mounted, two.
    freezers: Vec<PathBuf>,
}

impl Compute {
    /// # Errors
    /// When none is there, or more than one.
    pub fn of(sandbox_id: &str) -> Result<Self, NoCompute> {
        let mut freezers = cgroups_of([sandbox_id.to_owned()].into_iter());
        // Beside it is what carries its packets, which is the first of a namespace of its own too.
        freezers.retain(|group| group.extension().is_none_or(|it| it != "net"));
        freezers.retain(|group| FREEZERS.iter().any(|(file, _)| group.join(file).exists()));
        let pids: BTreeSet<i32> = freezers.iter().filter_map(|group| init_of(group)).collect();
        if pids.len() > 1 {
            return Err(NoCompute::Many(pids));
        }
        let pid = pids.into_iter().next().ok_or(NoCompute::None)?;
        Ok(Self { pid, freezers })
    }

    /// SIGKILL to its PID 1, and waits until that has ended, and with it all others. A frozen one is
    /// thawed to die.
    ///
    /// # Errors
    /// When it is gone already.
    pub fn kill(&self) -> Result<(), NoCompute> {
        let pidfd = self.open()?;
        pidfd_send_signal(&pidfd, Signal::KILL)?;
        self.ended(&pidfd)
    }

    /// SIGKILL to each of its processes in turn, its PID 1 last, and waits until that has ended.
    ///
    /// # Errors
    /// When it is gone already.
    pub fn kill_all(&self) -> Result<(), NoCompute> {
        let pidfd = self.open()?;
        for group in &self.freezers {
            let pids = std::fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
            let pids = pids.lines().filter_map(|line| line.parse().ok());
            for pid in pids.filter(|pid| *pid != self.pid) {
                // Gone since it was listed.
                let _ = Pid::from_raw(pid).map(|pid| kill_process(pid, Signal::KILL));
            }
        }
        pidfd_send_signal(&pidfd, Signal::KILL)?;
        self.ended(&pidfd)
    }

    fn open(&self) -> Result<OwnedFd, NoCompute> {
        let pid = Pid::from_raw(self.pid).ok_or(NoCompute::None)?;
        Ok(pidfd_open(pid, PidfdFlags::empty())?)
    }

    /// Thaws it until it has ended: whoever owns it may freeze it again meanwhile.
    fn ended(&self, pidfd: &OwnedFd) -> Result<(), NoCompute> {
        for _ in 0..AGAIN_AT_MOST {
            self.thaw();
            let mut polled = [PollFd::new(pidfd, PollFlags::IN)];
            if rustix::event::poll(&mut polled, Some(&AGAIN))? > 0 {
                return Ok(());
            }
        }
        Err(NoCompute::Immortal(self.pid))
    }

    fn thaw(&self) {
        for group in &self.freezers {
            for (file, thawed) in FREEZERS {
                // In another hierarchy it is not there, and with its last process it may go.
                if group.join(file).exists() {
                    let _ = std::fs::write(group.join(file), thawed);
                }
            }
        }
    }
}

/// The process of a cgroup that is number 1 in its own namespace.
fn init_of(cgroup: &std::path::Path) -> Option<i32> {
    let pids = std::fs::read_to_string(cgroup.join("cgroup.procs")).ok()?;
    pids.lines()
        .filter_map(|line| line.parse().ok())
        .find(|pid| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let state = status.lines().find_map(|line| line.strip_prefix("State:"));
            // Dead, and not yet waited for.
            if state.is_some_and(|state| state.trim_start().starts_with(['Z', 'X'])) {
                return false;
            }
            // With gVisor it is the sentry, whose end is that of all inside; its helper for files is
            // the first of a namespace of its own.
            let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            if command.starts_with(b"runsc-") {
                return command.starts_with(b"runsc-sandbox");
            }
            let names = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
            names.and_then(|names| names.split_whitespace().last()) == Some("1")
        })
}
