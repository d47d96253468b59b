//! Memory on disk: what is written, what is kept while nobody can tell, and what is owed.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use overwinter_lifecycle::capacity::Usage;
use overwinter_lifecycle::ids::{EffectKey, Fence};
use overwinter_lifecycle::operation::{Achieved, Stopping, Verb};
use overwinter_lifecycle::record::{Compute, Debt, RetainedStatus};
use overwinter_lifecycle::recording::{Ending, Recorded, Recording};
use overwinter_lifecycle::steps::Event;
use overwinter_lifecycle::{Depth, Fault, Phase, Reason};
use support::{
    ARTIFACT, DELETE, Ended, FROZEN, LIVE, NEXT, RESUME, RESUME_OR_START, SEEN_ABSENT, SEEN_FROZEN,
    SEEN_LIVE, STOP, Story, UNSEEN, asleep, effected, operation, ready, refused, suspend, unknown,
};

const CHECKPOINT: Verb = suspend(Depth::Checkpoint);
const ON_DISK: Phase = Phase::Suspended(Depth::Checkpoint);
const FROZEN_NOW: Phase = Phase::Suspended(Depth::Freeze);
const STOPPED_NOW: Phase = Phase::Suspended(Depth::Stop);
/// What the first effect of a story's operation writes.
const WRITTEN: EffectKey = EffectKey {
    fence: Fence(2),
    ..ARTIFACT
};

fn refused_for(reason: Reason) -> Event {
    Event::Refused(Fault::new(reason, "it says why"))
}

fn missing() -> Event {
    refused_for(Reason::RetainedLost)
}

/// Up to the checkpoint itself.
fn writing() -> Story {
    Story::of(ready(), CHECKPOINT)
        .then("prepare", Event::Done)
        .then("quiesce", Event::Done)
        .records("record_intent")
        .then("detach", Event::Done)
}

fn deepening() -> Story {
    Story::of(asleep(Depth::Freeze), CHECKPOINT)
        .then("prepare", Event::Done)
        .records("record_intent")
}

fn owes(ended: &Ended, keys: &[EffectKey]) {
    let debts: Vec<Debt> = keys.iter().map(|key| Debt::artifact(*key)).collect();
    assert_eq!(ended.rows.debts, debts);
}

#[track_caller]
fn is_lost(ended: Ended, promised: Depth) {
    let ended = ended.because(Reason::RetainedLost);
    let retained = ended.sandbox.retained.unwrap();
    assert_eq!((retained.lost, retained.artifact), (Some(promised), None));
}

#[test]
fn its_artifact_is_named_before_it_is_written() {
    for story in [writing(), deepening()] {
        let ended = story
            .then("suspend_checkpoint", effected(Compute::Absent))
            .ends(ON_DISK)
            .achieves(Achieved::Done);
        owes(&ended, &[]);
        assert_eq!(ended.sandbox.retained.unwrap().artifact, Some(WRITTEN));
    }
}

#[test]
fn whether_it_was_written_is_asked_for_as_long_as_it_takes() {
    let asked = || {
        writing()
            .then("suspend_checkpoint", unknown())
            .then("observe", UNSEEN)
            .then("observe", SEEN_ABSENT)
            .then("suspend_checkpoint", unknown())
            .late()
            .then("observe", UNSEEN)
            .then("observe", SEEN_ABSENT)
            .then("suspend_checkpoint", unknown())
            .then("observe", SEEN_ABSENT)
    };
    asked()
        .then("suspend_checkpoint", effected(Compute::Absent))
        .ends(ON_DISK);
    let gone = asked()
        .then("suspend_checkpoint", missing())
        .ends(STOPPED_NOW);
    owes(&gone, &[WRITTEN]);
    is_lost(gone, Depth::Checkpoint);
    // One that will not say has the operation's time.
    writing()
        .then("suspend_checkpoint", refused())
        .then("observe", SEEN_ABSENT)
        .then("suspend_checkpoint", effected(Compute::Absent))
        .ends(ON_DISK);
    let silent = writing()
        .then("suspend_checkpoint", refused())
        .late()
        .then("observe", SEEN_ABSENT)
        .ends(STOPPED_NOW);
    owes(&silent, &[WRITTEN]);
    is_lost(silent, Depth::Checkpoint);
}

