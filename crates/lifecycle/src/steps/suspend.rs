//! The steps of `suspend`.
//!
//! Until the intent is recorded everything can be undone: the sandbox is Ready again with every
//! exec untouched. After it, a memory depth that fails with its compute intact reattaches; a `stop`
//! goes on towards Suspended, or ends Failed; never Ready.
//!
//! From Suspended, a deeper suspend never wakes: no supervisor is spoken to and no user code runs.

use super::answer::{Answer, Awaited, Called, asked, awaited, called, seen};
use super::{
    Action, Deadline, Effected, Event, Look, Observed, call, call_after, end, intent, observe,
};
use crate::ids::Incarnation;
use crate::operation::{EffectKind, Operation, Step};
use crate::record::{Compute, DriverReference, Sandbox};
use crate::recording::{Asleep, Ending, Recording};
use crate::{Depth, Fault, Reason};

pub(super) fn first(sandbox: &Sandbox, op: &Operation, depth: Depth) -> Action {
    match op.step {
        Step::Waiting | Step::Begun => {
            if sandbox.compute.may_exist() {
                Action::Prepare(depth)
            } else {
                // Failed without compute: the driver confirms it, and it sleeps on its storage.
                intent(EffectKind::Suspend(depth))
            }
        }
        Step::Intent => {
            let effect = op.intent.map(|intent| intent.effect);
            observe(effect.unwrap_or(EffectKind::Suspend(depth)), Look::First)
        }
        Step::Terminated | Step::Ended => call(EffectKind::Suspend(depth)),
    }
}

/// Whether nothing inside may be spoken to: it sleeps already.
fn is_deepening(sandbox: &Sandbox) -> bool {
    sandbox.retained.is_some()
}

/// Stopped before the intent was recorded.
pub(super) fn turn_back(sandbox: &Sandbox) -> Action {
    if is_deepening(sandbox) || !sandbox.compute.may_exist() {
        end(Ending::TurnedBack)
    } else {
        Action::Unquiesce(Box::new(Ending::TurnedBack))
    }
}

pub(super) fn next(
    sandbox: &Sandbox,
    op: &Operation,
    depth: Depth,
    (done, event): (Action, Event),
    deadline: Deadline,
) -> Action {
    let effect = EffectKind::Suspend(depth);
    match done {
        Action::Prepare(_) => match asked(event) {
            Answer::Done if is_deepening(sandbox) => intent(effect),
            Answer::Done => Action::Quiesce,
            Answer::Refused(fault) => not_prepared(sandbox, op, fault),
            Answer::Silent => {
                let why = "its driver did not say whether it could";
                not_prepared(sandbox, op, Fault::new(Reason::DriverTimeout, why))
            }
        },
        Action::Quiesce => after_quiesce(depth, asked(event)),
        Action::Unquiesce(ending) => end(*ending),
        Action::Record(recording) => after_record(sandbox, op, depth, &recording),
        Action::Terminate => match asked(event) {
            Answer::Done => Action::Record(Recording::Terminated),
            // It was asked and did not answer: the driver ends what is left.
            Answer::Refused(_) | Answer::Silent => call(effect),
        },
        Action::Detach => match asked(event) {
            Answer::Done => call(effect),
            Answer::Refused(_) | Answer::Silent => reattach(Fault::new(
                Reason::SuspendAborted,
                "its supervisor did not let go of the connection",
            )),
        },
        Action::Call {
            effect: EffectKind::Suspend(_),
            ..
        } => after_call(sandbox, depth, called(event)),
        Action::Call {
            effect: EffectKind::Reattach,
            ..
        } => after_reattach(called(event)),
        Action::Observe { after, look } => {
            let observed = seen(event);
            match after {
                Some(EffectKind::Reattach) => {
                    settle_reattach(sandbox, depth, &look, observed, deadline)
                }
                Some(
                    EffectKind::Suspend(_)
                    | EffectKind::Create
                    | EffectKind::Start
                    | EffectKind::Resume(_)
                    | EffectKind::Delete,
                )
                | None => settle(sandbox, op, depth, &look, observed, deadline),
            }
        }
        Action::Attach { .. } => match awaited(event) {
            Awaited::Attached => Action::Unquiesce(Box::new(Ending::Aborted(
                op.aborting
                    .clone()
                    .unwrap_or_else(|| Fault::new(Reason::SuspendAborted, "undone")),
            ))),
            Awaited::ComputeGone => asleep_on_storage(sandbox, depth),
            Awaited::Late => observe(EffectKind::Reattach, Look::Spent),
        },
        // None of these belongs to a suspend.
        Action::Call {
            effect:
                EffectKind::Create | EffectKind::Start | EffectKind::Resume(_) | EffectKind::Delete,
            ..
        }
        | Action::Pin
        | Action::LiftQuiesce { .. }
        | Action::StartMain { .. }
        | Action::Hook { .. } => observe(effect, Look::Spent),
    }
}

