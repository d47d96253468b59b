//! The v1 freezer: `freezer.state`. The kernel has no event for it; each read looks anew whether
//! the last process has stopped, and it takes well under a millisecond.

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use super::Freezer;

pub(super) fn freeze(folder: &Path, until: Instant) -> io::Result<()> {
    let file = folder.join("freezer.state");
    let mut pause = Duration::from_micros(20);
    fs::write(&file, "FROZEN")?;
    loop {
        match state(folder)? {
            Freezer::Frozen => return Ok(()),
            Freezer::Freezing | Freezer::Thawed if Instant::now() >= until => {
                return Err(io::ErrorKind::TimedOut.into());
            }
            Freezer::Freezing => {}
            // A process that was forked at the moment of the write; it is asked for again.
            Freezer::Thawed => fs::write(&file, "FROZEN")?,
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(2));
    }
}

pub(super) fn thaw(folder: &Path) -> io::Result<()> {
    fs::write(folder.join("freezer.state"), "THAWED")
}

pub(super) fn state(folder: &Path) -> io::Result<Freezer> {
    match fs::read_to_string(folder.join("freezer.state"))?.trim() {
        "FROZEN" => Ok(Freezer::Frozen),
        "FREEZING" => Ok(Freezer::Freezing),
        "THAWED" => Ok(Freezer::Thawed),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}
