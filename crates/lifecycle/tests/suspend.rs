//! The steps of a suspend, told as stories.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use overwinter_lifecycle::operation::{Achieved, EffectKind, Outcome, Stopping};
use overwinter_lifecycle::record::{
    Compute, Debt, DebtKind, Desired, DriverReference, Reclaimed, Sandbox,
};
use overwinter_lifecycle::recording::Recorded;
use overwinter_lifecycle::steps::{Effected, Event};
use overwinter_lifecycle::{Depth, Phase, Reason};
use support::{
    DELETE, FREEZE, FROZEN, LIVE, NEXT, RESUME, SEEN_ABSENT, SEEN_FROZEN, SEEN_LIVE, STOP, Story,
    UNSEEN, asleep, effected, failed, operation, ready, refused, suspend, unknown,
};

const FROZEN_NOW: Phase = Phase::Suspended(Depth::Freeze);
const STOPPED_NOW: Phase = Phase::Suspended(Depth::Stop);

/// Up to the freeze itself.
fn freezing() -> Story {
    Story::of(ready(), FREEZE)
        .then("prepare", Event::Done)
        .then("quiesce", Event::Done)
        .records("record_intent")
        .then("detach", Event::Done)
}

/// Up to the stop itself.
fn stopping() -> Story {
    Story::of(ready(), STOP)
        .then("prepare", Event::Done)
        .then("quiesce", Event::DoneWith("a hook ran".to_owned()))
        .records("record_intent")
        .then("terminate", Event::Done)
        .records("record_terminated")
}

/// A freeze that did not happen gets its compute back.
fn reattaching() -> Story {
    freezing()
        .then("suspend_freeze", refused())
        .then("observe", SEEN_LIVE)
        .records("record_reattach")
}

#[test]
fn it_goes_to_sleep_at_each_depth() {
    let frozen = freezing()
        .then("suspend_freeze", effected(FROZEN))
        .ends(FROZEN_NOW);
    assert!(
        frozen
            .achieves(Achieved::Done)
            .sandbox
            .retained
            .unwrap()
            .quiesced
    );
    let stopped = stopping()
        .then("suspend_stop", effected(Compute::Absent))
        .ends(STOPPED_NOW);
    assert_eq!(
        stopped.achieves(Achieved::Done).sandbox.desired,
        Desired::Suspended(Depth::Stop)
    );
    let checkpoint = Story::of(ready(), suspend(Depth::Checkpoint))
        .then("prepare", Event::Done)
        .then("quiesce", Event::Done)
        .records("record_intent")
        .then("detach", Event::Done)
        .then("suspend_checkpoint", effected(Compute::Absent))
        .ends(Phase::Suspended(Depth::Checkpoint));
    checkpoint.achieves(Achieved::Done);
}

#[test]
fn what_a_freeze_gave_back_is_kept_until_somebody_tries_to_wake_it() {
    let reclaimed = Reclaimed {
        freed_bytes: 700,
        left_bytes: 300,
    };
    let told = Effected {
        compute: FROZEN,
        reference: DriverReference::default(),
        size_bytes: 0,
        leftovers: Vec::new(),
        remarks: Vec::new(),
        reclaimed: Some(reclaimed),
    };
    let given = |sandbox: &Sandbox| sandbox.retained.as_ref().unwrap().reclaimed;
    let frozen = freezing()
        .then("suspend_freeze", Event::Effected(told))
        .ends(FROZEN_NOW)
        .sandbox;
    assert_eq!(given(&frozen), Some(reclaimed));
    // Its memory may have been brought in.
    let still = Story::of(frozen, RESUME)
        .then("resume_freeze", refused())
        .then("observe", SEEN_FROZEN)
        .ends(FROZEN_NOW)
        .sandbox;
    assert_eq!(given(&still), None);
}

#[test]
fn what_the_driver_tells_of_it_is_kept() {
    let key = stopping().op().intent_key().unwrap();
    let left = Debt {
        key,
        kind: DebtKind::Artifact,
        reference: "older".to_owned(),
    };
    let told = Effected {
        compute: Compute::Absent,
        reference: DriverReference {
            driver: "sim".to_owned(),
            ..DriverReference::default()
        },
        size_bytes: 70,
        leftovers: vec![left.clone()],
        remarks: vec!["it took long".to_owned()],
        reclaimed: None,
    };
    let ended = stopping()
        .then("suspend_stop", Event::Effected(told))
        .ends(STOPPED_NOW);
    assert_eq!(ended.rows.debts, [left]);
    assert_eq!(ended.remarks(), ["it took long"]);
    let retained = ended.sandbox.retained.unwrap();
    assert_eq!(
        (retained.reference.driver.as_str(), retained.size_bytes),
        ("sim", 70)
    );
}

