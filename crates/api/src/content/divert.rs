//! Takes the data out of a body before the library sees it, and leaves an empty message in its place
//! for each piece: whoever reads the messages then puts the piece where it came from.
//!
//! ```text
//!   wire:     | envelope, info |  envelope, tag 0x12, length | data, in whatever pieces … |
//!   library:  | envelope, info |  empty message a piece
//!   aside:                                                     data
//! ```
//!
//! A piece is as long as it arrived, so the messages are cut anew at each hop.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes, BytesMut};
#[cfg(feature = "client")]
use connectrpc::ConnectError;
#[cfg(feature = "client")]
use connectrpc::client::{BoxFuture, ClientBody, ClientTransport};
use http::Request;
#[cfg(feature = "client")]
use http::Response;
use http::header::CONTENT_TYPE;
use http_body::{Body, Frame};

use super::{DATA_TAG, ENVELOPE};

/// An uncompressed message of no bytes.
const EMPTY: [u8; ENVELOPE] = [0; ENVELOPE];
/// The forms in which a message is enveloped protobuf.
const BINARY: [&[u8]; 3] = [
    b"application/grpc",
    b"application/grpc+proto",
    b"application/connect+proto",
];

type Pieces = Mutex<VecDeque<Bytes>>;

/// The data that was taken out, in its order. It holds no more than a few frames: the library reads
/// on only when the message that stands for the last piece has been taken. Once it is dropped, data
/// goes to the library again, which then counts what it drains.
#[derive(Clone, Debug, Default)]
pub struct Aside(Arc<Pieces>);

impl Aside {
    /// The piece in whose place a message without anything in it came. None: it was sent so.
    #[must_use]
    pub fn pop(&self) -> Option<Bytes> {
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
pub(super) struct Divert {
    part: Part,
    /// Of whoever reads the messages.
    aside: Weak<Pieces>,
    /// A longer message is left to the library, which refuses it.
    max_message: usize,
}

enum Kind {
    /// More of it must be seen.
    Unclear,
    Data {
        length: usize,
    },
    Other,
}

/// What a message is whose first bytes these are.
fn kind(head: &[u8]) -> Kind {
    let Some((envelope, message)) = head.split_at_checked(ENVELOPE) else {
        return Kind::Unclear;
    };
    let length = (&envelope[1..]).get_u32() as usize;
    if envelope[0] != 0 || length == 0 {
        return Kind::Other;
    }
    let Some((&tag, digits)) = message.split_first() else {
        return Kind::Unclear;
    };
    if tag != DATA_TAG {
        return Kind::Other;
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
                Kind::Other
            };
        }
    }
    // Cut short within its length: the library will say so.
    if digits.len() >= 5 || message.len() >= length {
        Kind::Other
    } else {
        Kind::Unclear
    }
}

impl Divert {
    pub(super) fn new(aside: &Aside, max_message: usize) -> Self {
        Self {
            part: Part::Head(BytesMut::new()),
            aside: Arc::downgrade(&aside.0),
            max_message,
        }
    }

