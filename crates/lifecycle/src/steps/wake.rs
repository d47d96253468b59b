//! The steps of everything that leads to running compute: `create`, `resume`, `start`.
//!
//! A resume is never issued twice while the first may be alive: what is unknown is observed, and a
//! retry happens only where absence (or a compute still frozen) was seen. Once something ran,
//! nothing reports Suspended again with the same memory.

use super::{Action, Event, Observed, TRIES, end, intent, lost_track};
use crate::ids::Incarnation;
use crate::operation::{Achieved, EffectKind, Operation, Step, Verb};
use crate::record::{Compute, Debt, DebtKind, Sandbox};
use crate::recording::{Ending, Memory, Recording};
use crate::{Depth, Fault, Reason};

pub(super) fn first(_sandbox: &Sandbox, op: &Operation) -> Action {
    match (op.step, op.intent) {
        // Recorded by an owner that is gone: it may have happened.
        (Step::Intent, Some(intent)) if op.attempt > 1 => Action::Observe {
            after: Some(intent.effect),
            tries: 0,
            why: None,
        },
        (Step::Intent, Some(intent)) => Action::Call {
            effect: intent.effect,
            tries: 0,
        },
        (Step::Waiting | Step::Begun | Step::Intent | Step::Terminated | Step::Ended, _) => {
            match op.verb {
                Verb::Create => Action::Pin,
                Verb::Resume { .. } | Verb::Start | Verb::Suspend { .. } | Verb::Delete { .. } => {
                    Action::Observe {
                        after: None,
                        tries: 0,
                        why: None,
                    }
                }
            }
        }
    }
}

pub(super) fn next(sandbox: &Sandbox, op: &Operation, done: Action, event: Event) -> Action {
    match (done, event) {
        (Action::Pin, Event::Pinned(digest)) => Action::Record(Recording::Intent {
            effect: EffectKind::Create,
            pinned: Some(digest),
            quiesced: false,
        }),
        (Action::Pin, Event::Refused(fault) | Event::Unknown(fault)) => end(Ending::NeverWas {
            fault,
            debts: Vec::new(),
        }),

        (Action::Record(Recording::Intent { effect, .. }), Event::Recorded) => {
            Action::Call { effect, tries: 0 }
        }
        (Action::Record(Recording::GiveUpMemory), Event::Recorded) => Action::Call {
            effect: EffectKind::Suspend(Depth::Stop),
            tries: 0,
        },
        (Action::Record(Recording::FallBack), Event::Recorded) => Action::Call {
            effect: EffectKind::Start,
            tries: 0,
        },

        // What was there before a cold start is settled absent.
        (
            Action::Call {
                effect: EffectKind::Suspend(_),
                tries,
            },
            Event::Effected(effected),
        ) => match effected.compute {
            Compute::Absent if owes_compute(&effected.leftovers) => {
                not_yet(sandbox, effected.leftovers)
            }
            Compute::Absent => intent(EffectKind::Start),
            Compute::Live { .. } | Compute::Frozen { .. } | Compute::Unknown => Action::Observe {
                after: Some(EffectKind::Suspend(Depth::Stop)),
                tries,
                why: None,
            },
        },
        (Action::Call { effect, tries }, Event::Effected(effected)) => match effected.compute {
            Compute::Live { held } => Action::Attach { held },
            // Not what it was called for: look.
            Compute::Absent | Compute::Frozen { .. } | Compute::Unknown => Action::Observe {
                after: Some(effect),
                tries,
                why: None,
            },
        },
        (
            Action::Call {
                effect: EffectKind::Create,
                ..
            },
            Event::Refused(fault),
        ) => never_was(op, fault),
        (
            Action::Call {
                effect: effect @ (EffectKind::Start | EffectKind::Resume(_)),
                ..
            },
            Event::Refused(fault),
        ) => refused(sandbox, op, effect, fault),
        (Action::Call { effect, tries }, Event::Refused(fault) | Event::Unknown(fault)) => {
            Action::Observe {
                after: Some(effect),
                tries,
                why: Some(fault),
            }
        }

        (Action::Observe { after, tries, why }, Event::Observed(observed)) => {
            settle(sandbox, op, after, tries, why, observed)
        }

        (Action::Attach { held }, Event::Attached) => attached(sandbox, op, held),
        (Action::Attach { .. }, Event::AttachTimeout | Event::ComputeGone | Event::Unreachable) => {
            // Looked at as one that has run: TRIES leaves no further call.
            Action::Observe {
                after: op.intent.map(|intent| intent.effect),
                tries: TRIES + 1,
                why: None,
            }
        }
        (Action::LiftQuiesce { held }, _) => start_main(sandbox, op, held),
        (Action::StartMain { held }, event) => ready_or_hook(sandbox, op, held, remark(event)),
        (Action::Hook { held, mut remarks }, event) => {
            remarks.extend(remark(event));
            ready(sandbox, op, held, remarks)
        }
        (done, event) => match done {
            Action::Observe { .. } => end(Ending::Failed {
                fault: lost_track(&done, &event),
                compute: Compute::Unknown,
            }),
            _ => Action::Observe {
                after: op.intent.map(|intent| intent.effect),
                tries: TRIES + 1,
                why: None,
            },
        },
    }
}

