//! Names of transactions, as a [`crate::CommitHook`] is told them.

use overwinter_lifecycle::recording::{Ending, Recording};

/// A create, accepted and begun.
pub const ACCEPT_CREATE: &str = "accept_create";
/// Any other verb, accepted and perhaps begun.
pub const ACCEPT: &str = "accept";
/// A call of the data plane turns an idle suspend back.
pub const TURN_BACK: &str = "turn_back";
pub const INTENT: &str = "intent";
pub const TERMINATED: &str = "terminated";
pub const FALL_BACK: &str = "fall_back";
/// The intent to give compute new credentials, after an effect that failed with it intact.
pub const REATTACH: &str = "reattach";
pub const END: &str = "end";
/// A suspend ends turned back.
pub const END_TURNED_BACK: &str = "end_turned_back";
/// A delete takes over.
pub const END_INTERRUPTED: &str = "end_interrupted";
pub const RECOVER: &str = "recover";
pub const LOSS: &str = "loss";
pub const MAIN_EXIT: &str = "main_exit";
pub const EXITS: &str = "exits";
pub const UPDATE: &str = "update";
pub const DEBT: &str = "debt";
pub const SWEEP: &str = "sweep";
/// Writes nothing: what was committed before it is on the disk.
pub const SYNC: &str = "sync";

/// Of a recording.
#[must_use]
pub const fn of(recording: &Recording) -> &'static str {
    match recording {
        Recording::Intent { .. } => INTENT,
        Recording::Terminated => TERMINATED,
        Recording::FallBack | Recording::GiveUpMemory => FALL_BACK,
        Recording::Reattach(_) => REATTACH,
        Recording::End(ending) => match ending {
            Ending::TurnedBack => END_TURNED_BACK,
            Ending::Interrupted => END_INTERRUPTED,
            Ending::Ready { .. }
            | Ending::Suspended(_)
            | Ending::Aborted(_)
            | Ending::StillSuspended { .. }
            | Ending::Failed { .. }
            | Ending::NeverWas { .. }
            | Ending::Deleted { .. }
            | Ending::NotDeleted(_) => END,
        },
    }
}
