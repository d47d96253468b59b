//! The steps of `suspend`.
//!
//! Until the intent is recorded everything can be undone: the sandbox is Ready again with every
//! exec untouched. After it, a memory depth that fails with its compute intact reattaches; a `stop`
//! goes on towards Suspended, or ends Failed; never Ready.
//!
//! From Suspended, a deeper suspend never wakes: no supervisor is spoken to and no user code runs.

use super::{Action, Effected, Event, Observed, TRIES, end, intent, lost_track};
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
        Step::Intent => Action::Observe {
            after: Some(EffectKind::Suspend(depth)),
            tries: 0,
            why: None,
        },
        Step::Terminated | Step::Ended => Action::Call {
            effect: EffectKind::Suspend(depth),
            tries: 0,
        },
    }
}

/// Whether nothing inside may be spoken to: it sleeps already.
fn is_deepening(sandbox: &Sandbox) -> bool {
    sandbox.retained.is_some()
}

pub(super) fn next(
    sandbox: &Sandbox,
    op: &Operation,
    depth: Depth,
    done: Action,
    event: Event,
) -> Action {
    let effect = EffectKind::Suspend(depth);
    match (done, event) {
        (Action::Prepare(_), Event::Done) if is_deepening(sandbox) => intent(effect),
        (Action::Prepare(_), Event::Done) => Action::Quiesce,
        // An owner before this one may have quiesced it already.
        (Action::Prepare(_), Event::Refused(fault) | Event::Unknown(fault))
            if op.attempt > 1 && !is_deepening(sandbox) =>
        {
            Action::Unquiesce(Box::new(Ending::Aborted(fault)))
        }
        (Action::Prepare(_), Event::Refused(fault) | Event::Unknown(fault)) => {
            end(Ending::Aborted(fault))
        }

        (Action::Quiesce, Event::Done | Event::DoneWith(_)) => Action::Record(Recording::Intent {
            effect,
            pinned: None,
            quiesced: true,
        }),
        (Action::Quiesce, Event::Refused(fault)) => {
            Action::Unquiesce(Box::new(Ending::Aborted(fault)))
        }
        (Action::Quiesce, Event::Unreachable) => match depth {
            // A stop needs nobody's consent.
            Depth::Stop => intent(effect),
            Depth::Freeze | Depth::Checkpoint => {
                Action::Unquiesce(Box::new(Ending::Aborted(Fault::new(
                    Reason::SupervisorUnreachable,
                    "its supervisor does not answer",
                ))))
            }
        },
        (Action::Unquiesce(ending), _) => end(*ending),

        (Action::Record(Recording::Intent { .. }), Event::Recorded) => match depth {
            _ if is_deepening(sandbox) || !op.quiesced => Action::Call { effect, tries: 0 },
            Depth::Stop => Action::Terminate,
            Depth::Freeze | Depth::Checkpoint => Action::Detach,
        },
        (Action::Terminate, Event::Done) => Action::Record(Recording::Terminated),
        // It was asked and did not answer: the driver ends what is left.
        (Action::Terminate, _) | (Action::Record(Recording::Terminated), Event::Recorded) => {
            Action::Call { effect, tries: 0 }
        }
        (Action::Detach, Event::Done) => Action::Call { effect, tries: 0 },
        (Action::Detach, _) => reattach(Fault::new(
            Reason::SuspendAborted,
            "its supervisor did not let go of the connection",
        )),

        (
            Action::Call {
                effect: EffectKind::Suspend(_),
                tries,
            },
            event,
        ) => after_call(sandbox, depth, tries, event),
        (
            Action::Observe {
                after: Some(EffectKind::Reattach),
                tries,
                ..
            },
            Event::Observed(observed),
        ) => settle_reattach(depth, tries, observed),
        (Action::Observe { tries, .. }, Event::Observed(observed)) => {
            settle(sandbox, op, depth, tries, observed)
        }

        (Action::Record(Recording::Reattach(_)), Event::Recorded) => Action::Call {
            effect: EffectKind::Reattach,
            tries: 0,
        },
        (
            Action::Call {
                effect: EffectKind::Reattach,
                tries,
            },
            Event::Effected(effected),
        ) => match effected.compute {
            Compute::Live { held } => Action::Attach { held },
            Compute::Absent | Compute::Frozen { .. } | Compute::Unknown => Action::Observe {
                after: Some(EffectKind::Reattach),
                tries,
                why: None,
            },
        },
        // The count goes on: without it this would go round for ever, and reach no boundary at
        // which a delete is seen.
        (
            Action::Call {
                effect: EffectKind::Reattach,
                tries,
            },
            _,
        ) => Action::Observe {
            after: Some(EffectKind::Reattach),
            tries: tries + 1,
            why: None,
        },
        (Action::Attach { .. }, Event::Attached) => Action::Unquiesce(Box::new(Ending::Aborted(
            op.aborting
                .clone()
                .unwrap_or_else(|| Fault::new(Reason::SuspendAborted, "undone")),
        ))),
        (Action::Attach { .. }, Event::ComputeGone) => asleep_on_storage(depth),
        (Action::Attach { .. }, _) => Action::Observe {
            after: Some(EffectKind::Reattach),
            tries: TRIES,
            why: None,
        },
        (done, event) => look_again(depth, &done, &event),
    }
}

