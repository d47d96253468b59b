//! A child's stdin: bytes by offset, so that what arrives twice is written once.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use tokio::io::unix::AsyncFd;

use super::Process;
use crate::error::Refusal;
use crate::pty;
use crate::readiness::writable;

/// Where input goes. Closed: it is taken and dropped, as if nobody read it.
#[derive(Default)]
pub(super) struct Stdin {
    fd: Option<AsyncFd<OwnedFd>>,
    terminal: bool,
    ended: bool,
}

impl Stdin {
    pub(super) fn open(fd: Option<OwnedFd>, terminal: bool) -> io::Result<Self> {
        Ok(Self {
            fd: fd.map(writable).transpose()?,
            terminal,
            ended: false,
        })
    }

    pub(super) fn close(&mut self) {
        self.fd = None;
    }

    /// Writes some of `data`; how much. Everything, once nobody can read it any more.
    async fn write(&mut self, data: &[u8]) -> usize {
        loop {
            let Some(fd) = &self.fd else {
                return data.len();
            };
            let Ok(mut guard) = fd.writable().await else {
                self.fd = None;
                continue;
            };
            // SAFETY: the pointer and the length are the slice's.
            let count = unsafe {
                libc::write(
                    guard.get_inner().as_raw_fd(),
                    data.as_ptr().cast(),
                    data.len(),
                )
            };
            if let Ok(count) = usize::try_from(count) {
                return count;
            }
            match io::Error::last_os_error().kind() {
                io::ErrorKind::WouldBlock => guard.clear_ready(),
                io::ErrorKind::Interrupted => {}
                // EPIPE, or EIO of a terminal: its reader is gone.
                _ => {
                    drop(guard);
                    self.fd = None;
                }
            }
        }
    }
}

impl Process {
    /// Writes what lies behind the bytes already taken. Waits while the process does not read;
    /// abandoned in between, what was written counts as taken.
    pub(crate) async fn write_stdin(
        &self,
        offset: u64,
        data: &[u8],
        eof: bool,
    ) -> Result<(), Refusal> {
        let mut stdin = self.stdin.lock().await;
        let taken = self.state().stdin_taken;
        if offset > taken {
            return Err(Refusal::StdinGap { offset, taken });
        }
        let known = usize::try_from(taken - offset).unwrap_or(usize::MAX);
        let mut data = data.get(known..).unwrap_or_default();
        while !data.is_empty() {
            let count = stdin.write(data).await;
            data = &data[count..];
            self.state().stdin_taken += count as u64;
            self.changed.notify_waiters();
        }
        if eof && !stdin.ended {
            stdin.ended = true;
            match (&stdin.fd, stdin.terminal) {
                // A terminal has no end; what its reader understands as one is a character.
                (Some(fd), true) => {
                    let character = pty::eof_character(fd.get_ref());
                    stdin.write(&[character]).await;
                }
                (Some(_), false) => stdin.close(),
                (None, _) => {}
            }
        }
        Ok(())
    }
}
