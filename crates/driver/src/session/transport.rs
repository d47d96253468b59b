//! The generated client's way onto the one connection.

use std::sync::Arc;

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
    pub(super) sender: SendRequest<ClientBody>,
    pub(super) link: Arc<Link>,
}

impl Transport {
    /// Whether calls fail because of the connection and not because of what they ask.
    pub(super) fn is_broken(&self) -> bool {
        self.link.is_broken() || self.sender.is_closed()
    }
}

impl ClientTransport for Transport {
    type ResponseBody = Incoming;
    type Error = ConnectError;

    fn send(
        &self,
        request: Request<ClientBody>,
    ) -> BoxFuture<'static, Result<Response<Incoming>, ConnectError>> {
        let response = self.sender.clone().send_request(request);
        Box::pin(async move {
            let mut response = response.await.map_err(|error| {
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
