//! What follows from what was seen of the compute that is to wake.

use super::super::{Action, Deadline, Look, Observed, call_after, end, intent, observe};
use super::{cold_start_failed, falls_back, never_was};
use crate::operation::{EffectKind, Operation};
use crate::record::{Compute, Sandbox};
use crate::recording::{Ending, Memory, Recording};
use crate::{Depth, Fault, Reason};

/// What was seen decides.
pub(super) fn settle(
    sandbox: &Sandbox,
    op: &Operation,
    after: Option<EffectKind>,
    look: Look,
    observed: Observed,
    deadline: Deadline,
) -> Action {
    let may_call = look.may_call(deadline);
    match (after, observed) {
        // A create that nobody can tell of stays Creating, with its name and its room, and is looked
        // at until it is settled. A delete leads out.
        (Some(EffectKind::Create), Observed::Unknown | Observed::InTransition) => {
            observe(EffectKind::Create, look)
        }
        (Some(EffectKind::Suspend(_)), Observed::Unknown | Observed::InTransition) => {
            end(Ending::Failed {
                fault: Fault::new(
                    Reason::StopFailed,
                    "its old compute could not be observed in time",
                ),
                compute: Compute::Unknown,
            })
        }
        // Its memory may still be on disk alone. As long as nobody can tell, it is not given up.
        (
            Some(effect @ EffectKind::Resume(Depth::Checkpoint)),
            Observed::Unknown | Observed::InTransition,
        ) => observe(effect, look),
        (
            Some(
                EffectKind::Start
                | EffectKind::Resume(Depth::Freeze | Depth::Stop)
                | EffectKind::Reattach
                | EffectKind::Delete,
            )
            | None,
            Observed::Unknown | Observed::InTransition,
        ) => end(Ending::Failed {
            fault: Fault::new(
                Reason::DriverTimeout,
                "its compute could not be observed in time",
            ),
            compute: Compute::Unknown,
        }),

        // Out of Failed: nothing was called yet.
        #[cfg(feature = "mutants")]
        (None, Observed::Live { .. }) if crate::mutant!(StartsBesideIt) => {
            intent(EffectKind::Start)
        }
        (None, Observed::Live { .. }) => intent(EffectKind::Reattach),
        (None, Observed::Frozen { .. }) if !op.cold => intent(EffectKind::Resume(Depth::Freeze)),
        (None, Observed::Frozen { .. }) => intent(EffectKind::Suspend(Depth::Stop)),
        (None, Observed::Absent | Observed::Stopped) => intent(EffectKind::Start),

        // Compute of before is in the way of a cold start. It has ended, and only the driver can
        // tell what it left: asked again under the same key, it answers.
        (Some(effect @ EffectKind::Suspend(_)), Observed::Absent | Observed::Stopped) => {
            if may_call {
                call_after(effect, &look)
            } else {
                intent(EffectKind::Start)
            }
        }
        (
            Some(effect @ EffectKind::Suspend(_)),
            Observed::Live { .. } | Observed::Frozen { .. },
        ) => {
            if may_call {
                call_after(effect, &look)
            } else {
                end(Ending::Failed {
                    fault: Fault::new(Reason::StopFailed, "its old compute could not be ended"),
                    compute: observed.compute(),
                })
            }
        }

        // It is there. Either it attaches now, or it had its time.
        (
            Some(
                EffectKind::Create
                | EffectKind::Start
                | EffectKind::Resume(_)
                | EffectKind::Reattach
                | EffectKind::Delete,
            ),
            Observed::Live { held },
        ) => match look {
            Look::First | Look::Called(_) | Look::Refused(_) => Action::Attach {
                held,
                remarks: Vec::new(),
            },
            Look::Spent => end(Ending::Failed {
                fault: Fault::new(
                    Reason::AttachTimeout,
                    "its supervisor did not attach in time",
                ),
                compute: observed.compute(),
            }),
        },

        // Still frozen: nothing ran.
        (Some(effect @ EffectKind::Resume(Depth::Freeze)), Observed::Frozen { .. }) => {
            if may_call {
                call_after(effect, &look)
            } else if falls_back(op) {
                Action::Record(Recording::GiveUpMemory)
            } else {
                end(Ending::StillSuspended {
                    fault: Fault::new(Reason::RestoreFailed, not_thawed(look)),
                    memory: Memory::NothingRan,
                    compute: observed.compute(),
                    debts: Vec::new(),
                })
            }
        }
        (
            Some(
                EffectKind::Create
                | EffectKind::Start
                | EffectKind::Resume(Depth::Checkpoint | Depth::Stop)
                | EffectKind::Reattach
                | EffectKind::Delete,
            ),
            Observed::Frozen { .. },
        ) => end(Ending::Failed {
            fault: Fault::new(
                Reason::AttachTimeout,
                "its compute was frozen behind our back",
            ),
            compute: observed.compute(),
        }),

        // It may not have been restored yet. Asked again under the same key, the driver does not do
        // so twice: what has run and is gone, it says is gone.
        (
            Some(effect @ EffectKind::Resume(Depth::Checkpoint)),
            Observed::Absent | Observed::Stopped,
        ) if may_call => call_after(effect, &look),
        // Memory was promised, and what held it is gone.
        (
            Some(EffectKind::Resume(_) | EffectKind::Reattach),
            Observed::Absent | Observed::Stopped,
        ) => memory_gone(sandbox, op),

        (
            Some(effect @ (EffectKind::Create | EffectKind::Start)),
            Observed::Absent | Observed::Stopped,
        ) if may_call => call_after(effect, &look),
        (Some(EffectKind::Create), Observed::Absent | Observed::Stopped) => {
            never_was(op, Fault::new(Reason::StartFailed, never_attached(look)))
        }
        (Some(EffectKind::Start | EffectKind::Delete), Observed::Absent | Observed::Stopped) => {
            cold_start_failed(sandbox, never_attached(look))
        }
    }
}

fn not_thawed(look: Look) -> String {
    look.fault().map_or_else(
        || "it could not be thawed".to_owned(),
        |fault| fault.message,
    )
}

fn never_attached(look: Look) -> String {
    look.fault().map_or_else(
        || "its compute ended before its supervisor attached".to_owned(),
        |fault| fault.message,
    )
}

fn memory_gone(sandbox: &Sandbox, op: &Operation) -> Action {
    if falls_back(op) {
        return Action::Record(Recording::FallBack);
    }
    let reason = if sandbox.retained.is_some() {
        Reason::RetainedLost
    } else {
        Reason::ComputeLost
    };
    end(Ending::StillSuspended {
        fault: Fault::new(reason, "the compute that held its memory is gone"),
        memory: Memory::Lost,
        compute: Compute::Absent,
        debts: Vec::new(),
    })
}
