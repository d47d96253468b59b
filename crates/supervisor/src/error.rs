//! What a call is refused with: one enum, one stable reason each, and the code that a client sees.

use std::io;

use connectrpc::{ConnectError, ErrorCode, ErrorDetail};
use overwinter_api::rpc::ErrorInfo;

use crate::users::UserError;

/// The domain of every reason below.
pub(crate) const ERROR_DOMAIN: &str = "overwinter";

/// Why a call was refused. The text is for people; [`Refusal::reason`] is for programs.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    #[error("no process {0}")]
    ProcessNotFound(String),
    #[error("process {0} exists with another start")]
    ProcessExists(String),
    #[error("process {0} has ended")]
    ProcessEnded(String),
    #[error("the sandbox is being suspended: no new processes and no writes")]
    Quiesced,
    #[error("the supervisor has been told to detach; attach again after the resume")]
    Detached,
    #[error("{0}")]
    Invalid(String),
    #[error("stdin offset {offset} lies beyond the {taken} bytes taken so far")]
    StdinGap { offset: u64, taken: u64 },
    #[error("{path}: {what}")]
    InvalidPath { path: String, what: &'static str },
    #[error("{path}: not a regular file")]
    NotARegularFile { path: String },
    #[error("{path}: more entries than one answer holds")]
    DirectoryTooLarge { path: String },
    #[error("{path}: {source}")]
    File { path: String, source: io::Error },
    #[error("the upload ended before its end message; the old file is untouched")]
    UploadBroken,
    #[error(transparent)]
    User(#[from] UserError),
    #[error("cannot start a process: {0}")]
    Spawn(io::Error),
    #[error("too many events for this watcher; watch again")]
    WatchLagged,
    #[error("the supervisor's worker failed")]
    Worker,
}

impl Refusal {
    /// Wraps a failed system call on `path`.
    pub fn file(path: &[u8], source: io::Error) -> Self {
        Self::File {
            path: display_path(path),
            source,
        }
    }

    /// The reason code, stable across releases.
    pub fn reason(&self) -> &'static str {
        self.classify().1
    }

    fn classify(&self) -> (ErrorCode, &'static str) {
        use ErrorCode as C;
        match self {
            Self::ProcessNotFound(_) => (C::NotFound, "PROCESS_NOT_FOUND"),
            Self::ProcessExists(_) => (C::AlreadyExists, "PROCESS_EXISTS"),
            Self::ProcessEnded(_) => (C::FailedPrecondition, "PROCESS_ENDED"),
            Self::Quiesced => (C::FailedPrecondition, "QUIESCED"),
            Self::Detached => (C::Unavailable, "DETACHED"),
            Self::Invalid(_) => (C::InvalidArgument, "INVALID_ARGUMENT"),
            Self::StdinGap { .. } => (C::OutOfRange, "STDIN_GAP"),
            Self::InvalidPath { .. } => (C::InvalidArgument, "INVALID_PATH"),
            Self::NotARegularFile { .. } => (C::FailedPrecondition, "NOT_A_REGULAR_FILE"),
            Self::DirectoryTooLarge { .. } => (C::ResourceExhausted, "DIRECTORY_TOO_LARGE"),
            Self::File { source, .. } => classify_errno(source),
            Self::UploadBroken => (C::Aborted, "UPLOAD_BROKEN"),
            Self::User(UserError::NotFound { .. } | UserError::GroupNotFound { .. }) => {
                (C::NotFound, "USER_NOT_FOUND")
            }
            Self::User(UserError::Reserved) => (C::PermissionDenied, "USER_RESERVED"),
            Self::User(UserError::OutOfRange { .. }) => (C::InvalidArgument, "USER_OUT_OF_RANGE"),
            Self::User(UserError::Malformed { .. }) => (C::InvalidArgument, "USER_NOT_FOUND"),
            Self::Spawn(_) => (C::ResourceExhausted, "SPAWN_FAILED"),
            Self::WatchLagged => (C::Aborted, "WATCH_LAGGED"),
            Self::Worker => (C::Internal, "INTERNAL"),
        }
    }
}

/// The code and reason of a failed file operation, by errno alone.
fn classify_errno(error: &io::Error) -> (ErrorCode, &'static str) {
    use ErrorCode as C;
    match error.raw_os_error() {
        Some(libc::ENOENT) => (C::NotFound, "FILE_NOT_FOUND"),
        Some(libc::EACCES | libc::EPERM) => (C::PermissionDenied, "FILE_PERMISSION_DENIED"),
        Some(libc::EROFS) => (C::PermissionDenied, "READ_ONLY_FILESYSTEM"),
        Some(libc::ENOTDIR) => (C::FailedPrecondition, "NOT_A_DIRECTORY"),
        Some(libc::EISDIR) => (C::FailedPrecondition, "IS_A_DIRECTORY"),
        Some(libc::ENOTEMPTY) => (C::FailedPrecondition, "DIRECTORY_NOT_EMPTY"),
        Some(libc::EEXIST) => (C::AlreadyExists, "FILE_EXISTS"),
        Some(libc::ENOSPC | libc::EDQUOT) => (C::ResourceExhausted, "NO_SPACE"),
        Some(libc::EFBIG | libc::EMFILE | libc::ENFILE) => (C::ResourceExhausted, "FILE_LIMIT"),
        Some(libc::ELOOP | libc::ENAMETOOLONG | libc::EINVAL) => {
            (C::InvalidArgument, "INVALID_PATH")
        }
        Some(libc::EXDEV) => (C::FailedPrecondition, "CROSS_DEVICE"),
        Some(libc::EBUSY | libc::ETXTBSY) => (C::FailedPrecondition, "FILE_BUSY"),
        Some(_) | None => (C::Internal, "FILE_IO"),
    }
}

impl From<Refusal> for ConnectError {
    fn from(refusal: Refusal) -> Self {
        let (code, reason) = refusal.classify();
        let info = ErrorInfo {
            reason: reason.into(),
            domain: ERROR_DOMAIN.into(),
            ..Default::default()
        };
        Self::new(code, refusal.to_string())
            .with_detail(ErrorDetail::from_message("google.rpc.ErrorInfo", &info))
    }
}

/// A byte path for a message: what is not printable is escaped, so that a file name cannot write
/// control sequences to whoever reads the error.
pub(crate) fn display_path(path: &[u8]) -> String {
    let mut text = String::with_capacity(path.len());
    for chunk in path.utf8_chunks() {
        for character in chunk.valid().chars() {
            if character.is_control() {
                text.extend(character.escape_default());
            } else {
                text.push(character);
            }
        }
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}
