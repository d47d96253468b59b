//! From a child's pipe into its replay, no faster than its slowest reader, and never waiting for
//! one when there is none.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::Ready;
use tokio::time::Instant;

use super::{Process, Stream};
use crate::readiness::readable;
use crate::replay::STREAM_REPLAY_BYTES;
use crate::spawn::{Child, FAILURE_BYTES, StartFailure};

/// How long a grandchild that holds the pipe open may delay the exit of its parent.
const EXIT_GRACE: Duration = Duration::from_millis(100);

thread_local! {
    /// One for all: nothing awaits between a read and the push of what it read.
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; STREAM_REPLAY_BYTES]);
}

impl Process {
    /// Reads everything that the child says until its exit is known, and records that.
    pub(super) async fn supervise(self: &Arc<Self>, child: Child) {
        let stderr = async {
            if let Some(stderr) = child.stderr {
                self.pump(Stream::Stderr, stderr).await;
            }
        };
        let startup = async {
            let failure = read_failure(child.status).await;
            self.set_startup(failure);
            self.reaped().await;
        };
        tokio::join!(self.pump(Stream::Stdout, child.stdout), stderr, startup);
        // A writer that is still blocked holds the lock, and gets EPIPE.
        if let Ok(mut stdin) = self.stdin.try_lock() {
            stdin.close();
        }
    }

    async fn pump(&self, stream: Stream, fd: OwnedFd) {
        let fd = match readable(fd) {
            Ok(fd) => fd,
            Err(error) => {
                eprintln!("overwinter-supervisor: output of a process: {error}");
                return;
            }
        };
        // Once the child is gone: the offset up to which its own words go, and until when those
        // of its descendants are taken.
        let mut last_words: Option<(u64, Instant)> = None;
        loop {
            if last_words.is_none() && *self.reaped.borrow() {
                let goal = self.end(stream) + unread(fd.get_ref());
                last_words = Some((goal, Instant::now() + EXIT_GRACE));
            }
            let heard_out = last_words.filter(|(goal, _)| self.end(stream) >= *goal);
            if heard_out.is_some_and(|(_, deadline)| Instant::now() >= deadline) {
                return;
            }
            let room = self.room.notified();
            tokio::pin!(room);
            room.as_mut().enable();
            let wanted = self.state().room(stream);
            tokio::select! {
                biased;
                guard = fd.readable(), if wanted > 0 => {
                    let Ok(mut guard) = guard else { return };
                    match self.read_some(stream, guard.get_inner(), wanted) {
                        Ok(0) => return,
                        Ok(_) => {
                            // A readable flood would keep the only thread for itself.
                            tokio::task::yield_now().await;
                        }
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                            guard.clear_ready_matching(Ready::READABLE);
                        }
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                        // A terminal says EIO when its last user is gone.
                        Err(_) => return,
                    }
                }
                () = room, if wanted == 0 => {}
                () = self.reaped(), if last_words.is_none() => {}
                () = until(heard_out), if heard_out.is_some() => {}
            }
        }
    }

    fn end(&self, stream: Stream) -> u64 {
        self.state().outputs[stream as usize].end()
    }

    fn read_some(&self, stream: Stream, fd: &OwnedFd, wanted: usize) -> io::Result<usize> {
        SCRATCH.with_borrow_mut(|scratch| {
            let wanted = wanted.min(scratch.len());
            let count = read(fd, &mut scratch[..wanted])?;
            if count > 0 {
                self.state().outputs[stream as usize].push(&scratch[..count]);
                self.changed.notify_waiters();
            }
            Ok(count)
        })
    }
}

async fn until(heard_out: Option<(u64, Instant)>) {
    match heard_out {
        Some((_, deadline)) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

async fn read_failure(status: OwnedFd) -> Option<StartFailure> {
    let status = readable(status).ok()?;
    let mut report = [0u8; FAILURE_BYTES];
    loop {
        let mut guard = status.readable().await.ok()?;
        match read(guard.get_inner(), &mut report) {
            Ok(count) => return StartFailure::decode(&report[..count]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => guard.clear_ready(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
}

fn read(fd: &OwnedFd, buffer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the pointer and the length are the buffer's.
    let count = unsafe { libc::read(fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len()) };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

/// Bytes that wait in a pipe or terminal.
fn unread(fd: &OwnedFd) -> u64 {
    let mut count: libc::c_int = 0;
    // SAFETY: the request fills one int.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::FIONREAD, &raw mut count) };
    if result < 0 { 0 } else { count.max(0) as u64 }
}
