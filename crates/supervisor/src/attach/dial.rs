//! The handshake: an HTTP/1.1 upgrade written by hand, after which the same stream is HTTP/2 with
//! the roles turned.

use std::io;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, Interest, ReadBuf};
use tokio::net::UnixStream;

use super::file::{Attach, Presented};

/// The whole handshake takes a local gateway well under a millisecond.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_HEAD_BYTES: usize = 8 << 10;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum DialError {
    #[error("endpoint {0}: only unix:PATH is served")]
    Endpoint(String),
    #[error("the gateway cannot be reached: {0}")]
    Unreachable(#[from] io::Error),
    #[error("the gateway did not answer")]
    Silent,
    #[error("the gateway's answer is no HTTP")]
    NotHttp,
    #[error("the gateway refused this supervisor with status {0}")]
    Refused(u16),
    #[error("the attach file holds what cannot be in a header")]
    Header,
}

/// Dials and introduces this supervisor. The stream then carries HTTP/2 from its first byte on.
pub(super) async fn dial(attach: &Attach, presented: &Presented) -> Result<UnixStream, DialError> {
    let path = attach
        .endpoint
        .strip_prefix("unix:")
        .ok_or_else(|| DialError::Endpoint(attach.endpoint.clone()))?;
    let request = request(attach, presented)?;
    let handshake = async {
        let mut stream = UnixStream::connect(path).await?;
        stream.write_all(request.as_bytes()).await?;
        match read_status(&mut stream).await? {
            101 => Ok(stream),
            status => Err(DialError::Refused(status)),
        }
    };
    tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake)
        .await
        .unwrap_or(Err(DialError::Silent))
}

fn request(attach: &Attach, presented: &Presented) -> Result<String, DialError> {
    for value in [&attach.token, &attach.sandbox_id] {
        if !value.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(DialError::Header);
        }
    }
    let previous = presented
        .previous
        .as_ref()
        .map_or_else(String::new, |previous| {
            format!("Overwinter-Previous-Secret: {previous}\r\n")
        });
    Ok(format!(
        "POST /attach HTTP/1.1\r\n\
         Host: overwinter\r\n\
         Connection: Upgrade\r\n\
         Upgrade: overwinter-supervisor/1\r\n\
         Content-Length: 0\r\n\
         Authorization: Bearer {token}\r\n\
         Overwinter-Secret: {secret}\r\n\
         {previous}\
         Overwinter-Sandbox: {sandbox}\r\n\
         Overwinter-Incarnation: {incarnation}\r\n\
         Overwinter-Version: {version}\r\n\
         \r\n",
        token = attach.token,
        secret = presented.secret,
        sandbox = attach.sandbox_id,
        incarnation = attach.incarnation,
        version = env!("CARGO_PKG_VERSION"),
    ))
}

/// Takes the head and not a byte more: whatever follows it belongs to HTTP/2.
async fn read_status(stream: &mut UnixStream) -> Result<u16, DialError> {
    const END: &[u8] = b"\r\n\r\n";
    let mut head = Vec::with_capacity(256);
    while !head.ends_with(END) {
        let known = head.len();
        let ahead = peek(stream, MAX_HEAD_BYTES - known).await?;
        if ahead.is_empty() {
            return Err(if known == MAX_HEAD_BYTES {
                DialError::NotHttp
            } else {
                DialError::Unreachable(io::ErrorKind::UnexpectedEof.into())
            });
        }
        head.extend(&ahead);
        // The end may have begun in what was taken before.
        let from = known.saturating_sub(END.len() - 1);
        let end = head[from..].windows(END.len()).position(|it| it == END);
        if let Some(at) = end {
            head.truncate(from + at + END.len());
        }
        stream.read_exact(&mut head[known..]).await?;
    }
    head.strip_prefix(b"HTTP/1.1 ")
        .and_then(|rest| rest.get(..3))
        .and_then(|code| std::str::from_utf8(code).ok())
        .and_then(|code| code.parse().ok())
        .ok_or(DialError::NotHttp)
}

/// What is there to be read, at most `room` bytes of it, and stays there; nothing at the end.
async fn peek(stream: &UnixStream, room: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; room];
    let count = stream
        .async_io(Interest::READABLE, || {
            // SAFETY: the descriptor is the stream's, the pointer and the length the vector's.
            let count = unsafe {
                libc::recv(
                    stream.as_raw_fd(),
                    bytes.as_mut_ptr().cast(),
                    bytes.len(),
                    libc::MSG_PEEK,
                )
            };
            usize::try_from(count).map_err(|_| io::Error::last_os_error())
        })
        .await?;
    bytes.truncate(count);
    Ok(bytes)
}

/// A stream that tells whether its last write had to wait for the peer.
pub(super) struct Observed {
    stream: UnixStream,
    blocked: Arc<AtomicBool>,
}

impl Observed {
    pub(super) fn new(stream: UnixStream, blocked: Arc<AtomicBool>) -> Self {
        Self { stream, blocked }
    }

    fn note<T>(&self, poll: Poll<T>) -> Poll<T> {
        self.blocked.store(poll.is_pending(), Ordering::Relaxed);
        poll
    }
}

impl AsyncRead for Observed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Observed {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write(context, data);
        self.note(poll)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write_vectored(context, data);
        self.note(poll)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_head_is_taken_however_it_is_cut_and_what_follows_it_stays() {
        const SENT: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\nPRI * HTTP/2.0";
        for cut in 1..SENT.len() {
            let (mut here, mut there) = UnixStream::pair().unwrap();
            let sending = async {
                there.write_all(&SENT[..cut]).await.unwrap();
                tokio::task::yield_now().await;
                there.write_all(&SENT[cut..]).await.unwrap();
                drop(there);
            };
            let (status, ()) = tokio::join!(read_status(&mut here), sending);
            assert_eq!(status.unwrap(), 101, "cut at {cut}");
            let mut rest = Vec::new();
            here.read_to_end(&mut rest).await.unwrap();
            assert_eq!(rest, b"PRI * HTTP/2.0", "cut at {cut}");
        }
    }

    #[tokio::test]
    async fn a_head_without_an_end_is_no_answer() {
        for sent in [&b"HTTP/1.1 101 Switching"[..], &[b'x'; MAX_HEAD_BYTES + 1]] {
            let (mut here, mut there) = UnixStream::pair().unwrap();
            there.write_all(sent).await.unwrap();
            drop(there);
            read_status(&mut here).await.unwrap_err();
        }
    }
}
