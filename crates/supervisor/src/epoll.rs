//! What epoll reports, held against what it was asked to.
//!
//! gVisor (as of 20240729) keeps links between the entries of an epoll set in which several were
//! found not to be ready at once. An entry that is still there then leads to others that were taken
//! out since; a checkpoint writes those down too, and the restore reports them. What they carry is
//! where tokio had its state of a descriptor, and that memory is another's by then.
//!
//! So this program has the two functions by which tokio uses epoll, in place of the C library's: they
//! remember what each descriptor was registered with, and drop events that carry anything else.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use libc::{c_int, c_long, epoll_event};

/// For all sets together: a number means one descriptor in this process, and tokio has one set under
/// two numbers.
static ASKED: Mutex<Asked> = Mutex::new(Asked {
    carried: BTreeMap::new(),
    by: BTreeMap::new(),
});

/// What each descriptor was registered with last.
#[derive(Default)]
struct Asked {
    carried: BTreeMap<c_int, u64>,
    /// How many descriptors carry it.
    by: BTreeMap<u64, u32>,
}

impl Asked {
    fn insert(&mut self, fd: c_int, carried: u64) {
        self.remove(fd);
        self.carried.insert(fd, carried);
        *self.by.entry(carried).or_default() += 1;
    }

    fn remove(&mut self, fd: c_int) {
        if let Some(carried) = self.carried.remove(&fd)
            && let Some(by) = self.by.get_mut(&carried)
        {
            *by -= 1;
            if *by == 0 {
                self.by.remove(&carried);
            }
        }
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
    // SAFETY: handed on as it came.
    let result = unsafe { libc::syscall(libc::SYS_epoll_ctl, epfd, op, fd, event) };
    if result == 0 {
        let mut asked = ASKED.lock().unwrap_or_else(PoisonError::into_inner);
        match op {
            libc::EPOLL_CTL_DEL => asked.remove(fd),
            // SAFETY: the kernel has just read it.
            _ => asked.insert(fd, unsafe { (*event).u64 }),
        }
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
    let asked = ASKED.lock().unwrap_or_else(PoisonError::into_inner);
    keep_asked(reported, &asked) as c_int
}

/// Moves the events that were asked for to the front, in their order. How many they are.
fn keep_asked(reported: &mut [epoll_event], asked: &Asked) -> usize {
    let mut kept = 0;
    for at in 0..reported.len() {
        let carried = reported[at].u64;
        if asked.by.contains_key(&carried) {
            reported[kept] = reported[at];
            kept += 1;
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn only_what_is_registered_is_reported() {
        let event = |carried| epoll_event {
            events: libc::EPOLLIN as u32,
            u64: carried,
        };
        let mut asked = Asked::default();
        for (fd, carried) in [(3, 30), (7, 31), (8, 31), (9, 0), (7, 70)] {
            asked.insert(fd, carried);
        }
        asked.remove(8);
        asked.remove(9);
        let mut reported = [event(31), event(70), event(0), event(30), event(70)];
        let kept = keep_asked(&mut reported, &asked);
        let carried: Vec<u64> = reported[..kept].iter().map(|event| event.u64).collect();
        assert_eq!(carried, [70, 30, 70]);
    }

    #[tokio::test]
    async fn tokio_registers_through_here_and_takes_back_what_it_has() {
        let (near, _far) = tokio::net::UnixStream::pair().expect("a pair");
        let fd = near.as_raw_fd();
        let is_known = || {
            let asked = ASKED.lock().unwrap_or_else(PoisonError::into_inner);
            asked.carried.contains_key(&fd)
        };
        assert!(is_known(), "the C library's function was called");
        near.writable().await.expect("an event comes through");
        drop(near);
        assert!(!is_known());
    }
}
