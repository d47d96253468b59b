//! Errors as the API shows them: a code, a stable reason, what happened, what to do next.

use connectrpc::{ConnectError, ErrorCode, ErrorDetail};
use overwinter_api::rpc::ErrorInfo;
use overwinter_driver::AgentError;
use overwinter_driver::agent::RefusedKind;
use overwinter_lifecycle::admission::call::CallRefused;
use overwinter_lifecycle::ids::SandboxId;
use overwinter_lifecycle::{Fault, Reason};
use overwinter_store::{AcceptError, StoreError};

use crate::dataplane::admit::NotAdmitted;

/// The domain of every reason.
pub const DOMAIN: &str = "overwinter";

/// What a supervisor answers while a suspend is under way.
const QUIESCED: &str = "QUIESCED";

/// One error, before it is put on the wire.
#[derive(Clone, Debug)]
pub struct ApiError {
    code: ErrorCode,
    reason: String,
    message: String,
    next: String,
    metadata: Vec<(&'static str, String)>,
}

impl ApiError {
    pub fn new(
        code: ErrorCode,
        reason: &str,
        message: impl Into<String>,
        next: impl Into<String>,
    ) -> Self {
        Self {
            code,
            reason: reason.to_owned(),
            message: message.into(),
            next: next.into(),
            metadata: Vec::new(),
        }
    }

    #[must_use]
    pub fn with(mut self, key: &'static str, value: impl ToString) -> Self {
        self.metadata.push((key, value.to_string()));
        self
    }

    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(
            ErrorCode::InvalidArgument,
            "INVALID_ARGUMENT",
            message,
            "correct the request; the message names the field",
        )
    }

    #[must_use]
    pub fn no_such_sandbox(named: &str) -> Self {
        Self::new(
            ErrorCode::NotFound,
            "SANDBOX_NOT_FOUND",
            format!("there is no sandbox {named:?}"),
            "`overwinter sandbox list` shows those that are there",
        )
    }

    #[must_use]
    pub fn no_such_operation(id: &str) -> Self {
        Self::new(
            ErrorCode::NotFound,
            "OPERATION_NOT_FOUND",
            format!("there is no operation {id:?}"),
            "`overwinter operation list` shows those that are kept",
        )
    }

    #[must_use]
    pub fn revision_gone(revision: u64) -> Self {
        Self::new(
            ErrorCode::OutOfRange,
            "REVISION_GONE",
            format!("what changed after revision {revision} is not all kept any more"),
            "watch from revision 0: everything as it stands, then changes",
        )
    }

    #[must_use]
    pub fn draining() -> Self {
        Self::new(
            ErrorCode::Unavailable,
            "GATEWAY_DRAINING",
            "the gateway is draining and takes no new work",
            "try again when it has been restarted",
        )
    }

    #[must_use]
    pub fn unsupported(message: impl Into<String>) -> Self {
        let reason = Reason::Unsupported;
        Self::new(
            ErrorCode::Unimplemented,
            reason.code(),
            message,
            reason.next(),
        )
    }
}

impl From<ApiError> for ConnectError {
    fn from(error: ApiError) -> Self {
        let mut metadata: std::collections::HashMap<String, String> = error
            .metadata
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value))
            .collect();
        if !error.next.is_empty() {
            metadata.insert("next".to_owned(), error.next);
        }
        let info = ErrorInfo {
            reason: error.reason,
            domain: DOMAIN.to_owned(),
            metadata: metadata.into_iter().collect(),
        };
        let mut headers = http::HeaderMap::new();
        // The detail is base64 inside JSON: this is for people with curl.
        if let Ok(reason) = http::HeaderValue::from_str(&info.reason) {
            headers.insert("overwinter-reason", reason);
        }
        Self::new(error.code, error.message)
            .with_detail(ErrorDetail::from_message("google.rpc.ErrorInfo", &info))
            .with_headers(headers)
    }
}

/// The code that goes with a reason of the lifecycle.
const fn code_of(reason: Reason) -> ErrorCode {
    match reason {
        Reason::AlreadyDeeper
        | Reason::Deleting
        | Reason::DeleteInLine
        | Reason::NotIdle
        | Reason::RetainedLost
        | Reason::RetainedStale
        | Reason::ArtifactDamaged
        | Reason::ArtifactForeign
        | Reason::RuntimeChanged
        | Reason::ImageChanged
        | Reason::RootLost
        | Reason::ComputeLost => ErrorCode::FailedPrecondition,
        Reason::CapacityExceeded | Reason::DiskFull => ErrorCode::ResourceExhausted,
        Reason::Unsupported => ErrorCode::Unimplemented,
        Reason::ImageUnusable => ErrorCode::InvalidArgument,
        Reason::DriverTimeout | Reason::AttachTimeout => ErrorCode::DeadlineExceeded,
        Reason::SupervisorUnreachable => ErrorCode::Unavailable,
        Reason::SuspendAborted | Reason::Interrupted => ErrorCode::Aborted,
        Reason::DriverRejected
        | Reason::HookFailed
        | Reason::RestoreFailed
        | Reason::StartFailed
        | Reason::StopFailed
        | Reason::DeleteFailed => ErrorCode::Internal,
    }
}