#[test]
fn one_that_is_rejected_leaves_it_ready() {
    for (event, reason) in [
        (refused(), Reason::DriverRejected),
        (unknown(), Reason::DriverTimeout),
    ] {
        Story::of(ready(), FREEZE)
            .then("prepare", event.clone())
            .ends(Phase::Ready)
            .because(reason);
        // The owner before this one may have quiesced it.
        Story::of(ready(), FREEZE)
            .crash()
            .then("prepare", event)
            .then("unquiesce", Event::Done)
            .ends(Phase::Ready)
            .because(reason);
    }
    let hook = Story::of(ready(), STOP)
        .then("prepare", Event::Done)
        .then("quiesce", refused())
        .then("unquiesce", Event::Done)
        .ends(Phase::Ready);
    assert_eq!(hook.sandbox.desired, Desired::Running);
    let unreachable = Story::of(ready(), FREEZE)
        .then("prepare", Event::Done)
        .then("quiesce", Event::Unreachable)
        .then("unquiesce", Event::Unreachable)
        .ends(Phase::Ready);
    unreachable.because(Reason::SupervisorUnreachable);
}

#[test]
fn a_stop_needs_nobody_inside() {
    let unreachable = Story::of(ready(), STOP)
        .then("prepare", Event::Done)
        .then("quiesce", Event::Unreachable)
        .records("record_intent")
        .then("suspend_stop", effected(Compute::Absent))
        .ends(STOPPED_NOW);
    assert!(!unreachable.sandbox.retained.unwrap().quiesced);
    Story::of(ready(), STOP)
        .then("prepare", Event::Done)
        .then("quiesce", Event::Done)
        .records("record_intent")
        .then("terminate", Event::Unreachable)
        .then("suspend_stop", effected(Compute::Absent))
        .ends(STOPPED_NOW);
    // Nor compute: the driver confirms that none is there, and it sleeps on its storage.
    Story::of(failed(Reason::ComputeLost, Compute::Absent), STOP)
        .records("record_intent")
        .then("suspend_stop", effected(Compute::Absent))
        .ends(STOPPED_NOW);
}

#[test]
fn a_sleeper_goes_deeper_without_being_spoken_to() {
    let deepening = || {
        Story::of(asleep(Depth::Freeze), STOP)
            .then("prepare", Event::Done)
            .records("record_intent")
    };
    deepening()
        .then("suspend_stop", effected(Compute::Absent))
        .ends(STOPPED_NOW);
    let refused = deepening()
        .then("suspend_stop", refused())
        .then("observe", SEEN_FROZEN)
        .ends(FROZEN_NOW)
        .because(Reason::DriverRejected);
    assert_eq!(refused.sandbox.desired, Desired::Suspended(Depth::Freeze));
    for (depth, reason) in [
        (Depth::Checkpoint, Reason::DriverTimeout),
        (Depth::Stop, Reason::StopFailed),
    ] {
        let effect = EffectKind::Suspend(depth).as_str();
        let mut stubborn = Story::of(asleep(Depth::Freeze), suspend(depth))
            .then("prepare", Event::Done)
            .records("record_intent");
        for event in [effected(FROZEN), unknown(), unknown()] {
            stubborn = stubborn.then(effect, event).then("observe", SEEN_FROZEN);
        }
        stubborn
            .late()
            .then(effect, unknown())
            .then("observe", SEEN_FROZEN)
            .ends(FROZEN_NOW)
            .because(reason);
    }
}

