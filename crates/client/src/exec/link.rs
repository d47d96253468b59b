//! One stream of an exec, and what its messages are.

use connectrpc::client::{BidiRecvHalf, ClientTransport};
use overwinter_api::v1;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use v1::__buffa::oneof::{exec_request, exec_response};

use crate::client::Client;
use crate::error::{Code, Error, Result, reason};
use crate::transport::Transport;

pub(super) type Request = exec_request::Message;
pub(super) type Response = exec_response::Message;

type Receiver = BidiRecvHalf<
    <Transport as ClientTransport>::ResponseBody,
    v1::__buffa::view::ExecResponseView<'static>,
>;

pub(super) struct Link {
    // Unbounded, so that sending never waits and so never keeps the session from receiving, which
    // is what the other side may be waiting for. What is in it is bounded by the stdin window.
    requests: mpsc::UnboundedSender<Request>,
    sender: AbortHandle,
    receiver: Receiver,
}

impl Link {
    pub(super) async fn open(client: &Client, first: Request) -> Result<Self> {
        let stream = client.rpc.processes.exec().await?;
        let (mut send, receiver) = stream.into_split();
        let (requests, mut queue) = mpsc::unbounded_channel();
        let sender = tokio::spawn(async move {
            while let Some(message) = queue.recv().await {
                let request = v1::ExecRequest {
                    message: Some(message),
                };
                // Why it failed is told by the receiving half.
                if send.send(request).await.is_err() {
                    return;
                }
            }
        })
        .abort_handle();
        let link = Self {
            requests,
            sender,
            receiver,
        };
        link.send(first);
        Ok(link)
    }

    pub(super) fn send(&self, message: impl Into<Request>) {
        // An error means that the stream is broken, which `receive` tells.
        let _ = self.requests.send(message.into());
    }

    /// The next message. Can be dropped and called again without losing anything.
    pub(super) async fn receive(&mut self) -> Result<Response> {
        match self.receiver.message().await {
            Ok(Some(message)) => {
                let message: v1::ExecResponse = message.to_owned_message();
                // A kind of message that this version does not know would come as none at all.
                message
                    .message
                    .ok_or_else(|| Error::protocol("an empty message in an exec"))
            }
            Ok(None) => Err(Error::new(
                Code::Unavailable,
                reason::CONNECTION_LOST,
                "the stream ended before the process did",
            )),
            Err(error) => Err(Error::from(error)),
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // Both halves must go for the stream to be cancelled, and the sender may be waiting for a
        // window that never opens.
        self.sender.abort();
    }
}
