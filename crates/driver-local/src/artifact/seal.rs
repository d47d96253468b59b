//! Taking an artifact: from the runtime's plain files to a sealed image with its name.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use ring::aead::LessSafeKey;

use super::behind::{Behind, Ended, written_behind};
use super::chunk;
use super::manifest::{FORMAT, Head};
use super::source::{Ending, Source};
use super::{Belongs, Generation, IMAGE, Manifest, aside, folder, key, remove_folder, sync_folder};
use crate::error::{At, LocalError};
use crate::host;
use crate::layout::{SandboxDir, hex};

/// Chunks a worker gets at a time.
const ROUND: usize = 4;

/// An artifact that is being made of what the runtime is writing. Nothing is left of it when it is
/// dropped, which waits for a moment.
pub(crate) struct Sealing {
    dir: SandboxDir,
    plain: PathBuf,
    belongs: Belongs,
    ending: Arc<Ending>,
    thread: Option<JoinHandle<Result<Aside, LocalError>>>,
}

impl Sealing {
    /// Before the runtime begins to write to `plain`.
    pub(crate) fn begin(
        dir: &SandboxDir,
        plain: &Path,
        belongs: Belongs,
    ) -> Result<Self, LocalError> {
        host::folder(&dir.artifacts(), 0o700)?;
        let ending = Arc::new(Ending::new()?);
        let mut sealing = Self {
            dir: dir.clone(),
            plain: plain.to_owned(),
            belongs,
            ending,
            thread: None,
        };
        sealing.run()?;
        Ok(sealing)
    }

    fn run(&mut self) -> Result<(), LocalError> {
        let (dir, plain) = (self.dir.clone(), self.plain.clone());
        let (belongs, ending) = (self.belongs.clone(), Arc::clone(&self.ending));
        let thread = thread::Builder::new()
            .name("seal".to_owned())
            .spawn(move || write(&dir, &plain, belongs, &ending))
            .at("starting a thread for", &self.plain)?;
        self.thread = Some(thread);
        Ok(())
    }

    /// The runtime has written all. When this returns it is on the disk, durably, and has no name yet.
    pub(crate) fn finish(mut self) -> Result<Aside, LocalError> {
        self.ending.tell(true);
        match self.join() {
            Some(Err(error @ LocalError::Rewritten)) => {
                tracing::info!(%error, "all of it is read anew");
                self.run()?;
                self.join().unwrap_or(Err(LocalError::BrokenOff))
            }
            Some(sealed) => sealed,
            None => Err(LocalError::BrokenOff),
        }
    }

