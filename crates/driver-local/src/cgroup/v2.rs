//! The v2 freezer: `cgroup.freeze` asks, `cgroup.events` tells, and wakes who polls it.

use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::path::Path;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, poll};

use super::Freezer;
use crate::process::left;

pub(super) fn freeze(folder: &Path, until: Instant) -> io::Result<()> {
    let mut events = File::open(folder.join("cgroup.events"))?;
    fs::write(folder.join("cgroup.freeze"), "1")?;
    loop {
        if is_frozen(&mut events)? {
            return Ok(());
        }
        let Some(timeout) = left(until) else {
            return Err(io::ErrorKind::TimedOut.into());
        };
        poll(&mut [PollFd::new(&events, PollFlags::PRI)], Some(&timeout))?;
    }
}

pub(super) fn thaw(folder: &Path) -> io::Result<()> {
    fs::write(folder.join("cgroup.freeze"), "0")
}

pub(super) fn kill(folder: &Path) -> io::Result<()> {
    fs::write(folder.join("cgroup.kill"), "1")
}

pub(super) fn state(folder: &Path) -> io::Result<Freezer> {
    let asked = fs::read_to_string(folder.join("cgroup.freeze"))?.trim() == "1";
    let frozen = is_frozen(&mut File::open(folder.join("cgroup.events"))?)?;
    Ok(match (asked, frozen) {
        (_, true) => Freezer::Frozen,
        (true, false) => Freezer::Freezing,
        (false, false) => Freezer::Thawed,
    })
}

fn is_frozen(events: &mut File) -> io::Result<bool> {
    let mut text = String::new();
    events.rewind()?;
    events.read_to_string(&mut text)?;
    Ok(text.lines().any(|line| line == "frozen 1"))
}