fn remark(event: Event) -> Vec<String> {
    match event {
        Event::DoneWith(remark) => vec![remark],
        Event::Refused(fault) | Event::Unknown(fault) => vec![fault.message],
        Event::Unreachable => vec!["its supervisor did not answer".to_owned()],
        _ => Vec::new(),
    }
}

/// A create that leaves no sandbox. Whatever storage its effect made is owed from here on.
fn never_was(op: &Operation, fault: Fault) -> Action {
    let storage = op.intent_key().map(|key| Debt {
        key,
        kind: DebtKind::Storage,
        reference: key.sandbox.to_string(),
    });
    end(Ending::NeverWas {
        fault,
        debts: storage.into_iter().collect(),
    })
}

/// The driver refused, surely without an effect: nothing ran.
fn refused(sandbox: &Sandbox, op: &Operation, effect: EffectKind, fault: Fault) -> Action {
    match effect {
        // Only looking proves that frozen compute is still frozen.
        EffectKind::Resume(Depth::Freeze) => Action::Observe {
            after: Some(effect),
            tries: TRIES,
            why: None,
        },
        EffectKind::Resume(Depth::Checkpoint | Depth::Stop) if falls_back(op) => {
            Action::Record(Recording::FallBack)
        }
        EffectKind::Resume(Depth::Checkpoint | Depth::Stop) => end(Ending::StillSuspended {
            fault: Fault::new(Reason::RestoreFailed, fault.message),
            memory: Memory::NothingRan,
            compute: Compute::Absent,
            debts: Vec::new(),
        }),
        EffectKind::Create
        | EffectKind::Start
        | EffectKind::Suspend(_)
        | EffectKind::Reattach
        | EffectKind::Delete => cold_start_failed(sandbox, fault.message),
    }
}

fn falls_back(op: &Operation) -> bool {
    op.verb == Verb::Resume { fallback: true } && !op.cold
}

/// Nothing is there and nothing ran: asleep on the storage.
fn cold_start_failed(sandbox: &Sandbox, message: String) -> Action {
    asleep_on_storage(sandbox, message, Vec::new())
}

fn owes_compute(leftovers: &[Debt]) -> bool {
    (leftovers.iter()).any(|debt| debt.kind == DebtKind::Compute)
}

/// The compute of before has ended, and what it left could still write to the storage: nothing is
/// started beside it.
fn not_yet(sandbox: &Sandbox, leftovers: Vec<Debt>) -> Action {
    let message = "compute of an earlier life still has to be removed".to_owned();
    asleep_on_storage(sandbox, message, leftovers)
}

fn asleep_on_storage(sandbox: &Sandbox, message: String, debts: Vec<Debt>) -> Action {
    let kept = sandbox
        .retained
        .as_ref()
        .is_some_and(|retained| retained.depth == Depth::Stop);
    end(Ending::StillSuspended {
        fault: Fault::new(Reason::StartFailed, message),
        memory: if kept {
            Memory::NothingRan
        } else {
            Memory::Lost
        },
        compute: Compute::Absent,
        debts,
    })
}

