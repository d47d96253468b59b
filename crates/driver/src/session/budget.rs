//! What all supervisors together may have this process hold of answers that are not whole yet.
//!
//! ```text
//!   up to FREE of an answer ──► counts nothing
//!   more ──► a claim in the book ──┬─ the answer is whole, or its call is over ──► given back
//!                                  └─ the book is over TOTAL ──► the oldest claim is cut off
//! ```
//!
//! A long answer is allowed, and a supervisor that begins one and never ends it costs what it has
//! sent. One such is little, a hundred are not. An honest answer is whole within milliseconds, so when
//! there is no room the claim that is oldest goes: a neighbour's call is young, and not refused for
//! what others hold.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use connectrpc::ConnectError;
use connectrpc::client::{BoxFuture, ClientBody, ClientTransport};
use futures::task::AtomicWaker;
use http::{Request, Response};
use http_body::{Body, Frame};
use overwinter_api::supervisor::{
    SUPERVISOR_SERVICE_EXEC_SPEC, SUPERVISOR_SERVICE_READ_FILE_SPEC,
    SUPERVISOR_SERVICE_WATCH_PROCESSES_SPEC,
};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Of each answer; more than a piece of output.
const FREE: usize = 128 << 10;
/// Two of the longest.
const TOTAL: usize = 32 << 20;
/// Of gRPC: a byte of flags and four of length.
const ENVELOPE: usize = 5;

#[derive(Default)]
struct Book {
    next: u64,
    held: usize,
    /// The oldest first.
    claims: BTreeMap<u64, Held>,
}

struct Held {
    bytes: usize,
    cut: Arc<Cut>,
}

#[derive(Default)]
struct Cut {
    off: AtomicBool,
    reader: AtomicWaker,
}

/// Of the process, as its memory is.
static BOOK: Mutex<Book> = Mutex::new(Book {
    next: 0,
    held: 0,
    claims: BTreeMap::new(),
});

fn book() -> MutexGuard<'static, Book> {
    BOOK.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Book {
    fn give_back(&mut self, number: u64) -> Option<Arc<Cut>> {
        let held = self.claims.remove(&number)?;
        self.held -= held.bytes;
        Some(held.cut)
    }
}

/// A place in the book, until it is dropped or cut off.
struct Claim {
    number: u64,
    cut: Arc<Cut>,
}

impl Claim {
    fn new() -> Self {
        let mut book = book();
        let (number, cut) = (book.next, Arc::<Cut>::default());
        book.next += 1;
        let held = Held {
            bytes: 0,
            cut: cut.clone(),
        };
        book.claims.insert(number, held);
        Self { number, cut }
    }

    /// So many bytes it is now; while that is too much for all, the oldest is cut off, itself
    /// perhaps.
    fn set(&self, bytes: usize) {
        let mut book = book();
        if let Some(held) = book.claims.get_mut(&self.number) {
            let before = std::mem::replace(&mut held.bytes, bytes);
            book.held = book.held - before + bytes;
        }
        while book.held > TOTAL {
            let Some(&oldest) = book.claims.keys().next() else {
                return;
            };
            if let Some(cut) = book.give_back(oldest) {
                cut.off.store(true, Ordering::Release);
                cut.reader.wake();
            }
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        book().give_back(self.number);
    }
}

/// A transport whose answers are counted, as the library that puts their messages together sees them.
#[derive(Clone, Debug)]
pub(super) struct Budgeted<T>(pub(super) T);

impl<T> ClientTransport for Budgeted<T>
where
    T: ClientTransport<Error = ConnectError>,
    T::ResponseBody: Unpin,
    <T::ResponseBody as Body>::Error: Into<BoxError>,
{
    type ResponseBody = Metered<T::ResponseBody>;
    type Error = ConnectError;

    fn send(
        &self,
        request: Request<ClientBody>,
    ) -> BoxFuture<'static, Result<Response<Self::ResponseBody>, ConnectError>> {
        let shape = shape_of(request.uri().path());
        let sent = self.0.send(request);
        Box::pin(async move { Ok(sent.await?.map(|body| Metered::new(body, shape))) })
    }
}

/// Of the answer to a call, by its path.
fn shape_of(path: &str) -> Shape {
    let streams = [
        &SUPERVISOR_SERVICE_EXEC_SPEC,
        &SUPERVISOR_SERVICE_WATCH_PROCESSES_SPEC,
        &SUPERVISOR_SERVICE_READ_FILE_SPEC,
    ];
    if streams.iter().any(|spec| spec.procedure == path) {
        Shape::Many
    } else {
        Shape::One
    }
}

/// Whether the next message of an answer makes the one before it one's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// One message, which is held until the end of the answer.
    One,
    /// Each is handed on when it is whole.
    Many,
}

