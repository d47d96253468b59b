//! The one connection to the gateway: dialled from here, served from here.
//!
//! ```text
//!   read `attach` ─► dial ─► POST /attach ─► 101 ─► serve ─┬─ lost ────► dial again, at once,
//!        ▲                     │ refused                    │            then with backoff
//!        └──── backoff ◄───────┘                            └─ Detach ─► close everything, wait
//!                                                               for a higher (incarnation,
//!                                                               reattach)
//! ```
//!
//! A file event in the folder cuts every wait short: the driver renames the file before it thaws
//! us, so the event is already queued when we run again.

mod dial;
mod file;
mod folder;

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use connectrpc::{ConnectRpcService, Limits};
use hyper::server::conn::http2;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use overwinter_api::content::take_aside;
use overwinter_api::supervisor::{SUPERVISOR_SERVICE_WRITE_FILE_SPEC, SupervisorServiceServer};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::service::{Sandbox, Service};
use dial::{Observed, dial};
use file::{Attach, AttachFileError, Credentials};
use folder::Folder;

const FIRST_BACKOFF: Duration = Duration::from_millis(10);
const LAST_BACKOFF: Duration = Duration::from_secs(1);
/// A connection that lasted this long was a good one: after it the backoff begins anew.
const GOOD_CONNECTION: Duration = Duration::from_secs(1);
/// How often the file is read while detached, where its folder's events are not known to arrive.
const DETACHED_POLL: Duration = Duration::from_millis(10);
/// Between two looks whether a connection has ended.
const CONNECTION_POLL: Duration = Duration::from_secs(1);
/// What the streams of a detached connection get to end by themselves.
const DETACH_DRAIN: Duration = Duration::from_millis(20);
/// And what a peer that does not read gets to take the answer.
const DETACH_LIMIT: Duration = Duration::from_secs(5);

/// The window of one stream; small, so that one that is not read holds up no other.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 64 << 20;
const MAX_STREAMS: u32 = 1024;
const FRAME_BYTES: u32 = 128 << 10;
/// What one stream may have queued for the socket.
const SEND_BUFFER: usize = 64 << 10;
const MAX_MESSAGE: usize = 4 << 20;

const WRITE_FILE: &str = SUPERVISOR_SERVICE_WRITE_FILE_SPEC.procedure;

/// Why a connection is no more.
enum Closed {
    Lost,
    Detached,
}

/// Attaches, serves and attaches again, for ever.
pub(crate) async fn run(sandbox: Arc<Sandbox>) {
    let mut folder = Folder::watch(&sandbox.config.run_dir);
    let mut credentials = Credentials::default();
    let mut backoff = Backoff::default();
    loop {
        match attach_once(&sandbox, &mut credentials).await {
            Ok((attach, Closed::Detached, _)) => {
                detached(&sandbox, &mut folder, &attach).await;
                backoff = Backoff::default();
                continue;
            }
            Ok((_, Closed::Lost, lasted)) => {
                if lasted >= GOOD_CONNECTION {
                    backoff = Backoff::default();
                }
            }
            Err(error) => backoff.report(&error),
        }
        backoff.wait(&mut folder).await;
    }
}

