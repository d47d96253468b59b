//! Sends a file's contents without copying them.
//!
//! The generated client would copy each message twice, into its encoding and into its envelope.
//! Here the request's body is made by hand: a few bytes of framing, then the caller's buffer itself.
//! All else of the call stays the library's.
//!
//! ```text
//!   | flags u8 = 0 | length u32 BE | tag 0x12 | length varint | the caller's bytes … |
//!   '--------- envelope ----------'--- WriteFileRequest.data = 2 ------------------'
//! ```

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use buffa::Message as _;
use bytes::{BufMut as _, Bytes, BytesMut};
use connectrpc::ConnectError;
use connectrpc::client::{BoxFuture, ClientBody, ClientTransport};
use futures::stream::BoxStream;
use http::{Request, Response};
use http_body::{Body, Frame};
use http_body_util::BodyExt as _;
use overwinter_api::supervisor as wire;
use wire::__buffa::oneof::write_file_request::Message as Part;

use super::transport::Transport;

/// The tag of `WriteFileRequest.data`: field 2, length-delimited.
const DATA_TAG: u8 = 2 << 3 | 2;

struct UploadBody {
    frames: VecDeque<Bytes>,
    // A stream is Send and a body must be Sync; it is only ever reached through `&mut`.
    input: Mutex<BoxStream<'static, wire::WriteFileRequest>>,
}

impl Body for UploadBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        loop {
            if let Some(frame) = self.frames.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(frame))));
            }
            let input = self.input.get_mut().unwrap_or_else(PoisonError::into_inner);
            match ready!(input.as_mut().poll_next(cx)) {
                Some(wire::WriteFileRequest {
                    message: Some(Part::Data(data)),
                }) => {
                    let head = data_head(&data);
                    self.frames.extend([head, data]);
                }
                Some(message) => self.frames.push_back(enveloped(&message)),
                None => return Poll::Ready(None),
            }
        }
    }
}

fn enveloped(message: &wire::WriteFileRequest) -> Bytes {
    let encoded = message.encode_to_bytes();
    let mut frame = BytesMut::with_capacity(5 + encoded.len());
    frame.put_u8(0);
    frame.put_u32(encoded.len() as u32);
    frame.put(encoded);
    frame.freeze()
}

/// What goes before `data` so that both are one message in its envelope.
fn data_head(data: &Bytes) -> Bytes {
    let mut tagged = [0; 11];
    tagged[0] = DATA_TAG;
    let mut at = 1;
    let mut left = data.len();
    while left >= 0x80 {
        tagged[at] = left as u8 | 0x80;
        left >>= 7;
        at += 1;
    }
    tagged[at] = left as u8;
    let tagged = &tagged[..=at];
    let mut head = BytesMut::with_capacity(5 + tagged.len());
    head.put_u8(0);
    head.put_u32((tagged.len() + data.len()) as u32);
    head.put_slice(tagged);
    head.freeze()
}

/// The transport, for the one call whose body is made here.
#[derive(Clone)]
pub(super) struct WithBody {
    transport: Transport,
    body: Arc<Mutex<Option<ClientBody>>>,
}

impl WithBody {
    pub(super) fn new(
        transport: Transport,
        input: BoxStream<'static, wire::WriteFileRequest>,
    ) -> Self {
        let body = UploadBody {
            frames: VecDeque::new(),
            input: Mutex::new(input),
        };
        let body = body.map_err(|never| match never {}).boxed();
        Self {
            transport,
            body: Arc::new(Mutex::new(Some(body))),
        }
    }
}

impl ClientTransport for WithBody {
    type ResponseBody = <Transport as ClientTransport>::ResponseBody;
    type Error = ConnectError;

    fn send(
        &self,
        request: Request<ClientBody>,
    ) -> BoxFuture<'static, Result<Response<Self::ResponseBody>, ConnectError>> {
        let body = self
            .body
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let Some(body) = body else {
            return Box::pin(std::future::ready(Err(ConnectError::internal(
                "an upload is sent once",
            ))));
        };
        let (head, _) = request.into_parts();
        self.transport.send(Request::from_parts(head, body))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_framing_by_hand_is_the_generated_one() {
        for length in [0, 1, 127, 128, 16_383, 16_384, 1 << 20] {
            let data = Bytes::from(vec![7; length]);
            let mut ours = BytesMut::from(&data_head(&data)[..]);
            ours.extend_from_slice(&data);
            let message = wire::WriteFileRequest {
                message: Some(Part::Data(data)),
            };
            assert_eq!(ours.freeze(), enveloped(&message), "{length}");
        }
    }
}