/// What was seen decides. `tries` above [`TRIES`]: the effect had happened, or must not be tried
/// again. `why`: what the last call failed with; without it, it did what it was called for.
fn settle(
    sandbox: &Sandbox,
    op: &Operation,
    after: Option<EffectKind>,
    tries: u32,
    why: Option<Fault>,
    observed: Observed,
) -> Action {
    let spent = tries > TRIES;
    let again = |effect| Action::Call {
        effect,
        tries: tries + 1,
    };
    match (after, observed) {
        (Some(EffectKind::Suspend(_)), Observed::Unknown | Observed::InTransition) => {
            end(Ending::Failed {
                fault: Fault::new(
                    Reason::StopFailed,
                    "its old compute could not be observed in time",
                ),
                compute: Compute::Unknown,
            })
        }
        (_, Observed::Unknown | Observed::InTransition) => end(Ending::Failed {
            fault: Fault::new(
                Reason::DriverTimeout,
                "its compute could not be observed in time",
            ),
            compute: Compute::Unknown,
        }),

        // Out of Failed: nothing was called yet.
        (None, Observed::Live { .. }) => intent(EffectKind::Reattach),
        (None, Observed::Frozen { .. }) if !op.cold => intent(EffectKind::Resume(Depth::Freeze)),
        (None, Observed::Frozen { .. }) => intent(EffectKind::Suspend(Depth::Stop)),
        (None, Observed::Absent | Observed::Stopped) => intent(EffectKind::Start),

        // Compute of before is in the way of a cold start. It has ended, and only the driver can
        // tell what it left: asked again under the same key, it answers.
        (Some(effect @ EffectKind::Suspend(_)), Observed::Absent | Observed::Stopped) => {
            if tries < TRIES {
                again(effect)
            } else {
                intent(EffectKind::Start)
            }
        }
        (
            Some(effect @ EffectKind::Suspend(_)),
            Observed::Live { .. } | Observed::Frozen { .. },
        ) => {
            if tries < TRIES {
                again(effect)
            } else {
                end(Ending::Failed {
                    fault: Fault::new(Reason::StopFailed, "its old compute could not be ended"),
                    compute: observed.compute(),
                })
            }
        }

        // It is there. Either it attaches now, or it had its time.
        (Some(_), Observed::Live { held }) if !spent => Action::Attach { held },
        (Some(_), Observed::Live { .. }) => end(Ending::Failed {
            fault: Fault::new(
                Reason::AttachTimeout,
                "its supervisor did not attach in time",
            ),
            compute: observed.compute(),
        }),

        // Still frozen: nothing ran.
        (Some(effect @ EffectKind::Resume(Depth::Freeze)), Observed::Frozen { .. }) => {
            if tries < TRIES {
                again(effect)
            } else if falls_back(op) {
                Action::Record(Recording::GiveUpMemory)
            } else {
                end(Ending::StillSuspended {
                    fault: Fault::new(Reason::RestoreFailed, "it could not be thawed"),
                    memory: Memory::NothingRan,
                    compute: observed.compute(),
                    debts: Vec::new(),
                })
            }
        }
        (Some(_), Observed::Frozen { .. }) => end(Ending::Failed {
            fault: Fault::new(
                Reason::AttachTimeout,
                "its compute was frozen behind our back",
            ),
            compute: observed.compute(),
        }),

        // Memory was promised, and what held it is gone.
        (
            Some(EffectKind::Resume(_) | EffectKind::Reattach),
            Observed::Absent | Observed::Stopped,
        ) => memory_gone(sandbox, op),

        (
            Some(effect @ (EffectKind::Create | EffectKind::Start)),
            Observed::Absent | Observed::Stopped,
        ) if tries < TRIES => again(effect),
        (Some(EffectKind::Create), Observed::Absent | Observed::Stopped) => {
            never_was(op, Fault::new(Reason::StartFailed, never_attached(why)))
        }
        (Some(EffectKind::Start | EffectKind::Delete), Observed::Absent | Observed::Stopped) => {
            cold_start_failed(sandbox, never_attached(why))
        }
    }
}

fn never_attached(why: Option<Fault>) -> String {
    why.map_or_else(
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

/// Whether compute of before runs on, by this operation: it may still refuse new work.
fn runs_on(op: &Operation) -> bool {
    op.intent.is_some_and(|intent| match intent.effect {
        EffectKind::Resume(_) | EffectKind::Reattach => true,
        EffectKind::Create | EffectKind::Start | EffectKind::Suspend(_) | EffectKind::Delete => {
            false
        }
    })
}

/// Whether what runs has kept the memory of a life that was Ready. Without a secret it never was
/// since it was made: its main process is still to be started.
fn kept_memory(sandbox: &Sandbox, op: &Operation) -> bool {
    runs_on(op) && !op.cold && sandbox.secret.is_some()
}

fn attached(sandbox: &Sandbox, op: &Operation, held: Incarnation) -> Action {
    if runs_on(op) {
        Action::LiftQuiesce { held }
    } else {
        start_main(sandbox, op, held)
    }
}

fn start_main(sandbox: &Sandbox, op: &Operation, held: Incarnation) -> Action {
    if kept_memory(sandbox, op) || sandbox.spec.main.is_empty() {
        ready_or_hook(sandbox, op, held, Vec::new())
    } else {
        Action::StartMain { held }
    }
}

fn ready_or_hook(
    sandbox: &Sandbox,
    op: &Operation,
    held: Incarnation,
    remarks: Vec<String>,
) -> Action {
    if op.verb == Verb::Create || sandbox.config.policy.post_resume_hook.is_empty() {
        ready(sandbox, op, held, remarks)
    } else {
        Action::Hook { held, remarks }
    }
}

fn ready(sandbox: &Sandbox, op: &Operation, held: Incarnation, remarks: Vec<String>) -> Action {
    let achieved = match op.verb {
        Verb::Create => Achieved::Done,
        Verb::Resume { .. } | Verb::Start | Verb::Suspend { .. } | Verb::Delete { .. } => {
            if kept_memory(sandbox, op) {
                Achieved::Memory
            } else {
                Achieved::Storage
            }
        }
    };
    end(Ending::Ready {
        compute: Compute::Live { held },
        achieved,
        remarks,
        secret: None,
    })
}