/// A failure between reading the file and the end of the connection.
#[derive(Debug, thiserror::Error)]
enum AttachError {
    #[error(transparent)]
    File(#[from] AttachFileError),
    #[error(transparent)]
    Dial(#[from] dial::DialError),
}

async fn attach_once(
    sandbox: &Arc<Sandbox>,
    credentials: &mut Credentials,
) -> Result<(Attach, Closed, Duration), AttachError> {
    let attach = Attach::read(&sandbox.config.run_dir)?;
    let presented = credentials.present(&attach.token)?;
    let stream = dial(&attach, &presented).await?;
    credentials.accepted();
    let since = Instant::now();
    let closed = serve(sandbox, stream).await;
    Ok((attach, closed, since.elapsed()))
}

async fn serve(sandbox: &Arc<Sandbox>, stream: UnixStream) -> Closed {
    let ended = ended(&stream, sandbox.config.poll_connection);
    let (detach, mut detached) = watch::channel(false);
    let service = Service::new(Arc::clone(sandbox), detach);
    let service = ConnectRpcService::new(SupervisorServiceServer::new(service)).with_limits(
        Limits::default()
            .with_max_message_size(MAX_MESSAGE)
            .with_max_request_body_size(MAX_MESSAGE),
    );
    let service = TowerToHyperService::new(service);
    let service = service_fn(move |request| {
        // What is written to files goes past the library's buffer.
        service.call(take_aside(request, WRITE_FILE, MAX_MESSAGE))
    });
    let blocked = Arc::new(AtomicBool::new(false));
    let io = TokioIo::new(Observed::new(stream, Arc::clone(&blocked)));
    // No keep-alive: a frozen sandbox answers nothing, and must not lose its connection for it.
    let mut connection = pin!(
        http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_concurrent_streams(MAX_STREAMS)
            .max_frame_size(FRAME_BYTES)
            .max_send_buf_size(SEND_BUFFER)
            .serve_connection(io, service)
    );
    let asked = tokio::select! {
        biased;
        // Whoever asked for it may have hung up since.
        asked = detached.wait_for(|detach| *detach) => asked.is_ok(),
        // How it was lost tells us nothing that dialling again does not.
        _ended = connection.as_mut() => false,
        () = ended => false,
    };
    if !asked {
        return Closed::Lost;
    }
    // The answer to Detach and the ends of the other streams are on their way. A stream whose
    // reader has no window left never ends; closing the socket keeps what was written to it.
    connection.as_mut().graceful_shutdown();
    let deadline = Instant::now() + DETACH_LIMIT;
    while tokio::time::timeout(DETACH_DRAIN, connection.as_mut())
        .await
        .is_err()
    {
        if !blocked.load(Ordering::Relaxed) || Instant::now() >= deadline {
            break;
        }
    }
    Closed::Detached
}

/// Resolves when the other end has closed the connection, where it has to be looked for. gVisor loses
/// the event of a socket of the host now and then when the host is busy: a supervisor would believe
/// itself connected to a gateway that is no more, and never dial the next one.
fn ended(stream: &UnixStream, look: bool) -> impl Future<Output = ()> + use<> {
    let own = look.then(|| stream.as_fd().try_clone_to_owned());
    async move {
        let Some(Ok(own)) = own else {
            return std::future::pending().await;
        };
        while !is_at_its_end(&own) {
            tokio::time::sleep(CONNECTION_POLL).await;
        }
    }
}

/// The other end is closed. gVisor tells of that by an end that can be read, and not by a hang-up.
fn is_at_its_end(stream: &OwnedFd) -> bool {
    let mut byte = 0u8;
    // SAFETY: the descriptor is open, the pointer and the length are the byte's.
    let count = unsafe {
        libc::recv(
            stream.as_raw_fd(),
            (&raw mut byte).cast(),
            1,
            libc::MSG_PEEK | libc::MSG_DONTWAIT,
        )
    };
    match count {
        0 => true,
        1.. => false,
        _ => {
            let why = io::Error::last_os_error().kind();
            !matches!(why, io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
        }
    }
}

/// Waits until the file asks for a new attach.
async fn detached(sandbox: &Sandbox, folder: &mut Folder, at: &Attach) {
    loop {
        // What cannot be read now asks for nothing yet.
        if Attach::read(&sandbox.config.run_dir).is_ok_and(|now| now.follows(at)) {
            return;
        }
        if folder.events_arrive() {
            folder.changed().await;
        } else {
            // Until an event has been seen to cross this boundary, it may be one that none
            // crosses (gVisor).
            let _ = tokio::time::timeout(DETACHED_POLL, folder.changed()).await;
        }
    }
}

/// How long to wait before the next dial: not at all, then 10 ms doubling to 1 s.
#[derive(Default)]
struct Backoff {
    next: Option<Duration>,
    reported: String,
}

impl Backoff {
    async fn wait(&mut self, folder: &mut Folder) {
        let Some(delay) = self.next else {
            self.next = Some(FIRST_BACKOFF);
            return;
        };
        self.next = Some((delay * 2).min(LAST_BACKOFF));
        if tokio::time::timeout(delay, folder.changed()).await.is_ok() {
            // Something is new: what failed before may work now.
            self.next = Some(FIRST_BACKOFF);
        }
    }

    /// Says a failure once, however often it repeats.
    fn report(&mut self, error: &AttachError) {
        let text = error.to_string();
        if self.reported != text {
            eprintln!("overwinter-supervisor: attach: {text}");
            self.reported = text;
        }
    }
}

/// 32 bytes from the kernel, in hex.
fn random_secret() -> io::Result<String> {
    let mut bytes = [0u8; 32];
    // SAFETY: the pointer and the length are the array's.
    let count = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if count != bytes.len() as isize {
        return Err(io::Error::last_os_error());
    }
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use tokio::io::AsyncWriteExt as _;

    use super::*;

    /// Under gVisor, on a busy host, a supervisor stayed with the connection of a gateway that was
    /// killed.
    #[tokio::test]
    async fn a_connection_that_has_ended_is_found_without_an_event() {
        let (here, mut there) = UnixStream::pair().unwrap();
        let own = here.as_fd().try_clone_to_owned().unwrap();
        assert!(!is_at_its_end(&own));
        there.write_all(b"to be read first").await.unwrap();
        let looked_for = ended(&here, true);
        drop(there);
        assert!(!is_at_its_end(&own));
        here.readable().await.unwrap();
        assert_eq!(here.try_read(&mut [0; 64]).unwrap(), 16);
        assert!(is_at_its_end(&own));
        looked_for.await;
    }
}
