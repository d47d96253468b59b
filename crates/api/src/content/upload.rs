//! The client's side of WriteFile: a few bytes of framing, then the caller's buffer itself.
//!
//! The library sees a transport that exchanges the body of the one request that it carries.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use connectrpc::ConnectError;
use connectrpc::client::{BoxFuture, ClientBody, ClientTransport};
use futures::stream::{BoxStream, Stream};
use http::{Request, Response};
use http_body::{Body, Frame};
use http_body_util::BodyExt as _;

use super::{ENVELOPE, MAX_HEAD, put_envelope, put_head};

/// What an upload sends.
#[derive(Debug)]
pub enum Part {
    Data(Bytes),
    /// Any other message; see [`enveloped`](super::enveloped).
    Message(Bytes),
}

/// The transport, for the one call whose body is made here. Call it with no messages at all.
#[derive(Clone)]
pub struct Upload<T> {
    transport: T,
    body: Arc<Mutex<Option<ClientBody>>>,
}

impl<T> Upload<T> {
    /// Sends `parts`. An error among them breaks the call off, so that what has arrived is not
    /// taken for all.
    pub fn new(
        transport: T,
        parts: impl Stream<Item = Result<Part, ConnectError>> + Send + 'static,
    ) -> Self {
        let body = UploadBody {
            data: None,
            parts: Mutex::new(Box::pin(parts)),
        };
        Self {
            transport,
            body: Arc::new(Mutex::new(Some(body.boxed()))),
        }
    }
}

impl<T: ClientTransport<Error = ConnectError>> ClientTransport for Upload<T> {
    type ResponseBody = T::ResponseBody;
    type Error = ConnectError;

    fn send(
        &self,
        request: Request<ClientBody>,
    ) -> BoxFuture<'static, Result<Response<T::ResponseBody>, ConnectError>> {
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

struct UploadBody {
    /// Whose head has been sent.
    data: Option<Bytes>,
    // A stream is Send and a body must be Sync; it is only ever reached through `&mut`.
    parts: Mutex<BoxStream<'static, Result<Part, ConnectError>>>,
}

impl Body for UploadBody {
    type Data = Bytes;
    type Error = ConnectError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ConnectError>>> {
        if let Some(data) = self.data.take() {
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        let parts = self.parts.get_mut().unwrap_or_else(PoisonError::into_inner);
        let frame = ready!(parts.as_mut().poll_next(cx)).map(|part| {
            part.map(|part| match part {
                Part::Data(data) => {
                    let head = data_head(data.len());
                    self.data = Some(data);
                    Frame::data(head)
                }
                Part::Message(message) => Frame::data(message),
            })
        });
        Poll::Ready(frame)
    }
}

/// What goes before that many bytes of data, so that both are one message in its envelope.
fn data_head(length: usize) -> Bytes {
    let mut tagged = BytesMut::with_capacity(MAX_HEAD);
    put_head(length, &mut tagged);
    let mut head = BytesMut::with_capacity(ENVELOPE + tagged.len());
    put_envelope(tagged.len() + length, &mut head);
    head.extend_from_slice(&tagged);
    head.freeze()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that fails says where")]
mod tests {
    use futures::FutureExt as _;

    use super::super::enveloped;
    use super::*;
    use crate::v1;

    fn body(parts: Vec<Result<Part, ConnectError>>) -> UploadBody {
        UploadBody {
            data: None,
            parts: Mutex::new(Box::pin(futures::stream::iter(parts))),
        }
    }

    #[test]
    fn the_body_is_the_generated_messages_and_holds_the_callers_buffer() {
        let data = Bytes::from(vec![7; 20_000]);
        let start = enveloped(&v1::WriteFileRequest {
            message: Some(v1::WriteFileStart::default().into()),
        });
        let mut expected = BytesMut::from(&start[..]);
        expected.extend_from_slice(&enveloped(&v1::WriteFileRequest {
            message: Some(v1::write_file_request::Message::Data(data.clone())),
        }));
        let mut body = body(vec![Ok(Part::Message(start)), Ok(Part::Data(data.clone()))]);
        let mut sent = BytesMut::new();
        let mut same = false;
        while let Some(frame) = body.frame().now_or_never().unwrap() {
            let frame = frame.unwrap().into_data().unwrap();
            same |= frame.as_ptr() == data.as_ptr();
            sent.extend_from_slice(&frame);
        }
        assert_eq!(sent, expected);
        assert!(same);
    }

    #[test]
    fn an_error_of_the_source_breaks_the_body_off() {
        let mut body = body(vec![Err(ConnectError::aborted("the source"))]);
        assert!(body.frame().now_or_never().unwrap().unwrap().is_err());
    }
}
