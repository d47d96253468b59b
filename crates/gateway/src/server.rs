//! The front door: one Unix socket, HTTP/1.1 and HTTP/2, for gRPC, gRPC-Web and Connect (so also
//! plain JSON). Mode 0600, and the peer's credentials are checked: this user and root alone.

use std::convert::Infallible;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::{Context, Poll};

use buffa_descriptor::DescriptorPool;
use connectrpc::{
    CompressionPolicy, ConnectRpcBody, ConnectRpcService, DeadlinePolicy, Limits, Router,
};
use connectrpc_reflection::Reflector;
use http::header::CONTENT_TYPE;
use http::{Method, Request, Response};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use overwinter_api::content::{self, DivertedBody};
use overwinter_api::v1;
use rustix::fs::{Mode, OFlags};
use tokio::net::{UnixListener, UnixStream};
use tower::Service;

use crate::api::Api;
use crate::strict::Strict;

/// Flow control of HTTP/2: a small window for each stream and a large one for the connection, so that
/// one reader that stalls costs only itself.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 64 << 20;
const STREAMS: u32 = 1_024;
/// After an accept that failed.
const ACCEPT_PAUSE: std::time::Duration = std::time::Duration::from_millis(50);
/// Of one message, in either direction.
const MESSAGE: usize = 8 << 20;

/// What reflection and health name.
const PUBLIC: [&str; 6] = [
    v1::SANDBOX_SERVICE_SERVICE_NAME,
    v1::OPERATION_SERVICE_SERVICE_NAME,
    v1::PROCESS_SERVICE_SERVICE_NAME,
    v1::FILE_SERVICE_SERVICE_NAME,
    v1::GATEWAY_SERVICE_SERVICE_NAME,
    v1::DRIVER_SERVICE_SERVICE_NAME,
];

/// All services; what is written to files goes past the library's buffer, and JSON is held against
/// the schema on its way in.
#[derive(Clone)]
pub struct Services {
    binary: ConnectRpcService<Router>,
    json: ConnectRpcService<Router>,
}

impl Service<Request<Incoming>> for Services {
    type Response = Response<ConnectRpcBody>;
    type Error = Infallible;
    type Future = <ConnectRpcService<Router> as Service<Request<DivertedBody<Incoming>>>>::Future;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let door = if is_json(&request) {
            &mut self.json
        } else {
            &mut self.binary
        };
        door.call(take_aside(request))
    }
}

/// A GET has its message in the query.
fn is_json<B>(request: &Request<B>) -> bool {
    let kind = request.headers().get(CONTENT_TYPE);
    request.method() == Method::GET
        || kind.is_some_and(|kind| kind.to_str().is_ok_and(|kind| kind.contains("json")))
}

/// What can be served here.
pub trait Serves:
    Service<
        Request<Incoming>,
        Response = Response<ConnectRpcBody>,
        Error = Infallible,
        Future: Send,
    > + Clone
    + Send
    + 'static
{
}

impl<S> Serves for S where
    S: Service<
            Request<Incoming>,
            Response = Response<ConnectRpcBody>,
            Error = Infallible,
            Future: Send,
        > + Clone
        + Send
        + 'static
{
}

/// Why the door cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("the socket {path} is in use by another gateway")]
    InUse { path: PathBuf },
    #[error("the socket {path} cannot be had")]
    Io {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error(
        "the path of the socket has {bytes} bytes, and a Unix socket's may have {LONGEST_PATH}: {path}"
    )]
    PathTooLong { path: PathBuf, bytes: usize },
    #[error("the services cannot be described: {0}")]
    Reflection(String),
}

/// What the kernel takes as the address of a Unix socket, in bytes.
const LONGEST_PATH: usize = 107;

/// Whether a client could connect to a socket at this path.
///
/// # Errors
/// [`ServerError::PathTooLong`].
pub fn check_path(path: &Path) -> Result<(), ServerError> {
    let bytes = path.as_os_str().len();
    if bytes > LONGEST_PATH {
        return Err(ServerError::PathTooLong {
            path: path.to_owned(),
            bytes,
        });
    }
    Ok(())
}