    fn join(&mut self) -> Option<Result<Aside, LocalError>> {
        let sealed = self.thread.take()?.join();
        Some(sealed.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    }
}

impl Drop for Sealing {
    fn drop(&mut self) {
        self.ending.tell(false);
        if let Some(thread) = self.thread.take() {
            // What it may have made goes with what it answers.
            drop(thread.join());
        }
    }
}

/// A whole artifact without its name. Gone when it is dropped.
pub(crate) struct Aside {
    dir: SandboxDir,
    path: PathBuf,
    manifest: Option<Manifest>,
}

impl Aside {
    /// When this returns the artifact is there, durably, and the storage's generation is noted.
    pub(crate) fn named(mut self) -> Result<Manifest, LocalError> {
        let Some(manifest) = self.manifest.take() else {
            return Err(LocalError::BrokenOff);
        };
        let belongs = manifest.belongs();
        // Before it counts: what has no generation beside it would fit any.
        Generation::write(&self.dir, belongs.generation)?;
        let path = folder(&self.dir, &belongs.name);
        fs::rename(&self.path, &path).at("renaming", &self.path)?;
        sync_folder(&self.dir.artifacts())?;
        Ok(manifest)
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        // Not there any more once it has its name.
        if let Err(error) = remove_folder(&self.path) {
            tracing::warn!(%error, "half an artifact is left behind until the next sweep");
        }
    }
}

fn write(
    dir: &SandboxDir,
    plain: &Path,
    belongs: Belongs,
    ending: &Ending,
) -> Result<Aside, LocalError> {
    let mut aside = Aside {
        dir: dir.clone(),
        path: aside(dir, &belongs.name),
        manifest: None,
    };
    remove_folder(&aside.path)?;
    host::folder(&aside.path, 0o700)?;
    let salt = key::random()?;
    let key = key::derive(&key::make_or_read(dir)?, &salt)
        .map_err(|_| LocalError::Cipher("no key could be derived"))?;
    let mut head = Head {
        belongs,
        salt: hex(&salt),
        files: Vec::new(),
    };
    let path = aside.path.join(IMAGE);
    let disk = File::create(&path).at("making", &path)?;
    let source = Source::open(plain, ending);
    let written = written_behind(disk, &path, |behind| take(&key, &mut head, source, &behind))?;
    let manifest = Manifest {
        format: FORMAT,
        head,
        size_bytes: written.bytes,
        digest: hex(&written.digest),
    };
    manifest.write(&aside.path)?;
    sync_folder(&aside.path)?;
    aside.manifest = Some(manifest);
    Ok(aside)
}

/// Packed while the disk is behind: then fewer bytes are there earlier. Where packing is behind, what
/// is next goes as it is.
fn take(
    key: &LessSafeKey,
    head: &mut Head,
    mut source: Source<'_>,
    behind: &Behind<'_>,
) -> Result<(), LocalError> {
    let bound = head.bound()?;
    let workers = thread::available_parallelism().map_or(1, usize::from);
    let mut number = 0;
    loop {
        let chunks = source.round(workers * ROUND)?;
        if chunks.is_empty() {
            break;
        }
        let first = number;
        number += chunks.len() as u64;
        let compress = !behind.idle();
        let sealed = in_parallel(workers, chunks, |at, plain| {
            chunk::seal(key, &bound, first + at as u64, plain, compress)
        })?;
        behind.put(sealed).map_err(|Ended| LocalError::BrokenOff)?;
    }
    head.files = source.finish()?;
    // Whatever the runtime says: nothing can be restored from nothing.
    if number == 0 {
        return Err(LocalError::NothingWritten);
    }
    let end = chunk::end(key, &head.bound_to_files()?, number)?;
    behind.put(vec![end]).map_err(|Ended| LocalError::BrokenOff)
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
    use std::io::{Seek, SeekFrom, Write};

    use overwinter_driver::{ComputeSpec, PinnedImage};
    use overwinter_lifecycle::config::Resources;
    use overwinter_lifecycle::ids::{Incarnation, SandboxId};

    use super::*;
    use crate::artifact::open;
    use crate::layout::Layout;

    type Outcome = Result<(), Box<dyn std::error::Error>>;

    const NAME: &str = "taken";
    const MEBIBYTE: usize = 1 << 20;
    /// More than is followed at the least, and no whole number of chunks.
    const BYTES: usize = 40 * MEBIBYTE + 17;

    struct Bed {
        folder: tempfile::TempDir,
        dir: SandboxDir,
        plain: PathBuf,
    }

    impl Bed {
        fn new() -> Result<Self, Box<dyn std::error::Error>> {
            let folder = tempfile::tempdir()?;
            let layout = Layout::new(folder.path().join("state"), PathBuf::from("/"));
            let dir = layout.sandbox(SandboxId(Default::default()));
            fs::create_dir_all(&dir.kept)?;
            let plain = folder.path().join("plain");
            fs::create_dir(&plain)?;
            Ok(Self { folder, dir, plain })
        }

        fn begin(&self) -> Result<Sealing, LocalError> {
            let belongs = Belongs {
                sandbox: SandboxId(Default::default()),
                name: NAME.to_owned(),
                generation: Incarnation(7),
                runtime: "a runtime".to_owned(),
                supervisor: "00".to_owned(),
                spec: spec(),
            };
            Sealing::begin(&self.dir, &self.plain, belongs)
        }

        fn opens_as(&self, manifest: &Manifest, files: &[(&str, &[u8])]) -> Outcome {
            let opened = self.folder.path().join("opened");
            fs::create_dir(&opened)?;
            open(&self.dir, manifest, &opened)?;
            for (name, bytes) in files {
                assert!(fs::read(opened.join(name))? == *bytes, "{name} is another");
            }
            Ok(())
        }
    }

    fn spec() -> ComputeSpec {
        ComputeSpec {
            name: "winter".to_owned(),
            image: PinnedImage {
                image: "file:/image".to_owned(),
                digest: "folder:00".to_owned(),
                main: Vec::new(),
            },
            resources: Resources::default(),
            network: "none".to_owned(),
            runtime: String::new(),
        }
    }

    /// Half of it packs.
    fn memory() -> Vec<u8> {
        let mut state = 1_u64;
        let noise = move |at: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            if (at / MEBIBYTE).is_multiple_of(2) {
                (state >> 56) as u8
            } else {
                3
            }
        };
        (0..BYTES).map(noise).collect()
    }

    #[test]
    fn what_grows_while_it_is_read_is_sealed_whole() -> Outcome {
        let (bed, memory) = (Bed::new()?, memory());
        let sealing = bed.begin()?;
        fs::write(bed.plain.join("state"), b"of the kernel")?;
        let mut pages = File::create(bed.plain.join("pages"))?;
        for piece in memory.chunks(300_000) {
            pages.write_all(piece)?;
        }
        fs::write(bed.plain.join("empty"), b"")?;
        let manifest = sealing.finish()?.named()?;
        assert!(
            manifest.size_bytes < BYTES as u64 * 3 / 4,
            "it was not packed"
        );
        bed.opens_as(
            &manifest,
            &[
                ("pages", &memory),
                ("state", b"of the kernel"),
                ("empty", b""),
            ],
        )
    }

    #[test]
    fn what_was_changed_after_it_was_read_is_read_anew() -> Outcome {
        let (bed, mut memory) = (Bed::new()?, memory());
        let sealing = bed.begin()?;
        let mut pages = File::create(bed.plain.join("pages"))?;
        pages.write_all(&memory)?;
        // What is in the image was read.
        let image = aside(&bed.dir, NAME).join(IMAGE);
        while fs::metadata(&image).map_or(0, |meta| meta.len()) == 0 {
            thread::yield_now();
        }
        memory[5] ^= 1;
        pages.seek(SeekFrom::Start(5))?;
        pages.write_all(&memory[5..6])?;
        let manifest = sealing.finish()?.named()?;
        bed.opens_as(&manifest, &[("pages", &memory)])
    }

    #[test]
    fn nothing_is_left_of_one_that_comes_to_nothing() -> Outcome {
        let (bed, memory) = (Bed::new()?, memory());
        let sealing = bed.begin()?;
        fs::write(bed.plain.join("pages"), &memory)?;
        drop(sealing);
        assert_eq!(
            fs::read_dir(bed.dir.artifacts())?.count(),
            0,
            "by a runtime that failed"
        );
        let aside = bed.begin()?.finish()?;
        drop(aside);
        assert_eq!(
            fs::read_dir(bed.dir.artifacts())?.count(),
            0,
            "without its name"
        );
        fs::remove_file(bed.plain.join("pages"))?;
        let nothing = bed.begin()?.finish();
        assert!(matches!(nothing, Err(LocalError::NothingWritten)));
        assert_eq!(fs::read_dir(bed.dir.artifacts())?.count(), 0, "of nothing");
        Ok(())
    }
}
