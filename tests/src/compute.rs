//! What runs a sandbox on this host, seen from outside: its PID 1, and its freezer.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context, ensure};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::leftovers::cgroups_of;

/// The file that freezes a cgroup, and what thaws it: version 1 and version 2.
pub(crate) const FREEZERS: [(&str, &str); 2] =
    [("freezer.state", "THAWED"), ("cgroup.freeze", "0")];

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

    /// SIGKILL to its PID 1, and waits until that has ended. A frozen one is thawed to die.
    ///
    /// # Errors
    /// When it is gone already.
    pub fn kill(&self) -> anyhow::Result<()> {
        let pid = Pid::from_raw(self.pid).context("no pid")?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        pidfd_send_signal(&pidfd, Signal::KILL)?;
        self.thaw()?;
        let mut polled = [rustix::event::PollFd::new(
            &pidfd,
            rustix::event::PollFlags::IN,
        )];
        rustix::event::poll(&mut polled, None)?;
        Ok(())
    }

    fn thaw(&self) -> std::io::Result<()> {
        for group in &self.freezers {
            for (file, thawed) in FREEZERS {
                if group.join(file).exists() {
                    std::fs::write(group.join(file), thawed)?;
                }
            }
        }
        Ok(())
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
