//! The bounded replay of one output stream: the last bytes, addressed by their offset since the
//! start of the process, and the budget that all streams share.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;

/// What one stream keeps at most.
pub(crate) const STREAM_REPLAY_BYTES: usize = 64 << 10;
/// What all streams keep together at most, beyond their floors; with the floors of fifty busy
/// processes and what is on its way to the socket this stays within 4 MiB.
pub(crate) const TOTAL_REPLAY_BYTES: usize = 3 << 20;
/// What a stream may always keep, so that a full budget slows it down and never stops it.
const FLOOR_BYTES: usize = 4 << 10;

/// Memory that all replays share.
#[derive(Debug)]
pub(crate) struct Budget {
    free: AtomicUsize,
}

impl Budget {
    /// A budget of `bytes` in all.
    pub(crate) fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self {
            free: AtomicUsize::new(bytes),
        })
    }

    fn take(&self, bytes: usize) -> bool {
        self.free
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| {
                free.checked_sub(bytes)
            })
            .is_ok()
    }

    fn give(&self, bytes: usize) {
        self.free.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// The tail of one stream. `start()..end()` is what can be replayed.
#[derive(Debug)]
pub(crate) struct Replay {
    bytes: VecDeque<u8>,
    /// Offset of the first byte kept.
    start: u64,
    /// What of the capacity was taken from the budget.
    reserved: usize,
    budget: Arc<Budget>,
}

impl Replay {
    /// An empty replay that holds nothing until the first byte.
    pub(crate) fn new(budget: Arc<Budget>) -> Self {
        Self {
            bytes: VecDeque::new(),
            start: 0,
            reserved: 0,
            budget,
        }
    }

    /// Offset of the oldest byte that is kept.
    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    /// Offset behind the newest byte: the bytes of the stream in all.
    pub(crate) fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    /// How many bytes can be pushed without dropping one at or behind `unread`, the offset that
    /// the slowest reader has yet to see.
    pub(crate) fn room(&self, unread: u64) -> usize {
        let kept = self.end().saturating_sub(unread.max(self.start)) as usize;
        self.limit().saturating_sub(kept)
    }

    /// Appends; what does not fit any more is dropped from the front.
    pub(crate) fn push(&mut self, data: &[u8]) {
        self.grow(data.len());
        let limit = self.capacity();
        let data = if data.len() > limit {
            let skipped = data.len() - limit;
            self.start = self.end() + skipped as u64;
            self.bytes.clear();
            &data[skipped..]
        } else {
            let excess = (self.bytes.len() + data.len()).saturating_sub(limit);
            self.bytes.drain(..excess);
            self.start += excess as u64;
            data
        };
        self.bytes.extend(data);
    }

    /// At most `limit` bytes from `offset` on, as (offset of the first, bytes). An offset that is
    /// no longer kept is moved up to the oldest that is; one beyond the end yields nothing.
    pub(crate) fn read(&self, offset: u64, limit: usize) -> (u64, Bytes) {
        let offset = offset.max(self.start);
        if offset >= self.end() {
            return (offset, Bytes::new());
        }
        let from = (offset - self.start) as usize;
        let to = (from + limit).min(self.bytes.len());
        let (front, back) = self.bytes.as_slices();
        let mut out = Vec::with_capacity(to - from);
        if from < front.len() {
            out.extend_from_slice(&front[from..to.min(front.len())]);
        }
        if to > front.len() {
            out.extend_from_slice(&back[from.max(front.len()) - front.len()..to - front.len()]);
        }
        (offset, Bytes::from(out))
    }

    /// Gives back what is not in use; for a stream that has ended.
    pub(crate) fn shrink(&mut self) {
        self.bytes.shrink_to_fit();
        let needed = self.bytes.capacity().saturating_sub(FLOOR_BYTES);
        if needed < self.reserved {
            self.budget.give(self.reserved - needed);
            self.reserved = needed;
        }
    }

    /// Drops every byte, keeping the offsets.
    pub(crate) fn forget(&mut self) {
        self.start = self.end();
        self.bytes.clear();
        self.shrink();
    }

    fn capacity(&self) -> usize {
        FLOOR_BYTES + self.reserved
    }

    /// What the stream may come to hold: the whole 64 KiB while the budget still has the rest.
    fn limit(&self) -> usize {
        let rest = STREAM_REPLAY_BYTES - self.capacity();
        if rest <= self.budget.free.load(Ordering::Relaxed) {
            STREAM_REPLAY_BYTES
        } else {
            self.capacity()
        }
    }

    fn grow(&mut self, more: usize) {
        let wanted = self.bytes.len() + more;
        while self.capacity() < wanted && self.capacity() < STREAM_REPLAY_BYTES {
            let step = self.capacity().min(STREAM_REPLAY_BYTES - self.capacity());
            if !self.budget.take(step) {
                return;
            }
            self.reserved += step;
            self.bytes.reserve_exact(self.capacity() - self.bytes.len());
        }
    }
}

impl Drop for Replay {
    fn drop(&mut self) {
        self.budget.give(self.reserved);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_is_kept_and_addressed_by_offset() {
        let mut replay = Replay::new(Budget::new(TOTAL_REPLAY_BYTES));
        let data: Vec<u8> = (0..200_000u32).map(|n| (n % 251) as u8).collect();
        for chunk in data.chunks(7001) {
            replay.push(chunk);
        }
        assert_eq!(replay.end(), 200_000);
        assert_eq!(replay.start(), 200_000 - STREAM_REPLAY_BYTES as u64);
        let (offset, bytes) = replay.read(150_000, 100_000);
        assert_eq!((offset, &bytes[..]), (150_000, &data[150_000..]));
        let (offset, bytes) = replay.read(3, 10);
        let start = replay.start() as usize;
        assert_eq!(
            (offset, &bytes[..]),
            (start as u64, &data[start..start + 10])
        );
        assert!(replay.read(200_000, 10).1.is_empty());
    }

    #[test]
    fn a_full_budget_leaves_the_floor_and_what_is_dropped_comes_back() {
        let budget = Budget::new(64 << 10);
        let mut first = Replay::new(Arc::clone(&budget));
        first.push(&vec![1; 70_000]);
        let mut second = Replay::new(Arc::clone(&budget));
        second.push(&vec![2; 70_000]);
        assert_eq!(second.end() - second.start(), FLOOR_BYTES as u64 * 2);
        assert_eq!(second.end(), 70_000);
        drop(first);
        second.push(&vec![3; 70_000]);
        assert_eq!(second.end() - second.start(), STREAM_REPLAY_BYTES as u64);
        second.forget();
        assert_eq!((second.start(), second.end()), (140_000, 140_000));
        assert_eq!(budget.free.load(Ordering::Relaxed), 64 << 10);
    }

    #[test]
    fn there_is_room_only_for_what_the_slowest_reader_does_not_lose() {
        let mut replay = Replay::new(Budget::new(TOTAL_REPLAY_BYTES));
        replay.push(&vec![0; STREAM_REPLAY_BYTES]);
        assert_eq!(replay.room(0), 0);
        assert_eq!(replay.room(1000), 1000);
        assert_eq!(replay.room(replay.end()), STREAM_REPLAY_BYTES);
    }
}
