//! Which host ids belong to which sandbox: a file an assignment, removed only after the storage.
//!
//! Nothing is synced: what is on disk holds plain ids, so a range matters only as long as processes
//! run under it, and a power loss ends those too.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use overwinter_lifecycle::ids::SandboxId;

use crate::error::{At, LocalError, ignore_missing};
use crate::userns::RANGE;

/// The last range is of no sandbox: the gateway's own processes on behalf of sandboxes run under an id
/// of it. So they do under one that is this gateway's, whatever others on this host count from.
const fn rooms(count: u32) -> u32 {
    (count / RANGE).saturating_sub(1)
}

/// The host's user that owns networks and carries their packets.
pub(crate) const fn owner(base: u32, count: u32) -> u32 {
    base.saturating_add(rooms(count).saturating_mul(RANGE))
}

pub(crate) struct Ranges {
    folder: PathBuf,
    base: u32,
    count: u32,
    assigned: Mutex<Assigned>,
}

#[derive(Default)]
struct Assigned {
    by_sandbox: HashMap<SandboxId, u32>,
    taken: Vec<bool>,
}

impl Assigned {
    fn put(&mut self, sandbox: SandboxId, index: u32) {
        let slot = index as usize;
        if self.taken.len() <= slot {
            self.taken.resize(slot + 1, false);
        }
        if let Some(taken) = self.taken.get_mut(slot) {
            *taken = true;
        }
        self.by_sandbox.insert(sandbox, index);
    }
}

impl Ranges {
    /// Reads what is assigned. A file that names no sandbox is kept as taken: whose it is, is not
    /// known.
    pub(crate) fn open(folder: PathBuf, base: u32, count: u32) -> Result<Self, LocalError> {
        let mut assigned = Assigned::default();
        for entry in fs::read_dir(&folder).at("reading", &folder)? {
            let entry = entry.at("reading", &folder)?;
            let Some(index) = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse::<u32>().ok())
            else {
                continue;
            };
            let path = entry.path();
            let owner = fs::read_to_string(&path).at("reading", &path)?;
            match owner.trim().parse::<SandboxId>() {
                Ok(sandbox) => assigned.put(sandbox, index),
                Err(_) => assigned.put(SandboxId(Default::default()), index),
            }
        }
        Ok(Self {
            folder,
            base,
            count: rooms(count),
            assigned: Mutex::new(assigned),
        })
    }

    /// The first host id of a sandbox's range, assigned now if it has none.
    pub(crate) fn take(&self, sandbox: SandboxId) -> Result<u32, LocalError> {
        let mut assigned = self.assigned.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&index) = assigned.by_sandbox.get(&sandbox) {
            return Ok(self.base + index * RANGE);
        }
        let index = assigned
            .taken
            .iter()
            .position(|taken| !taken)
            .unwrap_or(assigned.taken.len());
        let index = u32::try_from(index).unwrap_or(u32::MAX);
        if index >= self.count {
            return Err(LocalError::NoRange {
                in_use: assigned.by_sandbox.len(),
            });
        }
        let path = self.folder.join(index.to_string());
        let aside = self.folder.join(format!(".{index}"));
        let written =
            fs::write(&aside, sandbox.to_string()).and_then(|()| fs::rename(&aside, &path));
        if written.is_err() {
            let _ = fs::remove_file(&aside);
        }
        written.at("writing", &path)?;
        assigned.put(sandbox, index);
        Ok(self.base + index * RANGE)
    }

    /// The range that it has; None: none.
    pub(crate) fn of(&self, sandbox: SandboxId) -> Option<u32> {
        let assigned = self.assigned.lock().unwrap_or_else(PoisonError::into_inner);
        assigned
            .by_sandbox
            .get(&sandbox)
            .map(|index| self.base + index * RANGE)
    }

    /// Gives a range back. Only once nothing of the sandbox is left.
    pub(crate) fn release(&self, sandbox: SandboxId) -> Result<(), LocalError> {
        let mut assigned = self.assigned.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(&index) = assigned.by_sandbox.get(&sandbox) else {
            return Ok(());
        };
        let path = self.folder.join(index.to_string());
        let removed: io::Result<()> = ignore_missing(fs::remove_file(&path));
        removed.at("removing", &path)?;
        assigned.by_sandbox.remove(&sandbox);
        if let Some(taken) = assigned.taken.get_mut(index as usize) {
            *taken = false;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    #[test]
    fn a_range_is_kept_across_a_restart_and_reused_only_once_released()
    -> Result<(), Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let open = || Ranges::open(folder.path().to_owned(), 1 << 28, 3 * RANGE);
        let [a, b, c] = [1, 2, 3].map(|n| SandboxId(Uuid::from_u128(n)));
        let ranges = open()?;
        let first = ranges.take(a)?;
        assert_eq!(ranges.take(a)?, first);
        let second = ranges.take(b)?;
        assert_eq!(second, first + RANGE);
        assert!(matches!(
            ranges.take(c),
            Err(LocalError::NoRange { in_use: 2 })
        ));
        assert_eq!(owner(1 << 28, 3 * RANGE), second + RANGE, "it is nobody's");

        let again = open()?;
        assert_eq!(again.of(b), Some(second));
        again.release(a)?;
        assert_eq!(again.take(c)?, first);
        Ok(())
    }
}
