//! The host loses power: what runs on it ends, and what was committed without waiting for the disk is not
//! there when it is up again.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{fs, io};

use overwinter_driver::testkit::Dice;
use overwinter_store::{CommitPoint, Durability};

use super::faults::Records;

pub(crate) const LOST: &str = "Mishap power";

/// The database and its log, as SQLite names them; of its index, which is only memory, nothing is kept.
const FILES: [&str; 2] = ["state.db", "state.db-wal"];
const INDEX: &str = "state.db-shm";

/// While it may go, of a thousand points how many it goes at.
const GOES: u64 = 300;

#[derive(Clone)]
pub(crate) struct Power(Arc<Mutex<Inner>>);

struct Inner {
    dice: Dice,
    /// Of a thousand commits that do not wait for the disk, how many are in danger.
    dial: u16,
    folder: PathBuf,
    records: Records,
    /// What is on the disk while something is committed that is not.
    on_disk: Option<Vec<(&'static str, Vec<u8>)>>,
    /// That commit is done.
    committed: bool,
    gone: bool,
}

impl Power {
    pub(crate) fn new(seed: u64, dial: u16, folder: &Path, records: Records) -> Self {
        Self(Arc::new(Mutex::new(Inner {
            dice: Dice::new(&[seed, 19]),
            dial,
            folder: folder.to_owned(),
            records,
            on_disk: None,
            committed: false,
            gone: false,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It stays from here on.
    pub(crate) fn end(&self) {
        let mut inner = self.lock();
        inner.dial = 0;
        inner.on_disk = None;
    }

    /// What is there before a commit that does not wait.
    pub(crate) fn around_commit(&self, point: CommitPoint, durability: Durability) {
        let mut inner = self.lock();
        match (point, durability) {
            (CommitPoint::Before, Durability::Soon) => {
                let chosen = inner.dice.next() % 1000 < u64::from(inner.dial);
                if inner.on_disk.is_none() && chosen {
                    let read =
                        |name: &'static str| Some((name, fs::read(inner.folder.join(name)).ok()?));
                    inner.on_disk = Some(FILES.into_iter().filter_map(read).collect());
                    inner.committed = false;
                }
            }
            (CommitPoint::After, Durability::Soon) => inner.committed = true,
            (CommitPoint::Before | CommitPoint::After, Durability::Before) => {}
        }
    }

    /// Whether something is committed that is not on the disk, and may be lost.
    pub(crate) fn is_in_danger(&self) -> bool {
        let mut inner = self.lock();
        if inner.committed && !inner.gone && inner.records.are_synced() {
            inner.on_disk = None;
        }
        inner.on_disk.is_some()
    }

    /// Whether it goes here.
    pub(crate) fn goes(&self) -> bool {
        if !self.is_in_danger() {
            return false;
        }
        let mut inner = self.lock();
        inner.gone = inner.dice.next() % 1000 < GOES;
        inner.gone
    }

    /// The host is up again, if it was down: with the disk as it was. Whether it was.
    pub(crate) fn comes_back(&self) -> io::Result<bool> {
        let mut inner = self.lock();
        let on_disk = inner.on_disk.take();
        if !std::mem::take(&mut inner.gone) {
            return Ok(false);
        }
        for name in FILES.into_iter().chain([INDEX]) {
            match fs::remove_file(inner.folder.join(name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => {}
            }
        }
        for (name, bytes) in on_disk.unwrap_or_default() {
            fs::write(inner.folder.join(name), bytes)?;
        }
        Ok(true)
    }
}
