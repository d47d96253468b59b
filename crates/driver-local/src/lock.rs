//! The lock of one sandbox: flock(2) on a descriptor that every runtime subprocess inherits. When
//! the gateway dies, the lock is free exactly when its last subprocess has ended too.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

use crate::error::{At, LocalError};
use crate::process;

/// Held until dropped, and by subprocesses that have its descriptor.
pub(crate) struct SandboxLock {
    file: File,
    /// Subprocesses that have it and may be alive.
    lent: AtomicUsize,
}

impl SandboxLock {
    const fn new(file: File) -> Self {
        Self {
            file,
            lent: AtomicUsize::new(0),
        }
    }

    /// To a subprocess; its descriptor is what that is to inherit.
    pub(crate) fn lend(&self) -> RawFd {
        self.lent.fetch_add(1, Ordering::AcqRel);
        self.file.as_raw_fd()
    }

    /// That subprocess has ended by itself. Of one that was killed, children may be left that have it.
    pub(crate) fn returned(&self) {
        self.lent.fetch_sub(1, Ordering::AcqRel);
    }

    /// Waits for it. flock(2) has no timeout and no event, so it is tried with growing pauses; in
    /// peace it is free at once.
    pub(crate) fn take(path: &Path, patience: Duration) -> Result<Self, LocalError> {
        let until = Instant::now() + patience;
        let mut pause = Duration::from_millis(1);
        loop {
            if let Some(lock) = Self::try_take(path)? {
                return Ok(lock);
            }
            if Instant::now() >= until {
                return Err(LocalError::Locked { after: patience });
            }
            std::thread::sleep(pause.min(until.saturating_duration_since(Instant::now())));
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }

    /// Whether somebody has it, without taking it: two who look do not see one another.
    pub(crate) fn is_taken(path: &Path) -> Result<bool, LocalError> {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error).at("opening", path),
        };
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(false),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(true),
            Err(error) => Err(error).at("locking", path),
        }
    }

    /// Waits until nobody has it, without taking it. As [`Self::take`], by trying.
    pub(crate) fn until_free(path: &Path, patience: Duration) -> Result<(), LocalError> {
        let until = Instant::now() + patience;
        let mut pause = Duration::from_millis(1);
        while Self::is_taken(path)? {
            if Instant::now() >= until {
                return Err(LocalError::Locked { after: patience });
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(20));
        }
        Ok(())
    }

    /// None: somebody has it.
    pub(crate) fn try_take(path: &Path) -> Result<Option<Self>, LocalError> {
        let file = File::options()
            .create(true)
            .append(true)
            .open(path)
            .at("opening", path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Self::new(file))),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error).at("locking", path),
        }
    }

    /// Takes it by force: past `patience` who holds it is killed. Holders are what the runtime of an
    /// earlier gateway left; our own effects are kept out by a lock in memory.
    pub(crate) fn seize(path: &Path, patience: Duration) -> Result<Self, LocalError> {
        match Self::take(path, patience) {
            Err(LocalError::Locked { .. }) => {}
            other => return other,
        }
        let grace = Instant::now() + KILLED_WITHIN;
        for holder in holders(path)? {
            process::kill(&holder);
            process::wait(&holder, grace);
        }
        Self::take(path, KILLED_WITHIN)
    }
}

impl Drop for SandboxLock {
    fn drop(&mut self) {
        // Any other child of ours has a copy of the descriptor between its fork and its exec, and
        // closing ours would leave the lock with it for that moment.
        if self.lent.load(Ordering::Acquire) == 0 {
            let _ = flock(&self.file, FlockOperation::Unlock);
        }
    }
}

/// For a killed process to be gone. One that hangs in the kernel takes longer, and then the lock
/// cannot be had.
const KILLED_WITHIN: Duration = Duration::from_secs(5);

/// Every process but ours that has the file open.
fn holders(path: &Path) -> Result<Vec<OwnedFd>, LocalError> {
    let wanted = fs::metadata(path).at("looking at", path)?;
    let proc = Path::new("/proc");
    let own = std::process::id().to_string();
    let mut found = Vec::new();
    for entry in fs::read_dir(proc).at("reading", proc)?.flatten() {
        let name = entry.file_name();
        let Some(pid) = name
            .to_str()
            .filter(|name| *name != own)
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        let Some(pidfd) = process::open_pid(pid)? else {
            continue;
        };
        // Ended meanwhile: holds nothing.
        let Ok(descriptors) = fs::read_dir(entry.path().join("fd")) else {
            continue;
        };
        let holds = descriptors.flatten().any(|descriptor| {
            fs::metadata(descriptor.path())
                .is_ok_and(|meta| meta.ino() == wanted.ino() && meta.dev() == wanted.dev())
        });
        if holds {
            found.push(pidfd);
        }
    }
    Ok(found)
}
