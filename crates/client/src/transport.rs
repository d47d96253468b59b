//! One HTTP/2 connection to the gateway's Unix socket, dialled when first needed and again when it
//! has broken.
//!
//! Ours rather than the library's, for three things that it hides: the error of a socket that
//! nobody serves (which becomes `GATEWAY_UNREACHABLE`, with what to do), a request that was never
//! sent on a connection that had just closed (which is sent on a new one), and the frame size.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use connectrpc::client::{BoxFuture, ClientBody, ClientTransport};
use connectrpc::{ConnectError, ErrorDetail};
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use overwinter_api::rpc::ErrorInfo;
use tokio::net::UnixStream;

use crate::error::reason;

/// Small for a stream and large for the connection: a reader that stands still must cost only
/// itself, so the connection's window has room for many streams that are full.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 64 << 20;
/// Fewer, larger frames: file contents come in messages of 1 MiB.
const FRAME: u32 = 1 << 20;
const SEND_BUFFER: usize = 2 << 20;

/// Where the gateway listens unless told otherwise: `$XDG_RUNTIME_DIR/overwinter/gateway.sock` for
/// a user who has such a folder and is not root, else `/run/overwinter/gateway.sock`.
pub fn default_socket() -> PathBuf {
    // A path that is not absolute counts as unset: XDG Base Directory Specification.
    let base = std::env::var_os("XDG_RUNTIME_DIR")
        .map(PathBuf::from)
        .filter(|dir| dir.is_absolute() && !rustix::process::geteuid().is_root())
        .unwrap_or_else(|| PathBuf::from("/run"));
    base.join("overwinter/gateway.sock")
}

/// A shared handle on the connection; clones are cheap and use the same one.
#[derive(Clone, Debug)]
pub(crate) struct Transport {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    socket: PathBuf,
    sender: Held,
    /// Held while dialling: callers that meet then wait for one dial.
    dialling: tokio::sync::Mutex<()>,
}

/// The only sender that outlives the hand-over of a request, and let go of when its connection has
/// ended. A request that is handed over in that moment lies in a queue which nobody reads any more,
/// and is given back when the last sender is dropped: a call that kept one would wait for ever.
#[derive(Debug, Default)]
struct Held(Mutex<Option<SendRequest<ClientBody>>>);

impl Held {
    fn lock(&self) -> MutexGuard<'_, Option<SendRequest<ClientBody>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self) -> Option<SendRequest<ClientBody>> {
        let sender = self.lock();
        sender
            .as_ref()
            .filter(|sender| !sender.is_closed())
            .cloned()
    }
}

/// However the task ends that drives the connection. Weak: what is held keeps its connection going.
struct LetGo(Weak<Inner>);

impl Drop for LetGo {
    fn drop(&mut self) {
        if let Some(inner) = self.0.upgrade() {
            // Another may have been dialled already.
            inner.sender.lock().take_if(|sender| sender.is_closed());
        }
    }
}

impl Transport {
    pub(crate) fn new(socket: PathBuf) -> Self {
        Self {
            inner: Arc::new(Inner {
                socket,
                sender: Held::default(),
                dialling: tokio::sync::Mutex::default(),
            }),
        }
    }

    async fn sender(&self) -> Result<SendRequest<ClientBody>, ConnectError> {
        if let Some(sender) = self.inner.sender.open() {
            return Ok(sender);
        }
        let _dialling = self.inner.dialling.lock().await;
        if let Some(sender) = self.inner.sender.open() {
            return Ok(sender);
        }
        let (sender, connection) = dial(&self.inner.socket).await?;
        *self.inner.sender.lock() = Some(sender.clone());
        let let_go = LetGo(Arc::downgrade(&self.inner));
        tokio::spawn(async move {
            let _let_go = let_go;
            // It ends when the last sender is dropped or the peer closes; its error reaches each
            // call that it cuts short, so there is nobody else to tell.
            let _ = connection.await;
        });
        Ok(sender)
    }

