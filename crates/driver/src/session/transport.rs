//! The generated client's way onto the one connection.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use connectrpc::ConnectError;
use connectrpc::client::{BoxFuture, ClientBody, ClientTransport};
use http::{Request, Response};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;

use super::link::Link;

/// Clones are cheap and use the same connection. It never dials.
#[derive(Clone, Debug)]
pub(super) struct Transport {
    sender: Arc<Held>,
    pub(super) link: Arc<Link>,
}

/// None: the connection has ended. The only sender: a request that is handed over while it ends lies
/// in a queue which nobody reads any more, and is given back when the last sender is dropped.
type Held = Mutex<Option<SendRequest<ClientBody>>>;

/// However the task ends that drives the connection. Weak: what is held keeps its connection going.
struct LetGo(Weak<Held>);

impl Drop for LetGo {
    fn drop(&mut self) {
        if let Some(held) = self.0.upgrade() {
            held.lock().unwrap_or_else(PoisonError::into_inner).take();
        }
    }
}

impl Transport {
    /// Drives `connection` until it ends: when the last clone is dropped, or the peer closes.
    pub(super) fn new(
        sender: SendRequest<ClientBody>,
        connection: impl Future + Send + 'static,
        link: Arc<Link>,
    ) -> Self {
        let sender = Arc::new(Mutex::new(Some(sender)));
        let let_go = LetGo(Arc::downgrade(&sender));
        tokio::spawn(async move {
            let _let_go = let_go;
            // Its end is told by the link, and its error by each call that it cuts short.
            connection.await;
        });
        Self { sender, link }
    }

    fn is_closed(&self) -> bool {
        let sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        sender.as_ref().is_none_or(SendRequest::is_closed)
    }

    /// Whether calls fail because of the connection and not because of what they ask.
    pub(super) fn is_broken(&self) -> bool {
        self.link.is_broken() || self.is_closed()
    }
}

impl ClientTransport for Transport {
    type ResponseBody = Incoming;
    type Error = ConnectError;

    fn send(
        &self,
        request: Request<ClientBody>,
    ) -> BoxFuture<'static, Result<Response<Self::ResponseBody>, ConnectError>> {
        let sent = {
            let mut sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
            sender.as_mut().map(|sender| sender.send_request(request))
        };
        Box::pin(async move {
            let ended = || ConnectError::unavailable("the supervisor's connection has ended");
            let mut response = sent.ok_or_else(ended)?.await.map_err(|error| {
                ConnectError::unavailable_from_transport(
                    "the supervisor's connection failed",
                    error,
                )
            })?;
            // The library's server puts an error's status into the headers as well as into the
            // trailers, and its client then takes the headers' word and never reads the details in
            // the trailers. With more to come, only the trailers count.
            if !response.body().is_end_stream() {
                for name in ["grpc-status", "grpc-message"] {
                    response.headers_mut().remove(name);
                }
            }
            Ok(response)
        })
    }
}
