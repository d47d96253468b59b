//! The steps of `delete`: remove, see that it is gone, end. It dominates: it was recorded before
//! anything else, and whatever fails is tried again, by the next one when its time is up.

use super::answer::{Called, called, seen};
use super::{Action, Deadline, Event, Look, Observed, call, end, observe};
use crate::operation::EffectKind;
use crate::recording::Ending;
use crate::{Fault, Reason};

pub(super) const fn first() -> Action {
    // Removing is idempotent: there is nothing to look at first.
    call(EffectKind::Delete)
}

pub(super) fn next(abandon: bool, done: Action, event: Event, deadline: Deadline) -> Action {
    match done {
        Action::Call { .. } => match called(event) {
            Called::Effected(_) => look(),
            Called::Refused(fault) | Called::Unknown(Some(fault)) => {
                failed(abandon, fault.message, deadline)
            }
            Called::Unknown(None) => look(),
        },
        Action::Observe { .. } => match seen(event) {
            Observed::Absent => end(Ending::Deleted {
                remarks: Vec::new(),
            }),
            observed @ (Observed::Stopped
            | Observed::Live { .. }
            | Observed::Frozen { .. }
            | Observed::InTransition
            | Observed::Unknown) => match deadline {
                Deadline::Ahead => again(),
                Deadline::Up => {
                    let message = format!("it was not seen to be gone: {observed:?}");
                    failed(abandon, message, deadline)
                }
            },
        },
        // None of these belongs to a delete.
        Action::Prepare(_)
        | Action::Quiesce
        | Action::Unquiesce(_)
        | Action::Detach
        | Action::Terminate
        | Action::Pin
        | Action::Attach { .. }
        | Action::LiftQuiesce { .. }
        | Action::StartMain { .. }
        | Action::Hook { .. }
        | Action::Record(_) => look(),
    }
}

const fn look() -> Action {
    observe(EffectKind::Delete, Look::Called(None))
}

const fn again() -> Action {
    Action::Call {
        effect: EffectKind::Delete,
        again: true,
    }
}

/// Who abandons it does not wait for what cannot be removed now.
fn failed(abandon: bool, message: String, deadline: Deadline) -> Action {
    match (abandon, deadline) {
        (true, _) => end(Ending::Deleted {
            remarks: vec![format!("what may remain: {message}")],
        }),
        (false, Deadline::Ahead) => again(),
        (false, Deadline::Up) => end(Ending::NotDeleted(Fault::new(
            Reason::DeleteFailed,
            message,
        ))),
    }
}
