//! Receives a file's contents without copying them.
//!
//! The generated client would copy each frame into its buffer. Here the response's body takes the
//! data out before the client sees it, and leaves an empty message in its place for each piece: the
//! stream then puts the piece where it came from. All else of the call (other messages, the end,
//! errors) stays the library's.
//!
//! ```text
//!   wire:     | envelope, info |  envelope, tag 0x12, length | data, in whatever pieces … |
//!   library:  | envelope, info |  empty message a piece
//!   aside:                                                     data
//! ```

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes, BytesMut};
use connectrpc::ConnectError;
use connectrpc::client::{BoxFuture, ClientBody, ClientTransport};
use http::{Request, Response};
use http_body::{Body, Frame};
use hyper::body::Incoming;

use super::transport::Transport;

/// Of an envelope: flags and length.
const ENVELOPE: usize = 5;
/// The tag of `ReadFileResponse.data`: field 2, length-delimited.
const DATA_TAG: u8 = 2 << 3 | 2;
/// An uncompressed message of no bytes.
const EMPTY: [u8; ENVELOPE] = [0; ENVELOPE];

/// The data that was taken out, in its order.
#[derive(Clone, Default)]
pub(super) struct Aside(Arc<Mutex<VecDeque<Bytes>>>);

impl Aside {
    fn push(&self, piece: Bytes) {
        let mut pieces = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pieces.push_back(piece);
    }

    /// The piece in whose place an empty message came.
    pub(super) fn pop(&self) -> Option<Bytes> {
        let mut pieces = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pieces.pop_front()
    }
}

enum Part {
    /// Of a message, as far as it is needed to tell what it is.
    Head(BytesMut),
    Data {
        left: usize,
    },
    /// Of any other message: the library's.
    Other {
        left: usize,
    },
}

/// Takes the data out of a stream of enveloped messages.
struct Divert {
    part: Part,
    aside: Aside,
}

enum Kind {
    /// More of it must be seen.
    Unclear,
    Data {
        length: usize,
    },
    Other {
        length: usize,
    },
}

/// What a message is whose first bytes these are.
fn kind(head: &[u8]) -> Kind {
    let Some((envelope, message)) = head.split_at_checked(ENVELOPE) else {
        return Kind::Unclear;
    };
    let length = (&envelope[1..]).get_u32() as usize;
    let other = Kind::Other { length };
    if envelope[0] != 0 || length == 0 {
        return other;
    }
    let Some((&tag, digits)) = message.split_first() else {
        return Kind::Unclear;
    };
    if tag != DATA_TAG {
        return other;
    }
    let mut value = 0usize;
    // A length of five digits is as long as an envelope's.
    for (at, &digit) in digits.iter().enumerate().take(5) {
        value |= usize::from(digit & 0x7f) << (7 * at);
        if digit < 0x80 {
            // Whatever else is in the message is none of ours.
            return if 2 + at + value == length {
                Kind::Data { length: value }
            } else {
                other
            };
        }
    }
    // Cut short within its length: the library will say so.
    if digits.len() >= 5 || message.len() >= length {
        other
    } else {
        Kind::Unclear
    }
}

impl Divert {
    /// What the library is to see of these bytes.
    fn divert(&mut self, mut data: Bytes) -> Bytes {
        let mut seen = BytesMut::new();
        while !data.is_empty() {
            match &mut self.part {
                Part::Head(head) => {
                    head.extend_from_slice(&data.split_to(1));
                    match kind(head) {
                        Kind::Unclear => {}
                        Kind::Data { length: 0 } => {
                            self.take_out(Bytes::new(), &mut seen);
                            self.part = Part::Head(BytesMut::new());
                        }
                        Kind::Data { length } => self.part = Part::Data { left: length },
                        Kind::Other { length } => {
                            let left = ENVELOPE + length - head.len();
                            seen.extend_from_slice(head);
                            self.part = Part::Other { left };
                        }
                    }
                }
                Part::Data { left } => {
                    let piece = data.split_to((*left).min(data.len()));
                    *left -= piece.len();
                    self.take_out(piece, &mut seen);
                }
                Part::Other { left } => {
                    let piece = data.split_to((*left).min(data.len()));
                    *left -= piece.len();
                    seen.extend_from_slice(&piece);
                }
            }
            if let Part::Data { left: 0 } | Part::Other { left: 0 } = self.part {
                self.part = Part::Head(BytesMut::new());
            }
        }
        seen.freeze()
    }