#[test]
fn one_that_does_not_happen_gives_the_compute_back() {
    let late = || {
        writing()
            .then("suspend_checkpoint", unknown())
            .then("observe", SEEN_FROZEN)
            .then("suspend_checkpoint", unknown())
            .then("observe", SEEN_LIVE)
            .late()
            .then("suspend_checkpoint", unknown())
    };
    late()
        .then("observe", SEEN_LIVE)
        .records("record_reattach")
        .then("reattach", effected(LIVE))
        .then("attach", Event::Attached)
        .then("unquiesce", Event::Done)
        .ends(Phase::Ready)
        .because(Reason::SuspendAborted);
    let frozen = late()
        .then("observe", SEEN_FROZEN)
        .ends(Phase::Failed)
        .because(Reason::DriverTimeout);
    assert_eq!(frozen.sandbox.compute, FROZEN, "it may be resumed");
    writing()
        .then("suspend_checkpoint", refused())
        .then("observe", SEEN_LIVE)
        .records("record_reattach")
        .then("reattach", effected(LIVE))
        .then("attach", Event::Attached)
        .then("unquiesce", Event::Done)
        .ends(Phase::Ready)
        .because(Reason::DriverRejected);
}

/// A part of it may be on disk: it is owed when it is given up, not when all is over.
#[test]
fn what_may_have_been_written_is_owed_with_the_reattach() {
    let mut story = writing().then("suspend_checkpoint", refused());
    let (recorded, rows) = story.write(Recording::Reattach(Fault::new(
        Reason::SuspendAborted,
        "undone",
    )));
    assert!(matches!(recorded, Recorded::Done(Some(_))), "{recorded:?}");
    assert_eq!(rows.debts, [Debt::artifact(WRITTEN)]);
}

#[test]
fn a_deepening_that_fails_sleeps_on_as_before() {
    let kept = deepening()
        .then("suspend_checkpoint", refused())
        .then("observe", SEEN_FROZEN)
        .ends(FROZEN_NOW)
        .because(Reason::DriverRejected);
    owes(&kept, &[WRITTEN]);
    // What was promised is what it slept at.
    let gone = deepening()
        .then("suspend_checkpoint", missing())
        .ends(STOPPED_NOW);
    is_lost(gone, Depth::Freeze);
    // Somebody has woken it, and it does not stop.
    let woken = deepening()
        .then("suspend_checkpoint", unknown())
        .late()
        .then("observe", SEEN_LIVE)
        .ends(Phase::Failed)
        .because(Reason::DriverTimeout);
    assert_eq!(woken.sandbox.compute, LIVE);
    deepening()
        .crash()
        .then("observe", SEEN_LIVE)
        .then("suspend_checkpoint", effected(Compute::Absent))
        .ends(ON_DISK);
}

/// With the connection of its supervisor open nothing can be written, and whether it is, nobody knows.
#[test]
fn after_a_crash_what_runs_is_given_back() {
    writing()
        .crash()
        .then("observe", SEEN_LIVE)
        .records("record_reattach")
        .then("reattach", effected(LIVE));
    writing()
        .crash()
        .then("observe", SEEN_ABSENT)
        .then("suspend_checkpoint", effected(Compute::Absent))
        .ends(ON_DISK);
}

