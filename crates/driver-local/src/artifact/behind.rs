//! Writing an image behind whoever seals it, so that packing and the disk take their time side by side.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread;

use sha2::{Digest, Sha256};

use super::chunk::Sealed;
use crate::error::{At, LocalError};

/// Rounds of chunks that wait for the disk. What is sealed beyond that waits itself.
const ROUNDS: usize = 4;
/// Written between two syncs: so much at most is left to be written at the end.
const SYNC_BYTES: u64 = 16 << 20;

/// Where an image goes.
pub(super) trait Disk: Write + Send {
    /// All that was written is durable when this returns.
    fn sync(&mut self) -> io::Result<()>;
}

impl Disk for File {
    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }
}

/// An image that is on the disk, durably.
pub(super) struct Written {
    pub(super) bytes: u64,
    /// Over the authentication tags of all chunks, in order.
    pub(super) digest: [u8; 32],
}

/// The way to the disk, for whoever seals.
pub(super) struct Behind<'a> {
    rounds: SyncSender<Vec<Sealed>>,
    idle: &'a AtomicBool,
}

/// The disk takes no more; why is what the writer ends with.
#[derive(Debug)]
pub(super) struct Ended;

impl Behind<'_> {
    /// Chunks in their order; waits while the disk is far behind.
    pub(super) fn put(&self, round: Vec<Sealed>) -> Result<(), Ended> {
        self.rounds.send(round).map_err(|_| Ended)
    }

    /// Whether the disk has been fed, and has nothing to do now: fewer bytes would not be there any
    /// earlier.
    pub(super) fn idle(&self) -> bool {
        self.idle.load(Ordering::Relaxed)
    }
}

/// Runs `seal` and writes what it puts, in a thread beside it. `path`: of `disk`, for errors.
pub(super) fn written_behind(
    disk: impl Disk,
    path: &Path,
    seal: impl FnOnce(Behind<'_>) -> Result<(), LocalError>,
) -> Result<Written, LocalError> {
    let (sender, rounds) = sync_channel(ROUNDS);
    let idle = AtomicBool::new(false);
    thread::scope(|scope| {
        let feeds = &idle;
        let writing = scope.spawn(move || Image::new(disk).take(rounds, feeds));
        let sealed = seal(Behind {
            rounds: sender,
            idle: &idle,
        });
        let written = writing
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        // First of all why the disk takes no more: that ends the sealing too.
        let written = written.at("writing", path)?;
        sealed.map(|()| written)
    })
}

struct Image<D> {
    disk: D,
    written: u64,
    synced: u64,
    digest: Sha256,
}

impl<D: Disk> Image<D> {
    fn new(disk: D) -> Self {
        Self {
            disk,
            written: 0,
            synced: 0,
            digest: Sha256::new(),
        }
    }

    /// Until nobody puts any more. Whoever puts after it has failed is told so.
    fn take(mut self, rounds: Receiver<Vec<Sealed>>, idle: &AtomicBool) -> io::Result<Written> {
        while let Some(round) = self.next(&rounds, idle) {
            for sealed in &round {
                self.write(sealed)?;
            }
            if self.written - self.synced >= SYNC_BYTES {
                self.sync()?;
            }
        }
        self.sync()?;
        Ok(Written {
            bytes: self.written,
            digest: self.digest.finalize().into(),
        })
    }

    fn next(&self, rounds: &Receiver<Vec<Sealed>>, idle: &AtomicBool) -> Option<Vec<Sealed>> {
        match rounds.try_recv() {
            Ok(round) => {
                idle.store(false, Ordering::Relaxed);
                Some(round)
            }
            Err(TryRecvError::Empty) => {
                // Before the first sync it is memory that was quick, and not the disk.
                idle.store(self.synced > 0, Ordering::Relaxed);
                rounds.recv().ok()
            }
            Err(TryRecvError::Disconnected) => None,
        }
    }

    fn write(&mut self, sealed: &Sealed) -> io::Result<()> {
        let header = sealed.header();
        self.disk.write_all(&header)?;
        self.disk.write_all(&sealed.bytes)?;
        self.written += (header.len() + sealed.bytes.len()) as u64;
        self.digest.update(sealed.tag());
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.disk.sync()?;
        self.synced = self.written;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::super::chunk::Codec;
    use super::*;

    /// One whose syncs end when the test says so, and well or not as it says.
    struct Told {
        asked: mpsc::Sender<u64>,
        answers: mpsc::Receiver<io::Result<()>>,
        holds: u64,
    }

    impl Write for Told {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.holds += bytes.len() as u64;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Disk for Told {
        fn sync(&mut self) -> io::Result<()> {
            self.asked.send(self.holds).expect("the test asks");
            self.answers.recv().expect("the test answers")
        }
    }

    fn told() -> (Told, mpsc::Receiver<u64>, mpsc::Sender<io::Result<()>>) {
        let (asked, syncs) = mpsc::channel();
        let (answer, answers) = mpsc::channel();
        let disk = Told {
            asked,
            answers,
            holds: 0,
        };
        (disk, syncs, answer)
    }

    fn mebibytes(count: usize) -> Vec<Sealed> {
        let sealed = || Sealed {
            codec: Codec::Plain,
            bytes: vec![7; 1 << 20],
        };
        (0..count).map(|_| sealed()).collect()
    }

    #[test]
    fn the_disk_is_idle_once_it_was_fed_and_has_caught_up() {
        let (disk, syncs, answer) = told();
        let written = written_behind(disk, Path::new("image"), |behind| {
            behind.put(mebibytes(1)).expect("taken");
            assert!(
                !behind.idle(),
                "nothing was synced: nothing is known of the disk"
            );
            behind.put(mebibytes(16)).expect("taken");
            syncs.recv().expect("the first sync");
            behind.put(mebibytes(1)).expect("taken");
            assert!(!behind.idle(), "it syncs, and more waits for it");
            answer.send(Ok(())).expect("it waits");
            while !behind.idle() {
                thread::yield_now();
            }
            // The last sync, which it comes to when nobody puts any more.
            answer.send(Ok(())).expect("it waits");
            Ok(())
        });
        let written = written.expect("written");
        assert_eq!(
            syncs.try_iter().last(),
            Some(written.bytes),
            "all of it is synced"
        );
    }

    #[test]
    fn a_disk_that_fails_ends_the_sealing_and_says_why() {
        let (disk, _syncs, answer) = told();
        answer
            .send(Err(io::ErrorKind::StorageFull.into()))
            .expect("kept for it");
        let written = written_behind(disk, Path::new("image"), |behind| {
            while behind.put(mebibytes(16)).is_ok() {}
            Err(LocalError::BrokenOff)
        });
        let Err(LocalError::Io { source, .. }) = written.map(|_| ()) else {
            panic!("it failed, and for another reason");
        };
        assert_eq!(source.kind(), io::ErrorKind::StorageFull);
    }
}