fn not_prepared(sandbox: &Sandbox, op: &Operation, fault: Fault) -> Action {
    // An owner before this one may have quiesced it already.
    if op.attempt > 1 && !is_deepening(sandbox) {
        Action::Unquiesce(Box::new(Ending::Aborted(fault)))
    } else {
        end(Ending::Aborted(fault))
    }
}

fn after_quiesce(depth: Depth, answer: Answer) -> Action {
    let back = |fault| Action::Unquiesce(Box::new(Ending::Aborted(fault)));
    match (answer, depth) {
        (Answer::Done, _) => Action::Record(Recording::Intent {
            effect: EffectKind::Suspend(depth),
            pinned: None,
            quiesced: true,
        }),
        (Answer::Refused(fault), _) => back(fault),
        // A stop needs nobody's consent.
        (Answer::Silent, Depth::Stop) => intent(EffectKind::Suspend(depth)),
        (Answer::Silent, Depth::Freeze | Depth::Checkpoint) => back(Fault::new(
            Reason::SupervisorUnreachable,
            "its supervisor does not answer",
        )),
    }
}

fn after_record(sandbox: &Sandbox, op: &Operation, depth: Depth, recording: &Recording) -> Action {
    let effect = EffectKind::Suspend(depth);
    match recording {
        Recording::Intent { .. } => match depth {
            _ if is_deepening(sandbox) || !op.quiesced => call(effect),
            Depth::Stop => Action::Terminate,
            Depth::Freeze | Depth::Checkpoint => Action::Detach,
        },
        Recording::Terminated => call(effect),
        Recording::Reattach(_) => call(EffectKind::Reattach),
        // None of these is recorded by a suspend that goes on.
        Recording::GiveUpMemory | Recording::FallBack | Recording::End(_) => {
            observe(effect, Look::Spent)
        }
    }
}

fn after_call(sandbox: &Sandbox, depth: Depth, called: Called) -> Action {
    let effect = EffectKind::Suspend(depth);
    match called {
        Called::Effected(effected) => match (depth, effected.compute) {
            (Depth::Freeze, Compute::Frozen { .. })
            | (Depth::Checkpoint | Depth::Stop, Compute::Absent) => asleep(depth, effected),
            (Depth::Freeze, Compute::Absent) => asleep_on_storage(sandbox, depth),
            (Depth::Freeze, Compute::Live { .. } | Compute::Unknown)
            | (
                Depth::Checkpoint | Depth::Stop,
                Compute::Live { .. } | Compute::Frozen { .. } | Compute::Unknown,
            ) => observe(effect, Look::Called(None)),
        },
        // It is gone, and its memory was not written.
        Called::Refused(fault)
            if depth == Depth::Checkpoint && fault.reason == Reason::RetainedLost =>
        {
            asleep_on_storage(sandbox, depth)
        }
        // No effect of this call; of one before it, perhaps.
        Called::Refused(fault) if depth.keeps_memory() || is_deepening(sandbox) => {
            observe(effect, Look::Refused(fault))
        }
        Called::Refused(fault) => observe(effect, Look::Called(Some(fault))),
        Called::Unknown(fault) => observe(effect, Look::Called(fault)),
    }
}

