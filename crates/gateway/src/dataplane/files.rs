//! Files: the API's words to the supervisor's, and back. Data is passed on by reference.

use connectrpc::{ConnectError, InboundStream};
use futures::{Stream, StreamExt};
use overwinter_api::content::{Aside, Item};
use overwinter_api::{supervisor as wire, v1};
use overwinter_driver::agent::AgentStream;

use super::process::timestamp;
use crate::api::ApiError;
use crate::sessions::Admission;

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

/// A file's contents, as the client reads them.
pub fn reading(
    stream: AgentStream<wire::ReadFileResponse>,
    admission: Admission,
) -> impl Stream<Item = Result<Item<v1::ReadFileResponse>, ConnectError>> + Send {
    stream.map(move |item| {
        // Held as long as the read is open.
        let _open = &admission;
        let message = match item.map_err(ApiError::from)?.message {
            Some(wire::read_file_response::Message::Data(data)) => return Ok(Item::Data(data)),
            Some(wire::read_file_response::Message::Info(found)) => Some(info(*found).into()),
            None => None,
        };
        Ok(Item::Message(v1::ReadFileResponse { message }))
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

/// A file's contents, as the supervisor takes them. A client that breaks off ends the stream without
/// its end, and the old file stays.
pub fn writing(
    start: wire::WriteFileStart,
    requests: impl Stream<Item = Result<Option<v1::write_file_request::Message>, ConnectError>>
    + Send
    + 'static,
) -> impl Stream<Item = wire::WriteFileRequest> + Send + 'static {
    let first = wire::WriteFileRequest {
        message: Some(start.into()),
    };
    let rest = requests
        .take_while(|request| std::future::ready(request.is_ok()))
        .filter_map(|request| std::future::ready(request.ok()))
        .map(|request| wire::WriteFileRequest {
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
