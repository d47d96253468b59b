//! The steps of `delete`: remove, see that it is gone, end. It dominates: it was recorded before
//! anything else, and whatever fails is tried again by the next one.

use super::{Action, Event, Observed, TRIES, end};
use crate::operation::EffectKind;
use crate::recording::Ending;
use crate::{Fault, Reason};

pub(super) const fn first() -> Action {
    // Removing is idempotent: there is nothing to look at first.
    Action::Call {
        effect: EffectKind::Delete,
        tries: 0,
    }
}

pub(super) fn next(abandon: bool, done: Action, event: Event) -> Action {
    match (done, event) {
        (Action::Call { tries, .. }, Event::Effected(_)) => Action::Observe {
            after: Some(EffectKind::Delete),
            tries,
            why: None,
        },
        (Action::Call { .. }, Event::Refused(fault) | Event::Unknown(fault)) if abandon => {
            end(Ending::Deleted {
                remarks: vec![format!("what may remain: {fault}")],
            })
        }
        (Action::Call { tries, .. }, Event::Refused(_) | Event::Unknown(_)) if tries < TRIES => {
            Action::Call {
                effect: EffectKind::Delete,
                tries: tries + 1,
            }
        }
        (Action::Call { .. }, Event::Refused(fault) | Event::Unknown(fault)) => end(
            Ending::NotDeleted(Fault::new(Reason::DeleteFailed, fault.message)),
        ),
        (Action::Observe { .. }, Event::Observed(Observed::Absent)) => end(Ending::Deleted {
            remarks: Vec::new(),
        }),
        (Action::Observe { tries, .. }, Event::Observed(_)) if tries < TRIES => Action::Call {
            effect: EffectKind::Delete,
            tries: tries + 1,
        },
        (_, event) if abandon => end(Ending::Deleted {
            remarks: vec![format!("what may remain was last seen as {event:?}")],
        }),
        (_, event) => end(Ending::NotDeleted(Fault::new(
            Reason::DeleteFailed,
            format!("it was not seen to be gone: {event:?}"),
        ))),
    }
}
