//! How many connections one sandbox may have with the gateway, whatever state each is in.
//!
//! Whoever is inside dials as often as it likes, and each connection costs a descriptor that a
//! neighbour's supervisor would need: while its head is awaited, while it is served, and while its
//! end is. So they are counted where the stream itself is, from the accept until it is closed.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use overwinter_driver::attach::Io;
use overwinter_lifecycle::ids::SandboxId;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A supervisor has one, and for a moment a second one while the first ends.
const MOST: u32 = 8;

/// By sandbox; those that have none are not in it.
#[derive(Clone, Default)]
pub(super) struct Connections(Arc<Mutex<HashMap<SandboxId, u32>>>);

impl Connections {
    /// The stream, counted until it is dropped. None: there are too many, and it is closed.
    pub(super) fn count(&self, sandbox: SandboxId, io: Box<dyn Io>) -> Option<Box<dyn Io>> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(sandbox).or_default();
        if *count >= MOST {
            return None;
        }
        *count += 1;
        let counted = Counted {
            io,
            sandbox,
            connections: self.clone(),
        };
        Some(Box::new(counted))
    }
}

struct Counted {
    io: Box<dyn Io>,
    sandbox: SandboxId,
    connections: Connections,
}

impl Drop for Counted {
    fn drop(&mut self) {
        let counts = &self.connections.0;
        let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.sandbox) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.sandbox);
            }
        }
    }
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, data)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, data)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