    async fn forward(
        self,
        request: Request<ClientBody>,
    ) -> Result<Response<Incoming>, ConnectError> {
        let unsent = match self.attempt(request).await? {
            Attempt::Answered(response) => return Ok(response),
            // The connection closed before a byte of the request was sent, so sending it on a new
            // one cannot do it twice.
            Attempt::Unsent(request, _) => request,
        };
        match self.attempt(unsent).await? {
            Attempt::Answered(response) => Ok(response),
            Attempt::Unsent(_, error) => Err(broke(error)),
        }
    }

    async fn attempt(&self, request: Request<ClientBody>) -> Result<Attempt, ConnectError> {
        // The sender is dropped here: see `Held`.
        let sent = self.sender().await?.try_send_request(request);
        match sent.await {
            Ok(response) => Ok(Attempt::Answered(response)),
            Err(mut failed) => match failed.take_message() {
                Some(unsent) => Ok(Attempt::Unsent(unsent, failed.into_error())),
                None => Err(broke(failed.into_error())),
            },
        }
    }
}

enum Attempt {
    Answered(Response<Incoming>),
    Unsent(Request<ClientBody>, hyper::Error),
}

fn broke(error: hyper::Error) -> ConnectError {
    ConnectError::unavailable_from_transport("the connection to the gateway broke", error)
}

const NOT_THERE: &str = "start it with `overwinter gateway run`, or name its socket with --socket or \
     OVERWINTER_SOCKET";
/// Whoever reaches the socket may do everything, so it is its owner's alone.
const NOT_PERMITTED: &str = "its socket is for the user who runs the gateway: become that user (for the \
     system's, `sudo`), or run one of your own with `overwinter gateway run` and name its socket \
     with --socket or OVERWINTER_SOCKET";

/// What the kernel takes as the address of a Unix socket, in bytes.
const LONGEST_PATH: usize = 107;
const SHORTER: &str =
    "name a shorter one with --socket or OVERWINTER_SOCKET, which may be a link to it";

type Connection = http2::Connection<TokioIo<UnixStream>, ClientBody, TokioExecutor>;

async fn dial(socket: &Path) -> Result<(SendRequest<ClientBody>, Connection), ConnectError> {
    let bytes = socket.as_os_str().len();
    if bytes > LONGEST_PATH {
        return Err(too_long(bytes));
    }
    let stream = UnixStream::connect(socket).await.map_err(|error| {
        let next = match error.kind() {
            io::ErrorKind::PermissionDenied => NOT_PERMITTED,
            _ => NOT_THERE,
        };
        unreachable(socket, error, next)
    })?;
    http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .adaptive_window(false)
        .max_frame_size(FRAME)
        .max_send_buf_size(SEND_BUFFER)
        .keep_alive_interval(Duration::from_secs(20))
        .keep_alive_timeout(Duration::from_secs(20))
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|error| unreachable(socket, error, NOT_THERE))
}

/// Not that nobody is there: whether there is, cannot be found out by such a path.
fn too_long(bytes: usize) -> ConnectError {
    ConnectError::invalid_argument(format!(
        "the path of the gateway's socket has {bytes} bytes, and a Unix socket's may have {LONGEST_PATH}"
    ))
    .with_detail(detail(reason::SOCKET_PATH_TOO_LONG, SHORTER))
}

fn unreachable(
    socket: &Path,
    error: impl std::error::Error + Send + Sync + 'static,
    next: &str,
) -> ConnectError {
    ConnectError::unavailable(format!(
        "no gateway answers on {}: {error}",
        socket.display()
    ))
    .with_detail(detail(reason::GATEWAY_UNREACHABLE, next))
    .with_source(error)
}

fn detail(reason: &str, next: &str) -> ErrorDetail {
    let mut info = ErrorInfo {
        reason: reason.to_owned(),
        domain: "overwinter".to_owned(),
        ..ErrorInfo::default()
    };
    info.metadata.insert("next".to_owned(), next.to_owned());
    ErrorDetail::from_message("google.rpc.ErrorInfo", &info)
}

impl ClientTransport for Transport {
    type ResponseBody = Incoming;
    type Error = ConnectError;

    fn send(
        &self,
        request: Request<ClientBody>,
    ) -> BoxFuture<'static, Result<Response<Incoming>, ConnectError>> {
        Box::pin(self.clone().forward(request))
    }
}