impl From<Fault> for ApiError {
    fn from(fault: Fault) -> Self {
        Self::new(
            code_of(fault.reason),
            fault.reason.code(),
            fault.message.clone(),
            fault.reason.next(),
        )
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        let message = error.to_string();
        match error {
            StoreError::NotFound(SandboxId(id)) => Self::no_such_sandbox(&id.to_string()),
            StoreError::Full => Self::new(
                ErrorCode::ResourceExhausted,
                "DISK_FULL",
                message,
                "make room in the data folder; deletes are still carried out",
            ),
            StoreError::Conflict { version } => Self::new(
                ErrorCode::Aborted,
                "CONFIG_CONFLICT",
                message,
                "read it again, then update with the version that it has now",
            )
            .with("version", version),
            StoreError::NotRunning => {
                Self::new(ErrorCode::Aborted, "CONFLICT", message, "try again")
            }
            StoreError::Closed => Self::new(
                ErrorCode::Unavailable,
                "GATEWAY_STOPPING",
                message,
                "try again when it has been restarted",
            ),
            other => {
                tracing::error!(error = %other, "the store failed");
                Self::new(
                    ErrorCode::Internal,
                    "STORE_FAILED",
                    message,
                    "see the gateway's log; nothing was changed",
                )
            }
        }
    }
}

impl From<AcceptError> for ApiError {
    fn from(error: AcceptError) -> Self {
        let message = error.to_string();
        match error {
            AcceptError::NameTaken { id } => Self::new(
                ErrorCode::AlreadyExists,
                "NAME_TAKEN",
                message,
                "choose another name, or delete the sandbox that has it",
            )
            .with("sandbox_id", id),
            AcceptError::Denied(fault) => fault.into(),
            AcceptError::KeyReused => Self::new(
                ErrorCode::AlreadyExists,
                "IDEMPOTENCY_KEY_REUSED",
                message,
                "use a new key for a new request",
            ),
            AcceptError::Store(error) => error.into(),
            _ => Self::new(
                ErrorCode::Internal,
                "STORE_FAILED",
                message,
                "see the gateway's log",
            ),
        }
    }
}

impl From<NotAdmitted> for ApiError {
    fn from(error: NotAdmitted) -> Self {
        let message = error.to_string();
        match error {
            NotAdmitted::NoSuchSandbox => Self::new(
                ErrorCode::NotFound,
                "SANDBOX_NOT_FOUND",
                message,
                "`overwinter sandbox list` shows those that are there",
            ),
            NotAdmitted::Refused(refused) => {
                let code = match refused {
                    CallRefused::Creating | CallRefused::Resuming | CallRefused::Suspending => {
                        ErrorCode::Unavailable
                    }
                    CallRefused::Suspended | CallRefused::Failed | CallRefused::Deleting => {
                        ErrorCode::FailedPrecondition
                    }
                };
                Self::new(code, refused.code(), message, refused.next())
            }
            NotAdmitted::SupervisorUnreachable => {
                let reason = Reason::SupervisorUnreachable;
                Self::new(
                    ErrorCode::Unavailable,
                    reason.code(),
                    message,
                    reason.next(),
                )
            }
            NotAdmitted::Store(error) => error.into(),
        }
    }
}

impl From<AgentError> for ApiError {
    fn from(error: AgentError) -> Self {
        let unreachable = Reason::SupervisorUnreachable;
        match error {
            AgentError::Gone => Self::new(
                ErrorCode::Unavailable,
                unreachable.code(),
                error.to_string(),
                "look at the sandbox's phase; what was asked may or may not have happened",
            ),
            AgentError::TimedOut => Self::new(
                ErrorCode::DeadlineExceeded,
                unreachable.code(),
                error.to_string(),
                "look at the sandbox's phase; what was asked may or may not have happened",
            ),
            AgentError::Refused {
                kind,
                reason,
                message,
            } => {
                let code = match kind {
                    RefusedKind::InvalidArgument => ErrorCode::InvalidArgument,
                    RefusedKind::NotFound => ErrorCode::NotFound,
                    RefusedKind::AlreadyExists => ErrorCode::AlreadyExists,
                    RefusedKind::PermissionDenied => ErrorCode::PermissionDenied,
                    RefusedKind::FailedPrecondition => ErrorCode::FailedPrecondition,
                    RefusedKind::ResourceExhausted => ErrorCode::ResourceExhausted,
                    RefusedKind::Unimplemented => ErrorCode::Unimplemented,
                    RefusedKind::Internal => ErrorCode::Internal,
                };
                if reason == QUIESCED {
                    // Let in just before a suspend began, and overtaken by it.
                    let refused = CallRefused::Suspending;
                    return Self::new(
                        ErrorCode::Unavailable,
                        refused.code(),
                        refused.to_string(),
                        refused.next(),
                    );
                }
                let reason = if reason.is_empty() {
                    "SUPERVISOR_REFUSED"
                } else {
                    &reason
                };
                Self::new(code, reason, message, next_for(kind))
            }
        }
    }
}

const fn next_for(kind: RefusedKind) -> &'static str {
    match kind {
        RefusedKind::InvalidArgument => "correct the request",
        RefusedKind::NotFound => "check the path or the id",
        RefusedKind::AlreadyExists => "choose another name or id",
        RefusedKind::PermissionDenied => "check who owns it, or name another --user",
        RefusedKind::FailedPrecondition => "check what is there now, then try again",
        RefusedKind::ResourceExhausted => "make room, or raise the sandbox's limits",
        RefusedKind::Unimplemented => "this supervisor is older than the gateway: start it anew",
        RefusedKind::Internal => "see the sandbox's console log",
    }
}