/// The body of an answer.
pub(super) struct Metered<B> {
    body: B,
    shape: Shape,
    /// Of the envelope that begins the message.
    head: Vec<u8>,
    /// Of the message, still to come.
    left: usize,
    held: usize,
    claim: Option<Claim>,
}

impl<B> Metered<B> {
    pub(super) fn new(body: B, shape: Shape) -> Self {
        Self {
            body,
            shape,
            head: Vec::with_capacity(ENVELOPE),
            left: 0,
            held: 0,
            claim: None,
        }
    }

    fn count(&mut self, mut data: &[u8]) {
        self.held += data.len();
        while !data.is_empty() {
            if self.head.len() < ENVELOPE {
                let (taken, rest) = data.split_at(data.len().min(ENVELOPE - self.head.len()));
                self.head.extend_from_slice(taken);
                data = rest;
                if let [_, a, b, c, d] = self.head[..] {
                    self.left = u32::from_be_bytes([a, b, c, d]) as usize;
                }
            } else {
                let taken = data.len().min(self.left);
                data = &data[taken..];
                self.left -= taken;
            }
            if self.head.len() == ENVELOPE && self.left == 0 {
                self.head.clear();
                if self.shape == Shape::Many {
                    self.held = data.len();
                }
            }
        }
        match self.held.checked_sub(FREE) {
            None | Some(0) => self.claim = None,
            Some(more) => self.claim.get_or_insert_with(Claim::new).set(more),
        }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Metered<B>
where
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Some(claim) = &self.claim {
            claim.cut.reader.register(cx.waker());
            // Registered before the look, so that no cut falls between.
            if claim.cut.off.load(Ordering::Acquire) {
                let full = "too much is held of answers that supervisors do not end";
                return Poll::Ready(Some(Err(ConnectError::resource_exhausted(full).into())));
            }
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        let Some(Ok(frame)) = frame else {
            self.claim = None;
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        };
        if let Some(data) = frame.data_ref() {
            self.count(data);
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::channel::mpsc;
    use futures::{FutureExt, StreamExt};
    use http_body_util::{BodyExt, StreamBody};

    type Sender = mpsc::UnboundedSender<Result<Frame<Bytes>, std::io::Error>>;

    fn answer(shape: Shape) -> (Sender, impl Body<Data = Bytes, Error = BoxError> + Unpin) {
        let (sender, receiver) = mpsc::unbounded();
        (
            sender,
            Metered::new(StreamBody::new(receiver.boxed()), shape),
        )
    }

    fn send(sender: &Sender, data: Vec<u8>) {
        sender.unbounded_send(Ok(Frame::data(data.into()))).unwrap();
    }

    /// An envelope for `length` bytes, with so many of them.
    fn message(length: usize, sent: usize) -> Vec<u8> {
        let mut bytes = vec![0];
        bytes.extend_from_slice(&(length as u32).to_be_bytes());
        bytes.resize(ENVELOPE + sent, b'x');
        bytes
    }

    #[test]
    fn who_holds_longest_is_cut_off_and_a_young_answer_comes_through() {
        const LONG: usize = 16 << 20;
        let mut stalled: Vec<_> = (0..3).map(|_| answer(Shape::Many)).collect();
        for (sender, body) in &mut stalled {
            send(sender, message(LONG, LONG - 1));
            assert!(body.frame().now_or_never().unwrap().unwrap().is_ok());
        }
        // The third was one too many, and the first went for it; it is woken up to hear so.
        let mut cut = stalled
            .iter_mut()
            .map(|(_, body)| body.frame().now_or_never());
        assert!(matches!(cut.next(), Some(Some(Some(Err(_))))));
        assert!(cut.all(|it| it.is_none()));

        let (sender, mut young) = answer(Shape::One);
        send(&sender, message(LONG / 2, LONG / 2));
        assert!(young.frame().now_or_never().unwrap().unwrap().is_ok());
        drop(sender);
        assert!(young.frame().now_or_never().unwrap().is_none());
        // It cost the second its place, and the third has one.
        let second = stalled[1].1.frame().now_or_never();
        assert!(matches!(second, Some(Some(Err(_)))));
        assert!(stalled[2].1.frame().now_or_never().is_none());

        // However many messages: what is whole is handed on, and counts nothing.
        let (sender, mut many) = answer(Shape::Many);
        for _ in 0..100 {
            let mut sent = message(1 << 20, 1 << 20);
            let rest = sent.split_off(700);
            send(&sender, sent);
            send(&sender, rest);
        }
        drop(sender);
        while let Some(frame) = many.frame().now_or_never().unwrap() {
            frame.unwrap();
        }
        assert!(stalled[2].1.frame().now_or_never().is_none());
        drop(stalled);
        assert_eq!(book().held, 0);
    }
}
