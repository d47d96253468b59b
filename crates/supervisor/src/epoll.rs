//! What epoll reports, held against what it was asked to.
//!
//! gVisor (as of 20240729) keeps links between the entries of an epoll set in which several were
//! found not to be ready at once. An entry that is still there then leads to others that were taken
//! out since; a checkpoint writes those down too, and the restore reports them. What they carry is
//! where tokio had its state of a descriptor, and that memory is another's by then.
//!
//! So this program has the two functions by which tokio uses epoll, in place of the C library's: they
//! register each descriptor under a number that is never given twice, and give back what tokio
//! registered it with only for a number that is still good.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use libc::{c_int, c_long, epoll_event};

/// For all sets together: tokio has one, under two descriptors.
static ASKED: Mutex<Asked> = Mutex::new(Asked::new());

fn asked() -> MutexGuard<'static, Asked> {
    ASKED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is registered.
struct Asked {
    last: u64,
    number_of: BTreeMap<c_int, u64>,
    /// What goes with a number.
    carried: BTreeMap<u64, u64>,
}

impl Asked {
    const fn new() -> Self {
        Self {
            last: 0,
            number_of: BTreeMap::new(),
            carried: BTreeMap::new(),
        }
    }

    /// A new number for a descriptor; the one that it had is no good any more.
    fn insert(&mut self, fd: c_int, carried: u64) -> u64 {
        self.remove(fd);
        self.last += 1;
        self.number_of.insert(fd, self.last);
        self.carried.insert(self.last, carried);
        self.last
    }

    fn remove(&mut self, fd: c_int) {
        if let Some(number) = self.number_of.remove(&fd) {
            self.carried.remove(&number);
        }
    }

    /// Gives the events of good numbers what was registered, and moves them to the front, in their
    /// order. How many they are.
    fn translate(&self, reported: &mut [epoll_event]) -> usize {
        let mut kept = 0;
        for at in 0..reported.len() {
            let number = reported[at].u64;
            if let Some(&carried) = self.carried.get(&number) {
                reported[kept] = epoll_event {
                    u64: carried,
                    ..reported[at]
                };
                kept += 1;
            }
        }
        kept
    }
}

/// As epoll_ctl(2).
///
/// # Safety
/// As that of the C library: `event` is valid, or null where `op` needs none.
#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_ctl(
    epfd: c_int,
    op: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    // Held over the call: no event may come before its number is known.
    let mut asked = asked();
    if op == libc::EPOLL_CTL_DEL {
        // SAFETY: handed on as it came.
        let result = unsafe { libc::syscall(libc::SYS_epoll_ctl, epfd, op, fd, event) };
        if result == 0 {
            asked.remove(fd);
        }
        return result as c_int;
    }
    // SAFETY: valid, as the caller says.
    let mut event = unsafe { event.read() };
    event.u64 = asked.insert(fd, event.u64);
    // SAFETY: handed on as it came, but for what it carries.
    let result = unsafe { libc::syscall(libc::SYS_epoll_ctl, epfd, op, fd, &raw mut event) };
    if result < 0 {
        asked.remove(fd);
    }
    result as c_int
}

/// As epoll_wait(2), which may return early with nothing.
///
/// # Safety
/// As that of the C library: `events` has room for `most`.
#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_wait(
    epfd: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
) -> c_int {
    const NO_MASK: c_long = 0;
    // SAFETY: handed on as it came; no signal mask is changed.
    let count = unsafe {
        libc::syscall(
            libc::SYS_epoll_pwait,
            epfd,
            events,
            most,
            timeout,
            NO_MASK,
            NO_MASK,
        )
    };
    let Ok(filled @ 1..) = usize::try_from(count) else {
        return count as c_int;
    };
    // SAFETY: the kernel has filled so many.
    let reported = unsafe { std::slice::from_raw_parts_mut(events, filled) };
    asked().translate(reported) as c_int
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn only_what_is_registered_is_reported_and_as_it_was_registered() {
        let mut asked = Asked::new();
        let first = asked.insert(3, 30);
        let gone = asked.insert(4, 40);
        asked.remove(4);
        // The same descriptor and the same state of tokio's, and yet another registration.
        let again = asked.insert(4, 40);
        let changed = asked.insert(3, 31);
        let event = |number| epoll_event {
            events: libc::EPOLLIN as u32,
            u64: number,
        };
        let mut reported = [first, gone, again, 99, changed].map(event);
        let kept = asked.translate(&mut reported);
        let carried: Vec<u64> = reported[..kept].iter().map(|event| event.u64).collect();
        assert_eq!(carried, [40, 31]);
    }

    #[tokio::test]
    async fn tokio_registers_through_here_and_takes_back_what_it_has() {
        let (near, _far) = tokio::net::UnixStream::pair().expect("a pair");
        let fd = near.as_raw_fd();
        let is_known = || asked().number_of.contains_key(&fd);
        assert!(is_known(), "the C library's function was called");
        near.writable().await.expect("an event comes through");
        drop(near);
        assert!(!is_known());
    }
}
