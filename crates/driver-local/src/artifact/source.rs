//! The runtime's plain files as they are read to be sealed: one of them while it still grows.
//!
//! Writing memory takes the runtime as long as packing it takes us, so the largest file is followed as
//! it is written. Every runtime that was tried appends; one that goes back and writes over what was
//! read already is found out in the end, and then all is read anew.

use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::inotify;
use rustix::io::Errno;
use xxhash_rust::xxh3::xxh3_64;

use super::chunk::{self, PLAIN_BYTES};
use super::entries;
use super::manifest::Part;
use crate::error::{At, LocalError};

/// What is smaller than this is read when it is whole.
const WORTH_FOLLOWING: u64 = 16 << 20;

/// Tells whoever follows the runtime's files that it has ended.
pub(super) struct Ending {
    told: OwnedFd,
    well: AtomicBool,
}

/// How the runtime stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writer {
    /// It may write more.
    Writes,
    /// All is written.
    Done,
}

impl Ending {
    pub(super) fn new() -> Result<Self, LocalError> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self {
            told: eventfd(0, flags).at("making", Path::new("eventfd"))?,
            well: AtomicBool::new(false),
        })
    }

    /// `well`: it has written all. Otherwise nothing comes of it.
    pub(super) fn tell(&self, well: bool) {
        self.well.store(well, Ordering::Release);
        // Fails only where its number is at its highest, and then it was told.
        let _ = rustix::io::write(&self.told, &1_u64.to_ne_bytes());
    }
}

/// The plain files, in the order in which they are sealed.
pub(super) struct Source<'a> {
    plain: &'a Path,
    ending: &'a Ending,
    /// None: this host gives no more of them, and nothing is read before it is whole.
    events: Option<OwnedFd>,
    writer: Writer,
    /// The first.
    followed: Option<Followed>,
    /// The others, once all is written.
    left: std::vec::IntoIter<Part>,
    parts: Vec<Part>,
    now: Option<io::Take<File>>,
}

struct Followed {
    name: String,
    path: PathBuf,
    file: File,
    taken: u64,
    /// Of each whole chunk that was read while it grew.
    read: Vec<u64>,
}

impl<'a> Source<'a> {
    /// Before the runtime begins to write.
    pub(super) fn open(plain: &'a Path, ending: &'a Ending) -> Self {
        Self {
            plain,
            ending,
            events: watch(plain).ok(),
            writer: Writer::Writes,
            followed: None,
            left: Vec::new().into_iter(),
            parts: Vec::new(),
            now: None,
        }
    }

    /// So many whole chunks; fewer, and then none, at the end. Waits for the runtime.
    pub(super) fn round(&mut self, chunks: usize) -> Result<Vec<Vec<u8>>, LocalError> {
        while self.writer == Writer::Writes {
            if let Some(round) = self.grown(chunks)? {
                return Ok(round);
            }
            self.wait()?;
        }
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

    /// All files, in the order of their bytes, once all were read.
    ///
    /// # Errors
    /// [`LocalError::Rewritten`]: what was read while it grew is not what is there.
    pub(super) fn finish(mut self) -> Result<Vec<Part>, LocalError> {
        if let Some(followed) = &mut self.followed {
            followed.check()?;
        }
        Ok(self.parts)
    }

    /// The next chunks of what grows. None: they are not there yet.
    fn grown(&mut self, chunks: usize) -> Result<Option<Vec<Vec<u8>>>, LocalError> {
        if self.followed.is_none() {
            self.followed = largest(self.plain)?;
        }
        let Some(followed) = &mut self.followed else {
            return Ok(None);
        };
        let wanted = (chunks * PLAIN_BYTES) as u64;
        if followed.length()? < followed.taken + wanted {
            return Ok(None);
        }
        (0..chunks)
            .map(|_| followed.chunk())
            .collect::<Result<_, _>>()
            .map(Some)
    }

    /// Until a file grows, or the runtime has ended.
    fn wait(&mut self) -> Result<(), LocalError> {
        let mut ready = vec![PollFd::new(&self.ending.told, PollFlags::IN)];
        ready.extend(
            self.events
                .iter()
                .map(|events| PollFd::new(events, PollFlags::IN)),
        );
        match poll(&mut ready, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error).at("watching", self.plain),
        }
        let ended = ready[0].revents().contains(PollFlags::IN);
        if let Some(events) = &self.events {
            drain(events).at("watching", self.plain)?;
        }
        if ended {
            if !self.ending.well.load(Ordering::Acquire) {
                return Err(LocalError::BrokenOff);
            }
            self.all_is_written()?;
        }
        Ok(())
    }

