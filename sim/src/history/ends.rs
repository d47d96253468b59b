//! What is checked when an operation has ended, of what it is told to have done.

use overwinter_driver::Observed;
use overwinter_lifecycle::ids::{EffectKey, Serial};
use overwinter_lifecycle::operation::{Achieved, Operation, Outcome, Verb};
use overwinter_lifecycle::record::{RetainedStatus, Sandbox};
use overwinter_lifecycle::{Depth, Phase, Reason};

use super::checks::{Before, Seen};
use super::invariant::Invariant;
use super::profile::DEADLINES;
use super::stage::Stage;

/// `before`: the record of before; `seen`: as it is now, when the next may have begun already.
pub(crate) fn of(stage: &Stage, before: &Sandbox, seen: &mut Seen, ended: &Operation) {
    let id = seen.record.id;
    let outcome = ended.outcome.as_ref();
    stage.trace.note(format_args!(
        "ended {} {} {id}: {outcome:?}",
        ended.verb.as_str(),
        ended.id
    ));
    let now = stage.time.now();
    stage.model.borrow_mut().told.ended.insert(ended.id, now);
    let memory = stage.world.memory_of(id);
    let was_ready = seen.asleep_with.is_some() && seen.asleep_with == seen.was_ready;
    match (ended.verb, outcome) {
        (Verb::Suspend { depth, .. }, Some(Outcome::Succeeded { .. })) => {
            // The next may have begun in the same commit: this is the only moment to see it.
            let memory = match depth {
                Depth::Freeze => memory,
                Depth::Checkpoint => written(stage, seen),
                Depth::Stop => None,
            };
            let found = seen.suspending.filter(|(op, _)| *op == ended.id);
            if let (Some(was), Some(is), Depth::Checkpoint) =
                (found.and_then(|(_, found)| found.memory), memory, depth)
            {
                stage.expect(Invariant::MemoryIsOnDisk, was == is, || {
                    format!("{id}: memory {was} was to be written, and {is} is")
                });
            }
            seen.asleep_with = memory;
            let retained = seen.record.retained.as_ref();
            // What was lost since is told as lost.
            let told = retained.is_some_and(|it| it.lost.unwrap_or(it.depth) == depth);
            // A start that waited behind it has begun and failed since.
            let over = seen.record.fence > ended.fence && seen.record.running.is_none();
            let told = told || over;
            stage.expect(Invariant::ToldIsSo, told, || {
                format!("{id}: suspended at {depth}, and retained is {retained:?}")
            });
        }
        (Verb::Suspend { .. }, Some(Outcome::Failed(fault))) => {
            if fault.reason == Reason::RetainedLost {
                lost(stage, seen, ended);
            }
            left_alone(stage, seen, ended);
        }
        (Verb::Suspend { .. }, Some(Outcome::TurnedBack(_))) => left_alone(stage, seen, ended),
        (
            Verb::Create | Verb::Resume { .. } | Verb::Start,
            Some(Outcome::Succeeded { achieved, .. }),
        ) => {
            awake(stage, seen, ended, *achieved, memory);
            seen.asleep_with = memory.or(seen.asleep_with);
            seen.was_ready = memory.or(seen.was_ready);
        }
        (
            Verb::Create | Verb::Resume { .. } | Verb::Start,
            Some(Outcome::Failed(_) | Outcome::SupersededBy(_) | Outcome::TurnedBack(_)),
        ) => given_back(stage, seen, memory),
        (Verb::Delete { .. }, Some(Outcome::Succeeded { .. })) => {
            let gone = seen.record.tombstone_at.is_some();
            stage.expect(Invariant::ToldIsSo, gone, || {
                format!("{id}: deleted, and {}", seen.record.phase())
            });
        }
        _ => {}
    }
    strict(stage, before, was_ready, ended);
    seen.suspending = None;
}

fn awake(stage: &Stage, seen: &Seen, ended: &Operation, achieved: Achieved, memory: Option<u64>) {
    let (id, record) = (seen.record.id, &seen.record);
    // What was lost since is told as lost.
    let failed = (record.failure.as_ref())
        .is_some_and(|it| it.operation.is_some() || Some(it.at) < ended.ended_at);
    let so = !failed && record.retained.is_none();
    stage.expect(Invariant::ToldIsSo, so, || {
        format!(
            "{id}: woken, and {} ({:?}, {:?})",
            record.phase(),
            record.failure,
            record.retained
        )
    });
    // What was killed since says nothing.
    let Some(memory) = memory else { return };
    let proved = stage.world.proved(id);
    stage.expect(
        Invariant::ReadyIsProved,
        proved == Some(record.issued),
        || format!("{id}: {proved:?} was proved, {} is issued", record.issued),
    );
    match achieved {
        Achieved::Memory => {
            let same = seen.asleep_with == Some(memory);
            stage.expect(Invariant::MemoryIsMemory, same, || {
                format!(
                    "{id}: slept with memory {:?}, woke with {memory}",
                    seen.asleep_with
                )
            });
        }
        // Where "nothing here" was a lie, what was taken for lost is found again.
        Achieved::Storage if stage.plan.lied_of(id) => {}
        Achieved::Storage => {
            let new = seen.was_ready != Some(memory);
            stage.expect(Invariant::MemoryIsMemory, new, || {
                format!(
                    "{id}: {} brought memory {memory} and told of storage",
                    ended.verb.as_str()
                )
            });
        }
        Achieved::Done => {}
    }
}

