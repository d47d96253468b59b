//! The steps of everything that leads to running compute: `create`, `resume`, `start`.
//!
//! A resume is never issued twice while the first may be alive: what is unknown is observed, and a
//! retry happens only where absence (or a compute still frozen) was seen. Once something ran,
//! nothing reports Suspended again with the same memory.

mod settle;

use super::answer::{Awaited, Called, awaited, called, remark, seen};
use super::{Action, Deadline, Event, Look, call, end, intent, observe};
use crate::ids::Incarnation;
use crate::operation::{Achieved, EffectKind, Operation, Step, Verb};
use crate::record::{Compute, Debt, DebtKind, Sandbox};
use crate::recording::{Ending, Memory, Recording};
use crate::{Depth, Fault, Reason};

pub(super) fn first(op: &Operation) -> Action {
    match (op.step, op.intent) {
        // Recorded by an owner that is gone: it may have happened.
        (Step::Intent, Some(intent)) if op.attempt > 1 => observe(intent.effect, Look::First),
        (Step::Intent, Some(intent)) => call(intent.effect),
        (Step::Waiting | Step::Begun | Step::Intent | Step::Terminated | Step::Ended, _) => {
            match op.verb {
                Verb::Create => Action::Pin,
                Verb::Resume { .. } | Verb::Start | Verb::Suspend { .. } | Verb::Delete { .. } => {
                    Action::Observe {
                        after: None,
                        look: Look::First,
                    }
                }
            }
        }
    }
}

pub(super) fn next(
    sandbox: &Sandbox,
    op: &Operation,
    done: Action,
    event: Event,
    deadline: Deadline,
) -> Action {
    match done {
        Action::Pin => after_pin(event),
        Action::Record(recording) => match recording {
            Recording::Intent { effect, .. } => call(effect),
            Recording::GiveUpMemory => call(EffectKind::Suspend(Depth::Stop)),
            Recording::FallBack => call(EffectKind::Start),
            // None of these is recorded by what goes on to wake.
            Recording::Terminated | Recording::Reattach(_) | Recording::End(_) => look_once(op),
        },
        Action::Call { effect, again } => {
            let again = again || op.attempt > 1;
            after_call(sandbox, op, (effect, again), called(event))
        }
        Action::Observe { after, look } => {
            settle::settle(sandbox, op, after, look, seen(event), deadline)
        }
        Action::Attach { held, remarks } => match awaited(event) {
            Awaited::Attached => attached(sandbox, op, held, remarks),
            Awaited::ComputeGone | Awaited::Late => look_once(op),
        },
        Action::LiftQuiesce { held, remarks } => start_main(sandbox, op, held, remarks),
        Action::StartMain { held, mut remarks } => {
            remarks.extend(remark(event));
            ready_or_hook(sandbox, op, held, remarks)
        }
        Action::Hook { held, mut remarks } => {
            remarks.extend(remark(event));
            ready(sandbox, op, held, remarks)
        }
        // None of these belongs to what wakes.
        Action::Prepare(_)
        | Action::Quiesce
        | Action::Unquiesce(_)
        | Action::Detach
        | Action::Terminate => look_once(op),
    }
}

/// Looked at as one that may have run: no further call.
fn look_once(op: &Operation) -> Action {
    Action::Observe {
        after: op.intent.map(|intent| intent.effect),
        look: Look::Spent,
    }
}

fn after_pin(event: Event) -> Action {
    let fault = match event {
        Event::Pinned(pinned) => {
            return Action::Record(Recording::Intent {
                effect: EffectKind::Create,
                pinned: Some(pinned),
                quiesced: false,
            });
        }
        Event::Refused(fault) | Event::Unknown(fault) => fault,
        Event::Done
        | Event::DoneWith(_)
        | Event::Unreachable
        | Event::Effected(_)
        | Event::Observed(_)
        | Event::Attached
        | Event::AttachTimeout
        | Event::ComputeGone
        | Event::Recorded
        | Event::Stopped(_) => Fault::new(Reason::DriverTimeout, "its image was not resolved"),
    };
    end(Ending::NeverWas {
        fault,
        debts: Vec::new(),
    })
}

