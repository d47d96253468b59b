//! Memory of frozen compute that others can have: moved to swap by `process_madvise(2)`, and brought in
//! again before a thaw.
//!
//! What is moved is what the sandbox would keep resident: anonymous and shared memory, of each of its
//! processes. Pages that several processes map are left where they are (the kernel does not move them for
//! one of them), and so are files of a file system in memory that nothing maps.

mod madvise;
mod maps;
mod swap;

use std::time::Instant;

use overwinter_driver::Reclaimed;

pub(crate) use madvise::Advice;
pub(crate) use swap::{NoReclaim, Swaps};

use crate::cgroup::Cgroups;
use crate::error::LocalError;
use crate::process;

/// Gives each process of a frozen group the advice. `until`: what is not done by then is not done.
///
/// # Errors
/// When the group cannot be read, or the kernel refuses. A process that has ended is no error.
pub(crate) fn advise(
    cgroups: &Cgroups,
    native: &str,
    advice: Advice,
    until: Instant,
) -> Result<(), LocalError> {
    for pid in cgroups.pids(native)? {
        let Some(pidfd) = process::open_pid(pid)? else {
            continue;
        };
        let ranges = maps::movable(pid)?;
        madvise::advise(&pidfd, &ranges, advice, until)?;
    }
    Ok(())
}

/// What has become of the group's memory, and how much of it is in swap.
pub(crate) fn reclaimed(
    swaps: &Swaps,
    cgroups: &Cgroups,
    native: &str,
) -> Result<(Reclaimed, u64), LocalError> {
    let held = match cgroups.memory_held(native) {
        Some(held) => held,
        None => maps::held(cgroups.pids(native)?),
    };
    let copy = swaps.room_of(held.swapped).min(held.swapped);
    let reclaimed = Reclaimed {
        freed_bytes: held.swapped - copy,
        left_bytes: held.resident + copy,
    };
    Ok((reclaimed, held.swapped))
}
