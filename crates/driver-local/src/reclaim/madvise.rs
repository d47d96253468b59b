//! `process_madvise(2)`, range by range.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Instant;

use super::maps::Range;
use crate::error::LocalError;

/// One call is for so many bytes: the deadline is looked at in between.
const AT_ONCE: usize = 128 << 20;
/// And for so many ranges: UIO_MAXIOV.
const RANGES: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Advice {
    /// To swap.
    PageOut,
    /// From swap, without waiting for who needs it.
    WillNeed,
}

impl Advice {
    const fn number(self) -> libc::c_int {
        match self {
            Self::PageOut => libc::MADV_PAGEOUT,
            Self::WillNeed => libc::MADV_WILLNEED,
        }
    }
}

/// Ranges that the kernel does not move (locked, or unmapped since) are left out.
pub(super) fn advise(
    process: &OwnedFd,
    ranges: &[Range],
    advice: Advice,
    until: Instant,
) -> Result<(), LocalError> {
    walk(
        ranges,
        |vector| call(process, vector, advice),
        || Instant::now() < until,
    )
    .map_err(|source| LocalError::Advice { source })
}

/// Goes through all of it. A call says how far it came; what it stopped at is tried first by the next,
/// which then fails, and is left out.
fn walk(
    ranges: &[Range],
    call: impl Fn(&[libc::iovec]) -> io::Result<usize>,
    goes_on: impl Fn() -> bool,
) -> io::Result<()> {
    let mut rest = ranges.iter().copied().peekable();
    let mut open: Vec<Range> = Vec::new();
    loop {
        let mut room = AT_ONCE - open.iter().map(|it| it.len).sum::<usize>().min(AT_ONCE);
        while room > 0 && open.len() < RANGES {
            let Some(next) = rest.peek_mut() else { break };
            let len = next.len.min(room);
            open.push(Range {
                start: next.start,
                len,
            });
            room -= len;
            if len == next.len {
                rest.next();
            } else {
                next.start += len;
                next.len -= len;
            }
        }
        if open.is_empty() || !goes_on() {
            return Ok(());
        }
        let vector: Vec<_> = open.iter().map(|it| vector_of(*it)).collect();
        match call(&vector) {
            Ok(done) if done > 0 => take(&mut open, done),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::EPERM | libc::ENOSYS | libc::EBADF)
                ) =>
            {
                return Err(error);
            }
            // It has ended.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(()),
            Ok(_) | Err(_) => {
                open.remove(0);
            }
        }
    }
}

/// The first `done` bytes.
fn take(open: &mut Vec<Range>, mut done: usize) {
    let mut whole = 0;
    for range in open.iter_mut() {
        if done < range.len {
            range.start += done;
            range.len -= done;
            break;
        }
        done -= range.len;
        whole += 1;
    }
    open.drain(..whole);
}

const fn vector_of(range: Range) -> libc::iovec {
    libc::iovec {
        // An address of another process: never dereferenced here.
        iov_base: std::ptr::without_provenance_mut(range.start),
        iov_len: range.len,
    }
}

fn call(process: &OwnedFd, vector: &[libc::iovec], advice: Advice) -> io::Result<usize> {
    // SAFETY: the descriptor is open, and the vector is as long as is said. The advice changes where
    // the pages of the other process lie, and nothing of what is in them.
    let done = unsafe {
        libc::syscall(
            libc::SYS_process_madvise,
            process.as_raw_fd(),
            vector.as_ptr(),
            vector.len(),
            advice.number(),
            0_u32,
        )
    };
    usize::try_from(done).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn a_range_that_is_refused_is_left_out_and_the_rest_is_done() -> io::Result<()> {
        let range = |start: usize, len: usize| Range { start, len };
        let ranges = [
            range(0x1000, 0x2000),
            range(0x10_0000, AT_ONCE + 0x3000),
            range(0x9000_0000, 0x1000),
            range(0xa000_0000, 0x4000),
        ];
        let bad = 0x9000_0000_usize;
        let seen = RefCell::new(Vec::new());
        walk(
            &ranges,
            |vector| {
                let mut done = 0;
                for part in vector {
                    let start = part.iov_base.addr();
                    if start == bad {
                        return if done > 0 {
                            Ok(done)
                        } else {
                            Err(io::Error::from_raw_os_error(libc::EINVAL))
                        };
                    }
                    seen.borrow_mut().push((start, part.iov_len));
                    done += part.iov_len;
                }
                assert!(done <= AT_ONCE);
                Ok(done)
            },
            || true,
        )?;
        let seen = seen.into_inner();
        let all: usize = seen.iter().map(|(_, len)| len).sum();
        assert_eq!(all, 0x2000 + AT_ONCE + 0x3000 + 0x4000);
        assert!(seen.iter().all(|(start, _)| *start != bad));
        Ok(())
    }

    #[test]
    fn a_kernel_that_knows_no_such_call_is_an_error_and_a_deadline_is_none() {
        let ranges = [Range {
            start: 0x1000,
            len: 0x1000,
        }];
        let unknown = |_: &[libc::iovec]| Err(io::Error::from_raw_os_error(libc::ENOSYS));
        assert!(walk(&ranges, unknown, || true).is_err());
        assert!(walk(&ranges, unknown, || false).is_ok());
    }
}
