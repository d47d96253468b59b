//! The head of an attach: whatever a process inside a sandbox writes to its socket.

#![no_main]

use std::pin::Pin;
use std::task::{Context, Poll};

use libfuzzer_sys::fuzz_target;
use overwinter_driver::attach::Io;
use overwinter_driver::session::{AttachRequest, read_request};
use overwinter_gateway::sessions::credentials::hash;
use overwinter_gateway::sessions::{CredentialKey, Expected, Proof};
use overwinter_lifecycle::ids::Incarnation;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What was sent, in pieces of at most so many bytes, and then the end.
struct Sent {
    bytes: Vec<u8>,
    at: usize,
    piece: usize,
}

impl AsyncRead for Sent {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        room: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let length = self.piece.min(room.remaining()).min(self.bytes.len() - self.at);
        room.put_slice(&self.bytes[self.at..self.at + length]);
        self.at += length;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Sent {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Poll::Ready(Ok(data.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

fn read(bytes: &[u8], piece: usize) -> Option<AttachRequest> {
    let mut io: Box<dyn Io> = Box::new(Sent {
        bytes: bytes.to_vec(),
        at: 0,
        piece,
    });
    let mut reading = std::pin::pin!(read_request(&mut io));
    // Whoever reads from memory never waits.
    match reading.as_mut().poll(&mut Context::from_waker(std::task::Waker::noop())) {
        Poll::Ready(read) => read.ok(),
        Poll::Pending => panic!("it waits"),
    }
}

/// Under whatever it is awaited, it is let in with the token that was issued for that and the secret
/// that goes with it, and with nothing else.
fn is_let_in_for_what_it_shows(request: &AttachRequest) {
    let key = CredentialKey::new([3; 32]);
    let (sandbox, proof) = (request.sandbox, &request.proof);
    let known = hash(&[0xab; 32]);
    for incarnation in [Incarnation(3), proof.incarnation] {
        let issued = key.issue(sandbox, incarnation).token.0;
        let has_token =
            proof.incarnation == incarnation && proof.token.0.eq_ignore_ascii_case(&issued);
        let with_secrets = [
            (Proof::Fresh, true),
            (Proof::Kept(known), proof.previous_secret == Some([0xab; 32])),
            (Proof::Same(known), proof.secret == [0xab; 32]),
        ];
        for (awaited, has_secret) in with_secrets {
            let expected = Expected {
                incarnation,
                proof: awaited,
            };
            let answer = expected.verify(&key, sandbox, proof);
            assert_eq!(answer.is_ok(), has_token && has_secret, "{expected:?}: {answer:?}");
            if let Ok(next) = answer {
                // Once in, the same again is the same attach.
                assert_eq!(next.verify(&key, sandbox, proof), Ok(next));
            }
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let whole = read(bytes, usize::MAX);
    // However it is cut on its way, it says the same. The end of a head is looked for as it comes,
    // so what follows it is refused only where both come together.
    let cut = read(bytes, 1);
    if let Some(request) = &whole {
        assert_eq!(cut.as_ref(), Some(request));
        assert!(!request.proof.token.0.is_empty());
        is_let_in_for_what_it_shows(request);
        let text = String::from_utf8_lossy(bytes).to_ascii_lowercase();
        // One of each: no other reader may find another one.
        for name in ["authorization:", "overwinter-sandbox:", "overwinter-secret:"] {
            // A line may end without its carriage return (RFC 9112, 2.2).
            let lines = text.split('\n').filter(|line| line.starts_with(name));
            assert_eq!(lines.count(), 1, "{name}");
        }
    }
});
