//! What went wrong, as a program and as a person wants to know it.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use buffa::Message as _;
use connectrpc::{ConnectError, ErrorCode};
use overwinter_api::rpc::ErrorInfo;
use overwinter_api::v1;

/// Reasons that this crate itself acts on or makes. The gateway has more; all are stable across
/// releases and travel as strings, so that a client meets new ones without breaking.
pub mod reason {
    /// The stream ended because the sandbox was put to sleep; it can be attached to again later.
    pub const SANDBOX_SUSPENDED: &str = "SANDBOX_SUSPENDED";
    /// The sandbox is being put to sleep.
    pub const SANDBOX_SUSPENDING: &str = "SANDBOX_SUSPENDING";
    /// The sandbox is waking up.
    pub const SANDBOX_RESUMING: &str = "SANDBOX_RESUMING";
    /// The stream was cut by a suspend that did not happen.
    pub const SUSPEND_ABORTED: &str = "SUSPEND_ABORTED";
    /// Nothing answers on the gateway's socket.
    pub const GATEWAY_UNREACHABLE: &str = "GATEWAY_UNREACHABLE";
    /// The gateway's socket is named by a path that is longer than a Unix socket's may be.
    pub const SOCKET_PATH_TOO_LONG: &str = "SOCKET_PATH_TOO_LONG";
    /// The connection broke while a call was under way.
    pub const CONNECTION_LOST: &str = "CONNECTION_LOST";
    /// The operation was replaced by a newer verb before it began.
    pub const OPERATION_SUPERSEDED: &str = "OPERATION_SUPERSEDED";
    /// The suspend was undone by a call that needed the sandbox awake.
    pub const OPERATION_TURNED_BACK: &str = "OPERATION_TURNED_BACK";
    /// The wait's limit passed; the operation goes on.
    pub const WAIT_TIMEOUT: &str = "WAIT_TIMEOUT";
    /// A file or stream on the caller's own side failed.
    pub const LOCAL_IO: &str = "LOCAL_IO";
    /// The gateway answered with something that its contract does not allow.
    pub const PROTOCOL: &str = "PROTOCOL";
}

/// The gRPC status code of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum Code {
    Canceled,
    Unknown,
    InvalidArgument,
    DeadlineExceeded,
    NotFound,
    AlreadyExists,
    PermissionDenied,
    ResourceExhausted,
    FailedPrecondition,
    Aborted,
    OutOfRange,
    Unimplemented,
    Internal,
    Unavailable,
    DataLoss,
    Unauthenticated,
}

/// What a call of this crate failed with.
///
/// Match on [`reason`](Self::reason) (stable) or [`code`](Self::code) (coarse), never on the text.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    code: Code,
    reason: String,
    message: String,
    next: Option<String>,
    /// No answer of the gateway's: the connection could not be made, or broke.
    transport: bool,
    #[source]
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// The result of every call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn new(code: Code, reason: &str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason: reason.to_owned(),
            message: message.into(),
            next: None,
            transport: false,
            source: None,
        }
    }

    pub(crate) fn with_next(mut self, next: impl Into<String>) -> Self {
        self.next = Some(next.into()).filter(|next: &String| !next.is_empty());
        self
    }

    pub(crate) fn io(what: impl Into<String>, error: std::io::Error) -> Self {
        let mut it = Self::new(
            Code::Unknown,
            reason::LOCAL_IO,
            format!("{}: {error}", what.into()),
        );
        it.source = Some(Box::new(error));
        it
    }

    pub(crate) fn protocol(what: &str) -> Self {
        Self::new(
            Code::Internal,
            reason::PROTOCOL,
            format!("the gateway's answer makes no sense: {what}"),
        )
        .with_next("check that client and gateway are of versions that fit")
    }

    fn lost(message: String) -> Self {
        Self::new(Code::Unavailable, reason::CONNECTION_LOST, message)
            .with_next("look at the gateway's log, then try again")
    }

    /// An operation that ended `failed`.
    pub(crate) fn operation(failed: &v1::OperationError) -> Self {
        Self::new(
            Code::FailedPrecondition,
            &failed.reason,
            failed.message.clone(),
        )
        .with_next(failed.next.clone())
    }

    /// The gRPC status code.
    pub fn code(&self) -> Code {
        self.code
    }

    /// The stable reason code, like `SANDBOX_NOT_FOUND`; the status code's name in capitals where
    /// the other side gave none.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// What happened, for a person.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// What to do about it, where that is known.
    pub fn next(&self) -> Option<&str> {
        self.next.as_deref()
    }

    /// Whether no answer came: the gateway could not be reached, or the connection broke.
    pub fn is_transport(&self) -> bool {
        self.transport
    }

    /// The local I/O error behind it, where there is one.
    pub fn io_error(&self) -> Option<&std::io::Error> {
        let mut link: Option<&(dyn std::error::Error + 'static)> = std::error::Error::source(self);
        while let Some(error) = link {
            if let Some(io) = error.downcast_ref::<std::io::Error>() {
                return Some(io);
            }
            link = error.source();
        }
        None
    }
}

