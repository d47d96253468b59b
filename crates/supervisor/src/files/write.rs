//! Writing: aside, in the same folder under a hidden name, and renamed over the target only when
//! the upload is complete. An upload that breaks leaves the old file, and nothing else.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io::{self, IoSlice, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use overwinter_api::supervisor::{FileInfo, WriteFileStart};

use super::{FileError, FilePath, c_string, info};

const DEFAULT_MODE: u32 = 0o644;
const PARENT_MODE: u32 = 0o755;
/// As many as the kernel follows.
const MAX_LINKS: usize = 40;

static UPLOADS: AtomicU64 = AtomicU64::new(0);

/// A file that is being written aside. Dropped before [`Upload::finish`], it is removed.
pub(crate) struct Upload {
    file: File,
    folder: OwnedFd,
    aside: CString,
    target: CString,
    mode: u32,
    sync: bool,
    placed: AtomicBool,
}

impl Upload {
    /// Creates the file aside. Refuses early what the rename would refuse or silently allow: a
    /// folder, pipe, socket or device in the target's place, or an old file that this user may not
    /// write.
    pub(crate) fn create(path: &FilePath, start: &WriteFileStart) -> Result<Arc<Self>, FileError> {
        let target = follow_links(&path.absolute)?;
        let name = target
            .file_name()
            .ok_or_else(|| io::Error::from_raw_os_error(libc::EISDIR))?;
        if path.absolute.as_os_str().as_bytes().ends_with(b"/") {
            return Err(io::Error::from_raw_os_error(libc::EISDIR).into());
        }
        let parent = target.parent().unwrap_or(Path::new("/"));
        if start.make_parents {
            std::fs::DirBuilder::new()
                .recursive(true)
                .mode(PARENT_MODE)
                .create(parent)?;
        }
        let folder = open_folder(parent)?;
        let target = c_string(name)?;
        check_target(&folder, &target)?;
        let aside = c_string(OsStr::new(&format!(
            ".overwinter-{}-{}.part",
            std::process::id(),
            UPLOADS.fetch_add(1, Ordering::Relaxed)
        )))?;
        let file = create_aside(&folder, &aside)?;
        Ok(Arc::new(Self {
            file,
            folder,
            aside,
            target,
            mode: if start.mode == 0 {
                DEFAULT_MODE
            } else {
                start.mode & 0o7777
            },
            sync: start.sync,
            placed: AtomicBool::new(false),
        }))
    }

    /// Appends.
    pub(crate) fn write(&self, pieces: &[Bytes]) -> Result<(), FileError> {
        let mut slices: Vec<_> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
        let mut left = &mut slices[..];
        while !left.is_empty() {
            match (&self.file).write_vectored(left) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
                Ok(written) => IoSlice::advance_slices(&mut left, written),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Puts the file in its place.
    pub(crate) fn finish(&self, path: &FilePath) -> Result<FileInfo, FileError> {
        // SAFETY: descriptors of ours and NUL-terminated names.
        unsafe {
            check(libc::fchmod(self.file.as_raw_fd(), self.mode))?;
            if self.sync {
                self.file.sync_all()?;
            }
            let folder = self.folder.as_raw_fd();
            check(libc::renameat(
                folder,
                self.aside.as_ptr(),
                folder,
                self.target.as_ptr(),
            ))?;
            self.placed.store(true, Ordering::Relaxed);
            if self.sync {
                // The rename is only durable with its folder.
                check(libc::fsync(folder))?;
            }
        }
        Ok(info(&path.asked, &self.file.metadata()?, None))
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if *self.placed.get_mut() {
            return;
        }
        // As the supervisor: it must also go when the user has lost the right to. Emptied first,
        // because the unlink of a large file that is still open frees nothing.
        let _ = self.file.set_len(0);
        // SAFETY: a descriptor of ours and a NUL-terminated name.
        let removed = unsafe { libc::unlinkat(self.folder.as_raw_fd(), self.aside.as_ptr(), 0) };
        if removed < 0 {
            eprintln!(
                "overwinter-supervisor: a broken upload stays: {}",
                io::Error::last_os_error()
            );
        }
    }
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// Where a write to `path` would go: a link is followed, not replaced.
fn follow_links(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        match std::fs::read_link(&path) {
            Ok(target) => path = path.parent().unwrap_or(Path::new("/")).join(target),
            // No link, or nothing there yet.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOENT)) => {
                return Ok(path);
            }
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::from_raw_os_error(libc::ELOOP))
}

fn open_folder(path: &Path) -> io::Result<OwnedFd> {
    let path = c_string(path.as_os_str())?;
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: a NUL-terminated path; the descriptor is new and ours. A folder that may be entered
    // and not listed opens as a path, which is enough for all but an fsync.
    unsafe {
        let opened = check(libc::open(path.as_ptr(), flags)).or_else(|error| {
            match error.raw_os_error() {
                Some(libc::EACCES) => check(libc::open(path.as_ptr(), flags | libc::O_PATH)),
                Some(_) | None => Err(error),
            }
        })?;
        Ok(OwnedFd::from_raw_fd(opened))
    }
}

fn check_target(folder: &OwnedFd, target: &CString) -> Result<(), FileError> {
    // SAFETY: plain data filled by the call; NUL-terminated names.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        let found = libc::fstatat(
            folder.as_raw_fd(),
            target.as_ptr(),
            &raw mut stat,
            libc::AT_SYMLINK_NOFOLLOW,
        );
        if found < 0 {
            let error = io::Error::last_os_error();
            return match error.raw_os_error() {
                Some(libc::ENOENT) => Ok(()),
                Some(_) | None => Err(error.into()),
            };
        }
        match stat.st_mode & libc::S_IFMT {
            libc::S_IFREG => {}
            libc::S_IFDIR => return Err(io::Error::from_raw_os_error(libc::EISDIR).into()),
            // Whoever reads from a pipe or a device would go on reading from what is gone.
            _ => return Err(FileError::Kind),
        }
        // With the effective ids, which for this call are the file-system ones.
        let writable = libc::syscall(
            libc::SYS_faccessat2,
            folder.as_raw_fd(),
            target.as_ptr(),
            libc::W_OK,
            libc::AT_EACCESS,
        );
        if writable < 0 {
            let error = io::Error::last_os_error();
            if matches!(error.raw_os_error(), Some(libc::EACCES | libc::EROFS)) {
                return Err(error.into());
            }
        }
    }
    Ok(())
}

fn create_aside(folder: &OwnedFd, aside: &CString) -> io::Result<File> {
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    let create = || {
        // SAFETY: a NUL-terminated name; the descriptor is new and ours.
        unsafe {
            check(libc::openat(
                folder.as_raw_fd(),
                aside.as_ptr(),
                flags,
                0o600,
            ))
            .map(|fd| File::from_raw_fd(fd))
        }
    };
    create().or_else(|error| match error.raw_os_error() {
        // Left by an earlier life of this sandbox; the number is this life's.
        Some(libc::EEXIST) => {
            // SAFETY: as above.
            unsafe { check(libc::unlinkat(folder.as_raw_fd(), aside.as_ptr(), 0))? };
            create()
        }
        Some(_) | None => Err(error),
    })
}
