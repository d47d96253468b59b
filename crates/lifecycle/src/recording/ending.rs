//! What is so once an operation has ended.

use super::{Asleep, Ending, Memory, ProcessesEnded, Recorded, Rows, begin_next, settle};
use crate::capacity::{Limits, Usage};
use crate::ids::{EffectKey, Millis};
use crate::mutant::unless;
use crate::operation::{Achieved, Operation, Outcome, Step, Stopping, Verb};
use crate::record::{
    Compute, Debt, DebtKind, Desired, DriverReference, Failure, Retained, RetainedStatus, Sandbox,
};
use crate::{Depth, Fault, Reason};

pub(super) fn end(
    sandbox: &mut Sandbox,
    mut op: Operation,
    ending: Ending,
    room: (Usage, &Limits),
    now: Millis,
    rows: &mut Rows,
) -> Recorded {
    rows.processes = processes_after(&ending, op.verb);
    let artifacts = artifacts_before(sandbox, &op, &ending);
    unless!(DropDebt, {
        rows.debts = ending.debts().to_vec();
    });
    #[cfg(feature = "mutants")]
    rows.debts.extend(storage_in_use(&op, &ending));
    let outcome = match ending {
        Ending::Ready {
            compute,
            achieved,
            remarks,
            secret,
        } => {
            settle(&mut op, "done", rows);
            sandbox.compute = compute;
            sandbox.retained = None;
            unless!(FailureStays, {
                sandbox.failure = None;
            });
            if secret.is_some() && !crate::mutant!(SecretForgotten) {
                sandbox.secret = secret;
            }
            Outcome::Succeeded { achieved, remarks }
        }
        Ending::Suspended(asleep) => {
            let artifact = op.artifact().filter(|_| asleep.depth == Depth::Checkpoint);
            settle(&mut op, "done", rows);
            fall_asleep(sandbox, &op, asleep, artifact, now)
        }
        Ending::Aborted(fault) => {
            settle(&mut op, "aborted", rows);
            set_desired_back(sandbox);
            Outcome::Failed(fault)
        }
        Ending::TurnedBack => {
            settle(&mut op, "turned back", rows);
            set_desired_back(sandbox);
            Outcome::TurnedBack(op.stopping.and_then(|stopping| match stopping {
                Stopping::TurnBack(by) => by,
                Stopping::Delete(by) => Some(by),
            }))
        }
        Ending::StillSuspended {
            fault,
            memory,
            compute,
            debts: _,
        } => {
            settle(&mut op, "failed", rows);
            still_suspended(sandbox, memory, compute, now);
            sandbox.failure = Some(Failure {
                fault: fault.clone(),
                operation: Some(op.id),
                at: now,
            });
            Outcome::Failed(fault)
        }
        Ending::Failed { fault, compute } => {
            settle(&mut op, "failed", rows);
            sandbox.compute = compute;
            sandbox.retained = None;
            sandbox.failure = Some(Failure {
                fault: fault.clone(),
                operation: Some(op.id),
                at: now,
            });
            Outcome::Failed(fault)
        }
        Ending::NeverWas { fault, debts: _ } => {
            settle(&mut op, "absent", rows);
            sandbox.desired = Desired::Deleted;
            sandbox.compute = Compute::Absent;
            sandbox.tombstone_at = Some(now);
            sandbox.failure = Some(Failure {
                fault: fault.clone(),
                operation: Some(op.id),
                at: now,
            });
            Outcome::Failed(fault)
        }
        Ending::Deleted { remarks } => {
            settle(&mut op, "done", rows);
            sandbox.compute = Compute::Absent;
            sandbox.retained = None;
            sandbox.failure = None;
            sandbox.tombstone_at = Some(now);
            Outcome::Succeeded {
                achieved: Achieved::Done,
                remarks,
            }
        }
        Ending::NotDeleted(fault) => {
            settle(&mut op, "failed", rows);
            sandbox.compute = Compute::Unknown;
            sandbox.failure = Some(Failure {
                fault: fault.clone(),
                operation: Some(op.id),
                at: now,
            });
            Outcome::Failed(fault)
        }
        Ending::Interrupted => {
            // An intent stays unsettled in the ledger: the delete settles it by removing.
            if op.intent.is_some() {
                sandbox.compute = Compute::Unknown;
            }
            Outcome::Failed(Fault::new(Reason::Interrupted, "a delete took over"))
        }
    };
    let kept = (sandbox.retained.as_ref()).and_then(|retained| retained.artifact);
    let superseded = (artifacts.into_iter().flatten()).filter(|key| Some(*key) != kept);
    unless!(ArtifactForgotten, {
        rows.debts.extend(superseded.map(Debt::artifact));
    });
    // Before the next begins: what is still there must keep it from starting beside it.
    let of_compute = rows
        .debts
        .iter()
        .filter(|debt| debt.kind == DebtKind::Compute)
        .count();
    sandbox.compute_debts += u32::try_from(of_compute).unwrap_or(u32::MAX);
    op.step = Step::Ended;
    op.ended_at = Some(now);
    op.outcome = Some(outcome);
    rows.ended.push(op);
    begin_next(sandbox, room, now, rows)
}