fn after_call(sandbox: &Sandbox, depth: Depth, tries: u32, event: Event) -> Action {
    match event {
        Event::Effected(effected) => match (depth, effected.compute) {
            (Depth::Freeze, Compute::Frozen { .. })
            | (Depth::Checkpoint | Depth::Stop, Compute::Absent) => asleep(depth, effected),
            (Depth::Freeze, Compute::Absent) => asleep_on_storage(depth),
            (_, Compute::Live { .. } | Compute::Frozen { .. } | Compute::Unknown) => {
                Action::Observe {
                    after: Some(EffectKind::Suspend(depth)),
                    tries: tries + 1,
                    why: None,
                }
            }
        },
        // Surely no effect. What was promised before is still so.
        Event::Refused(fault) if is_deepening(sandbox) => end(Ending::Aborted(fault)),
        Event::Refused(fault) if depth.keeps_memory() => reattach(fault),
        Event::Refused(_) | Event::Unknown(_) => Action::Observe {
            after: Some(EffectKind::Suspend(depth)),
            tries: tries + 1,
            why: None,
        },
        event => look_again(
            depth,
            &Action::Call {
                effect: EffectKind::Suspend(depth),
                tries,
            },
            &event,
        ),
    }
}

/// The outcome was unknown; this is what there is.
fn settle(
    sandbox: &Sandbox,
    op: &Operation,
    depth: Depth,
    tries: u32,
    observed: Observed,
) -> Action {
    // From one: zero is a look of a recovered owner's, before anything was called.
    let again = Action::Call {
        effect: EffectKind::Suspend(depth),
        tries: tries.max(1),
    };
    match (depth, observed) {
        // It is done, and only the driver can write the reference by which it is restored: asked
        // again under the same key, it answers with what it did.
        (Depth::Freeze, Observed::Frozen { .. }) if tries < TRIES => again,
        (Depth::Freeze, Observed::Frozen { held }) => frozen(held),
        (Depth::Freeze, Observed::Live { .. }) => reattach(Fault::new(
            Reason::SuspendAborted,
            "the freeze did not happen; it is running on",
        )),
        (Depth::Freeze | Depth::Checkpoint, Observed::Absent | Observed::Stopped) => {
            asleep_on_storage(depth)
        }
        // Called also where nothing is there: the driver syncs the storage, and only its answer
        // tells what is left to be removed.
        (Depth::Stop, Observed::Absent | Observed::Stopped) if tries < TRIES => again,
        (Depth::Stop, Observed::Absent | Observed::Stopped) => asleep(
            depth,
            Effected {
                compute: Compute::Absent,
                reference: DriverReference::default(),
                size_bytes: 0,
                leftovers: Vec::new(),
                remarks: Vec::new(),
            },
        ),
        // Recovered before its processes were asked to end: ask them.
        (Depth::Stop, Observed::Live { .. })
            if tries == 0 && op.step == Step::Intent && op.quiesced && !is_deepening(sandbox) =>
        {
            Action::Terminate
        }
        (Depth::Stop | Depth::Checkpoint, Observed::Live { .. } | Observed::Frozen { .. })
            if tries < TRIES =>
        {
            again
        }
        (Depth::Stop | Depth::Checkpoint, Observed::Frozen { .. }) if is_deepening(sandbox) => {
            end(Ending::Aborted(Fault::new(
                Reason::StopFailed,
                "its frozen compute could not be ended",
            )))
        }
        (depth, observed) => end(Ending::Failed {
            fault: Fault::new(
                match depth {
                    Depth::Stop => Reason::StopFailed,
                    // Its processes are what they were, wherever they are.
                    Depth::Freeze | Depth::Checkpoint => Reason::DriverTimeout,
                },
                "its compute could not be settled",
            ),
            compute: observed.compute(),
        }),
    }
}

/// A suspend that did not happen has given its compute new credentials, or tried to.
fn settle_reattach(depth: Depth, tries: u32, observed: Observed) -> Action {
    match observed {
        Observed::Live { .. } if tries < TRIES => Action::Call {
            effect: EffectKind::Reattach,
            tries,
        },
        // The freeze came late, and is confirmed now: it sleeps as it was asked to.
        Observed::Frozen { held } if depth == Depth::Freeze => frozen(held),
        Observed::Absent | Observed::Stopped => asleep_on_storage(depth),
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
    }))
}

/// The compute ended on its way to sleep: its memory was promised and is gone.
fn asleep_on_storage(promised: Depth) -> Action {
    end(Ending::Suspended(Asleep {
        depth: Depth::Stop,
        compute: Compute::Absent,
        reference: DriverReference::default(),
        size_bytes: 0,
        lost: promised.keeps_memory().then_some(promised),
        debts: Vec::new(),
        remarks: Vec::new(),
    }))
}

fn look_again(depth: Depth, done: &Action, event: &Event) -> Action {
    match done {
        Action::Observe { .. } => end(Ending::Failed {
            fault: lost_track(done, event),
            compute: Compute::Unknown,
        }),
        _ => Action::Observe {
            after: Some(EffectKind::Suspend(depth)),
            tries: TRIES,
            why: None,
        },
    }
}
