//! File events of the attach folder.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use tokio::io::unix::AsyncFd;

use crate::readiness::readable;

/// A watched folder, or one that cannot be watched: then nothing ever changes by event.
pub(super) struct Folder {
    inotify: Option<AsyncFd<OwnedFd>>,
    arrived: bool,
}

impl Folder {
    pub(super) fn watch(folder: &Path) -> Self {
        let inotify = match open(folder) {
            Ok(inotify) => Some(inotify),
            Err(error) => {
                eprintln!("overwinter-supervisor: no file events: {error}");
                None
            }
        };
        Self {
            inotify,
            arrived: false,
        }
    }

    /// Whether an event has ever come: then they do come here.
    pub(super) fn events_arrive(&self) -> bool {
        self.arrived
    }

    /// Resolves after the next event; those already queued count as one.
    pub(super) async fn changed(&mut self) {
        let Some(inotify) = &self.inotify else {
            return std::future::pending().await;
        };
        let Ok(mut guard) = inotify.readable().await else {
            self.inotify = None;
            return std::future::pending().await;
        };
        let mut events = [0u8; 4096];
        loop {
            // SAFETY: the pointer and the length are the array's.
            let count = unsafe {
                libc::read(
                    guard.get_inner().as_raw_fd(),
                    events.as_mut_ptr().cast(),
                    events.len(),
                )
            };
            if count <= 0 {
                break;
            }
        }
        guard.clear_ready();
        self.arrived = true;
    }
}

fn open(folder: &Path) -> io::Result<AsyncFd<OwnedFd>> {
    let path = CString::new(folder.as_os_str().as_bytes())?;
    // SAFETY: a new descriptor of ours, and a NUL-terminated path.
    let inotify = unsafe {
        let fd = libc::inotify_init1(libc::IN_CLOEXEC | libc::IN_NONBLOCK);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        let inotify = OwnedFd::from_raw_fd(fd);
        // A rename onto `attach`, or a socket that was bound anew.
        let events = libc::IN_MOVED_TO | libc::IN_CREATE | libc::IN_CLOSE_WRITE | libc::IN_ONLYDIR;
        if libc::inotify_add_watch(fd, path.as_ptr(), events) < 0 {
            return Err(io::Error::last_os_error());
        }
        inotify
    };
    readable(inotify)
}