/// By the seeded defect that is chosen.
#[cfg(feature = "mutants")]
fn storage_in_use(op: &Operation, ending: &Ending) -> Option<Debt> {
    let Ending::Suspended(asleep) = ending else {
        return None;
    };
    let owed = asleep.depth == Depth::Stop && crate::mutant!(StopOwesStorage);
    let key = op.intent_key().filter(|_| owed)?;
    Some(Debt {
        key,
        kind: DebtKind::Storage,
        reference: key.sandbox.to_string(),
    })
}

/// What was retained, and what the operation may have written: whatever of it nothing refers to once
/// it has ended is owed.
fn artifacts_before(sandbox: &Sandbox, op: &Operation, ending: &Ending) -> [Option<EffectKey>; 2] {
    match ending {
        // A delete removes them, or will.
        Ending::Deleted { .. } | Ending::NotDeleted(_) | Ending::Interrupted => [None, None],
        Ending::Ready { .. }
        | Ending::Suspended(_)
        | Ending::Aborted(_)
        | Ending::TurnedBack
        | Ending::StillSuspended { .. }
        | Ending::Failed { .. }
        | Ending::NeverWas { .. } => {
            let retained = (sandbox.retained.as_ref()).and_then(|retained| retained.artifact);
            [retained, op.artifact()]
        }
    }
}

/// What an ending says of the processes that the operation found. Those that it has started itself
/// are no part of this.
fn processes_after(ending: &Ending, verb: Verb) -> Option<ProcessesEnded> {
    let discarded = match verb {
        Verb::Start => ProcessesEnded::Suspension,
        Verb::Create | Verb::Suspend { .. } | Verb::Resume { .. } | Verb::Delete { .. } => {
            ProcessesEnded::Lost
        }
    };
    match ending {
        Ending::Ready { achieved, .. } => match achieved {
            Achieved::Storage => Some(discarded),
            Achieved::Memory | Achieved::Done => None,
        },
        Ending::Suspended(asleep) => match (asleep.lost, asleep.compute) {
            (Some(_), _) => Some(ProcessesEnded::Lost),
            (None, Compute::Absent) if !asleep.depth.keeps_memory() => {
                Some(ProcessesEnded::Suspension)
            }
            (
                None,
                Compute::Absent | Compute::Live { .. } | Compute::Frozen { .. } | Compute::Unknown,
            ) => None,
        },
        Ending::StillSuspended { memory, .. } => match memory {
            Memory::Lost => Some(discarded),
            Memory::NothingRan => None,
        },
        Ending::Failed { compute, .. } => match compute {
            Compute::Absent => Some(ProcessesEnded::Lost),
            Compute::Live { .. } | Compute::Frozen { .. } | Compute::Unknown => None,
        },
        Ending::NeverWas { .. } | Ending::Deleted { .. } => Some(ProcessesEnded::Lost),
        // What is there is as it was, or is for the next operation to settle.
        Ending::Aborted(_) | Ending::TurnedBack | Ending::NotDeleted(_) | Ending::Interrupted => {
            None
        }
    }
}