/// Binds the socket. One that nobody listens on any more is replaced.
///
/// # Errors
/// [`ServerError::InUse`] when somebody answers on it; [`ServerError::PathTooLong`].
pub fn bind(path: &Path) -> Result<UnixListener, ServerError> {
    let io = |source| ServerError::Io {
        path: path.to_owned(),
        source,
    };
    check_path(path)?;
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        Some(_) | None => Path::new("."),
    };
    std::fs::create_dir_all(folder).map_err(io)?;
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => {
            return Err(ServerError::InUse {
                path: path.to_owned(),
            });
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(_) => std::fs::remove_file(path).map_err(io)?,
    }
    // Made unreachable by its mode from the first moment: bound aside, then renamed into place.
    // Under a name of its own: others may be at it, and have this process's id in a namespace of theirs.
    let aside = folder.join(format!(".{}.new", uuid::Uuid::new_v4().simple()));
    // Its path may be longer than that of the socket, which may be as long as one can be.
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = rustix::fs::open(folder, flags, Mode::empty()).map_err(|error| io(error.into()))?;
    let short = Path::new("/proc/self/fd")
        .join(open.as_raw_fd().to_string())
        .join(aside.file_name().unwrap_or_default());
    let listener = UnixListener::bind(short).map_err(io)?;
    std::fs::set_permissions(&aside, std::fs::Permissions::from_mode(0o600)).map_err(io)?;
    std::fs::rename(&aside, path).map_err(io)?;
    Ok(listener)
}

/// All services, with health and reflection, as they are served.
///
/// # Errors
/// [`ServerError::Reflection`].
pub fn services(api: &Api) -> Result<Services, ServerError> {
    Ok(Services {
        binary: rpc(api)?,
        json: rpc(api)?.with_interceptor(Strict::new(descriptors()?)),
    })
}

fn descriptors() -> Result<Arc<DescriptorPool>, ServerError> {
    match DescriptorPool::decode(overwinter_api::DESCRIPTOR_SET) {
        Ok(pool) => Ok(Arc::new(pool)),
        Err(error) => Err(ServerError::Reflection(error.to_string())),
    }
}

/// All services, for whoever calls them without a socket.
///
/// # Errors
/// [`ServerError::Reflection`].
pub fn rpc(api: &Api) -> Result<ConnectRpcService<Router>, ServerError> {
    let shared = Arc::new(api.clone());
    let router = v1::SandboxServiceExt::register(shared.clone(), Router::new());
    let router = v1::OperationServiceExt::register(shared.clone(), router);
    let router = v1::ProcessServiceExt::register(shared.clone(), router);
    let router = v1::FileServiceExt::register(shared.clone(), router);
    let router = v1::GatewayServiceExt::register(shared.clone(), router);
    let router = v1::DriverServiceExt::register(shared, router);
    let reflector = Reflector::from_descriptor_set_bytes(overwinter_api::DESCRIPTOR_SET)
        .map_err(|error| ServerError::Reflection(error.to_string()))?
        .with_services(PUBLIC);
    let router = connectrpc_reflection::install(router, reflector);
    let (router, _health) = connectrpc_health::install_static(router, PUBLIC);
    Ok(ConnectRpcService::new(router)
        .with_limits(Limits::unlimited().with_max_message_size(MESSAGE))
        .with_deadline_policy(DeadlinePolicy::default())
        // Over a Unix socket a copy is far cheaper than what compression takes, of files above all.
        .with_compression_policy(CompressionPolicy::disabled()))
}

fn take_aside(request: Request<Incoming>) -> Request<DivertedBody<Incoming>> {
    content::take_aside(request, v1::FILE_SERVICE_WRITE_FILE_SPEC.procedure, MESSAGE)
}

/// Serves until `stop` resolves.
pub async fn serve<S: Serves>(listener: UnixListener, services: S, stop: impl Future<Output = ()>) {
    let own = own_uid();
    tokio::pin!(stop);
    loop {
        let stream = tokio::select! {
            () = &mut stop => return,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "a connection was not accepted");
                    // Out of descriptors, say: asking again at once would only spin.
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            },
        };
        match stream.peer_cred() {
            Ok(peer) if peer.uid() == own || peer.uid() == 0 => {
                tokio::spawn(connection(stream, services.clone()));
            }
            Ok(peer) => tracing::warn!(uid = peer.uid(), "a foreign user was turned away"),
            Err(error) => tracing::warn!(%error, "a peer without credentials was turned away"),
        }
    }
}

async fn connection(stream: UnixStream, services: impl Serves) {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http2()
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(STREAMS)
        .max_frame_size(1 << 20)
        .max_send_buf_size(1 << 20);
    let served = builder
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(services))
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a connection ended");
    }
}

/// The user that this process runs as.
fn own_uid() -> u32 {
    std::fs::metadata("/proc/self")
        .map(|found| std::os::unix::fs::MetadataExt::uid(&found))
        .unwrap_or(u32::MAX)
}
