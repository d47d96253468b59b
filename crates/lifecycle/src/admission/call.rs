//! Admission of a call of the data plane (exec, files): only while Ready, and whatever arrives turns
//! back an idle suspend that is not past its point of no turning back.

use crate::ids::OperationId;
use crate::operation::Verb;
use crate::record::Sandbox;
use crate::{Phase, Reason};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallAdmission {
    Admit,
    /// Turn this idle suspend back, then try again.
    TurnBack(OperationId),
    Refuse(CallRefused),
}

/// Why a call is not carried out. The phase is part of the answer, so that the caller can tell what
/// to do without another call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallRefused {
    #[error("the sandbox is being created")]
    Creating,
    #[error("the sandbox is being suspended")]
    Suspending,
    #[error("the sandbox is suspended")]
    Suspended,
    #[error("the sandbox is being resumed")]
    Resuming,
    #[error("the sandbox has failed")]
    Failed,
    #[error("the sandbox is being deleted")]
    Deleting,
}

impl CallRefused {
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::Creating => "SANDBOX_CREATING",
            Self::Suspending => "SANDBOX_SUSPENDING",
            Self::Suspended => "SANDBOX_SUSPENDED",
            Self::Resuming => "SANDBOX_RESUMING",
            Self::Failed => "SANDBOX_FAILED",
            Self::Deleting => Reason::Deleting.code(),
        }
    }

    #[must_use]
    pub const fn next(self) -> &'static str {
        match self {
            Self::Creating | Self::Resuming => "wait until it is ready, then try again",
            Self::Suspending | Self::Suspended => "resume it, then try again",
            Self::Failed => "see its failure with `sandbox get`, then resume or start it",
            Self::Deleting => Reason::Deleting.next(),
        }
    }
}

/// Decides.
#[must_use]
pub fn admit(sandbox: &Sandbox) -> CallAdmission {
    match sandbox.phase() {
        Phase::Ready => CallAdmission::Admit,
        Phase::Suspending(_) => match &sandbox.running {
            Some(op)
                if matches!(op.verb, Verb::Suspend { idle: true, .. }) && op.can_turn_back() =>
            {
                CallAdmission::TurnBack(op.id)
            }
            Some(_) | None => CallAdmission::Refuse(CallRefused::Suspending),
        },
        Phase::Creating => CallAdmission::Refuse(CallRefused::Creating),
        Phase::Suspended(_) => CallAdmission::Refuse(CallRefused::Suspended),
        Phase::Resuming => CallAdmission::Refuse(CallRefused::Resuming),
        Phase::Failed => CallAdmission::Refuse(CallRefused::Failed),
        Phase::Deleting | Phase::Tombstone => CallAdmission::Refuse(CallRefused::Deleting),
    }
}
