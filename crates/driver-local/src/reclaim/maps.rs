//! What of a process's memory would stay resident, by `/proc`.

use std::collections::BTreeSet;
use std::fs;
use std::io;

use rustix::fs::statfs;

use crate::cgroup::Held;
use crate::error::{At, LocalError, ignore_missing};

/// Of file systems in memory, `memfd`s and shared memory: linux/magic.h.
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// A part of a process's memory: where it begins, and how many bytes it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) start: usize,
    pub(super) len: usize,
}

/// What can be moved to swap. Files that are only read are not among it: the kernel drops those when
/// it needs the room. None of a process that has ended.
pub(super) fn movable(pid: i32) -> Result<Vec<Range>, LocalError> {
    let path = format!("/proc/{pid}/maps");
    let mut text = Vec::new();
    let read = fs::read(&path).map(|bytes| text = bytes);
    let ended = |error: &io::Error| error.raw_os_error() == Some(libc::ESRCH);
    match read {
        Err(error) if ended(&error) => return Ok(Vec::new()),
        other => ignore_missing(other).at("reading", path.as_ref())?,
    }
    let text = String::from_utf8_lossy(&text);
    let in_memory = |range: &str| {
        statfs(format!("/proc/{pid}/map_files/{range}"))
            .is_ok_and(|found| u64::try_from(found.f_type) == Ok(TMPFS_MAGIC))
    };
    Ok(text
        .lines()
        .filter_map(|line| range_in(line, in_memory))
        .collect())
}

/// `start-end perms offset dev inode [path]`: proc_pid_maps(5).
fn range_in(line: &str, in_memory: impl Fn(&str) -> bool) -> Option<Range> {
    let mut words = line.split_whitespace();
    let (range, permissions) = (words.next()?, words.next()?);
    let inode = words.nth(2)?;
    let name = words.next().unwrap_or_default();
    let is_private = permissions.ends_with('p');
    let moves = match (inode, is_private) {
        // The kernel's own pages, which are in every process.
        ("0", _) if name.starts_with("[v") => false,
        ("0", _) => true,
        // Written to, they are the process's own.
        (_, true) => permissions.contains('w'),
        (_, false) => in_memory(range),
    };
    let (start, end) = range.split_once('-')?;
    let start = usize::from_str_radix(start, 16).ok()?;
    let end = usize::from_str_radix(end, 16).ok()?;
    let len = end.checked_sub(start).filter(|len| *len > 0)?;
    moves.then_some(Range { start, len })
}

/// Where no control group counts it: what each process says of itself.
pub(super) fn held(pids: BTreeSet<i32>) -> Held {
    let mut held = Held::default();
    for pid in pids {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let bytes = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
            kib.and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) << 10
        };
        held.resident += bytes("RssAnon:") + bytes("RssShmem:");
        held.swapped += bytes("VmSwap:");
    }
    held
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_from_files_is_left_to_the_kernel() {
        let len = |line: &str| range_in(line, |range| range == "7000-9000").map(|it| it.len);
        let file = "fe:00 7913478                            /usr/bin/a b";
        assert_eq!(len(&format!("1000-3000 r-xp 00000000 {file}")), None);
        assert_eq!(
            len(&format!("1000-3000 rw-p 00002000 {file}")),
            Some(0x2000)
        );
        assert_eq!(len("1000-3000 rw-p 00000000 00:00 0 "), Some(0x2000));
        assert_eq!(
            len("1000-2000 rw-p 00000000 00:00 0      [heap]"),
            Some(0x1000)
        );
        assert_eq!(len("1000-2000 r--p 00000000 00:00 0      [vvar]"), None);
        let memory = "rw-s 00000000 00:01 12 /memfd:x (deleted)";
        assert_eq!(len(&format!("7000-9000 {memory}")), Some(0x2000));
        assert_eq!(len(&format!("1000-3000 {memory}")), None, "of another kind");
        assert_eq!(
            len("ffffffffff600000-ffffffffff601000 --xp 0 00:00 0 [vsyscall]"),
            None
        );
        assert_eq!(len(""), None);
    }
}