impl From<ConnectError> for Error {
    fn from(error: ConnectError) -> Self {
        let code = Code::from(error.code);
        let message = match &error.message {
            Some(message) if !message.is_empty() => message.clone(),
            Some(_) | None => error.code.as_str().replace('_', " "),
        };
        let info = error_info(&error);
        // An answer always carries its ErrorInfo; what has none was made on this side. There the
        // library says `unavailable` of a connection that broke before the answer and `internal` of
        // one that broke in its middle, and keeps nothing of the cause but its text.
        let halfway = info.is_none() && code == Code::Internal;
        let lost = info.is_none() && code == Code::Unavailable || halfway;
        let unreachable = info
            .as_ref()
            .is_some_and(|info| info.reason == reason::GATEWAY_UNREACHABLE);
        let mut it = match info {
            Some(info) => {
                let next = info.metadata.get("next").cloned().unwrap_or_default();
                Self::new(code, &info.reason, message).with_next(next)
            }
            None if halfway => {
                Self::lost(format!("the connection to the gateway broke: {message}"))
            }
            None if lost => Self::lost(message),
            None => Self::new(code, &error.code.as_str().to_ascii_uppercase(), message),
        };
        it.transport = lost || unreachable;
        it.source = Some(Box::new(error));
        it
    }
}

/// The error's `google.rpc.ErrorInfo`. The type name may carry the prefix of an `Any`, which gRPC
/// adds and Connect leaves out.
fn error_info(error: &ConnectError) -> Option<ErrorInfo> {
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
        ErrorInfo::decode_from_slice(&bytes).ok()
    })
}

impl From<ErrorCode> for Code {
    fn from(code: ErrorCode) -> Self {
        match code {
            ErrorCode::Canceled => Self::Canceled,
            ErrorCode::InvalidArgument => Self::InvalidArgument,
            ErrorCode::DeadlineExceeded => Self::DeadlineExceeded,
            ErrorCode::NotFound => Self::NotFound,
            ErrorCode::AlreadyExists => Self::AlreadyExists,
            ErrorCode::PermissionDenied => Self::PermissionDenied,
            ErrorCode::ResourceExhausted => Self::ResourceExhausted,
            ErrorCode::FailedPrecondition => Self::FailedPrecondition,
            ErrorCode::Aborted => Self::Aborted,
            ErrorCode::OutOfRange => Self::OutOfRange,
            ErrorCode::Unimplemented => Self::Unimplemented,
            ErrorCode::Internal => Self::Internal,
            ErrorCode::Unavailable => Self::Unavailable,
            ErrorCode::DataLoss => Self::DataLoss,
            ErrorCode::Unauthenticated => Self::Unauthenticated,
            // The library's enum is open; gRPC says that what is not known is `unknown`.
            _ => Self::Unknown,
        }
    }
}
