//! The life of one connection, seen from the byte stream itself.
//!
//! ```text
//!   Open ── HTTP/2 lets go of the stream ──┬─ end of file was read before ────────► Over(read)
//!                                          └─► Draining ─┬─ end of file read ─────► Over(read)
//!                                                        └─ not within the limit ─► Over(unread)
//! ```
//!
//! HTTP/2 may end by a GOAWAY while the peer still has its socket open. A supervisor that was told
//! to detach must have closed it before the freeze, and only its end of file proves that.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::task::AtomicWaker;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::sync::watch;

use crate::attach::Io;

/// How long a peer may keep its end open after HTTP/2 has ended. It is tenant code, and each one
/// that stays costs a descriptor.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkState {
    Open,
    Draining,
    Over { end_of_file_read: bool },
}

#[derive(Debug)]
pub(super) struct Link {
    state: watch::Sender<LinkState>,
    /// The stream has ended or failed. Set before HTTP/2 hears of it, and so before any call does.
    broken: AtomicBool,
    /// This end wants no more of it.
    hung_up: AtomicBool,
    reader: AtomicWaker,
}

impl Link {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            state: watch::Sender::new(LinkState::Open),
            broken: AtomicBool::new(false),
            hung_up: AtomicBool::new(false),
            reader: AtomicWaker::new(),
        })
    }

    /// Ends the stream from this end, whoever still holds calls on it.
    pub(super) fn hang_up(&self) {
        self.hung_up.store(true, Ordering::Release);
        self.reader.wake();
    }

    pub(super) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire) || *self.state.borrow() != LinkState::Open
    }

    /// Resolves when HTTP/2 has let go of the stream.
    pub(super) async fn gone(&self) {
        // The sender lives in self, so waiting cannot fail.
        let _ = self
            .state
            .subscribe()
            .wait_for(|state| *state != LinkState::Open)
            .await;
    }

    /// Whether the peer's end of file was read, once that is settled.
    pub(super) async fn end_of_file(&self) -> bool {
        let mut states = self.state.subscribe();
        let over = states.wait_for(|state| match state {
            LinkState::Open | LinkState::Draining => false,
            LinkState::Over { .. } => true,
        });
        matches!(
            over.await.map(|state| *state),
            Ok(LinkState::Over {
                end_of_file_read: true
            })
        )
    }
}

/// The byte stream as HTTP/2 gets it.
pub(super) struct LinkIo {
    /// None: handed on to be drained.
    io: Option<Box<dyn Io>>,
    link: Arc<Link>,
}

impl LinkIo {
    pub(super) fn new(io: Box<dyn Io>, link: Arc<Link>) -> Self {
        Self { io: Some(io), link }
    }

    fn io(&mut self) -> io::Result<Pin<&mut Box<dyn Io>>> {
        let io = self.io.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        Ok(Pin::new(io))
    }

    fn note<T>(&self, result: io::Result<T>) -> Poll<io::Result<T>> {
        if result.is_err() {
            self.link.broken.store(true, Ordering::Release);
        }
        Poll::Ready(result)
    }
}

impl AsyncRead for LinkIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.link.reader.register(cx.waker());
        // Registered before the look, so that no hang-up falls between.
        if self.link.hung_up.load(Ordering::Acquire) {
            self.link.broken.store(true, Ordering::Release);
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        let before = buf.filled().len();
        let result = ready!(self.io()?.poll_read(cx, buf));
        let ended = buf.filled().len() == before && buf.remaining() > 0;
        if result.is_err() || ended {
            // A reset says as well as an end of file that the peer has let go.
            self.link.broken.store(true, Ordering::Release);
            self.io = None;
        }
        Poll::Ready(result)
    }
}

impl AsyncWrite for LinkIo {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = ready!(self.io()?.poll_write(cx, data));
        self.note(result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = ready!(self.io()?.poll_write_vectored(cx, data));
        self.note(result)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.as_ref().is_some_and(|io| io.is_write_vectored())
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = ready!(self.io()?.poll_flush(cx));
        self.note(result)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.io() {
            Ok(io) => io.poll_shutdown(cx),
            // The peer is gone: there is nothing to shut down.
            Err(_) => Poll::Ready(Ok(())),
        }
    }
}

impl Drop for LinkIo {
    fn drop(&mut self) {
        let link = self.link.clone();
        let Some(mut io) = self.io.take() else {
            link.state.send_replace(LinkState::Over {
                end_of_file_read: true,
            });
            return;
        };
        link.state.send_replace(LinkState::Draining);
        // Without a runtime the process is ending, and nobody waits any more.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        runtime.spawn(async move {
            let drain = async {
                let _ = io.shutdown().await;
                let mut nothing = [0; 4096];
                while io.read(&mut nothing).await.is_ok_and(|read| read > 0) {}
            };
            let end_of_file_read = tokio::time::timeout(DRAIN_LIMIT, drain).await.is_ok();
            drop(io);
            link.state
                .send_replace(LinkState::Over { end_of_file_read });
        });
    }
}
