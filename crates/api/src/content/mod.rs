//! File contents on the wire, without copying them: for both ends of both APIs.
//!
//! The generated code copies each message into its encoding, and each frame that arrives into a
//! buffer of its own. A file's contents are nearly all of a call's bytes, so here they take another
//! way, and all else of the call (headers, deadline, other messages, answer, errors) stays the
//! library's.
//!
//! | way            | side   | who                        | how                                       |
//! | -------------- | ------ | -------------------------- | ----------------------------------------- |
//! | [`Upload`]     | client | SDK, gateway               | a request body made by hand               |
//! | [`Download`]   | client | gateway                    | data taken out of a response's body       |
//! | [`take_aside`] | server | gateway, supervisor        | data taken out of a request's body        |
//! | [`Item`]       | server | gateway, supervisor        | an encoded message that refers to its data |
//!
//! All rest on one fact of both APIs: a message of contents holds its data, and nothing else, as
//! field 2.
//!
//! ```text
//!   | flags u8 = 0 | length u32 BE | tag 0x12 | length varint | data … |
//!   '--------- envelope ----------'------------ message -------------'
//! ```

mod divert;
#[cfg(fuzzing)]
pub mod fuzz;
#[cfg(feature = "client")]
mod upload;

use buffa::Message;
use bytes::{BufMut as _, Bytes, BytesMut};
use connectrpc::{CodecFormat, ConnectError, Encodable, EncodedBody};

#[cfg(feature = "client")]
pub use divert::Download;
pub use divert::{Aside, DivertedBody, take_aside};
#[cfg(feature = "client")]
pub use upload::{Part, Upload};

use crate::{supervisor, v1};

/// Of an envelope: flags and length.
const ENVELOPE: usize = 5;
/// The tag of `data` in all four messages: field 2, length-delimited.
const DATA_TAG: u8 = 2 << 3 | 2;
/// Of the tag and a length: as many digits as a length of 64 bits may have.
const MAX_HEAD: usize = 11;

/// One message of a download.
pub enum Item<M> {
    /// Goes to the socket as it is.
    Data(Bytes),
    Message(M),
}

/// A message that can hold contents.
pub trait Contents {
    fn of(data: Bytes) -> Self;
}

impl Contents for v1::ReadFileResponse {
    fn of(data: Bytes) -> Self {
        Self {
            message: Some(v1::read_file_response::Message::Data(data)),
        }
    }
}

impl Contents for supervisor::ReadFileResponse {
    fn of(data: Bytes) -> Self {
        Self {
            message: Some(supervisor::read_file_response::Message::Data(data)),
        }
    }
}

impl<M: Contents + Encodable<M>> Encodable<M> for Item<M> {
    fn encode(&self, codec: CodecFormat) -> Result<Bytes, ConnectError> {
        self.encode_segments(codec)
            .map(EncodedBody::into_contiguous)
    }

    fn encode_segments(&self, codec: CodecFormat) -> Result<EncodedBody, ConnectError> {
        match (self, codec) {
            (Self::Data(data), CodecFormat::Proto) => Ok(segments(data.clone())),
            (Self::Data(data), _) => M::of(data.clone()).encode_segments(codec),
            (Self::Message(message), _) => message.encode_segments(codec),
        }
    }
}

/// A message of contents, encoded: what goes before `data`, then `data` itself.
fn segments(data: Bytes) -> EncodedBody {
    let mut head = BytesMut::with_capacity(MAX_HEAD);
    put_head(data.len(), &mut head);
    EncodedBody::from_segments(vec![head.freeze(), data])
}

/// A whole message in its envelope.
#[must_use]
pub fn enveloped(message: &impl Message) -> Bytes {
    let encoded = message.encode_to_bytes();
    let mut frame = BytesMut::with_capacity(ENVELOPE + encoded.len());
    put_envelope(encoded.len(), &mut frame);
    frame.put(encoded);
    frame.freeze()
}

fn put_envelope(length: usize, into: &mut BytesMut) {
    into.put_u8(0);
    // A message of more than 4 GiB is refused long before by every limit there is.
    into.put_u32(length as u32);
}

fn put_head(mut length: usize, into: &mut BytesMut) {
    into.put_u8(DATA_TAG);
    while length >= 0x80 {
        into.put_u8(length as u8 | 0x80);
        length >>= 7;
    }
    into.put_u8(length as u8);
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that fails says where")]
mod tests {
    use super::*;

    #[test]
    fn the_encoding_by_hand_is_the_generated_one_of_all_four_messages() {
        for length in [0, 1, 127, 128, 16_383, 16_384, 1 << 20] {
            let data = Bytes::from(vec![7; length]);
            let ours = segments(data.clone()).into_contiguous();
            for generated in [
                v1::WriteFileRequest {
                    message: Some(v1::write_file_request::Message::Data(data.clone())),
                }
                .encode_to_bytes(),
                v1::ReadFileResponse {
                    message: Some(v1::read_file_response::Message::Data(data.clone())),
                }
                .encode_to_bytes(),
                supervisor::WriteFileRequest {
                    message: Some(supervisor::write_file_request::Message::Data(data.clone())),
                }
                .encode_to_bytes(),
                supervisor::ReadFileResponse {
                    message: Some(supervisor::read_file_response::Message::Data(data.clone())),
                }
                .encode_to_bytes(),
            ] {
                assert_eq!(ours, generated, "{length}");
            }
        }
    }
}