#[test]
fn it_is_turned_back_until_its_intent_is_recorded() {
    let quiesced = || {
        Story::of(ready(), FREEZE)
            .then("prepare", Event::Done)
            .then("quiesce", Event::Done)
    };
    for by in [Some(NEXT), None] {
        let turned = quiesced()
            .stopped_by(Stopping::TurnBack(by))
            .records("record_intent")
            .then("unquiesce", Event::Done)
            .ends(Phase::Ready);
        assert_eq!(turned.op.outcome, Some(Outcome::TurnedBack(by)));
        assert_eq!(turned.sandbox.desired, Desired::Running);
    }
    // Who sleeps, or is not there, has not been asked to quiesce: there is nobody to wait for.
    Story::of(asleep(Depth::Freeze), STOP)
        .then("prepare", Event::Done)
        .stopped_by(Stopping::TurnBack(None))
        .records("record_intent")
        .ends(FROZEN_NOW);
    Story::of(failed(Reason::ComputeLost, Compute::Absent), STOP)
        .stopped_by(Stopping::TurnBack(None))
        .records("record_intent")
        .ends(Phase::Failed);
    // A delete has come while it was being turned back.
    let turned = quiesced()
        .stopped_by(Stopping::TurnBack(None))
        .records("record_intent")
        .stopped_by(Stopping::Delete(NEXT))
        .then("unquiesce", Event::Done)
        .ends(Phase::Deleting);
    assert_eq!(turned.op.outcome, Some(Outcome::TurnedBack(Some(NEXT))));
}

#[test]
fn a_delete_takes_over_at_the_next_boundary_and_begins_with_its_end() {
    let mut story = stopping();
    story.sandbox.waiting = Some(operation(&story.sandbox, NEXT, DELETE));
    let story = story.crash().stopped_by(Stopping::Delete(NEXT));
    let ended = story
        .then("suspend_stop", effected(Compute::Absent))
        .ends(Phase::Deleting);
    assert_eq!(ended.recorded, Recorded::Ended { next: Some(NEXT) });
    assert_eq!(ended.sandbox.desired, Desired::Deleted);
    // Before: nothing was settled, and the delete must settle it.
    let story = Story::of(ready(), STOP)
        .then("prepare", Event::Done)
        .then("quiesce", Event::Done)
        .records("record_intent")
        .then("terminate", Event::Done)
        .stopped_by(Stopping::Delete(NEXT))
        .records("record_terminated");
    let ended = story.ends(Phase::Deleting).because(Reason::Interrupted);
    assert_eq!(ended.sandbox.compute, Compute::Unknown);
    // Without an intent there is nothing to settle.
    let story = Story::of(ready(), STOP)
        .then("prepare", Event::Done)
        .then("quiesce", Event::Done)
        .stopped_by(Stopping::Delete(NEXT))
        .records("record_intent");
    assert_eq!(story.ends(Phase::Deleting).sandbox.compute, LIVE);
}

#[test]
fn a_freeze_that_did_not_happen_gives_the_compute_back() {
    let back = reattaching()
        .then("reattach", effected(LIVE))
        .then("attach", Event::Attached)
        .then("unquiesce", Event::Done)
        .ends(Phase::Ready);
    back.because(Reason::DriverRejected);
    let held_on = Story::of(ready(), FREEZE)
        .then("prepare", Event::Done)
        .then("quiesce", Event::Done)
        .records("record_intent")
        .then("detach", Event::Unreachable)
        .records("record_reattach")
        .then("reattach", effected(LIVE))
        .then("attach", Event::Attached)
        .then("unquiesce", Event::Done)
        .ends(Phase::Ready);
    held_on.because(Reason::SuspendAborted);
    freezing()
        .then("suspend_freeze", effected(LIVE))
        .then("observe", SEEN_LIVE)
        .records("record_reattach")
        .then("reattach", effected(Compute::Absent))
        .then("observe", SEEN_ABSENT)
        .ends(STOPPED_NOW)
        .because(Reason::RetainedLost);
}

#[test]
fn compute_that_does_not_come_back_is_told_as_it_is() {
    let gone = reattaching()
        .then("reattach", effected(LIVE))
        .then("attach", Event::ComputeGone)
        .ends(STOPPED_NOW);
    assert_eq!(gone.sandbox.retained.unwrap().lost, Some(Depth::Freeze));
    let silent = reattaching()
        .then("reattach", effected(LIVE))
        .then("attach", Event::AttachTimeout)
        .then("observe", SEEN_LIVE)
        .ends(Phase::Failed)
        .because(Reason::AttachTimeout);
    assert_eq!(silent.sandbox.compute, LIVE);
    // The freeze came late after all.
    let late = reattaching()
        .then("reattach", effected(FROZEN))
        .then("observe", SEEN_FROZEN)
        .ends(FROZEN_NOW);
    late.achieves(Achieved::Done);
    let mut again = reattaching();
    for _ in 0..2 {
        again = again.then("reattach", refused()).then("observe", SEEN_LIVE);
    }
    again
        .then("reattach", unknown())
        .then("observe", UNSEEN)
        .ends(Phase::Failed)
        .because(Reason::AttachTimeout);
    let late = reattaching()
        .late()
        .then("reattach", refused())
        .then("observe", SEEN_LIVE)
        .ends(Phase::Failed)
        .because(Reason::AttachTimeout);
    assert_eq!(late.sandbox.compute, LIVE, "it may be resumed");
}