    fn take_out(&self, piece: Bytes, seen: &mut BytesMut) {
        self.aside.push(piece);
        seen.extend_from_slice(&EMPTY);
    }
}

pub(super) struct DownloadBody {
    body: Incoming,
    divert: Divert,
}

impl Body for DownloadBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        Poll::Ready(frame.map(|frame| {
            frame.map(|frame| match frame.into_data() {
                Ok(data) => Frame::data(self.divert.divert(data)),
                Err(trailers) => trailers,
            })
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

/// The transport, for the one call whose data goes aside.
#[derive(Clone)]
pub(super) struct Downloading {
    pub(super) transport: Transport,
    pub(super) aside: Aside,
}

impl ClientTransport for Downloading {
    type ResponseBody = DownloadBody;
    type Error = ConnectError;

    fn send(
        &self,
        request: Request<ClientBody>,
    ) -> BoxFuture<'static, Result<Response<DownloadBody>, ConnectError>> {
        let response = self.transport.send(request);
        let aside = self.aside.clone();
        Box::pin(async move {
            Ok(response.await?.map(|body| DownloadBody {
                body,
                divert: Divert {
                    part: Part::Head(BytesMut::new()),
                    aside,
                },
            }))
        })
    }
}

#[cfg(test)]
mod tests {
    use buffa::Message as _;
    use bytes::BufMut as _;
    use overwinter_api::supervisor as wire;
    use wire::__buffa::oneof::read_file_response::Message;

    use super::*;

    fn enveloped(message: Message) -> Bytes {
        let encoded = wire::ReadFileResponse {
            message: Some(message),
        }
        .encode_to_bytes();
        let mut frame = BytesMut::new();
        frame.put_u8(0);
        frame.put_u32(encoded.len() as u32);
        frame.put(encoded);
        frame.freeze()
    }

    #[test]
    fn data_goes_aside_whole_and_the_rest_to_the_library_however_it_is_cut() {
        let info = enveloped(Message::from(wire::FileInfo {
            // A message of another kind that holds the data's tag.
            name: Bytes::from_static(&[DATA_TAG; 40]),
            size: 7,
            ..Default::default()
        }));
        let data: Vec<u8> = (0..40_000u32).map(|n| (n % 253) as u8).collect();
        let mut wire = BytesMut::from(&info[..]);
        for piece in [&data[..0], &data[..1], &data[1..200], &data[200..]] {
            wire.put(enveloped(Message::Data(Bytes::copy_from_slice(piece))));
        }
        let wire = wire.freeze();
        for cut in [1, 2, 3, 7, 64, 1000, wire.len()] {
            let aside = Aside::default();
            let mut divert = Divert {
                part: Part::Head(BytesMut::new()),
                aside: aside.clone(),
            };
            let mut seen = BytesMut::new();
            for piece in wire.chunks(cut) {
                seen.put(divert.divert(Bytes::copy_from_slice(piece)));
            }
            assert_eq!(seen[..info.len()], info[..], "{cut}");
            let mut back = Vec::new();
            let mut pieces = 0;
            while let Some(piece) = aside.pop() {
                back.extend_from_slice(&piece);
                pieces += 1;
            }
            assert!(back == data, "{cut}");
            assert_eq!(seen.len(), info.len() + pieces * ENVELOPE, "{cut}");
            assert!(seen[info.len()..].iter().all(|&byte| byte == 0), "{cut}");
        }
    }

    #[test]
    fn what_is_malformed_is_left_to_the_library() {
        for message in [
            &[DATA_TAG][..],
            &[DATA_TAG, 0x80],
            &[DATA_TAG, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
            // A length beyond the message, and one short of it.
            &[DATA_TAG, 9, 1],
            &[DATA_TAG, 1, 1, 1],
        ] {
            let mut wire = BytesMut::from(&[0, 0, 0, 0, message.len() as u8][..]);
            wire.extend_from_slice(message);
            wire.extend_from_slice(&enveloped(Message::Data(Bytes::from_static(b"good"))));
            let aside = Aside::default();
            let mut divert = Divert {
                part: Part::Head(BytesMut::new()),
                aside: aside.clone(),
            };
            let seen = divert.divert(wire.freeze());
            assert_eq!(seen[ENVELOPE..][..message.len()], *message);
            assert_eq!(aside.pop().as_deref(), Some(&b"good"[..]));
        }
    }
}
