//! Files: the API's words to the supervisor's, and back. Data is passed on by reference.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::Poll;
use std::time::Duration;

use connectrpc::{ConnectError, InboundStream};
use futures::{Stream, StreamExt};
use overwinter_api::content::{Aside, Item};
use overwinter_api::{supervisor as wire, v1};
use overwinter_driver::AgentError;
use overwinter_driver::agent::AgentStream;

use super::process::timestamp;
use crate::api::ApiError;
use crate::ports::Ports;
use crate::sessions::Admission;

/// How long a supervisor may take over a piece of a file, in times of one call: the disk may be slow,
/// and is shared.
pub const PIECE: u32 = 6;
/// And over all of one: to put it in its place, synced, or to remove it with all that is in it.
pub const WHOLE: u32 = 60;

#[must_use]
pub fn info(info: wire::FileInfo) -> v1::FileInfo {
    let kind = match info.kind.as_known() {
        Some(wire::FileKind::FILE_KIND_FILE) => v1::FileKind::FILE_KIND_FILE,
        Some(wire::FileKind::FILE_KIND_DIRECTORY) => v1::FileKind::FILE_KIND_DIRECTORY,
        Some(wire::FileKind::FILE_KIND_SYMLINK) => v1::FileKind::FILE_KIND_SYMLINK,
        Some(wire::FileKind::FILE_KIND_OTHER) => v1::FileKind::FILE_KIND_OTHER,
        Some(wire::FileKind::FILE_KIND_UNSPECIFIED) | None => v1::FileKind::FILE_KIND_UNSPECIFIED,
    };
    v1::FileInfo {
        name: String::from_utf8_lossy(&info.name).into_owned(),
        raw_name: info.name,
        kind: kind.into(),
        size: info.size,
        mode: info.mode,
        uid: info.uid,
        gid: info.gid,
        modified_at: timestamp(info.modified_at_ms),
        symlink_target: info.symlink_target,
    }
}

/// # Errors
/// When none is named.
pub fn path(path: Option<v1::FilePath>, field: &str) -> Result<bytes::Bytes, ApiError> {
    let path = match path.and_then(|path| path.by) {
        Some(v1::file_path::By::Text(text)) => bytes::Bytes::from(text),
        Some(v1::file_path::By::Raw(raw)) => raw,
        None => return Err(ApiError::invalid(format!("{field} is missing"))),
    };
    if path.is_empty() {
        return Err(ApiError::invalid(format!("{field} is empty")));
    }
    Ok(path)
}

/// A file's contents, as the client reads them. `patience`: for each piece.
pub fn reading(
    ports: Ports,
    patience: Duration,
    stream: AgentStream<wire::ReadFileResponse>,
    admission: Admission,
) -> impl Stream<Item = Result<Item<v1::ReadFileResponse>, ConnectError>> + Send {
    // The admission is held as long as the read is open.
    let open = Some((stream, admission));
    futures::stream::unfold(open, move |open| {
        let ports = ports.clone();
        async move {
            let (mut stream, admission) = open?;
            let next = ports.within(patience, stream.next()).await;
            match next.unwrap_or(Some(Err(AgentError::TimedOut)))? {
                Ok(response) => Some((Ok(contents(response)), Some((stream, admission)))),
                Err(error) => Some((Err(ApiError::from(error).into()), None)),
            }
        }
    })
}

fn contents(response: wire::ReadFileResponse) -> Item<v1::ReadFileResponse> {
    let message = match response.message {
        Some(wire::read_file_response::Message::Data(data)) => return Item::Data(data),
        Some(wire::read_file_response::Message::Info(found)) => Some(info(*found).into()),
        None => None,
    };
    Item::Message(v1::ReadFileResponse { message })
}

/// Who a write waits for, and how many pieces were taken so far: what has not changed for a while
/// stands still.
#[derive(Debug, Default)]
pub struct Taking(Mutex<(u64, WaitsFor)>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WaitsFor {
    /// It has no more to give as yet, and may take its time.
    Client,
    /// To take a piece, or the call itself.
    #[default]
    Supervisor,
    /// To put the file in its place: it may have to be synced.
    Place,
}

impl Taking {
    fn note(&self, waits_for: WaitsFor) {
        let mut now = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *now = (now.0 + 1, waits_for);
    }

    /// How it stands.
    #[must_use]
    pub fn now(&self) -> (u64, WaitsFor) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WaitsFor {
    /// How long it may stand so before it is looked at again, in times of one call.
    #[must_use]
    pub const fn patience(self) -> u32 {
        match self {
            Self::Client | Self::Supervisor => PIECE,
            Self::Place => WHOLE,
        }
    }
}

/// The stream, noting in `taking` each time that something is asked of it.
pub fn noting<T>(
    input: impl Stream<Item = T> + Send + 'static,
    taking: Arc<Taking>,
) -> impl Stream<Item = T> + Send + 'static {
    let mut input = Box::pin(input);
    futures::stream::poll_fn(move |context| {
        let polled = input.as_mut().poll_next(context);
        taking.note(match &polled {
            Poll::Pending => WaitsFor::Client,
            Poll::Ready(Some(_)) => WaitsFor::Supervisor,
            Poll::Ready(None) => WaitsFor::Place,
        });
        polled
    })
}

/// What a client writes, with the data that was taken aside in its place.
pub fn written(
    requests: InboundStream<v1::WriteFileRequest>,
    aside: Option<Aside>,
) -> impl Stream<Item = Result<Option<v1::write_file_request::Message>, ConnectError>> + Send + 'static
{
    requests.map(move |request| {
        let message = request?.to_owned_message().message;
        let data = || aside.as_ref()?.pop();
        Ok(message.or_else(|| data().map(v1::write_file_request::Message::Data)))
    })
}

/// A file's contents, as the supervisor takes them. A client that breaks off, or sends what is no
/// request, ends the stream without its end, and the old file stays; `refused` then has why.
pub fn writing(
    start: wire::WriteFileStart,
    requests: impl Stream<Item = Result<Option<v1::write_file_request::Message>, ConnectError>>
    + Send
    + 'static,
    refused: Arc<OnceLock<ConnectError>>,
) -> impl Stream<Item = wire::WriteFileRequest> + Send + 'static {
    let first = wire::WriteFileRequest {
        message: Some(start.into()),
    };
    let well = requests.scan((), move |(), request| {
        std::future::ready(match request {
            Ok(request) => Some(request),
            Err(error) => {
                // The first is why.
                let _ = refused.set(error);
                None
            }
        })
    });
    let rest = well.map(|request| wire::WriteFileRequest {
        message: match request {
            Some(v1::write_file_request::Message::Data(data)) => {
                Some(wire::write_file_request::Message::Data(data))
            }
            Some(v1::write_file_request::Message::End(_)) => Some(wire::WriteFileEnd {}.into()),
            // A second beginning means nothing.
            Some(v1::write_file_request::Message::Start(_)) | None => None,
        },
    });
    futures::stream::iter([first]).chain(rest)
}
