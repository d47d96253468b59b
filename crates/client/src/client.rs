//! The client: one connection, and a typed door to each service.

use std::path::PathBuf;
use std::sync::Arc;

use connectrpc::ConnectError;
use connectrpc::client::ClientConfig;
use overwinter_api::v1;

use crate::error::Result;
use crate::transport::Transport;

/// The largest message that an answer may be: a page of a thousand records fits with room.
const MAX_MESSAGE: usize = 32 << 20;

/// A handle on one gateway. Clones are cheap and share the connection.
///
/// Nothing is dialled until the first call. A connection that has broken is dialled again by the
/// next call; reads, and verbs (which carry an idempotency key), are tried once more by themselves.
#[derive(Clone)]
pub struct Client {
    pub(crate) rpc: Arc<Rpc>,
}

/// The generated clients, all over the same transport.
pub(crate) struct Rpc {
    pub(crate) sandboxes: v1::SandboxServiceClient<Transport>,
    pub(crate) operations: v1::OperationServiceClient<Transport>,
    pub(crate) processes: v1::ProcessServiceClient<Transport>,
    pub(crate) files: v1::FileServiceClient<Transport>,
    pub(crate) gateway: v1::GatewayServiceClient<Transport>,
    pub(crate) drivers: v1::DriverServiceClient<Transport>,
    pub(crate) transport: Transport,
    pub(crate) config: ClientConfig,
}

impl Client {
    /// A client of the gateway that listens on `socket` (see [`default_socket`]). Does no I/O.
    ///
    /// [`default_socket`]: crate::default_socket
    pub fn connect(socket: impl Into<PathBuf>) -> Self {
        let transport = Transport::new(socket.into());
        let config = ClientConfig::new(http::Uri::from_static("http://overwinter"))
            .with_default_max_message_size(MAX_MESSAGE);
        Self {
            rpc: Arc::new(Rpc {
                sandboxes: v1::SandboxServiceClient::new(transport.clone(), config.clone()),
                operations: v1::OperationServiceClient::new(transport.clone(), config.clone()),
                processes: v1::ProcessServiceClient::new(transport.clone(), config.clone()),
                files: v1::FileServiceClient::new(transport.clone(), config.clone()),
                gateway: v1::GatewayServiceClient::new(transport.clone(), config.clone()),
                drivers: v1::DriverServiceClient::new(transport.clone(), config.clone()),
                transport,
                config,
            }),
        }
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("transport", &self.rpc.transport)
            .finish_non_exhaustive()
    }
}

/// Makes a call that may be repeated, and repeats it once when the connection broke under it: what
/// a gateway that was restarted between two calls looks like from here.
pub(crate) async fn repeatable<T, Call, Answer>(mut call: Call) -> Result<T>
where
    Call: FnMut() -> Answer,
    Answer: Future<Output = Result<T, ConnectError>>,
{
    let first = match call().await {
        Ok(answer) => return Ok(answer),
        Err(error) => crate::Error::from(error),
    };
    if first.reason() != crate::reason::CONNECTION_LOST {
        return Err(first);
    }
    Ok(call().await?)
}