    /// What the library is to see of these bytes.
    pub(super) fn divert(&mut self, mut data: Bytes) -> Bytes {
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
                        Kind::Data { length } if length <= self.max_message => {
                            self.part = Part::Data { left: length };
                        }
                        Kind::Data { .. } | Kind::Other => {
                            let length = (&head[1..ENVELOPE]).get_u32() as usize;
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
        let Some(aside) = self.aside.upgrade() else {
            // Nobody reads the messages any more. What this is does not matter, only how much.
            seen.extend_from_slice(&piece);
            return;
        };
        let mut pieces = aside.lock().unwrap_or_else(PoisonError::into_inner);
        pieces.push_back(piece);
        seen.extend_from_slice(&EMPTY);
    }
}

/// A body whose data goes aside, where it is to.
pub struct DivertedBody<B> {
    body: B,
    divert: Option<Divert>,
}

impl<B: Body<Data = Bytes> + Unpin> Body for DivertedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        Poll::Ready(frame.map(|frame| {
            frame.map(|frame| match (frame.into_data(), &mut self.divert) {
                (Ok(data), Some(divert)) => Frame::data(divert.divert(data)),
                (Ok(data), None) => Frame::data(data),
                (Err(trailers), _) => trailers,
            })
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

/// Takes the data out of a request to `path`, where its messages are binary. The handler finds the
/// [`Aside`] in the request's extensions; where it finds none, the data is in the messages.
pub fn take_aside<B>(
    mut request: Request<B>,
    path: &str,
    max_message: usize,
) -> Request<DivertedBody<B>> {
    let binary = request
        .headers()
        .get(CONTENT_TYPE)
        .is_some_and(|kind| BINARY.contains(&kind.as_bytes()));
    let divert = if binary && request.uri().path() == path {
        let aside = Aside::default();
        let divert = Divert::new(&aside, max_message);
        request.extensions_mut().insert(aside);
        Some(divert)
    } else {
        None
    };
    request.map(|body| DivertedBody { body, divert })
}

/// The transport, for the one call whose response's data goes aside.
#[cfg(feature = "client")]
#[derive(Clone)]
pub struct Download<T> {
    pub transport: T,
    pub aside: Aside,
    pub max_message: usize,
}

#[cfg(feature = "client")]
impl<T> ClientTransport for Download<T>
where
    T: ClientTransport<Error = ConnectError>,
    T::ResponseBody: Unpin,
{
    type ResponseBody = DivertedBody<T::ResponseBody>;
    type Error = ConnectError;

    fn send(
        &self,
        request: Request<ClientBody>,
    ) -> BoxFuture<'static, Result<Response<Self::ResponseBody>, ConnectError>> {
        let response = self.transport.send(request);
        let divert = Divert::new(&self.aside, self.max_message);
        Box::pin(async move {
            Ok(response.await?.map(|body| DivertedBody {
                body,
                divert: Some(divert),
            }))
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that fails says where")]
mod tests {
    use bytes::BufMut as _;
    use wire::__buffa::oneof::read_file_response::Message;

    use super::super::enveloped;
    use super::*;
    use crate::supervisor as wire;

    const LIMIT: usize = 1 << 20;

    fn response(message: Message) -> Bytes {
        enveloped(&wire::ReadFileResponse {
            message: Some(message),
        })
    }

    #[test]
    fn data_goes_aside_whole_and_the_rest_to_the_library_however_it_is_cut() {
        let info = response(Message::from(wire::FileInfo {
            // A message of another kind that holds the data's tag.
            name: Bytes::from_static(&[DATA_TAG; 40]),
            size: 7,
            ..Default::default()
        }));
        let data: Vec<u8> = (0..40_000u32).map(|n| (n % 253) as u8).collect();
        let mut wire = BytesMut::from(&info[..]);
        for piece in [&data[..0], &data[..1], &data[1..200], &data[200..]] {
            wire.put(response(Message::Data(Bytes::copy_from_slice(piece))));
        }
        let wire = wire.freeze();
        for cut in [1, 2, 3, 7, 64, 1000, wire.len()] {
            let aside = Aside::default();
            let mut divert = Divert::new(&aside, LIMIT);
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
    fn what_nobody_would_take_and_what_is_too_long_stay_with_the_library() {
        let data = response(Message::Data(Bytes::from(vec![7; 1000])));
        let aside = Aside::default();
        let mut short = Divert::new(&aside, 999);
        assert_eq!(short.divert(data.clone()), data);
        assert_eq!(aside.pop(), None);
        let mut late = Divert::new(&aside, LIMIT);
        drop(aside);
        assert!(late.divert(data).len() >= 1000);
    }

    #[test]
    fn only_binary_messages_of_that_path_go_aside() {
        for (path, kind, diverted) in [
            ("/write", Some("application/grpc"), true),
            ("/write", Some("application/connect+proto"), true),
            ("/write", Some("application/connect+json"), false),
            ("/write", None, false),
            ("/read", Some("application/grpc"), false),
        ] {
            let mut request = Request::builder().uri(path);
            if let Some(kind) = kind {
                request = request.header(CONTENT_TYPE, kind);
            }
            let request = take_aside(request.body(()).unwrap(), "/write", LIMIT);
            assert_eq!(request.body().divert.is_some(), diverted, "{path} {kind:?}");
            let aside = request.extensions().get::<Aside>();
            assert_eq!(aside.is_some(), diverted, "{path} {kind:?}");
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
            wire.extend_from_slice(&response(Message::Data(Bytes::from_static(b"good"))));
            let aside = Aside::default();
            let mut divert = Divert::new(&aside, LIMIT);
            let seen = divert.divert(wire.freeze());
            assert_eq!(seen[ENVELOPE..][..message.len()], *message);
            assert_eq!(aside.pop().as_deref(), Some(&b"good"[..]));
        }
    }
}
