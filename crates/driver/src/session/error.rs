//! From the wire's errors to [`AgentError`]: by code and by the reason in the details, never by
//! text.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use buffa::Message as _;
use connectrpc::{ConnectError, ErrorCode};
use overwinter_api::rpc::ErrorInfo;

use super::transport::Transport;
use crate::agent::{AgentError, RefusedKind};

/// What the supervisor ends each stream with when it detaches.
const DETACHED: &str = "DETACHED";

pub(super) fn from_wire(transport: &Transport, error: ConnectError) -> AgentError {
    let reason = reason(&error);
    // A supervisor's own error carries its reason; what the library makes of a broken stream
    // carries none, and may have any code.
    if reason.is_none() && transport.is_broken() {
        return AgentError::Gone;
    }
    // It let go of the connection, as it was asked to; its end follows.
    if reason.as_deref() == Some(DETACHED) {
        return AgentError::Gone;
    }
    let kind = match error.code {
        ErrorCode::DeadlineExceeded => return AgentError::TimedOut,
        ErrorCode::Unavailable if reason.is_none() => return AgentError::Gone,
        ErrorCode::InvalidArgument | ErrorCode::OutOfRange => RefusedKind::InvalidArgument,
        ErrorCode::NotFound => RefusedKind::NotFound,
        ErrorCode::AlreadyExists => RefusedKind::AlreadyExists,
        ErrorCode::PermissionDenied | ErrorCode::Unauthenticated => RefusedKind::PermissionDenied,
        // It says that it cannot now: a watcher that lagged, an upload cut short.
        ErrorCode::FailedPrecondition | ErrorCode::Unavailable | ErrorCode::Aborted => {
            RefusedKind::FailedPrecondition
        }
        ErrorCode::ResourceExhausted => RefusedKind::ResourceExhausted,
        ErrorCode::Unimplemented => RefusedKind::Unimplemented,
        // The library's enum is open.
        _ => RefusedKind::Internal,
    };
    AgentError::Refused {
        kind,
        reason: reason.unwrap_or_default(),
        message: match error.message {
            Some(message) if !message.is_empty() => message,
            Some(_) | None => error.code.as_str().replace('_', " "),
        },
    }
}

/// The reason of the error's `google.rpc.ErrorInfo`. gRPC prefixes the type's name, Connect does
/// not.
fn reason(error: &ConnectError) -> Option<String> {
    error.details.iter().find_map(|detail| {
        let name = detail
            .type_url
            .rsplit_once('/')
            .map_or(detail.type_url.as_str(), |(_, name)| name);
        if name != "google.rpc.ErrorInfo" {
            return None;
        }
        let value = detail.value.as_deref()?;
        let bytes = STANDARD_NO_PAD
            .decode(value)
            .or_else(|_| STANDARD.decode(value))
            .ok()?;
        Some(ErrorInfo::decode_from_slice(&bytes).ok()?.reason)
    })
}