#[test]
fn a_stop_of_what_is_on_disk_discards_it() {
    let stopping = || Story::of(asleep(Depth::Checkpoint), STOP).records("record_intent");
    let stopped = stopping()
        .then("suspend_stop", effected(Compute::Absent))
        .ends(STOPPED_NOW)
        .achieves(Achieved::Done);
    owes(&stopped, &[ARTIFACT]);
    assert_eq!(stopped.sandbox.retained.unwrap().lost, None);
    // It may have been done by a call before the one that was refused.
    let refused = stopping()
        .crash()
        .then("observe", SEEN_ABSENT)
        .then("suspend_stop", refused())
        .then("observe", SEEN_ABSENT)
        .ends(STOPPED_NOW);
    owes(&refused, &[ARTIFACT]);
}

#[test]
fn a_restore_is_asked_for_again_until_it_is_known() {
    let restoring = || Story::of(asleep(Depth::Checkpoint), RESUME);
    let restored = restoring()
        .then("resume_checkpoint", unknown())
        .then("observe", UNSEEN)
        .then("observe", SEEN_ABSENT)
        .then("resume_checkpoint", effected(LIVE))
        .then("attach", Event::Attached)
        .then("lift_quiesce", Event::Done)
        .ends(Phase::Ready)
        .achieves(Achieved::Memory);
    owes(&restored, &[ARTIFACT]);
    // Nobody can say any more that nothing ran.
    let late = restoring()
        .then("resume_checkpoint", unknown())
        .late()
        .then("observe", UNSEEN)
        .then("observe", SEEN_ABSENT)
        .ends(STOPPED_NOW);
    owes(&late, &[ARTIFACT]);
    is_lost(late, Depth::Checkpoint);
}

#[test]
fn what_cannot_be_restored_is_told_with_its_reason() {
    let refused = |reason| {
        Story::of(asleep(Depth::Checkpoint), RESUME).then("resume_checkpoint", refused_for(reason))
    };
    for reason in [
        Reason::ArtifactDamaged,
        Reason::ArtifactForeign,
        Reason::RetainedStale,
        Reason::RetainedLost,
    ] {
        let lost = refused(reason).ends(STOPPED_NOW).because(reason);
        owes(&lost, &[ARTIFACT]);
        let retained = lost.sandbox.retained.unwrap();
        assert_eq!(retained.lost, Some(Depth::Checkpoint));
        let cold = Story::of(asleep(Depth::Checkpoint), RESUME_OR_START)
            .then("resume_checkpoint", refused_for(reason))
            .records("record_fallback")
            .then("start", effected(LIVE))
            .then("attach", Event::Attached)
            .then("start_main", Event::Done)
            .ends(Phase::Ready)
            .achieves(Achieved::Storage);
        owes(&cold, &[ARTIFACT]);
    }
    // The build may come back, and so may the image.
    for reason in [Reason::RuntimeChanged, Reason::ImageChanged] {
        let kept = refused(reason).ends(ON_DISK).because(reason);
        owes(&kept, &[]);
        let retained = kept.sandbox.retained.unwrap();
        assert_eq!(retained.artifact, Some(ARTIFACT));
        assert_eq!(retained.status, RetainedStatus::Available);
    }
}

#[test]
fn a_delete_removes_it_itself() {
    let deleted = Story::of(asleep(Depth::Checkpoint), DELETE)
        .then("delete", effected(Compute::Absent))
        .then("observe", SEEN_ABSENT)
        .ends(Phase::Tombstone);
    owes(&deleted, &[]);
    let mut story = writing();
    story.sandbox.waiting = Some(operation(&story.sandbox, NEXT, DELETE));
    let mut story = story.stopped_by(Stopping::Delete(NEXT));
    let (_, rows) = story.write(Recording::End(Ending::Interrupted));
    assert_eq!(rows.debts, []);
}

#[test]
fn what_it_may_take_is_reserved_until_it_is_known() {
    let mut awake = ready();
    awake.spec.resources.memory_bytes = 1_000;
    let story = Story::of(awake, CHECKPOINT);
    assert_eq!(Usage::of(&story.sandbox).disk_bytes, 1_000);
}
