//! The steps of every verb: what the owner of an operation does next, and what a result means.
//!
//! An owner is a loop: carry out an [`Action`], get an [`Event`], ask [`next`] for the next action.
//! Actions that record are durable; all others may be repeated after a crash, when [`first`] says
//! where to go on from the recorded step. Unknown outcomes lead to [`Action::Observe`] and nowhere
//! else: what has happened is settled by looking, never by assuming. An effect whose absence was seen
//! is tried again while the operation's deadline is ahead; no count decides that something has failed.
//!
//! ```text
//! suspend   Prepare ─ Quiesce ─ Record(Intent) ─┬─ Detach ─────────────── Call ─ Record(End)   freeze
//!                                               └─ Terminate ─ Record ─── Call ─ Record(End)   stop
//! resume    [begun with its intent] ─ Call ─ Attach ─ Unquiesce ─ Hook ─ Record(End)
//! start     [begun with its intent] ─ Call(stop what is there) ─ Record(Intent) ─ Call ─ Attach ─ …
//! create    Pin ─ Record(Intent) ─ Call ─ Attach ─ StartMain ─ Record(End)
//! delete    [begun with its intent] ─ Call ─ Observe ─ Record(End)
//! ```

mod answer;
mod delete;
mod suspend;
mod wake;

use crate::ids::Incarnation;
use crate::operation::{EffectKind, Operation, Stopping, Verb};
use crate::record::{Compute, Debt, DriverReference, Reclaimed, Sandbox};
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
    /// Call the driver under the recorded intent. `again`: this owner has called it before, and
    /// lets some time pass first.
    Call {
        effect: EffectKind,
        again: bool,
    },
    /// Look, until there is an answer or the time for a look has passed.
    Observe {
        after: Option<EffectKind>,
        look: Look,
    },
    /// Wait for the supervisor under the issued incarnation, of compute that was started with
    /// `held`. `remarks`, here and below: what there is to tell of it already. They are for whoever
    /// waits: an owner that takes over has none.
    Attach {
        held: Incarnation,
        remarks: Vec<String>,
    },
    /// After a memory restore: let new work in again.
    LiftQuiesce {
        held: Incarnation,
        remarks: Vec<String>,
    },
    StartMain {
        held: Incarnation,
        remarks: Vec<String>,
    },
    /// The post-resume hook.
    Hook {
        held: Incarnation,
        remarks: Vec<String>,
    },
    Record(Recording),
}

/// What makes a look necessary, and so what may follow from it.
#[derive(Clone, Debug, PartialEq, Hash)]
pub enum Look {
    /// This owner has called nothing yet. An earlier one may have; or what is there decides what is
    /// to be called.
    First,
    /// The call left open what is so: it failed with this, or did not lead to what it was called for.
    Called(Option<Fault>),
    /// The driver refused, surely without an effect: what is there shows whether anything ran.
    Refused(Fault),
    /// What was called has had its time, and is not called again.
    Spent,
}

/// Whether the operation may try an effect again. The core has no clock: its owner tells it, by a
/// monotonic one, on which each owner is granted the operation's whole time anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Deadline {
    Ahead,
    Up,
}

/// What an image was resolved to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Pinned {
    pub digest: String,
    /// What it runs by itself: the main process of a sandbox that names none.
    pub main: Vec<String>,
}

impl From<&str> for Pinned {
    fn from(digest: &str) -> Self {
        Self {
            digest: digest.to_owned(),
            main: Vec::new(),
        }
    }
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
    Pinned(Pinned),
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
    /// Of a freeze that was asked to give its memory back, and could.
    pub reclaimed: Option<Reclaimed>,
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

    /// Whether it shows that `effect` has happened. Anything else may still change by a request
    /// whose reply was lost, as long as the backend may carry it out.
    #[must_use]
    pub const fn shows(self, effect: EffectKind) -> bool {
        match effect {
            EffectKind::Create | EffectKind::Start | EffectKind::Resume(_) => {
                matches!(self, Self::Live { .. })
            }
            EffectKind::Suspend(Depth::Freeze) => matches!(self, Self::Frozen { .. }),
            EffectKind::Suspend(Depth::Checkpoint | Depth::Stop) | EffectKind::Delete => {
                matches!(self, Self::Absent | Self::Stopped)
            }
            // New credentials cannot be seen.
            EffectKind::Reattach => false,
        }
    }
}

/// Where to begin, or to go on after a crash.
#[must_use]
pub fn first(sandbox: &Sandbox, op: &Operation) -> Action {
    match op.verb {
        Verb::Suspend { depth, .. } => suspend::first(sandbox, op, depth),
        Verb::Create | Verb::Resume { .. } | Verb::Start => wake::first(op),
        Verb::Delete { .. } => delete::first(),
    }
}

/// What to do after `done` led to `event`, with the operation's deadline as it was then.
#[must_use]
pub fn next(
    sandbox: &Sandbox,
    op: &Operation,
    done: Action,
    event: Event,
    deadline: Deadline,
) -> Action {
    if let Event::Stopped(stopping) = event {
        return match stopping {
            Stopping::Delete(_) => Action::Record(Recording::End(Ending::Interrupted)),
            Stopping::TurnBack(_) => suspend::turn_back(sandbox),
        };
    }
    match op.verb {
        Verb::Suspend { depth, .. } => suspend::next(sandbox, op, depth, (done, event), deadline),
        Verb::Create | Verb::Resume { .. } | Verb::Start => {
            wake::next(sandbox, op, done, event, deadline)
        }
        Verb::Delete { abandon } => delete::next(abandon, done, event, deadline),
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

/// The first call of an effect under its intent.
const fn call(effect: EffectKind) -> Action {
    Action::Call {
        effect,
        again: false,
    }
}

/// The call of it that a look leads to.
const fn call_after(effect: EffectKind, look: &Look) -> Action {
    Action::Call {
        effect,
        again: !matches!(look, Look::First),
    }
}

const fn observe(after: EffectKind, look: Look) -> Action {
    Action::Observe {
        after: Some(after),
        look,
    }
}

impl Look {
    /// Whether the effect may be called after what was seen.
    const fn may_call(&self, deadline: Deadline) -> bool {
        match (self, deadline) {
            (Self::First | Self::Called(_), Deadline::Ahead) => true,
            (Self::First | Self::Called(_), Deadline::Up) | (Self::Refused(_) | Self::Spent, _) => {
                false
            }
        }
    }

    /// What the last call failed with.
    fn fault(self) -> Option<Fault> {
        match self {
            Self::Called(fault) => fault,
            Self::Refused(fault) => Some(fault),
            Self::First | Self::Spent => None,
        }
    }
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
