//! What makes the supervisor hard to end from inside: no signal but SIGKILL from outside reaches
//! it, nobody traces it or reads its memory, and every orphan is reaped.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use crate::process::Table;
use crate::readiness::readable;

/// A descriptor that yields every signal sent to this process.
pub(crate) struct Signals {
    fd: OwnedFd,
}

/// Blocks all signals for this thread, and so for those it will start, makes the process
/// non-dumpable, and bounds what the allocator keeps. Must run before any other thread exists.
pub(crate) fn protect() -> io::Result<Signals> {
    // SAFETY: plain system calls; the signal set is initialised by sigfillset.
    unsafe {
        if libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) < 0 {
            return Err(io::Error::last_os_error());
        }
        // Modes of files are exactly those that were asked for.
        libc::umask(0);
        // One arena for all threads, and what is free above 1 MiB back to the kernel: the
        // supervisor is resident in every sandbox. Message buffers stay below the second bound,
        // because a mapping of its own for each would cost a page fault per 4 KiB moved.
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_MMAP_THRESHOLD, 4 << 20);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 1 << 20);
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        if libc::sigprocmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut()) < 0 {
            return Err(io::Error::last_os_error());
        }
        let fd = libc::signalfd(-1, &raw const all, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Signals {
            fd: OwnedFd::from_raw_fd(fd),
        })
    }
}

impl Signals {
    /// Reaps for ever. As PID 1 every other signal is read and ignored; otherwise SIGTERM and
    /// SIGINT end this, as they do with any program.
    pub(crate) async fn serve(self, table: Arc<Table>, pid1: bool) -> io::Result<()> {
        let fd = readable(self.fd)?;
        // A child may have ended before the signals were watched.
        table.reap();
        loop {
            let mut guard = fd.readable().await?;
            let mut child_ended = false;
            loop {
                // SAFETY: plain data, filled by the read below.
                let mut info: libc::signalfd_siginfo = unsafe { std::mem::zeroed() };
                let size = size_of::<libc::signalfd_siginfo>();
                // SAFETY: the pointer and the size are the record's.
                let count = unsafe {
                    libc::read(guard.get_inner().as_raw_fd(), (&raw mut info).cast(), size)
                };
                if count < size as isize {
                    break;
                }
                match info.ssi_signo as i32 {
                    libc::SIGCHLD => child_ended = true,
                    libc::SIGTERM | libc::SIGINT if !pid1 => return Ok(()),
                    _ => {}
                }
            }
            guard.clear_ready();
            drop(guard);
            if child_ended {
                table.reap();
            }
        }
    }
}
