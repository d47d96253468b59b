//! Taking an artifact: from the runtime's plain files to a sealed image with its name.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use ring::aead::LessSafeKey;

use super::behind::{Behind, Ended, written_behind};
use super::chunk::{self, PLAIN_BYTES};
use super::manifest::{FORMAT, Head, Part};
use super::{
    Belongs, Generation, IMAGE, Manifest, aside, entries, folder, key, remove_folder, sync_folder,
};
use crate::error::{At, LocalError};
use crate::host;
use crate::layout::{SandboxDir, hex};

/// Chunks a worker gets at a time.
const ROUND: usize = 4;

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
    let disk = File::create(&path).at("making", &path)?;
    let mut plain = Files::new(plain, &head.files);
    let written = written_behind(disk, &path, |behind| {
        take(&key, &bound, &mut plain, &behind)
    })?;
    let manifest = Manifest {
        format: FORMAT,
        head,
        size_bytes: written.bytes,
        digest: hex(&written.digest),
    };
    manifest.write(new)?;
    sync_folder(new)?;
    Ok(manifest)
}

/// Packed while the disk is behind: then fewer bytes are there earlier. Where packing is behind, what
/// is next goes as it is.
fn take(
    key: &LessSafeKey,
    bound: &[u8; 32],
    plain: &mut Files<'_>,
    behind: &Behind<'_>,
) -> Result<(), LocalError> {
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let mut number = 0;
    loop {
        let chunks = plain.round(workers * ROUND)?;
        if chunks.is_empty() {
            break;
        }
        let first = number;
        number += chunks.len() as u64;
        let compress = !behind.idle();
        let sealed = in_parallel(workers, chunks, |at, plain| {
            chunk::seal(key, bound, first + at as u64, plain, compress)
        })?;
        behind.put(sealed).map_err(|Ended| LocalError::BrokenOff)?;
    }
    let end = chunk::end(key, bound, number)?;
    behind.put(vec![end]).map_err(|Ended| LocalError::BrokenOff)
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
    fn round(&mut self, chunks: usize) -> Result<Vec<Vec<u8>>, LocalError> {
        let mut round = Vec::with_capacity(chunks);
        while round.len() < chunks {
            let mut chunk = Vec::with_capacity(PLAIN_BYTES + chunk::TAG_BYTES);
            self.fill(&mut chunk).at("reading below", self.folder)?;
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
