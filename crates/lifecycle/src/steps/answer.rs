//! Events as answers to what was done. Each action has one kind of answer; an event of another kind
//! has told nothing, and looking is always safe.

use super::{Effected, Event, Observed};
use crate::Fault;

/// Of whoever was asked.
pub(super) enum Answer {
    Done,
    Refused(Fault),
    /// Nobody answered.
    Silent,
}

pub(super) fn asked(event: Event) -> Answer {
    match event {
        Event::Done | Event::DoneWith(_) => Answer::Done,
        Event::Refused(fault) | Event::Unknown(fault) => Answer::Refused(fault),
        Event::Unreachable
        | Event::Pinned(_)
        | Event::Effected(_)
        | Event::Observed(_)
        | Event::Attached
        | Event::AttachTimeout
        | Event::ComputeGone
        | Event::Recorded
        | Event::Stopped(_) => Answer::Silent,
    }
}

/// Of the driver, to an effect.
pub(super) enum Called {
    Effected(Effected),
    Refused(Fault),
    Unknown(Option<Fault>),
}

pub(super) fn called(event: Event) -> Called {
    match event {
        Event::Effected(effected) => Called::Effected(effected),
        Event::Refused(fault) => Called::Refused(fault),
        Event::Unknown(fault) => Called::Unknown(Some(fault)),
        Event::Done
        | Event::DoneWith(_)
        | Event::Unreachable
        | Event::Pinned(_)
        | Event::Observed(_)
        | Event::Attached
        | Event::AttachTimeout
        | Event::ComputeGone
        | Event::Recorded
        | Event::Stopped(_) => Called::Unknown(None),
    }
}

pub(super) fn seen(event: Event) -> Observed {
    match event {
        Event::Observed(observed) => observed,
        Event::Done
        | Event::DoneWith(_)
        | Event::Refused(_)
        | Event::Unreachable
        | Event::Pinned(_)
        | Event::Effected(_)
        | Event::Unknown(_)
        | Event::Attached
        | Event::AttachTimeout
        | Event::ComputeGone
        | Event::Recorded
        | Event::Stopped(_) => Observed::Unknown,
    }
}

/// Of waiting for a supervisor.
pub(super) enum Awaited {
    Attached,
    ComputeGone,
    Late,
}

pub(super) fn awaited(event: Event) -> Awaited {
    match event {
        Event::Attached => Awaited::Attached,
        Event::ComputeGone => Awaited::ComputeGone,
        Event::AttachTimeout
        | Event::Unreachable
        | Event::Done
        | Event::DoneWith(_)
        | Event::Refused(_)
        | Event::Pinned(_)
        | Event::Effected(_)
        | Event::Unknown(_)
        | Event::Observed(_)
        | Event::Recorded
        | Event::Stopped(_) => Awaited::Late,
    }
}

/// What there is to tell of something that fails nothing.
pub(super) fn remark(event: Event) -> Option<String> {
    match event {
        Event::DoneWith(remark) => Some(remark),
        Event::Refused(fault) | Event::Unknown(fault) => Some(fault.message),
        Event::Unreachable => Some("its supervisor did not answer".to_owned()),
        Event::Done
        | Event::Pinned(_)
        | Event::Effected(_)
        | Event::Observed(_)
        | Event::Attached
        | Event::AttachTimeout
        | Event::ComputeGone
        | Event::Recorded
        | Event::Stopped(_) => None,
    }
}
