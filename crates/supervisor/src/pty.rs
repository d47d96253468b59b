//! Pseudo-terminals from the sandbox's own devpts, by system calls alone.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

/// Both ends of a new pseudo-terminal.
pub(crate) struct Pty {
    /// Non-blocking; the supervisor's end.
    pub master: OwnedFd,
    /// The child's end.
    pub slave: OwnedFd,
}

/// Opens a pseudo-terminal of `rows` × `columns`, its slave owned by `uid`.
pub(crate) fn open(rows: u32, columns: u32, uid: u32) -> io::Result<Pty> {
    let open_master = |path: &str| {
        File::options()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NOCTTY | libc::O_NONBLOCK)
            .open(path)
    };
    // /dev/ptmx may be absent, or belong to another instance than the one mounted here.
    let master: OwnedFd = open_master("/dev/pts/ptmx")
        .or_else(|_| open_master("/dev/ptmx"))?
        .into();
    let unlock: libc::c_int = 0;
    // SAFETY: each request gets the argument type that it documents; the returned descriptor is
    // new and ours.
    let slave = unsafe {
        if libc::ioctl(master.as_raw_fd(), libc::TIOCSPTLCK, &raw const unlock) < 0 {
            return Err(io::Error::last_os_error());
        }
        // By the master and not by a path in /dev/pts, which the tenant could cover.
        let slave = libc::ioctl(
            master.as_raw_fd(),
            libc::TIOCGPTPEER,
            libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC,
        );
        if slave < 0 {
            return Err(io::Error::last_os_error());
        }
        OwnedFd::from_raw_fd(slave)
    };
    // A program may reopen its terminal by name. Where this is refused, only that fails.
    // SAFETY: a valid descriptor and plain numbers.
    unsafe {
        libc::fchown(slave.as_raw_fd(), uid, u32::MAX);
    }
    resize(&master, rows, columns)?;
    Ok(Pty { master, slave })
}

/// Sets the window size; the kernel tells the foreground process group.
pub(crate) fn resize(master: &OwnedFd, rows: u32, columns: u32) -> io::Result<()> {
    let clamp = |n: u32| u16::try_from(n).unwrap_or(u16::MAX);
    let size = libc::winsize {
        ws_row: clamp(rows),
        ws_col: clamp(columns),
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: the request takes a winsize.
    if unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// The character that means end-of-file on this terminal now (Ctrl-D unless it was changed).
pub(crate) fn eof_character(master: &OwnedFd) -> u8 {
    // SAFETY: termios is plain data, filled by the call.
    unsafe {
        let mut settings: libc::termios = std::mem::zeroed();
        if libc::tcgetattr(master.as_raw_fd(), &raw mut settings) == 0 {
            settings.c_cc[libc::VEOF]
        } else {
            4
        }
    }
}