fn after_reattach(called: Called) -> Action {
    match called {
        Called::Effected(effected) => match effected.compute {
            Compute::Live { held } => Action::Attach {
                held,
                remarks: Vec::new(),
            },
            Compute::Absent | Compute::Frozen { .. } | Compute::Unknown => {
                observe(EffectKind::Reattach, Look::Called(None))
            }
        },
        Called::Refused(fault) => observe(EffectKind::Reattach, Look::Called(Some(fault))),
        Called::Unknown(fault) => observe(EffectKind::Reattach, Look::Called(fault)),
    }
}

/// The outcome was unknown; this is what there is.
fn settle(
    sandbox: &Sandbox,
    op: &Operation,
    depth: Depth,
    look: &Look,
    observed: Observed,
    deadline: Deadline,
) -> Action {
    let may_call = look.may_call(deadline);
    let again = call_after(EffectKind::Suspend(depth), look);
    match (depth, observed) {
        // It is done, and only the driver can write the reference by which it is restored: asked
        // again under the same key, it answers with what it did.
        (Depth::Freeze, Observed::Frozen { .. }) if may_call => again,
        (Depth::Freeze, Observed::Frozen { held }) => frozen(held),
        (Depth::Freeze, Observed::Live { .. }) => {
            did_not_happen(look, "the freeze did not happen; it is running on")
        }
        (Depth::Freeze, Observed::Absent | Observed::Stopped) => asleep_on_storage(sandbox, depth),
        // Only the driver can tell whether its memory was written. That is a question, of compute
        // that is gone: it is asked until there is an answer, deadline or not, so that no artifact
        // is given up which is whole. A driver that refuses to answer has the operation's time.
        #[cfg(feature = "mutants")]
        (Depth::Checkpoint, Observed::Absent | Observed::Stopped)
            if crate::mutant!(UnaskedIsUnwritten) =>
        {
            asleep_on_storage(sandbox, depth)
        }
        (Depth::Checkpoint, Observed::Absent | Observed::Stopped) => match (look, deadline) {
            (Look::Refused(_), Deadline::Up) => asleep_on_storage(sandbox, depth),
            (Look::First | Look::Called(_) | Look::Spent, _)
            | (Look::Refused(_), Deadline::Ahead) => again,
        },
        // Called also where nothing is there: the driver syncs the storage, and only its answer
        // tells what is left to be removed.
        (Depth::Stop, Observed::Absent | Observed::Stopped) if may_call => again,
        (Depth::Stop, Observed::Absent | Observed::Stopped) => asleep(
            depth,
            Effected {
                compute: Compute::Absent,
                reference: DriverReference::default(),
                size_bytes: 0,
                leftovers: Vec::new(),
                remarks: Vec::new(),
                reclaimed: None,
            },
        ),
        // Recovered before its processes were asked to end: ask them.
        (Depth::Stop, Observed::Live { .. })
            if *look == Look::First
                && op.step == Step::Intent
                && op.quiesced
                && !is_deepening(sandbox) =>
        {
            Action::Terminate
        }
        // Recovered, and nobody knows whether its supervisor had let go. With its connection open
        // its memory cannot be written.
        (Depth::Checkpoint, Observed::Live { .. })
            if *look == Look::First
                && !is_deepening(sandbox)
                && !crate::mutant!(WritesTheConnected) =>
        {
            did_not_happen(look, NOT_WRITTEN)
        }
        (Depth::Stop | Depth::Checkpoint, Observed::Live { .. } | Observed::Frozen { .. })
            if may_call =>
        {
            again
        }
        (Depth::Stop, Observed::Frozen { .. }) if is_deepening(sandbox) => {
            let late = || Fault::new(Reason::StopFailed, "its frozen compute could not be ended");
            end(Ending::Aborted(refusal(look).unwrap_or_else(late)))
        }
        (Depth::Checkpoint, Observed::Frozen { .. }) if is_deepening(sandbox) => {
            let late = || {
                Fault::new(
                    Reason::DriverTimeout,
                    "its memory could not be written in time; it sleeps on at freeze",
                )
            };
            end(Ending::Aborted(refusal(look).unwrap_or_else(late)))
        }
        (Depth::Checkpoint, Observed::Live { .. }) if !is_deepening(sandbox) => {
            did_not_happen(look, NOT_WRITTEN)
        }
        // Its memory may be on disk or resident. As long as nobody can tell, nothing is given up.
        (Depth::Checkpoint, Observed::InTransition | Observed::Unknown) => {
            observe(EffectKind::Suspend(depth), look.clone())
        }
        (Depth::Stop | Depth::Checkpoint, Observed::Live { .. } | Observed::Frozen { .. })
        | (Depth::Freeze | Depth::Stop, Observed::InTransition | Observed::Unknown) => {
            end(Ending::Failed {
                fault: Fault::new(
                    match depth {
                        Depth::Stop => Reason::StopFailed,
                        // Its processes are what they were, wherever they are.
                        Depth::Freeze | Depth::Checkpoint => Reason::DriverTimeout,
                    },
                    "its compute could not be settled",
                ),
                compute: observed.compute(),
            })
        }
    }
}

