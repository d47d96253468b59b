//! Room that is kept for a full disk: a preallocated file that is given up when a commit meets one,
//! so that deletes, and the records of what is under way, can still be written.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate, statvfs};

const BYTES: u64 = 4 << 20;
/// So much has to be free beside the reserve before it is made again: a disk on the edge would
/// make and give it up with each commit.
const MARGIN: u64 = 1 << 20;
/// Of it, for a store that is opened on a full disk.
const LENT: u64 = 1 << 20;

#[derive(Debug)]
pub(crate) struct Reserve {
    path: PathBuf,
    /// Bytes; 0: it was given up.
    held: u64,
}

impl Reserve {
    /// Takes the reserve of a folder over, or makes it where there is room.
    pub(crate) fn open(folder: &Path) -> Self {
        let path = folder.join("reserve");
        let bytes = fs::metadata(&path).map_or(0, |file| file.len());
        let held = if bytes >= BYTES - LENT { bytes } else { 0 };
        let mut reserve = Self { path, held };
        reserve.restore();
        reserve
    }

    /// Before SQLite opens its files: where the disk is all but full, a part of the reserve goes to
    /// them. The wal-index is mapped, and made by one byte for each page of 4 KiB
    /// (sqlite.org/walformat.html): a page of it that is not wholly on the disk ends the process with
    /// SIGBUS when it is written to.
    pub(crate) fn lend(&mut self) {
        if self.free() >= LENT || self.held == 0 {
            return;
        }
        if self.held < BYTES {
            self.release();
            return;
        }
        let file = File::options().write(true).open(&self.path);
        if file.and_then(|file| file.set_len(BYTES - LENT)).is_ok() {
            self.held = BYTES - LENT;
        }
    }

    /// Whether it was given up.
    pub(crate) const fn is_spent(&self) -> bool {
        self.held == 0
    }

    /// Gives the room up. False: it was given up before.
    pub(crate) fn release(&mut self) -> bool {
        if self.held == 0 {
            return false;
        }
        self.held = 0;
        fs::remove_file(&self.path).is_ok()
    }

    /// Makes it again, whole, where there is room.
    pub(crate) fn restore(&mut self) {
        if self.held >= BYTES || self.free() < BYTES - self.held + MARGIN {
            return;
        }
        let file = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .open(&self.path);
        let made = file.and_then(|file| Ok(fallocate(&file, FallocateFlags::empty(), 0, BYTES)?));
        match made {
            Ok(()) => self.held = BYTES,
            // Half a reserve would be taken for a whole one by nobody, but it holds room.
            Err(_) if self.held == 0 => drop(fs::remove_file(&self.path)),
            Err(_) => {}
        }
    }

    fn free(&self) -> u64 {
        let folder = self.path.parent().unwrap_or(Path::new("."));
        statvfs(folder).map_or(0, |at| at.f_bavail.saturating_mul(at.f_frsize))
    }
}
