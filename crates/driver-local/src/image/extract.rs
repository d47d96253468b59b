//! A rootfs tar becomes a folder. The tar is not trusted: every name is resolved beneath the new
//! root with no link followed, no devices are made, set-user-id bits and extended attributes
//! (overlay's among them) are left out, and sizes are bounded.

use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::read::MultiGzDecoder;
use rustix::fs::{
    AtFlags, CWD, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid, chmodat, chownat,
    fchmod, fchown, linkat, mkdirat, openat, openat2, symlinkat, syncfs, unlinkat, utimensat,
};
use rustix::io::Errno;
use tar::EntryType;

use crate::error::{At, LocalError};
use crate::userns::SUPERVISOR_ID;

/// Begins the name of a folder that is not complete.
pub(super) const ASIDE: &str = ".extracting-";
const ENTRIES_AT_MOST: u64 = 4_000_000;
// The fuzzer must not fill the memory that it extracts to.
const BYTES_AT_MOST: u64 = if cfg!(fuzzing) { 1 << 20 } else { 256 << 30 };

static COUNT: AtomicU64 = AtomicU64::new(0);

/// Extracts `tar` to `<target>/rootfs`, whole or not at all.
pub(crate) fn tar(image: &str, tar: &Path, target: &Path) -> Result<(), LocalError> {
    let folder = target.parent().unwrap_or(target);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let aside = folder.join(format!("{ASIDE}{}-{count}", std::process::id()));
    let done = extract(image, tar, &aside).and_then(|()| match fs::rename(&aside, target) {
        // Somebody else has extracted the same.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOTEMPTY | libc::EEXIST)) => {
            Ok(())
        }
        other => other.at("renaming", &aside),
    });
    if aside.exists() {
        fs::remove_dir_all(&aside).at("removing", &aside)?;
    }
    done
}

