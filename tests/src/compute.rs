//! What runs a sandbox on this host, seen from outside: its PID 1, and its freezer.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context, bail, ensure};
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
    pub fn of(sandbox_id: &str) -> anyhow::Result<Self> {
        let mut freezers = cgroups_of([sandbox_id.to_owned()].into_iter());
        freezers.retain(|group| FREEZERS.iter().any(|(file, _)| group.join(file).exists()));
        let pids: BTreeSet<i32> = freezers.iter().filter_map(|group| init_of(group)).collect();
        ensure!(
            pids.len() < 2,
            "{sandbox_id} has more than one compute: {pids:?}"
        );
        let pid = pids.into_iter().next();
        let pid = pid.with_context(|| format!("{sandbox_id} has no compute"))?;
        Ok(Self { pid, freezers })
    }

    /// SIGKILL to its PID 1, and waits until that has ended, and with it all others. A frozen one is
    /// thawed to die.
    ///
    /// # Errors
    /// When it is gone already.
    pub fn kill(&self) -> anyhow::Result<()> {
        let pidfd = self.open()?;
        pidfd_send_signal(&pidfd, Signal::KILL)?;
        self.ended(&pidfd)
    }

    /// SIGKILL to each of its processes in turn, and waits until its PID 1 has ended.
    ///
    /// # Errors
    /// When it is gone already.
    pub fn kill_all(&self) -> anyhow::Result<()> {
        let pidfd = self.open()?;
        for group in &self.freezers {
            let pids = std::fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
            for pid in pids.lines().filter_map(|line| line.parse().ok()) {
                // Gone since it was listed.
                let _ = Pid::from_raw(pid).map(|pid| kill_process(pid, Signal::KILL));
            }
        }
        self.ended(&pidfd)
    }

    fn open(&self) -> anyhow::Result<OwnedFd> {
        let pid = Pid::from_raw(self.pid).context("no pid")?;
        Ok(pidfd_open(pid, PidfdFlags::empty())?)
    }

    /// Thaws it until it has ended: whoever owns it may freeze it again meanwhile.
    fn ended(&self, pidfd: &OwnedFd) -> anyhow::Result<()> {
        for _ in 0..AGAIN_AT_MOST {
            self.thaw();
            let mut polled = [PollFd::new(pidfd, PollFlags::IN)];
            if rustix::event::poll(&mut polled, Some(&AGAIN))? > 0 {
                return Ok(());
            }
        }
        bail!("process {} does not die", self.pid)
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
            let names = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
            names.and_then(|names| names.split_whitespace().last()) == Some("1")
        })
}
