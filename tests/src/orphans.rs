//! Every process that comes of this one, whoever was its parent: what a killed gateway leaves is
//! adopted, reaped when it ends, and found when it does not.

use std::collections::BTreeSet;

use anyhow::Context;
use rustix::process::{Pid, WaitOptions, set_child_subreaper, waitpid};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;

/// Adopts orphans until it is dropped, as PID 1 of a host does.
pub struct Orphans(JoinHandle<()>);

impl Orphans {
    /// `own`: whether a child is waited for by somebody else in this process.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn adopt(own: impl Fn(i32) -> bool + Send + 'static) -> anyhow::Result<Self> {
        set_child_subreaper(Pid::from_raw(1)).context("PR_SET_CHILD_SUBREAPER")?;
        let mut ended = signal(SignalKind::child())?;
        Ok(Self(tokio::spawn(async move {
            loop {
                for pid in children().into_iter().filter(|pid| !own(*pid)) {
                    // Not ended yet, or no child any more.
                    let _ = waitpid(Pid::from_raw(pid), WaitOptions::NOHANG);
                }
                if ended.recv().await.is_none() {
                    break;
                }
            }
        })))
    }
}

impl Drop for Orphans {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The children of this process, by pid, ended ones as well.
#[must_use]
pub fn children() -> BTreeSet<i32> {
    children_of(std::process::id())
}

/// The children of a process, by proc_pid_stat(5).
#[must_use]
pub fn children_of(parent: u32) -> BTreeSet<i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_string_lossy().parse().ok());
    pids.filter(|pid| parent_of(*pid) == Some(parent)).collect()
}

/// None when it is gone.
fn parent_of(pid: i32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses, and may hold any of them.
    let (_, after) = stat.rsplit_once(") ")?;
    after.split(' ').nth(1)?.parse().ok()
}

/// The name of its program, cut to 15 bytes; empty when it is gone.
#[must_use]
pub fn name_of(pid: i32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim().to_owned()
}

/// How a process is called and what it runs, for a message.
#[must_use]
pub fn describe(pid: i32) -> String {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = String::from_utf8_lossy(&line).replace('\0', " ");
    format!("{pid} ({}) {}", name_of(pid), words.trim())
}
