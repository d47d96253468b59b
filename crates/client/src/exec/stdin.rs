//! Stdin that has been sent but not yet acknowledged, kept so that a new stream can go on exactly
//! where the other side stopped taking it. Pure: it does no I/O.

use std::collections::VecDeque;

use bytes::Bytes;
use overwinter_api::v1;

/// The most that one message carries.
pub(super) const PIECE: usize = 64 << 10;
/// The most that is kept; more stays with the caller, who waits.
const WINDOW: u64 = 256 << 10;
/// The most pieces that are kept, so that a caller who sends single bytes is bounded too.
const PIECES: usize = 512;

#[derive(Debug, Default)]
pub(super) struct Stdin {
    /// Offset of the first byte of `pieces`: all before it is acknowledged.
    acknowledged: u64,
    /// Offset of the next byte to send on this stream.
    sent: u64,
    /// Offset behind the last byte of `pieces`.
    end: u64,
    pieces: VecDeque<Bytes>,
    closed: bool,
    eof_sent: bool,
}

impl Stdin {
    pub(super) fn has_room(&self) -> bool {
        !self.closed && self.end - self.acknowledged < WINDOW && self.pieces.len() < PIECES
    }

    pub(super) fn push(&mut self, piece: Bytes) {
        if !piece.is_empty() {
            self.end += piece.len() as u64;
            self.pieces.push_back(piece);
        }
    }

    /// No more will be pushed.
    pub(super) fn close(&mut self) {
        self.closed = true;
    }

    /// Everything before `offset` has been taken.
    pub(super) fn acknowledge(&mut self, offset: u64) {
        let offset = offset.min(self.end);
        while self.acknowledged < offset {
            let Some(first) = self.pieces.front_mut() else {
                break;
            };
            let taken = (offset - self.acknowledged).min(first.len() as u64);
            if taken == first.len() as u64 {
                self.pieces.pop_front();
            } else {
                let _ = first.split_to(taken as usize);
            }
            self.acknowledged += taken;
        }
        self.sent = self.sent.max(self.acknowledged);
    }

    /// A new stream begins, whose other side has taken everything before `offset`. `false`: it asks
    /// for bytes that it had acknowledged, which are no longer here.
    #[must_use]
    pub(super) fn rewind(&mut self, offset: u64) -> bool {
        if offset < self.acknowledged {
            return false;
        }
        self.acknowledge(offset);
        self.sent = self.acknowledged;
        self.eof_sent = false;
        true
    }

    /// The next message to send on this stream, if any.
    pub(super) fn take(&mut self) -> Option<v1::StdinData> {
        if self.eof_sent {
            return None;
        }
        let mut skip = self.sent - self.acknowledged;
        let unsent = self.pieces.iter().find_map(|piece| {
            if skip >= piece.len() as u64 {
                skip -= piece.len() as u64;
                return None;
            }
            Some(piece.slice(skip as usize..))
        });
        let offset = self.sent;
        let data = match unsent {
            Some(data) => data,
            None if self.closed => Bytes::new(),
            None => return None,
        };
        self.sent += data.len() as u64;
        let eof = self.closed && self.sent == self.end;
        self.eof_sent = eof;
        Some(v1::StdinData { offset, data, eof })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(stdin: &mut Stdin) -> Vec<(u64, String, bool)> {
        std::iter::from_fn(|| stdin.take())
            .map(|it| {
                let text = String::from_utf8(it.data.to_vec()).unwrap();
                (it.offset, text, it.eof)
            })
            .collect()
    }

    #[test]
    fn a_new_stream_gets_exactly_what_was_not_taken() {
        let mut stdin = Stdin::default();
        stdin.push(Bytes::from_static(b"hello "));
        stdin.push(Bytes::from_static(b"world"));
        assert_eq!(sent(&mut stdin).len(), 2);
        stdin.acknowledge(4);
        stdin.push(Bytes::from_static(b"!"));
        stdin.close();
        // It had taken more than it came to acknowledge before the stream broke.
        assert!(stdin.rewind(8));
        assert_eq!(
            sent(&mut stdin),
            [(8, "rld".into(), false), (11, "!".into(), true)]
        );
        assert!(stdin.rewind(12));
        assert_eq!(sent(&mut stdin), [(12, String::new(), true)]);
        assert!(!stdin.rewind(3));
    }

    #[test]
    fn the_window_bounds_what_is_kept_until_it_is_acknowledged() {
        let mut stdin = Stdin::default();
        while stdin.has_room() {
            stdin.push(Bytes::from(vec![0; PIECE]));
        }
        assert_eq!(stdin.end, WINDOW);
        stdin.acknowledge(1);
        assert!(stdin.has_room());
    }
}