/// A suspend that did not happen leaves no wish behind.
fn set_desired_back(sandbox: &mut Sandbox) {
    #[cfg(feature = "mutants")]
    if crate::mutant!(DesiredStays) {
        return;
    }
    sandbox.desired = match (&sandbox.desired, &sandbox.retained) {
        (Desired::Deleted, _) => Desired::Deleted,
        (Desired::Running | Desired::Suspended(_), Some(retained)) => {
            Desired::Suspended(retained.depth)
        }
        (Desired::Running | Desired::Suspended(_), None) => Desired::Running,
    };
}

fn fall_asleep(
    sandbox: &mut Sandbox,
    op: &Operation,
    asleep: Asleep,
    artifact: Option<EffectKey>,
    now: Millis,
) -> Outcome {
    sandbox.compute = asleep.compute;
    sandbox.failure = None;
    if sandbox.desired != Desired::Deleted {
        sandbox.desired = Desired::Suspended(asleep.depth);
    }
    sandbox.retained = Some(Retained {
        depth: asleep.depth,
        status: RetainedStatus::Available,
        reference: asleep.reference,
        generation: sandbox.generation,
        size_bytes: asleep.size_bytes,
        since: now,
        expires_at: None,
        lost: asleep.lost,
        quiesced: op.quiesced,
        artifact,
        reclaimed: asleep.reclaimed,
    });
    match asleep.lost {
        None => Outcome::Succeeded {
            achieved: Achieved::Done,
            remarks: asleep.remarks,
        },
        Some(depth) => Outcome::Failed(Fault::new(
            Reason::RetainedLost,
            format!("the compute ended while it was suspended at {depth}; its storage is intact"),
        )),
    }
}

fn still_suspended(sandbox: &mut Sandbox, memory: Memory, compute: Compute, now: Millis) {
    let generation = sandbox.generation;
    sandbox.compute = compute;
    #[cfg(feature = "mutants")]
    let memory = if crate::mutant!(OldMemoryKept) {
        Memory::NothingRan
    } else {
        memory
    };
    let at_stop = |lost| Retained {
        depth: Depth::Stop,
        status: RetainedStatus::Available,
        reference: DriverReference::default(),
        generation,
        size_bytes: 0,
        since: now,
        expires_at: None,
        lost,
        quiesced: false,
        artifact: None,
        reclaimed: None,
    };
    let retained = match (sandbox.retained.take(), memory) {
        (Some(retained), Memory::NothingRan) => Retained {
            status: RetainedStatus::Available,
            generation,
            // Who tried to bring it back may have brought its memory in.
            reclaimed: None,
            ..retained
        },
        // A start discards memory on purpose: nothing that was promised is missed.
        (Some(retained), Memory::Lost) => {
            let discarded = retained.status == RetainedStatus::Discarding;
            let promised = retained.depth.keeps_memory().then_some(retained.depth);
            at_stop(if discarded {
                None
            } else {
                promised.or(retained.lost)
            })
        }
        // Found frozen by a resume out of Failed: that it sleeps is what is so.
        (None, Memory::NothingRan) if matches!(compute, Compute::Frozen { .. }) => Retained {
            depth: Depth::Freeze,
            ..at_stop(None)
        },
        (None, Memory::NothingRan | Memory::Lost) => at_stop(None),
    };
    if sandbox.desired != Desired::Deleted {
        sandbox.desired = Desired::Suspended(retained.depth);
    }
    sandbox.retained = Some(retained);
}
