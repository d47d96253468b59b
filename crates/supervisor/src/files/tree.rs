//! What a folder holds, and changing it.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use overwinter_api::supervisor::FileInfo;

use super::{FileError, FilePath, info};

const DEFAULT_FOLDER_MODE: u32 = 0o755;
/// What the entries of one listing may take on the wire, below the limit of one message.
const LISTING_BYTES: usize = 3 << 20;
/// An entry's share beside its name and link target.
const ENTRY_BYTES: usize = 48;

/// What `path` is; a link is told and not followed.
pub(crate) fn stat(path: &FilePath) -> Result<FileInfo, FileError> {
    entry(&path.absolute, &path.asked)
}

/// The entries of a folder, by name.
pub(crate) fn list(path: &FilePath) -> Result<Vec<FileInfo>, FileError> {
    let mut entries = Vec::new();
    let mut bytes = 0;
    for found in std::fs::read_dir(&path.absolute)? {
        let found = found?;
        let name = found.file_name();
        match entry(&found.path(), name.as_bytes()) {
            Ok(entry) => {
                bytes += ENTRY_BYTES + entry.name.len() + entry.symlink_target.len();
                entries.push(entry);
            }
            // Removed since it was read.
            Err(FileError::Io(error)) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        if bytes > LISTING_BYTES {
            return Err(FileError::TooLarge);
        }
    }
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(entries)
}

fn entry(path: &Path, name: &[u8]) -> Result<FileInfo, FileError> {
    let data = std::fs::symlink_metadata(path)?;
    let target = if data.is_symlink() {
        Some(std::fs::read_link(path)?)
    } else {
        None
    };
    Ok(info(name, &data, target))
}

/// Makes a folder; with `parents` also those above it, and one that exists is no error.
pub(crate) fn make_directory(path: &FilePath, mode: u32, parents: bool) -> Result<(), FileError> {
    let mode = if mode == 0 {
        DEFAULT_FOLDER_MODE
    } else {
        mode & 0o7777
    };
    if parents && let Some(parent) = path.absolute.parent() {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(DEFAULT_FOLDER_MODE)
            .create(parent)?;
    }
    match std::fs::DirBuilder::new().mode(mode).create(&path.absolute) {
        Err(error)
            if parents
                && error.kind() == io::ErrorKind::AlreadyExists
                && path.absolute.is_dir() =>
        {
            Ok(())
        }
        made => Ok(made?),
    }
}

/// Renames within one file system, replacing what a rename replaces.
pub(crate) fn rename(from: &FilePath, to: &FilePath) -> Result<(), FileError> {
    Ok(std::fs::rename(&from.absolute, &to.absolute)?)
}

/// Removes a file, a link, or a folder: an empty one, or with `recursive` any.
pub(crate) fn remove(path: &FilePath, recursive: bool) -> Result<(), FileError> {
    let data = std::fs::symlink_metadata(&path.absolute)?;
    if !data.is_dir() {
        return Ok(std::fs::remove_file(&path.absolute)?);
    }
    if recursive {
        // The root and a mount cannot be removed: say so before their content is gone.
        let parent = path.absolute.join("..");
        let above = std::fs::symlink_metadata(&parent)?;
        if std::os::unix::fs::MetadataExt::dev(&above) != std::os::unix::fs::MetadataExt::dev(&data)
            || std::fs::canonicalize(&path.absolute)? == Path::new("/")
        {
            return Err(io::Error::from_raw_os_error(libc::EBUSY).into());
        }
        Ok(std::fs::remove_dir_all(&path.absolute)?)
    } else {
        Ok(std::fs::remove_dir(&path.absolute)?)
    }
}