    fn all_is_written(&mut self) -> Result<(), LocalError> {
        self.writer = Writer::Done;
        let mut names = entries(self.plain)?;
        names.sort();
        if let Some(followed) = &self.followed {
            let bytes = followed.length()?;
            let rest = followed.file.try_clone().at("opening", &followed.path)?;
            self.now = Some(rest.take(bytes.saturating_sub(followed.taken)));
            let name = followed.name.clone();
            names.retain(|other| *other != name);
            self.parts.push(Part { name, bytes });
        }
        let mut others = Vec::new();
        for name in names {
            let path = self.plain.join(&name);
            let bytes = fs::metadata(&path).at("looking at", &path)?.len();
            others.push(Part { name, bytes });
        }
        self.parts.extend(others.iter().cloned());
        self.left = others.into_iter();
        Ok(())
    }

    fn fill(&mut self, chunk: &mut Vec<u8>) -> Result<(), LocalError> {
        while chunk.len() < PLAIN_BYTES {
            let Some(now) = &mut self.now else {
                let Some(part) = self.left.next() else { break };
                let path = self.plain.join(&part.name);
                let file = File::open(&path).at("opening", &path)?;
                self.now = Some(file.take(part.bytes));
                continue;
            };
            let room = (PLAIN_BYTES - chunk.len()) as u64;
            let read = now.by_ref().take(room).read_to_end(chunk);
            if read.at("reading below", self.plain)? == 0 {
                // Its length is in the manifest: what shrank meanwhile is not what was taken.
                if now.limit() > 0 {
                    return Err(io::Error::from(io::ErrorKind::UnexpectedEof))
                        .at("reading below", self.plain);
                }
                self.now = None;
            }
        }
        Ok(())
    }
}

impl Followed {
    fn length(&self) -> Result<u64, LocalError> {
        Ok(self.file.metadata().at("looking at", &self.path)?.len())
    }

    /// The next whole chunk, which is there.
    fn chunk(&mut self) -> Result<Vec<u8>, LocalError> {
        let mut chunk = Vec::with_capacity(PLAIN_BYTES + chunk::TAG_BYTES);
        self.next(&mut chunk)?;
        self.taken += chunk.len() as u64;
        self.read.push(xxh3_64(&chunk));
        Ok(chunk)
    }

    fn next(&mut self, chunk: &mut Vec<u8>) -> Result<(), LocalError> {
        let read = (&self.file).take(PLAIN_BYTES as u64).read_to_end(chunk);
        if read.at("reading", &self.path)? < PLAIN_BYTES {
            return Err(LocalError::Rewritten);
        }
        Ok(())
    }

    /// Reads again what was read while it grew.
    fn check(&mut self) -> Result<(), LocalError> {
        self.file.rewind().at("reading", &self.path)?;
        let mut chunk = Vec::with_capacity(PLAIN_BYTES);
        for known in std::mem::take(&mut self.read) {
            chunk.clear();
            self.next(&mut chunk)?;
            if xxh3_64(&chunk) != known {
                return Err(LocalError::Rewritten);
            }
        }
        Ok(())
    }
}

/// The largest file, if following it is worth the while.
fn largest(plain: &Path) -> Result<Option<Followed>, LocalError> {
    let mut found: Option<(u64, String)> = None;
    for name in entries(plain)? {
        let path = plain.join(&name);
        let bytes = match fs::metadata(&path) {
            Ok(meta) => meta.len(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error).at("looking at", &path),
        };
        if found.as_ref().is_none_or(|(most, _)| bytes > *most) {
            found = Some((bytes, name));
        }
    }
    let Some((_, name)) = found.filter(|(bytes, _)| *bytes >= WORTH_FOLLOWING) else {
        return Ok(None);
    };
    let path = plain.join(&name);
    let file = File::open(&path).at("opening", &path)?;
    Ok(Some(Followed {
        name,
        path,
        file,
        taken: 0,
        read: Vec::new(),
    }))
}

fn watch(plain: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
    let events = inotify::init(flags)?;
    inotify::add_watch(&events, plain, inotify::WatchFlags::MODIFY)?;
    Ok(events)
}

/// What they say is looked up; that there were any is enough.
fn drain(events: &OwnedFd) -> rustix::io::Result<()> {
    let mut buffer = [0; 4096];
    loop {
        match rustix::io::read(events, &mut buffer) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}