fn extract(image: &str, tar: &Path, aside: &Path) -> Result<(), LocalError> {
    let root_path = aside.join("rootfs");
    fs::create_dir_all(&root_path).at("making", &root_path)?;
    let root = openat(
        CWD,
        &root_path,
        OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .at("opening", &root_path)?;
    fchmod(&root, Mode::from_raw_mode(0o755)).at("setting the mode of", &root_path)?;
    let mut writer = Writer {
        root,
        times: Vec::new(),
        bytes: 0,
    };
    let file = File::open(tar).at("opening", tar)?;
    let failed = |error: Failed| match error {
        // Of the disk rather than of the tar.
        Failed::Io(source)
            if matches!(
                source.kind(),
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
            ) =>
        {
            LocalError::Io {
                doing: "extracting an image to",
                path: aside.to_owned(),
                source,
            }
        }
        Failed::Io(source) => broken(image, &what_of(&source)),
        Failed::Refused(why) => broken(image, why),
    };
    writer
        .all(open(file).map_err(|error| failed(error.into()))?)
        .map_err(failed)?;
    // Before the rename that makes it count. Once an image.
    syncfs(&writer.root).at("syncing", aside)
}

/// The tar library's own text repeats what it has read, and what was named as an image may be any
/// file of this host.
fn what_of(error: &io::Error) -> String {
    match (error.raw_os_error(), error.kind()) {
        (Some(number), _) => io::Error::from_raw_os_error(number).to_string(),
        (None, io::ErrorKind::UnexpectedEof) => "it ends too soon".to_owned(),
        (None, _) => "something in it is no entry of a tar".to_owned(),
    }
}

fn broken(image: &str, why: &str) -> LocalError {
    LocalError::Image {
        image: image.to_owned(),
        message: format!("it is no whole rootfs tar (plain or gzip): {why}"),
    }
}

/// By what it begins with; a name proves nothing.
fn open(file: File) -> io::Result<Box<dyn Read>> {
    let mut magic = [0; 2];
    let read = io::Read::take(&file, 2).read(&mut magic)?;
    io::Seek::rewind(&mut &file)?;
    let file = BufReader::with_capacity(1 << 18, file);
    Ok(if read == 2 && magic == [0x1f, 0x8b] {
        Box::new(MultiGzDecoder::new(file))
    } else {
        Box::new(file)
    })
}

enum Failed {
    Io(io::Error),
    Refused(&'static str),
}

impl<E: Into<io::Error>> From<E> for Failed {
    fn from(error: E) -> Self {
        Self::Io(error.into())
    }
}

struct Writer {
    root: OwnedFd,
    /// Folders get their times last: what is put into them changes them.
    times: Vec<(PathBuf, Timestamps)>,
    bytes: u64,
}

impl Writer {
    fn all(&mut self, reader: Box<dyn Read>) -> Result<(), Failed> {
        let mut archive = tar::Archive::new(reader);
        let mut count = 0_u64;
        for entry in archive.entries()? {
            count += 1;
            if count > ENTRIES_AT_MOST {
                return Err(Failed::Refused("too many entries"));
            }
            self.one(&mut entry?)?;
        }
        if count == 0 {
            return Err(Failed::Refused("it holds nothing"));
        }
        for (path, times) in self.times.drain(..).rev() {
            let (parent, name) = split(&path)?;
            let parent = beneath(&self.root, parent)?;
            utimensat(&parent, name, &times, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        Ok(())
    }

    fn one<R: Read>(&mut self, entry: &mut tar::Entry<'_, R>) -> Result<(), Failed> {
        let path = inside(entry.path()?.as_ref())?;
        let header = entry.header();
        let kind = header.entry_type();
        let (uid, gid) = (owner(header.uid()?), owner(header.gid()?));
        // Neither set-user-id nor set-group-id; the sticky bit stays.
        let mode = Mode::from_raw_mode(header.mode()? & 0o1777);
        let time = Timespec {
            tv_sec: i64::try_from(header.mtime().unwrap_or(0)).unwrap_or(0),
            tv_nsec: 0,
        };
        let times = Timestamps {
            last_access: time,
            last_modification: time,
        };
        let link = entry.link_name_bytes().map(|name| name.into_owned());
        if path.as_os_str().is_empty() {
            // The root itself.
            if kind == EntryType::Directory {
                fchmod(&self.root, mode)?;
                fchown(&self.root, Some(uid), Some(gid))?;
            }
            return Ok(());
        }
        let (parent, name) = split(&path)?;
        let parent = self.parent(parent)?;
        match kind {
            EntryType::Directory => {
                match mkdirat(&parent, name, Mode::from_raw_mode(0o700)) {
                    Ok(()) => {}
                    Err(Errno::EXIST) => {
                        let there = openat2(
                            &parent,
                            name,
                            OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW,
                            Mode::empty(),
                            BENEATH,
                        );
                        if there.is_err() {
                            unlinkat(&parent, name, AtFlags::empty())?;
                            mkdirat(&parent, name, Mode::from_raw_mode(0o700))?;
                        }
                    }
                    Err(error) => return Err(error.into()),
                }
                chownat(
                    &parent,
                    name,
                    Some(uid),
                    Some(gid),
                    AtFlags::SYMLINK_NOFOLLOW,
                )?;
                chmodat(&parent, name, mode, AtFlags::empty())?;
                self.times.push((path.clone(), times));
                return Ok(());
            }
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                replace(&parent, name)?;
                let file = openat2(
                    &parent,
                    name,
                    OFlags::CREATE
                        | OFlags::EXCL
                        | OFlags::WRONLY
                        | OFlags::CLOEXEC
                        | OFlags::NOFOLLOW,
                    Mode::from_raw_mode(0o600),
                    BENEATH,
                )?;
                let mut file = File::from(file);
                let left = BYTES_AT_MOST - self.bytes;
                let size = entry.size();
                self.bytes += io::copy(&mut entry.take(left), &mut file)?;
                if size > left {
                    return Err(Failed::Refused("it is too large"));
                }
                fchown(&file, Some(uid), Some(gid))?;
                fchmod(&file, mode)?;
            }
            EntryType::Symlink => {
                let to = link.ok_or(Failed::Refused("a symbolic link to nowhere"))?;
                replace(&parent, name)?;
                symlinkat(to.as_slice(), &parent, name)?;
                chownat(
                    &parent,
                    name,
                    Some(uid),
                    Some(gid),
                    AtFlags::SYMLINK_NOFOLLOW,
                )?;
            }
            EntryType::Link => {
                let to = link.ok_or(Failed::Refused("a hard link to nowhere"))?;
                let to = inside(Path::new(std::ffi::OsStr::from_bytes(&to)))?;
                let (from_parent, from_name) = split(&to)?;
                let from = beneath(&self.root, from_parent)?;
                replace(&parent, name)?;
                linkat(&from, from_name, &parent, name, AtFlags::empty())?;
                return Ok(());
            }
            EntryType::Fifo => {
                replace(&parent, name)?;
                rustix::fs::mknodat(&parent, name, rustix::fs::FileType::Fifo, mode, 0)?;
                chownat(
                    &parent,
                    name,
                    Some(uid),
                    Some(gid),
                    AtFlags::SYMLINK_NOFOLLOW,
                )?;
            }
            // Devices come from the runtime; headers that only describe are no files.
            _ => return Ok(()),
        }
        utimensat(&parent, name, &times, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(())
    }

    /// The folder, made where the tar has not named it.
    fn parent(&self, path: &Path) -> Result<OwnedFd, Failed> {
        match beneath(&self.root, path) {
            Err(Failed::Io(error)) if error.kind() == io::ErrorKind::NotFound => {}
            other => return other,
        }
        let mut made = PathBuf::new();
        for part in path.components() {
            let above = beneath(&self.root, &made)?;
            match mkdirat(&above, part.as_os_str(), Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
            made.push(part);
        }
        beneath(&self.root, path)
    }
}

const BENEATH: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS);

fn beneath(root: &OwnedFd, path: &Path) -> Result<OwnedFd, Failed> {
    let path = if path.as_os_str().is_empty() {
        Path::new(".")
    } else {
        path
    };
    match openat2(
        root,
        path,
        OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
        BENEATH,
    ) {
        Err(Errno::LOOP | Errno::XDEV) => {
            Err(Failed::Refused("a name leads through a link or outside"))
        }
        other => Ok(other?),
    }
}

/// A tar's name as a path of plain parts.
fn inside(path: &Path) -> Result<PathBuf, Failed> {
    path.components()
        .filter_map(|part| match part {
            Component::Normal(name) => Some(Ok(name)),
            Component::RootDir | Component::CurDir => None,
            Component::ParentDir | Component::Prefix(_) => {
                Some(Err(Failed::Refused("a name leads outside")))
            }
        })
        .collect()
}

fn split(path: &Path) -> Result<(&Path, &std::ffi::OsStr), Failed> {
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => Ok((parent, name)),
        _ => Err(Failed::Refused("a name is empty")),
    }
}

/// A later entry of the same name wins.
fn replace(parent: &OwnedFd, name: &std::ffi::OsStr) -> Result<(), Failed> {
    match unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(Errno::ISDIR) => Ok(unlinkat(parent, name, AtFlags::REMOVEDIR)?),
        Err(error) => Err(error.into()),
    }
}

/// Ids that no sandbox has, and the supervisor's, become nobody's.
fn owner<T>(id: u64) -> T
where
    T: FromId,
{
    let nobody = SUPERVISOR_ID - 1;
    T::from_id(u32::try_from(id).unwrap_or(nobody).min(nobody))
}

trait FromId {
    fn from_id(id: u32) -> Self;
}

impl FromId for Uid {
    fn from_id(id: u32) -> Self {
        Self::from_raw(id)
    }
}

impl FromId for Gid {
    fn from_id(id: u32) -> Self {
        Self::from_raw(id)
    }
}
