//! Room that is kept for a full disk: a preallocated file that is given up when a commit meets one,
//! so that deletes, and the records of what is under way, can still be written.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate, statvfs};

const BYTES: u64 = 4 << 20;
/// So much has to be free beside the reserve before it is made again: a disk on the edge would
/// make and give it up with each commit.
const MARGIN: u64 = 1 << 20;

#[derive(Debug)]
pub(crate) struct Reserve {
    path: PathBuf,
    held: bool,
}

impl Reserve {
    /// Takes the reserve of a folder over, or makes it where there is room.
    pub(crate) fn open(folder: &Path) -> Self {
        let path = folder.join("reserve");
        let held = fs::metadata(&path).is_ok_and(|file| file.len() >= BYTES);
        let mut reserve = Self { path, held };
        reserve.restore();
        reserve
    }

    /// Whether the disk is so full that what SQLite maps of it may not be there: it makes that file by
    /// a byte for each page (sqlite.org/walformat.html, the wal-index), and a page that is not all on the
    /// disk ends the process when it is written to.
    pub(crate) fn is_needed(&self) -> bool {
        self.free() < MARGIN
    }

    fn free(&self) -> u64 {
        let folder = self.path.parent().unwrap_or(Path::new("."));
        statvfs(folder).map_or(0, |at| at.f_bavail.saturating_mul(at.f_frsize))
    }

    /// Whether it was given up.
    pub(crate) const fn is_spent(&self) -> bool {
        !self.held
    }

    /// Gives the room up. False: it was given up before.
    pub(crate) fn release(&mut self) -> bool {
        if !self.held {
            return false;
        }
        self.held = false;
        fs::remove_file(&self.path).is_ok()
    }

    /// Makes it again where there is room.
    pub(crate) fn restore(&mut self) {
        if self.held {
            return;
        }
        if self.free() < BYTES + MARGIN {
            return;
        }
        let made = File::create(&self.path)
            .and_then(|file| Ok(fallocate(&file, FallocateFlags::empty(), 0, BYTES)?));
        match made {
            Ok(()) => self.held = true,
            // Half a reserve would be taken for a whole one by nobody, but it holds room.
            Err(_) => drop(fs::remove_file(&self.path)),
        }
    }
}
