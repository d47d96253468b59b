//! Beginning an operation: everything that becomes so in the transaction that lets it run.
//!
//! It assigns the fence, raises `issued` and the disk generation where compute may come to run,
//! checks capacity, marks the artifact, and, where no effect lies before the first one, records
//! that intent in the same commit. An operation that finds nothing to do, or that cannot do it
//! any more, ends right here without having changed anything else.

use crate::capacity::{Limits, Usage};
use crate::ids::Millis;
use crate::mutant::unless;
use crate::operation::{Achieved, EffectKind, Intent, Operation, Outcome, Step, Verb};
use crate::phase::Rest;
use crate::record::{Compute, Desired, RetainedStatus, Sandbox};
use crate::{Depth, Fault, Reason};

/// What came of it.
#[derive(Clone, Debug, PartialEq)]
pub enum Begun {
    /// It is `sandbox.running` now.
    Running,
    /// It ended at once; nothing runs.
    Ended(Box<Operation>),
}

/// Begins `op` on a sandbox on which nothing runs. `others`: what all other records hold.
pub fn begin(
    sandbox: &mut Sandbox,
    mut op: Operation,
    others: Usage,
    limits: &Limits,
    now: Millis,
) -> Begun {
    debug_assert!(sandbox.running.is_none(), "one operation runs at a time");
    let answer = match op.verb {
        Verb::Create | Verb::Suspend { .. } | Verb::Resume { .. } | Verb::Start
            if sandbox.desired == Desired::Deleted =>
        {
            Answer::fail(Reason::Deleting, "the sandbox is being deleted")
        }
        Verb::Create => begin_create(sandbox, others, limits),
        Verb::Suspend { depth, .. } => begin_suspend(sandbox, depth, others, limits),
        Verb::Resume { fallback, .. } => begin_resume(sandbox, &mut op, fallback, others, limits),
        Verb::Start => begin_start(sandbox, others, limits),
        Verb::Delete { .. } => {
            unless!(DeleteWithoutWish, {
                sandbox.desired = Desired::Deleted;
            });
            Answer::Run(Some(EffectKind::Delete))
        }
    };
    match answer {
        Answer::Run(intent) => {
            unless!(SkipFence, {
                sandbox.fence = sandbox.fence.next();
            });
            op.fence = sandbox.fence;
            op.step = Step::Begun;
            op.began_at = Some(now);
            if op.verb.starts_compute() {
                unless!(ReuseIncarnation, {
                    sandbox.issued = sandbox.issued.next();
                });
                sandbox.generation = sandbox.generation.next();
                if let Some(retained) = &mut sandbox.retained
                    && !crate::mutant!(ConsumeLate)
                {
                    retained.status = match op.verb {
                        Verb::Start => RetainedStatus::Discarding,
                        _ if op.cold => RetainedStatus::Discarding,
                        Verb::Create
                        | Verb::Suspend { .. }
                        | Verb::Resume { .. }
                        | Verb::Delete { .. } => RetainedStatus::BeingConsumed(op.id),
                    };
                }
            }
            if let Some(effect) = intent {
                if effect.makes_compute() {
                    sandbox.secret = None;
                }
                op.serial = op.serial.next();
                op.step = Step::Intent;
                op.intent = Some(Intent {
                    serial: op.serial,
                    effect,
                });
            }
            sandbox.running = Some(op);
            Begun::Running
        }
        Answer::End(outcome) => {
            op.step = Step::Ended;
            op.ended_at = Some(now);
            op.outcome = Some(outcome);
            Begun::Ended(Box::new(op))
        }
    }
}

/// What is there is settled absent before a cold start.
const END_FIRST: EffectKind = EffectKind::Suspend(Depth::Stop);

enum Answer {
    /// Run, with this effect's intent recorded in the same commit.
    Run(Option<EffectKind>),
    End(Outcome),
}

impl Answer {
    fn fail(reason: Reason, message: impl Into<String>) -> Self {
        Self::End(Outcome::Failed(Fault::new(reason, message)))
    }

    const fn nothing_to_do() -> Self {
        Self::End(Outcome::Succeeded {
            achieved: Achieved::Done,
            remarks: Vec::new(),
        })
    }
}

