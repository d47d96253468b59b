//! Files, by byte paths, with the credentials of the user who asks. The functions here block and
//! run on a worker; [`Worker`] takes them there.

mod read;
mod tree;
mod write;

use std::ffi::{CString, OsStr};
use std::fs::Metadata;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use overwinter_api::supervisor::{FileInfo, FileKind};

use crate::credentials::{Own, act_as};
use crate::error::{Refusal, display_path};
use crate::users::{self, User};

pub(crate) use read::{Chunks, open};
pub(crate) use tree::{list, make_directory, remove, rename, stat};
pub(crate) use write::Upload;

/// Takes file work to a worker thread, as a user.
#[derive(Clone)]
pub(crate) struct Worker {
    own: Arc<Own>,
    user: Arc<User>,
}

impl Worker {
    /// For the user named `user`; empty: the default one.
    pub(crate) fn new(own: &Arc<Own>, user: &str) -> Result<Self, Refusal> {
        Ok(Self {
            own: Arc::clone(own),
            user: Arc::new(users::resolve(user, own.default_user())?),
        })
    }

    /// Runs `work` to its end, whether or not the caller still waits for it.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        path: &FilePath,
        work: impl FnOnce() -> Result<T, FileError> + Send + 'static,
    ) -> Result<T, Refusal> {
        let Self { own, user } = self.clone();
        let outcome = tokio::task::spawn_blocking(move || {
            let mut refused = None;
            let done = act_as(&own, &user, || {
                work().map_err(|error| match error {
                    FileError::Io(error) => error,
                    FileError::Kind | FileError::TooLarge => {
                        refused = Some(error);
                        io::Error::from_raw_os_error(libc::EINVAL)
                    }
                })
            });
            done.map_err(|error| refused.unwrap_or(FileError::Io(error)))
        })
        .await
        .map_err(|_| Refusal::Worker)?;
        outcome.map_err(|error| match error {
            FileError::Io(source) => Refusal::file(&path.asked, source),
            FileError::Kind => Refusal::NotARegularFile {
                path: display_path(&path.asked),
            },
            FileError::TooLarge => Refusal::DirectoryTooLarge {
                path: display_path(&path.asked),
            },
        })
    }
}

/// What can go wrong with a file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("not a regular file")]
    Kind,
    #[error("more entries than one answer holds")]
    TooLarge,
}

/// A path as it was asked for, and the absolute one that it means.
#[derive(Clone, Debug)]
pub(crate) struct FilePath {
    pub asked: Bytes,
    pub absolute: PathBuf,
}

impl FilePath {
    /// Relative paths are relative to `workspace`. Everything inside the sandbox may be named;
    /// what a user may do there is the kernel's to say.
    pub(crate) fn new(asked: &[u8], workspace: &Path) -> Result<Self, Refusal> {
        let invalid = |what| Refusal::InvalidPath {
            path: display_path(asked),
            what,
        };
        if asked.is_empty() {
            return Err(invalid("the path is empty"));
        }
        if asked.contains(&0) {
            return Err(invalid("the path contains a NUL byte"));
        }
        if asked.len() >= libc::PATH_MAX as usize {
            return Err(invalid("the path is too long"));
        }
        Ok(Self {
            asked: Bytes::copy_from_slice(asked),
            absolute: workspace.join(OsStr::from_bytes(asked)),
        })
    }
}

/// The wire form of what `lstat` says.
fn info(name: &[u8], data: &Metadata, target: Option<PathBuf>) -> FileInfo {
    let kind = match data.mode() & libc::S_IFMT {
        libc::S_IFREG => FileKind::File,
        libc::S_IFDIR => FileKind::Directory,
        libc::S_IFLNK => FileKind::Symlink,
        _ => FileKind::Other,
    };
    FileInfo {
        name: Bytes::copy_from_slice(name),
        kind: kind.into(),
        size: data.size(),
        mode: data.mode() & 0o7777,
        uid: data.uid(),
        gid: data.gid(),
        modified_at_ms: data.mtime() * 1000 + data.mtime_nsec() / 1_000_000,
        symlink_target: target
            .map(|target| Bytes::copy_from_slice(target.as_os_str().as_bytes()))
            .unwrap_or_default(),
    }
}

fn c_string(path: &OsStr) -> io::Result<CString> {
    Ok(CString::new(path.as_bytes())?)
}