#[test]
fn a_freeze_whose_answer_is_lost_is_settled_by_looking() {
    let lost = || freezing().then("suspend_freeze", unknown());
    lost()
        .then("observe", SEEN_FROZEN)
        .then("suspend_freeze", effected(FROZEN))
        .ends(FROZEN_NOW);
    lost().then("observe", SEEN_LIVE).records("record_reattach");
    lost()
        .then("observe", SEEN_ABSENT)
        .ends(STOPPED_NOW)
        .because(Reason::RetainedLost);
    freezing()
        .then("suspend_freeze", effected(Compute::Absent))
        .ends(STOPPED_NOW);
    // The driver never says what it wrote: it sleeps all the same.
    lost()
        .then("observe", SEEN_FROZEN)
        .then("suspend_freeze", unknown())
        .then("observe", SEEN_FROZEN)
        .late()
        .then("suspend_freeze", unknown())
        .then("observe", SEEN_FROZEN)
        .ends(FROZEN_NOW)
        .achieves(Achieved::Done);
}

#[test]
fn a_stop_that_fails_is_never_ready_again() {
    let stubborn = stopping()
        .then("suspend_stop", refused())
        .then("observe", SEEN_LIVE)
        .then("suspend_stop", unknown())
        .then("observe", SEEN_LIVE)
        .late()
        .then("suspend_stop", effected(LIVE))
        .then("observe", SEEN_LIVE)
        .ends(Phase::Failed);
    stubborn.because(Reason::StopFailed);
}

/// It ends the compute as a stop does, and until then there is memory to come back to.
#[test]
fn after_a_crash_it_goes_on_from_the_recorded_step() {
    Story::of(ready(), STOP)
        .then("prepare", Event::Done)
        .crash()
        .then("prepare", Event::Done);
    // Its processes may not have been asked to end: they are now.
    Story::of(ready(), STOP)
        .then("prepare", Event::Done)
        .then("quiesce", Event::Done)
        .records("record_intent")
        .crash()
        .then("observe", SEEN_LIVE)
        .then("terminate", Event::Done);
    // This owner has asked them, and got no answer: the driver ends what is left.
    Story::of(ready(), STOP)
        .then("prepare", Event::Done)
        .then("quiesce", Event::Done)
        .records("record_intent")
        .then("terminate", Event::Unreachable)
        .then("suspend_stop", unknown())
        .then("observe", SEEN_LIVE)
        .then("suspend_stop", effected(Compute::Absent))
        .ends(STOPPED_NOW);
    stopping()
        .crash()
        .then("suspend_stop", effected(Compute::Absent))
        .ends(STOPPED_NOW);
    freezing()
        .crash()
        .then("observe", SEEN_FROZEN)
        .then("suspend_freeze", effected(FROZEN));
}

#[test]
fn whoever_waits_begins_with_the_end() {
    let mut story = stopping();
    story.sandbox.waiting = Some(operation(&story.sandbox, NEXT, RESUME));
    let ended = story
        .then("suspend_stop", effected(Compute::Absent))
        .ends(Phase::Resuming);
    assert_eq!(ended.recorded, Recorded::Ended { next: Some(NEXT) });
    assert_eq!(ended.rows.intents.len(), 1, "the intent of its start");
    // One that begins with a question has no intent yet.
    let mut story = Story::of(ready(), FREEZE);
    story.sandbox.waiting = Some(operation(&story.sandbox, NEXT, STOP));
    let ended = story
        .then("prepare", refused())
        .ends(Phase::Suspending(Depth::Stop));
    assert_eq!(ended.rows.intents, []);
    // One that finds it so already ends at once.
    let mut story = Story::of(ready(), FREEZE);
    story.sandbox.waiting = Some(operation(&story.sandbox, NEXT, RESUME));
    let ended = story.then("prepare", refused()).ends(Phase::Ready);
    assert_eq!(ended.recorded, Recorded::Ended { next: None });
    assert_eq!(ended.rows.ended.len(), 2);
}
