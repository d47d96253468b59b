//! What a suspension left: what the record says of it, and what is there.

use overwinter_lifecycle::Depth;
use overwinter_lifecycle::record::{Compute, Desired, Retained, RetainedStatus, Sandbox};
use overwinter_lifecycle::recording::{Ending, Recording};

use super::call::ON_DISK;
use super::checks::{Checked, ensure};
use super::invariant::Invariant;
use super::moves::Taken;
use super::state::State;
use super::world::{Health, Key};
use crate::search::Tally;

/// Whether all that is on disk is spoken of.
pub(super) fn artifacts(state: &State, tally: &mut Tally) -> Checked {
    let sandbox = &state.sandbox;
    // Its delete removes them, and is gone on with until it has.
    let is_going = sandbox.desired == Desired::Deleted && sandbox.tombstone_at.is_none();
    let at_work = sandbox.running.is_some();
    if at_work || is_going || state.abandoned || state.world.artifacts.is_empty() {
        return Ok(());
    }
    tally.met(Invariant::ArtifactsAreOwned);
    let retained = retained_artifact(sandbox);
    let stray = (state.world.artifacts.iter()).find(|artifact| {
        Some(artifact.written_by) != retained
            && !state.artifact_debts.contains(&artifact.written_by)
    });
    ensure(stray.is_none(), Invariant::ArtifactsAreOwned, || {
        format!("nothing speaks of {stray:?}")
    })
}

/// What wrote the memory that the record says is on disk.
pub(super) fn retained_artifact(sandbox: &Sandbox) -> Option<Key> {
    let key = sandbox.retained.as_ref()?.artifact?;
    Some(Key {
        fence: key.fence,
        serial: key.serial,
    })
}

/// Whether what it sleeps with is there.
pub(super) fn asleep(state: &State, depth: Depth) -> Checked {
    let sandbox = &state.sandbox;
    let Some(retained) = &sandbox.retained else {
        return Err(Invariant::RecordIsTrue.broken("Suspended, with nothing retained"));
    };
    let resident = match depth {
        Depth::Freeze => matches!(sandbox.compute, Compute::Frozen { .. }),
        Depth::Checkpoint | Depth::Stop => sandbox.compute == Compute::Absent,
    };
    let right = resident
        && retained.status == RetainedStatus::Available
        && retained.generation == sandbox.generation
        && sandbox.desired == Desired::Suspended(depth)
        && (depth == Depth::Checkpoint) == retained.artifact.is_some()
        && (depth == Depth::Checkpoint) == (retained.reference.location == ON_DISK);
    if depth == Depth::Checkpoint {
        let written = retained_artifact(sandbox);
        let mut there = state.world.artifacts.iter();
        let artifact = there.find(|it| Some(it.written_by) == written);
        let offered = artifact.is_some_and(|it| it.health != Health::KnownDamaged);
        ensure(offered, Invariant::RecordIsTrue, || {
            format!("{written:?} is said to hold its memory, and there is {artifact:?}")
        })?;
    }
    ensure(right, Invariant::RecordIsTrue, || {
        format!(
            "Suspended at {depth}, and {:?}, {:?}, {retained:?}",
            sandbox.desired, sandbox.compute
        )
    })
}

const fn offers_memory(retained: &Retained) -> bool {
    retained.depth.keeps_memory()
        && retained.lost.is_none()
        && matches!(retained.status, RetainedStatus::Available)
}

/// Whether memory that is offered once more is as it was.
pub(super) fn offered(before: &State, taken: &Taken, tally: &mut Tally) -> Checked {
    let old = before.sandbox.retained.as_ref();
    let offered_again = (taken.state.sandbox.retained.as_ref()).is_some_and(offers_memory)
        && !old.is_some_and(offers_memory);
    let asleep = matches!(&taken.recording, Some(Recording::End(Ending::Suspended(_))));
    if !offered_again || asleep {
        return Ok(());
    }
    tally.met(Invariant::ConsumedStaysConsumed);
    ensure(!before.world.ran, Invariant::ConsumedStaysConsumed, || {
        format!("{old:?} is offered again, and something ran on it")
    })
}
