//! The body of a file that is written or read: data is taken out of a stream of messages before the
//! library sees them, however the stream is cut.

#![no_main]

use libfuzzer_sys::fuzz_target;
use overwinter_api::content::fuzz::divert;

const LARGEST_MESSAGE: usize = 4096;

fuzz_target!(|input: &[u8]| {
    let Some((&piece, wire)) = input.split_first() else {
        return;
    };
    let piece = usize::from(piece).max(1);
    let whole = divert(wire, wire.len().max(1), LARGEST_MESSAGE);
    let cut = divert(wire, piece, LARGEST_MESSAGE);
    // The same data, in pieces of whatever size, and the same messages beside it.
    assert_eq!(whole.data, cut.data);
    assert_eq!(whole.messages, cut.messages);
    // Nothing comes of nothing.
    assert!(whole.data.len() + whole.messages.len() <= wire.len());
});
