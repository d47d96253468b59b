//! Descriptors of ours on the event loop.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Watches `fd`, which must be non-blocking, for something to read.
pub(crate) fn readable(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    register(fd, Interest::READABLE)
}

/// Watches `fd`, which must be non-blocking, for room to write.
pub(crate) fn writable(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    register(fd, Interest::WRITABLE)
}

fn register(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd names the same open descriptor for as long as it lives.
    unsafe { AsyncFd::register_with_interest(fd, interest) }.map_err(io::Error::from)
}