const NOT_WRITTEN: &str = "the checkpoint did not happen; it is running on";

/// Surely not: its compute is intact.
fn did_not_happen(look: &Look, message: &str) -> Action {
    let aborted = || Fault::new(Reason::SuspendAborted, message);
    reattach(refusal(look).unwrap_or_else(aborted))
}

fn refusal(look: &Look) -> Option<Fault> {
    match look {
        Look::Refused(fault) => Some(fault.clone()),
        Look::First | Look::Called(_) | Look::Spent => None,
    }
}

/// A suspend that did not happen has given its compute new credentials, or tried to.
fn settle_reattach(
    sandbox: &Sandbox,
    depth: Depth,
    look: &Look,
    observed: Observed,
    deadline: Deadline,
) -> Action {
    match observed {
        Observed::Live { .. } if look.may_call(deadline) => call_after(EffectKind::Reattach, look),
        // The freeze came late, and is confirmed now: it sleeps as it was asked to.
        Observed::Frozen { held } if depth == Depth::Freeze => frozen(held),
        Observed::Absent | Observed::Stopped => asleep_on_storage(sandbox, depth),
        Observed::Live { .. }
        | Observed::Frozen { .. }
        | Observed::InTransition
        | Observed::Unknown => end(Ending::Failed {
            fault: Fault::new(
                Reason::AttachTimeout,
                "the suspend did not happen, and its supervisor did not come back",
            ),
            compute: observed.compute(),
        }),
    }
}

fn reattach(fault: Fault) -> Action {
    Action::Record(Recording::Reattach(fault))
}

fn frozen(held: Incarnation) -> Action {
    asleep(
        Depth::Freeze,
        Effected {
            compute: Compute::Frozen { held },
            reference: DriverReference::default(),
            size_bytes: 0,
            leftovers: Vec::new(),
            remarks: Vec::new(),
            reclaimed: None,
        },
    )
}

fn asleep(depth: Depth, effected: Effected) -> Action {
    end(Ending::Suspended(Asleep {
        depth,
        compute: effected.compute,
        reference: effected.reference,
        size_bytes: effected.size_bytes,
        lost: None,
        debts: effected.leftovers,
        remarks: effected.remarks,
        reclaimed: effected.reclaimed,
    }))
}

/// The compute ended on its way to sleep: its memory was promised and is gone.
fn asleep_on_storage(sandbox: &Sandbox, depth: Depth) -> Action {
    let slept_at = (sandbox.retained.as_ref()).map(|retained| retained.depth);
    let promised = slept_at.unwrap_or(depth);
    end(Ending::Suspended(Asleep {
        depth: Depth::Stop,
        compute: Compute::Absent,
        reference: DriverReference::default(),
        size_bytes: 0,
        lost: promised.keeps_memory().then_some(promised),
        debts: Vec::new(),
        remarks: Vec::new(),
        reclaimed: None,
    }))
}
