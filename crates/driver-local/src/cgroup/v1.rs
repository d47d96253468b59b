//! The v1 freezer: `freezer.state`. The kernel has no event for it; each read looks anew whether
//! the last process has stopped, which mostly takes well under a millisecond.
//!
//! A process that is forked while its group freezes can keep it from ever becoming frozen. Asking
//! anew finds such a one, and now and then letting all run for a moment ends what asking cannot:
//! runc does likewise (libcontainer/cgroups/fs/freezer.go).

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use super::Freezer;

/// Reads in vain before everything is let run for a moment.
const ROUND: u32 = 12;

pub(super) fn freeze(folder: &Path, until: Instant) -> io::Result<()> {
    let file = folder.join("freezer.state");
    for attempt in 1.. {
        fs::write(&file, "FROZEN")?;
        match state(folder)? {
            Freezer::Frozen => return Ok(()),
            Freezer::Freezing | Freezer::Thawed if Instant::now() >= until => break,
            Freezer::Freezing | Freezer::Thawed if attempt % ROUND == 0 => {
                thaw(folder)?;
                std::thread::sleep(Duration::from_millis(5));
            }
            Freezer::Freezing | Freezer::Thawed => {
                // From 40 µs on, doubled within a round up to 2 ms.
                let pause = 40_u64 << (attempt % ROUND).min(6);
                std::thread::sleep(Duration::from_micros(pause.min(2000)));
            }
        }
    }
    Err(io::ErrorKind::TimedOut.into())
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
