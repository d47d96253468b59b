//! Taking an artifact: from the runtime's plain files to a sealed image with its name.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use ring::aead::LessSafeKey;
use sha2::{Digest, Sha256};

use super::chunk::{self, PLAIN_BYTES, Sealed};
use super::manifest::{FORMAT, Head, Part};
use super::{
    Belongs, Generation, IMAGE, Manifest, aside, entries, folder, key, remove_folder, sync_folder,
};
use crate::error::{At, LocalError};
use crate::host;
use crate::layout::{SandboxDir, hex};

/// Chunks a worker gets at a time.
const ROUND: usize = 4;
/// Written between two syncs: so much at most is left to be written at the end.
const SYNC_BYTES: u64 = 64 << 20;

/// Seals all files of `plain` into the artifact that `belongs` names. When this returns it is there,
/// durably, and the storage's generation is noted.
pub(crate) fn seal(
    dir: &SandboxDir,
    plain: &Path,
    belongs: Belongs,
) -> Result<Manifest, LocalError> {
    host::folder(&dir.artifacts(), 0o700)?;
    let new = aside(dir, &belongs.name);
    remove_folder(&new)?;
    host::folder(&new, 0o700)?;
    let taken = write(dir, plain, &new, belongs);
    let renamed = taken.and_then(|manifest| {
        let belongs = manifest.belongs();
        // Before it counts: what has no generation beside it would fit any.
        Generation::write(dir, belongs.generation)?;
        let path = folder(dir, &belongs.name);
        fs::rename(&new, &path).at("renaming", &new)?;
        sync_folder(&dir.artifacts())?;
        Ok(manifest)
    });
    if renamed.is_err() {
        let _ = remove_folder(&new);
    }
    renamed
}

fn write(
    dir: &SandboxDir,
    plain: &Path,
    new: &Path,
    belongs: Belongs,
) -> Result<Manifest, LocalError> {
    let salt = key::random()?;
    let key = key::derive(&key::make_or_read(dir)?, &salt)
        .map_err(|_| LocalError::Cipher("no key could be derived"))?;
    let mut names = entries(plain)?;
    names.sort();
    let mut files = Vec::new();
    for name in names {
        let path = plain.join(&name);
        let bytes = fs::metadata(&path).at("looking at", &path)?.len();
        files.push(Part { name, bytes });
    }
    // Whatever the runtime says: nothing can be restored from nothing.
    if files.iter().all(|part| part.bytes == 0) {
        return Err(LocalError::NothingWritten);
    }
    let head = Head {
        belongs,
        salt: hex(&salt),
        files,
    };
    let bound = head.bound()?;
    let path = new.join(IMAGE);
    let mut image = Image {
        file: File::create(&path).at("making", &path)?,
        written: 0,
        synced: 0,
        digest: Sha256::new(),
        pace: Pace::default(),
    };
    image
        .take(&key, &bound, &mut Files::new(plain, &head.files))
        .at("writing", &path)??;
    let manifest = Manifest {
        format: FORMAT,
        head,
        size_bytes: image.written,
        digest: hex(&image.digest.finalize()),
    };
    manifest.write(new)?;
    sync_folder(new)?;
    Ok(manifest)
}

/// The image as it is written.
struct Image {
    file: File,
    written: u64,
    synced: u64,
    digest: Sha256,
    pace: Pace,
}

impl Image {
    fn take(
        &mut self,
        key: &LessSafeKey,
        bound: &[u8; 32],
        plain: &mut Files<'_>,
    ) -> io::Result<Result<(), LocalError>> {
        let workers = std::thread::available_parallelism().map_or(1, usize::from);
        let mut number = 0;
        loop {
            let chunks = plain.round(workers * ROUND)?;
            if chunks.is_empty() {
                break;
            }
            let first = number;
            number += chunks.len() as u64;
            let compress = self.pace.compresses();
            let begun = Instant::now();
            let bytes: usize = chunks.iter().map(Vec::len).sum();
            let sealed = match in_parallel(workers, chunks, |at, plain| {
                chunk::seal(key, bound, first + at as u64, plain, compress)
            }) {
                Ok(sealed) => sealed,
                Err(error) => return Ok(Err(error)),
            };
            let small: usize = sealed.iter().map(|sealed| sealed.bytes.len()).sum();
            self.pace.sealed(compress, bytes, small, begun.elapsed());
            for sealed in &sealed {
                self.write(sealed)?;
            }
            if self.written - self.synced >= SYNC_BYTES {
                self.sync()?;
            }
        }
        match chunk::end(key, bound, number) {
            Ok(end) => self.write(&end)?,
            Err(error) => return Ok(Err(error)),
        }
        self.sync()?;
        Ok(Ok(()))
    }

