//! Sends a file's contents without copying them.
//!
//! The generated client copies each message twice, into the message's encoding and into its
//! envelope. Here the request body is made by hand: a few bytes of framing, then the caller's
//! buffer itself. All else of the call (headers, deadline, answer, errors) stays the library's,
//! which sees a transport that exchanges the body of the one request that it carries.
//!
//! ```text
//!   | flags u8 = 0 | length u32 BE | tag 0x12 | length varint | the caller's bytes … |
//!   '--------- envelope ----------'--- WriteFileRequest.data = 2 ------------------'
//! ```

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use buffa::Message as _;
use bytes::{BufMut as _, Bytes, BytesMut};
use connectrpc::ConnectError;
use connectrpc::client::{BoxFuture, ClientBody, ClientTransport};
use futures::ready;
use http::{Request, Response};
use http_body::{Body, Frame};
use http_body_util::BodyExt as _;
use overwinter_api::v1;
use tokio::sync::mpsc;
use v1::__buffa::oneof::write_file_request::Message as Part;

use crate::client::Client;
use crate::error::{Error, Result};
use crate::transport::Transport;

/// The tag of `WriteFileRequest.data`: field 2, length-delimited.
const DATA_TAG: u8 = 2 << 3 | 2;

/// What the source of an upload sends. A source that ends without `End` aborts the upload, and the
/// old file stays.
#[derive(Debug)]
pub(crate) enum Piece {
    Data(Bytes),
    End,
}

/// Carries out one WriteFile.
pub(crate) async fn upload(
    client: &Client,
    start: v1::WriteFileStart,
    pieces: mpsc::Receiver<Piece>,
) -> Result<v1::WriteFileResponse> {
    let body = UploadBody {
        frames: VecDeque::from([message(Part::from(start))]),
        pieces,
        ended: false,
    };
    let transport = WithBody {
        transport: client.rpc.transport.clone(),
        body: Arc::new(Mutex::new(Some(body.boxed()))),
    };
    let answer = v1::FileServiceClient::new(transport, client.rpc.config.clone())
        .write_file(futures::stream::empty())
        .await
        .map_err(Error::from_stream)?;
    Ok(answer.into_owned())
}

/// A whole message in its envelope.
fn message(part: Part) -> Bytes {
    let message = v1::WriteFileRequest {
        message: Some(part),
    };
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

struct UploadBody {
    frames: VecDeque<Bytes>,
    pieces: mpsc::Receiver<Piece>,
    ended: bool,
}

impl Body for UploadBody {
    type Data = Bytes;
    type Error = ConnectError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ConnectError>>> {
        loop {
            if let Some(frame) = self.frames.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(frame))));
            }
            if self.ended {
                return Poll::Ready(None);
            }
            match ready!(self.pieces.poll_recv(cx)) {
                Some(Piece::Data(data)) => {
                    let head = data_head(&data);
                    self.frames.extend([head, data]);
                }
                Some(Piece::End) => {
                    self.ended = true;
                    let end = message(Part::from(v1::WriteFileEnd::default()));
                    self.frames.push_back(end);
                }
                None => {
                    self.ended = true;
                    return Poll::Ready(Some(Err(ConnectError::aborted(
                        "the upload's source ended early",
                    ))));
                }
            }
        }
    }
}

/// The transport, for one call whose body is made here.
#[derive(Clone)]
struct WithBody {
    transport: Transport,
    body: Arc<Mutex<Option<ClientBody>>>,
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
            assert_eq!(ours.freeze(), message(Part::Data(data)), "{length}");
        }
    }
}
