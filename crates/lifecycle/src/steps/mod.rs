//! The steps of every verb: what the owner of an operation does next, and what a result means.
//!
//! An owner is a loop: carry out an [`Action`], get an [`Event`], ask [`next`] for the next action.
//! Actions that record are durable; all others may be repeated after a crash, when [`first`] says
//! where to go on from the recorded step. Unknown outcomes lead to [`Action::Observe`] and nowhere
//! else: what has happened is settled by looking, never by assuming.
//!
//! ```text
//! suspend   Prepare ─ Quiesce ─ Record(Intent) ─┬─ Detach ─────────────── Call ─ Record(End)   freeze
//!                                               └─ Terminate ─ Record ─── Call ─ Record(End)   stop
//! resume    [begun with its intent] ─ Call ─ Attach ─ Unquiesce ─ Hook ─ Record(End)
//! start     [begun with its intent] ─ Call(stop what is there) ─ Record(Intent) ─ Call ─ Attach ─ …
//! create    Pin ─ Record(Intent) ─ Call ─ Attach ─ StartMain ─ Record(End)
//! delete    [begun with its intent] ─ Call ─ Observe ─ Record(End)
//! ```

mod delete;
mod suspend;
mod wake;

use crate::ids::Incarnation;
use crate::operation::{EffectKind, Operation, Stopping, Verb};
use crate::record::{Compute, Debt, DriverReference, Sandbox};
use crate::recording::{Ending, Recording};
use crate::{Depth, Fault};

/// What the owner carries out. One action, one event.
#[derive(Clone, Debug, PartialEq, Hash)]
pub enum Action {
    /// Ask the driver whether it could; no effect.
    Prepare(Depth),
    /// Ask the supervisor to refuse new work and run the pre-suspend hook.
    Quiesce,
    /// The inverse, then this end.
    Unquiesce(Box<Ending>),
    /// Have the supervisor let go of every descriptor of the host's.
    Detach,
    /// Have the supervisor end every process.
    Terminate,
    /// Resolve the image to what it is now.
    Pin,
    /// Call the driver under the recorded intent. `tries` counts those of this owner.
    Call {
        effect: EffectKind,
        tries: u32,
    },
    /// Look, until there is an answer or the deadline has passed. `why`: what the call answered
    /// that made a look necessary.
    Observe {
        after: Option<EffectKind>,
        tries: u32,
        why: Option<Fault>,
    },
    /// Wait for the supervisor under the issued incarnation, of compute that was started with
    /// `held`.
    Attach {
        held: Incarnation,
    },
    /// After a memory restore: let new work in again.
    LiftQuiesce {
        held: Incarnation,
    },
    StartMain {
        held: Incarnation,
    },
    /// The post-resume hook. `remarks`: what there is to tell already.
    Hook {
        held: Incarnation,
        remarks: Vec<String>,
    },
    Record(Recording),
}

/// What came of an action.
#[derive(Clone, Debug, PartialEq, Hash)]
pub enum Event {
    /// It was carried out (prepare, quiesce, unquiesce, detach, terminate, lift, main, hook).
    Done,
    /// Carried out, with something to tell the user.
    DoneWith(String),
    /// Refused, surely without an effect.
    Refused(Fault),
    /// The supervisor could not be reached within its deadline.
    Unreachable,
    Pinned(String),
    /// The driver says what is so now.
    Effected(Effected),
    /// It may or may not have happened.
    Unknown(Fault),
    Observed(Observed),
    /// The supervisor has proved the issued incarnation.
    Attached,
    AttachTimeout,
    /// The compute ended while its supervisor was waited for.
    ComputeGone,
    Recorded,
    Stopped(Stopping),
}

/// What a driver reports of an effect.
#[derive(Clone, Debug, PartialEq, Hash)]
pub struct Effected {
    pub compute: Compute,
    pub reference: DriverReference,
    pub size_bytes: u64,
    pub leftovers: Vec<Debt>,
    pub remarks: Vec<String>,
}

/// What an observation says. Absent, stopped, frozen, in transition and unknown are different.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Observed {
    Absent,
    /// Nothing runs, something of it is there.
    Stopped,
    Live {
        held: Incarnation,
    },
    Frozen {
        held: Incarnation,
    },
    InTransition,
    Unknown,
}

impl Observed {
    /// As the record keeps it.
    #[must_use]
    pub const fn compute(self) -> Compute {
        match self {
            Self::Absent | Self::Stopped => Compute::Absent,
            Self::Live { held } => Compute::Live { held },
            Self::Frozen { held } => Compute::Frozen { held },
            Self::InTransition | Self::Unknown => Compute::Unknown,
        }
    }
}

/// How often one owner tries an effect whose absence was observed, before it gives up.
const TRIES: u32 = 3;

/// Where to begin, or to go on after a crash.
#[must_use]
pub fn first(sandbox: &Sandbox, op: &Operation) -> Action {
    match op.verb {
        Verb::Suspend { depth, .. } => suspend::first(sandbox, op, depth),
        Verb::Create | Verb::Resume { .. } | Verb::Start => wake::first(sandbox, op),
        Verb::Delete { .. } => delete::first(),
    }
}

/// What to do after `done` led to `event`.
#[must_use]
pub fn next(sandbox: &Sandbox, op: &Operation, done: Action, event: Event) -> Action {
    if let Event::Stopped(stopping) = event {
        return match stopping {
            Stopping::Delete(_) => Action::Record(Recording::End(Ending::Interrupted)),
            Stopping::TurnBack(_) => Action::Unquiesce(Box::new(Ending::TurnedBack)),
        };
    }
    match op.verb {
        Verb::Suspend { depth, .. } => suspend::next(sandbox, op, depth, done, event),
        Verb::Create | Verb::Resume { .. } | Verb::Start => wake::next(sandbox, op, done, event),
        Verb::Delete { abandon } => delete::next(abandon, done, event),
    }
}

const fn intent(effect: EffectKind) -> Action {
    Action::Record(Recording::Intent {
        effect,
        pinned: None,
        quiesced: false,
    })
}

const fn end(ending: Ending) -> Action {
    Action::Record(Recording::End(ending))
}

/// The action did not expect this event. Looking is always safe; where looking was what was done,
/// nothing is known.
fn lost_track(done: &Action, event: &Event) -> Fault {
    Fault::new(
        crate::Reason::DriverTimeout,
        format!("unexpected result {event:?} of {}", done.name()),
    )
}

impl Action {
    /// For spans, counters and timings.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Prepare(_) => "prepare",
            Self::Quiesce => "quiesce",
            Self::Unquiesce(_) => "unquiesce",
            Self::Detach => "detach",
            Self::Terminate => "terminate",
            Self::Pin => "pin",
            Self::Call { effect, .. } => effect.as_str(),
            Self::Observe { .. } => "observe",
            Self::Attach { .. } => "attach",
            Self::LiftQuiesce { .. } => "lift_quiesce",
            Self::StartMain { .. } => "start_main",
            Self::Hook { .. } => "hook",
            Self::Record(Recording::Intent { .. }) => "record_intent",
            Self::Record(Recording::Terminated) => "record_terminated",
            Self::Record(Recording::Reattach(_)) => "record_reattach",
            Self::Record(Recording::GiveUpMemory) => "record_give_up_memory",
            Self::Record(Recording::FallBack) => "record_fallback",
            Self::Record(Recording::End(_)) => "record_end",
        }
    }
}