    fn write(&mut self, sealed: &Sealed) -> io::Result<()> {
        let header = sealed.header();
        self.file.write_all(&header)?;
        self.file.write_all(&sealed.bytes)?;
        self.written += (header.len() + sealed.bytes.len()) as u64;
        self.digest.update(sealed.tag());
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        let begun = Instant::now();
        self.file.sync_data()?;
        self.pace
            .synced(self.written - self.synced, begun.elapsed());
        self.synced = self.written;
        Ok(())
    }
}

/// Whether to compress: while that takes less time than writing what it saves would.
#[derive(Debug, Default)]
struct Pace {
    /// Seconds a byte, as last measured.
    packing: Option<f64>,
    writing: Option<f64>,
    saved: f64,
    rounds: u32,
}

impl Pace {
    /// Rounds after which it is measured anew.
    const AGAIN: u32 = 64;

    fn compresses(&mut self) -> bool {
        self.rounds += 1;
        match (self.packing, self.writing) {
            (Some(packing), Some(writing)) if !self.rounds.is_multiple_of(Self::AGAIN) => {
                packing < writing * self.saved
            }
            _ => true,
        }
    }

    fn sealed(&mut self, compressed: bool, bytes: usize, small: usize, took: Duration) {
        if compressed && bytes > 0 {
            self.packing = Some(took.as_secs_f64() / bytes as f64);
            self.saved = 1.0 - (small as f64 / bytes as f64).min(1.0);
        }
    }

    fn synced(&mut self, bytes: u64, took: Duration) {
        if bytes >= SYNC_BYTES {
            self.writing = Some(took.as_secs_f64() / bytes as f64);
        }
    }
}

/// The bytes of several files one after the other.
struct Files<'a> {
    folder: &'a Path,
    left: std::slice::Iter<'a, Part>,
    now: Option<io::Take<File>>,
}

impl<'a> Files<'a> {
    fn new(folder: &'a Path, parts: &'a [Part]) -> Self {
        Self {
            folder,
            left: parts.iter(),
            now: None,
        }
    }

    /// So many whole chunks; fewer at the end.
    fn round(&mut self, chunks: usize) -> io::Result<Vec<Vec<u8>>> {
        let mut round = Vec::with_capacity(chunks);
        while round.len() < chunks {
            let mut chunk = Vec::with_capacity(PLAIN_BYTES + chunk::TAG_BYTES);
            self.fill(&mut chunk)?;
            if chunk.is_empty() {
                break;
            }
            round.push(chunk);
        }
        Ok(round)
    }

    fn fill(&mut self, chunk: &mut Vec<u8>) -> io::Result<()> {
        while chunk.len() < PLAIN_BYTES {
            let Some(now) = &mut self.now else {
                let Some(part) = self.left.next() else { break };
                let file = File::open(self.folder.join(&part.name))?;
                self.now = Some(file.take(part.bytes));
                continue;
            };
            let room = (PLAIN_BYTES - chunk.len()) as u64;
            if now.by_ref().take(room).read_to_end(chunk)? == 0 {
                // The manifest has its length: what shrank meanwhile is not what was taken.
                if now.limit() > 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                self.now = None;
            }
        }
        Ok(())
    }
}

/// `work` on each, in order, by so many threads.
pub(super) fn in_parallel<I: Send, O: Send, E: Send>(
    workers: usize,
    items: Vec<I>,
    work: impl Fn(usize, I) -> Result<O, E> + Sync,
) -> Result<Vec<O>, E> {
    let share = items.len().div_ceil(workers.max(1)).max(1);
    let mut shares = Vec::new();
    let mut items = items.into_iter().enumerate().peekable();
    while items.peek().is_some() {
        shares.push(items.by_ref().take(share).collect::<Vec<_>>());
    }
    let work = &work;
    std::thread::scope(|scope| {
        let running: Vec<_> = shares
            .into_iter()
            .map(|share| {
                scope.spawn(move || {
                    let done = share.into_iter().map(|(at, item)| work(at, item));
                    done.collect::<Result<Vec<_>, E>>()
                })
            })
            .collect();
        let mut all = Vec::new();
        for done in running {
            match done.join() {
                Ok(done) => all.extend(done?),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Ok(all)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compressing_goes_on_only_while_it_is_quicker_than_the_disk() {
        let mut pace = Pace::default();
        assert!(pace.compresses(), "nothing was measured yet");
        let mib = 1 << 20;
        // 100 MiB/s to pack away half, on a disk that writes 2 GiB/s.
        pace.sealed(true, 100 * mib, 50 * mib, Duration::from_secs(1));
        pace.synced(SYNC_BYTES, Duration::from_millis(31));
        assert!(!pace.compresses());
        // The same on one that writes 64 MiB/s.
        pace.synced(SYNC_BYTES, Duration::from_secs(1));
        pace.sealed(true, 400 * mib, 200 * mib, Duration::from_secs(1));
        assert!(pace.compresses());
    }
}