/// `again`: it may have been called before, by whichever owner.
fn after_call(
    sandbox: &Sandbox,
    op: &Operation,
    (effect, again): (EffectKind, bool),
    called: Called,
) -> Action {
    match (called, effect) {
        (Called::Effected(effected), EffectKind::Suspend(_)) => match effected.compute {
            // What was there before a cold start is settled absent.
            Compute::Absent if owes_compute(&effected.leftovers) => {
                not_yet(sandbox, effected.leftovers)
            }
            Compute::Absent => intent(EffectKind::Start),
            Compute::Live { .. } | Compute::Frozen { .. } | Compute::Unknown => {
                observe(EffectKind::Suspend(Depth::Stop), Look::Called(None))
            }
        },
        (
            Called::Effected(effected),
            EffectKind::Create
            | EffectKind::Start
            | EffectKind::Resume(_)
            | EffectKind::Reattach
            | EffectKind::Delete,
        ) => match effected.compute {
            Compute::Live { held } => Action::Attach {
                held,
                remarks: effected.remarks,
            },
            // Not what it was called for: look.
            Compute::Absent | Compute::Frozen { .. } | Compute::Unknown => {
                observe(effect, Look::Called(None))
            }
        },
        (Called::Refused(fault), EffectKind::Create) => never_was(op, fault),
        // Only looking proves that frozen compute is still frozen.
        (Called::Refused(fault), EffectKind::Resume(Depth::Freeze)) => {
            observe(effect, Look::Refused(fault))
        }
        (Called::Refused(fault), EffectKind::Resume(Depth::Checkpoint | Depth::Stop)) => {
            if again && !fault.reason.is_of_memory() {
                // No effect of this call; one before it may have restored it, and what ran has ended.
                let look = if falls_back(op) {
                    Look::Refused(fault)
                } else {
                    Look::Called(Some(fault))
                };
                observe(effect, look)
            } else {
                not_restored(op, fault)
            }
        }
        (Called::Refused(fault), EffectKind::Start) => cold_start_refused(sandbox, fault),
        (
            Called::Refused(fault),
            EffectKind::Suspend(_) | EffectKind::Reattach | EffectKind::Delete,
        ) => observe(effect, Look::Called(Some(fault))),
        (Called::Unknown(fault), _) => observe(effect, Look::Called(fault)),
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

/// The driver refused to restore, surely without an effect: nothing ran.
fn not_restored(op: &Operation, fault: Fault) -> Action {
    if falls_back(op) {
        return Action::Record(Recording::FallBack);
    }
    let condemned = fault.reason.condemns_memory();
    let reason = if fault.reason.is_of_memory() {
        fault.reason
    } else {
        Reason::RestoreFailed
    };
    end(Ending::StillSuspended {
        fault: Fault::new(reason, fault.message),
        memory: if condemned && !crate::mutant!(DamagedStays) {
            Memory::Lost
        } else {
            Memory::NothingRan
        },
        compute: Compute::Absent,
        debts: Vec::new(),
    })
}

fn falls_back(op: &Operation) -> bool {
    (matches!(op.verb, Verb::Resume { fallback: true, .. }) || crate::mutant!(FallsBackUnasked))
        && !op.cold
}

/// Nothing is there and nothing ran: asleep on the storage.
fn cold_start_failed(sandbox: &Sandbox, message: String) -> Action {
    asleep_on_storage(
        sandbox,
        Fault::new(Reason::StartFailed, message),
        Vec::new(),
    )
}

fn cold_start_refused(sandbox: &Sandbox, fault: Fault) -> Action {
    if matches!(fault.reason, Reason::RootLost | Reason::DiskFull) {
        return asleep_on_storage(sandbox, fault, Vec::new());
    }
    cold_start_failed(sandbox, fault.message)
}

fn owes_compute(leftovers: &[Debt]) -> bool {
    (leftovers.iter()).any(|debt| debt.kind == DebtKind::Compute)
}

/// The compute of before has ended, and what it left could still write to the storage: nothing is
/// started beside it.
fn not_yet(sandbox: &Sandbox, leftovers: Vec<Debt>) -> Action {
    let message = "compute of an earlier life still has to be removed";
    asleep_on_storage(sandbox, Fault::new(Reason::StartFailed, message), leftovers)
}

fn asleep_on_storage(sandbox: &Sandbox, fault: Fault, debts: Vec<Debt>) -> Action {
    let kept = sandbox
        .retained
        .as_ref()
        .is_some_and(|retained| retained.depth == Depth::Stop);
    end(Ending::StillSuspended {
        fault,
        memory: if kept {
            Memory::NothingRan
        } else {
            Memory::Lost
        },
        compute: Compute::Absent,
        debts,
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

fn attached(sandbox: &Sandbox, op: &Operation, held: Incarnation, remarks: Vec<String>) -> Action {
    if runs_on(op) {
        Action::LiftQuiesce { held, remarks }
    } else {
        start_main(sandbox, op, held, remarks)
    }
}

fn start_main(
    sandbox: &Sandbox,
    op: &Operation,
    held: Incarnation,
    remarks: Vec<String>,
) -> Action {
    if kept_memory(sandbox, op) || sandbox.spec.main.is_empty() {
        ready_or_hook(sandbox, op, held, remarks)
    } else {
        Action::StartMain { held, remarks }
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
            if kept_memory(sandbox, op) || crate::mutant!(ColdToldAsMemory) {
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
