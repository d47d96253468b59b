//! A door for the fuzzer; not part of any build but its own.

use bytes::{Buf as _, Bytes, BytesMut};

use super::ENVELOPE;
use super::divert::{Aside, Divert};

/// What comes of a stream of messages.
#[derive(Debug)]
pub struct Diverted {
    /// What went aside.
    pub data: Vec<u8>,
    /// What the library saw, without the empty messages that stand for data.
    pub messages: Vec<u8>,
}

/// Takes the data out of `wire`, which arrives in pieces.
pub fn divert(wire: &[u8], piece: usize, largest_message: usize) -> Diverted {
    let aside = Aside::default();
    let mut divert = Divert::new(&aside, largest_message);
    let mut seen = BytesMut::new();
    for piece in wire.chunks(piece) {
        seen.extend_from_slice(&divert.divert(Bytes::copy_from_slice(piece)));
    }
    let mut data = Vec::new();
    while let Some(piece) = aside.pop() {
        data.extend_from_slice(&piece);
    }
    let mut messages = Vec::new();
    let mut seen = seen.freeze();
    while seen.len() >= ENVELOPE {
        let length = (&seen[1..ENVELOPE]).get_u32() as usize;
        let message = seen.split_to((ENVELOPE + length).min(seen.len()));
        if message.iter().any(|&byte| byte != 0) {
            messages.extend_from_slice(&message);
        }
    }
    messages.extend_from_slice(&seen);
    Diverted { data, messages }
}