/// Room for compute, and no debt of compute that could still write to the same storage.
fn room_to_run(sandbox: &Sandbox, others: Usage, limits: &Limits) -> Option<Answer> {
    if sandbox.compute_debts > 0 {
        let message = "compute of an earlier life still has to be removed";
        return Some(Answer::fail(Reason::StartFailed, message));
    }
    match limits.admit(sandbox, others) {
        Ok(()) => None,
        Err(over) => Some(Answer::fail(Reason::CapacityExceeded, over.to_string())),
    }
}

fn begin_create(sandbox: &mut Sandbox, others: Usage, limits: &Limits) -> Answer {
    sandbox.desired = Desired::Running;
    // The image is pinned before the intent: pinning reads, and may take long.
    room_to_run(sandbox, others, limits).unwrap_or(Answer::Run(None))
}

fn begin_suspend(sandbox: &mut Sandbox, depth: Depth, others: Usage, limits: &Limits) -> Answer {
    match Rest::of(sandbox) {
        Rest::Suspended(now) if now == depth => Answer::nothing_to_do(),
        Rest::Suspended(now) if now > depth => Answer::fail(
            Reason::AlreadyDeeper,
            format!("it sleeps at {now} already, deeper than {depth}"),
        ),
        Rest::Failed if depth.keeps_memory() && sandbox.compute == Compute::Absent => Answer::fail(
            Reason::ComputeLost,
            "no compute is there whose memory could be kept",
        ),
        Rest::Failed if depth.keeps_memory() && sandbox.was_being_stopped() => Answer::fail(
            Reason::ComputeLost,
            "a stop has ended its processes; there is no memory to be kept",
        ),
        Rest::Ready | Rest::Failed | Rest::Suspended(_) => {
            if let Err(over) = limits.admit_artifact(sandbox, depth, others) {
                return Answer::fail(Reason::CapacityExceeded, over.to_string());
            }
            sandbox.desired = Desired::Suspended(depth);
            Answer::Run(None)
        }
    }
}

fn begin_resume(
    sandbox: &mut Sandbox,
    op: &mut Operation,
    fallback: bool,
    others: Usage,
    limits: &Limits,
) -> Answer {
    match Rest::of(sandbox) {
        Rest::Ready => return Answer::nothing_to_do(),
        Rest::Suspended(_) | Rest::Failed => {}
    }
    if let Some(refusal) = room_to_run(sandbox, others, limits) {
        return refusal;
    }
    let Some(retained) = &sandbox.retained else {
        // Failed: what is there decides, and only looking tells. But what a stop has begun to end
        // is not what ran before: it goes, and its storage is started anew.
        sandbox.desired = Desired::Running;
        op.cold = sandbox.was_being_stopped();
        return Answer::Run((op.cold && sandbox.compute.may_exist()).then_some(END_FIRST));
    };
    let unusable = match retained.lost {
        Some(depth) => Some((
            Reason::RetainedLost,
            format!("the {depth} that it slept at is gone"),
        )),
        None if retained.generation != sandbox.generation => Some((
            Reason::RetainedStale,
            format!(
                "the {} belongs to disk generation {}, the disk is at {}",
                retained.depth, retained.generation, sandbox.generation
            ),
        )),
        None => None,
    };
    let effect = match (unusable, retained.depth) {
        (Some((reason, message)), _) if !fallback => return Answer::fail(reason, message),
        (Some(_), Depth::Freeze | Depth::Checkpoint) => {
            op.cold = true;
            // Whatever is left of the memory goes first.
            sandbox.desired = Desired::Running;
            return Answer::Run(sandbox.compute.may_exist().then_some(END_FIRST));
        }
        (Some(_), Depth::Stop) => {
            op.cold = true;
            EffectKind::Start
        }
        (None, Depth::Stop) => EffectKind::Start,
        (None, depth @ (Depth::Freeze | Depth::Checkpoint)) => EffectKind::Resume(depth),
    };
    sandbox.desired = Desired::Running;
    Answer::Run(Some(effect))
}

fn begin_start(sandbox: &mut Sandbox, others: Usage, limits: &Limits) -> Answer {
    match Rest::of(sandbox) {
        Rest::Ready => return Answer::nothing_to_do(),
        Rest::Suspended(_) | Rest::Failed => {}
    }
    if let Some(refusal) = room_to_run(sandbox, others, limits) {
        return refusal;
    }
    sandbox.desired = Desired::Running;
    // Old compute, and memory that is resident, must be settled absent first.
    Answer::Run(Some(if sandbox.compute.may_exist() {
        END_FIRST
    } else {
        EffectKind::Start
    }))
}
