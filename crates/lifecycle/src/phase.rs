//! The phase: a pure function of what is wanted and what was observed.
//!
//! ```text
//!  create ──► Creating ──► Ready ──suspend──► Suspending ──► Suspended ◄─┐ suspend, deeper
//!                           ▲                    │              │  └─────┘
//!                           │  rejected or       │              │ resume / start
//!                           ├─── turned back ◄───┘              ▼
//!                           └────────────────────────────── Resuming
//!  any phase ──delete──► Deleting ──► Tombstone        Failed: every verb leads out
//! ```

use std::fmt;

use crate::Depth;
use crate::operation::Verb;
use crate::record::{Desired, Sandbox};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    Creating,
    Ready,
    Suspending(Depth),
    Suspended(Depth),
    /// Also while a `start` runs.
    Resuming,
    Failed,
    Deleting,
    Tombstone,
}

impl Phase {
    pub(crate) fn of(sandbox: &Sandbox) -> Self {
        if sandbox.tombstone_at.is_some() {
            return Self::Tombstone;
        }
        if sandbox.desired == Desired::Deleted {
            return Self::Deleting;
        }
        match sandbox.running.as_ref().map(|op| op.verb) {
            Some(Verb::Create) => Self::Creating,
            Some(Verb::Suspend { depth, .. }) => Self::Suspending(depth),
            Some(Verb::Resume { .. } | Verb::Start) => Self::Resuming,
            Some(Verb::Delete { .. }) => Self::Deleting,
            None => match Rest::of(sandbox) {
                Rest::Ready => Self::Ready,
                Rest::Suspended(depth) => Self::Suspended(depth),
                Rest::Failed => Self::Failed,
            },
        }
    }

    /// Without its depth: what lists filter by.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Ready => "ready",
            Self::Suspending(_) => "suspending",
            Self::Suspended(_) => "suspended",
            Self::Resuming => "resuming",
            Self::Failed => "failed",
            Self::Deleting => "deleting",
            Self::Tombstone => "tombstone",
        }
    }
}

/// The phases in which nothing runs and something can begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    Ready,
    Suspended(Depth),
    Failed,
}

impl Rest {
    pub(crate) fn of(sandbox: &Sandbox) -> Self {
        match (&sandbox.failure, &sandbox.retained) {
            // A sandbox that sleeps and could not be woken is Suspended: what it retained is
            // what counts, and the failure stays readable beside it.
            (_, Some(retained)) => Self::Suspended(retained.depth),
            (Some(_), None) => Self::Failed,
            (None, None) => Self::Ready,
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