/// A wake that failed gives memory back only where nothing ran on it.
fn given_back(stage: &Stage, seen: &Seen, memory: Option<u64>) {
    let id = seen.record.id;
    let Some(retained) = &seen.record.retained else {
        return;
    };
    let back = retained.depth == Depth::Freeze && retained.status == RetainedStatus::Available;
    if let (true, Some(memory)) = (back && !stage.plan.lied_of(id), memory) {
        let frozen = matches!(stage.world.truth(id), Observed::Frozen { .. });
        let same = seen.asleep_with.is_none_or(|asleep| asleep == memory);
        stage.expect(Invariant::UsedOnce, frozen && same, || {
            format!(
                "{id}: slept with {:?}, is given back {memory}",
                seen.asleep_with
            )
        });
    }
}

/// The memory that its record says is on disk.
fn written(stage: &Stage, seen: &Seen) -> Option<u64> {
    let name = seen.record.retained.as_ref()?.artifact?.native_name();
    let artifacts = stage.world.artifacts(seen.record.id);
    let artifact = artifacts.iter().find(|artifact| artifact.name == name);
    artifact.map(|artifact| artifact.memory)
}

/// What it was to keep is told to be gone.
fn lost(stage: &Stage, seen: &Seen, ended: &Operation) {
    let id = seen.record.id;
    let took = (ended.began_at.zip(ended.ended_at)).map_or(0, |(began, end)| end.0 - began.0);
    // A driver that will not answer has the operation's time, and no more.
    let in_time = u64::try_from(took).is_ok_and(|took| took < DEADLINES.operation_ms);
    if stage.plan.lied_of(id) || stage.plan.refused(id) && !in_time {
        return;
    }
    let names = (1..=ended.serial.0).map(|serial| {
        let serial = Serial(serial);
        let (sandbox, fence) = (id, ended.fence);
        EffectKey {
            sandbox,
            fence,
            serial,
        }
        .native_name()
    });
    let names: Vec<String> = names.collect();
    let artifacts = stage.world.artifacts(id);
    let whole = (artifacts.iter()).find(|it| it.usable && names.contains(&it.name));
    let resident = matches!(stage.world.truth(id), Observed::Frozen { .. });
    stage.expect(Invariant::LostIsGone, whole.is_none() && !resident, || {
        format!("{id}: it is told to be lost, and there is {whole:?}, frozen: {resident}")
    });
}

/// A suspend that did not happen.
fn left_alone(stage: &Stage, seen: &Seen, ended: &Operation) {
    let id = seen.record.id;
    if seen.record.phase() != Phase::Ready {
        return;
    }
    let Some((_, found)) = seen.suspending.filter(|(op, _)| *op == ended.id) else {
        return;
    };
    let left = Before::of(stage, id);
    if let (Some(was), Some(is)) = (found.memory, left.memory) {
        let alive = was == is && !stage.world.ended_by_suspension(id);
        stage.expect(Invariant::RejectedSuspendLeavesIt, alive, || {
            format!("{id}: memory {was} before, {is} after, or its processes were ended")
        });
    }
    // Before its first effect nothing is let go of.
    let untouched = ended.serial.0 == 0
        && found.undisturbed == left.undisturbed
        && found.connection.is_some()
        && left.memory == found.memory;
    if untouched {
        let same = left.connection == found.connection;
        stage.expect(Invariant::RejectedSuspendLeavesIt, same, || {
            format!(
                "{id}: connection {:?} before, {:?} after",
                found.connection, left.connection
            )
        });
    }
}

fn strict(stage: &Stage, before: &Sandbox, was_ready: bool, ended: &Operation) {
    let slept = before.retained.as_ref();
    // Memory that never was Ready holds nobody's processes.
    let promised =
        was_ready && slept.is_some_and(|it| it.depth.keeps_memory() && it.lost.is_none());
    if let (
        Verb::Resume {
            fallback: false, ..
        },
        Some(Outcome::Succeeded { achieved, .. }),
        true,
    ) = (ended.verb, &ended.outcome, promised)
    {
        let kept = *achieved == Achieved::Memory;
        stage.expect(Invariant::StrictIsStrict, kept, || {
            format!("{}: a strict resume brought {achieved:?}", ended.sandbox)
        });
    }
}
