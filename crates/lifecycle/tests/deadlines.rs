//! What a deadline decides: whether an effect that is seen not to have happened is tried again. No
//! count does.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use overwinter_lifecycle::operation::{EffectKind, Stopping, Verb};
use overwinter_lifecycle::record::{Compute, Sandbox};
use overwinter_lifecycle::recording::{Ending, Recording};
use overwinter_lifecycle::steps::{self, Action, Deadline, Event, Look};
use overwinter_lifecycle::{Depth, Fault, Phase, Reason};
use support::{
    DELETE, FREEZE, FROZEN, LIVE, NEXT, RESUME, RESUME_OR_START, SEEN_ABSENT, SEEN_FROZEN,
    SEEN_LIVE, STOP, Story, UNSEEN, asleep, blank, effected, ready, refused, suspend, unknown,
};

fn fault() -> Fault {
    Fault::new(Reason::DriverTimeout, "no answer")
}

/// An effect, and what shows that it has not happened, or that only its driver can tell the rest.
fn not_yet() -> Vec<(Sandbox, Verb, EffectKind, Event)> {
    let checkpoint = suspend(Depth::Checkpoint);
    let effect = EffectKind::Suspend;
    vec![
        (ready(), FREEZE, effect(Depth::Freeze), SEEN_FROZEN),
        (ready(), STOP, effect(Depth::Stop), SEEN_LIVE),
        (ready(), STOP, effect(Depth::Stop), SEEN_ABSENT),
        (ready(), checkpoint, effect(Depth::Checkpoint), SEEN_FROZEN),
        (ready(), FREEZE, EffectKind::Reattach, SEEN_LIVE),
        (
            asleep(Depth::Freeze),
            RESUME,
            EffectKind::Resume(Depth::Freeze),
            SEEN_FROZEN,
        ),
        (
            asleep(Depth::Checkpoint),
            RESUME,
            EffectKind::Resume(Depth::Checkpoint),
            SEEN_ABSENT,
        ),
        (asleep(Depth::Stop), RESUME, EffectKind::Start, SEEN_ABSENT),
        (
            asleep(Depth::Freeze),
            Verb::Start,
            effect(Depth::Stop),
            SEEN_LIVE,
        ),
        (
            asleep(Depth::Freeze),
            Verb::Start,
            effect(Depth::Stop),
            SEEN_ABSENT,
        ),
        (blank(), Verb::Create, EffectKind::Create, SEEN_ABSENT),
    ]
}

#[test]
fn it_is_called_again_while_there_is_time_and_never_once_it_was_spent() {
    for (sandbox, verb, effect, seen) in not_yet() {
        let mut story = Story::of(sandbox, verb);
        let op = story.op().clone();
        let after = |look, deadline| {
            let done = Action::Observe {
                after: Some(effect),
                look,
            };
            steps::next(&story.sandbox, &op, done, seen.clone(), deadline)
        };
        let call = |again| Action::Call { effect, again };
        let case = format!("{} of {}, {seen:?}", effect.as_str(), verb.as_str());
        // The first of this owner does not wait, every other does.
        assert_eq!(after(Look::First, Deadline::Ahead), call(false), "{case}");
        for why in [None, Some(fault())] {
            let next = after(Look::Called(why), Deadline::Ahead);
            assert_eq!(next, call(true), "{case}");
        }
        let given_up = [
            (Look::First, Deadline::Up),
            (Look::Called(Some(fault())), Deadline::Up),
            (Look::Refused(fault()), Deadline::Ahead),
            (Look::Refused(fault()), Deadline::Up),
            (Look::Spent, Deadline::Ahead),
            (Look::Spent, Deadline::Up),
        ];
        for (look, deadline) in given_up {
            let next = after(look.clone(), deadline);
            assert!(
                !matches!(next, Action::Call { .. }),
                "{case}, {look:?}, {deadline:?}: {next:?}"
            );
        }
    }
}

/// Only looking settles what is unknown, and what is late is settled all the same.
#[test]
fn what_has_happened_counts_however_late_it_is_seen() {
    Story::of(asleep(Depth::Stop), RESUME)
        .late()
        .then("start", unknown())
        .then("observe", SEEN_LIVE)
        .then("attach", Event::Attached)
        .then("start_main", Event::Done)
        .ends(Phase::Ready);
    Story::of(blank(), Verb::Create)
        .then("pin", Event::Pinned("sha256:1".into()))
        .records("record_intent")
        .late()
        .then("create", unknown())
        .then("observe", UNSEEN)
        .then("observe", SEEN_LIVE)
        .then("attach", Event::Attached)
        .then("start_main", Event::Done)
        .ends(Phase::Ready);
    Story::of(ready(), DELETE)
        .late()
        .then("delete", effected(Compute::Absent))
        .then("observe", SEEN_ABSENT)
        .ends(Phase::Tombstone);
}

/// An owner that is new has the whole time again.
#[test]
fn after_a_crash_there_is_time_again() {
    let story = Story::of(asleep(Depth::Stop), RESUME)
        .late()
        .then("start", unknown())
        .crash()
        .then("observe", SEEN_ABSENT);
    assert_eq!(
        *story.action(),
        Action::Call {
            effect: EffectKind::Start,
            again: false
        }
    );
}

#[test]
fn what_could_not_be_done_in_time_says_what_it_failed_with() {
    let message = |action: &Action| match action {
        Action::Record(Recording::End(
            Ending::StillSuspended { fault, .. } | Ending::NeverWas { fault, .. },
        )) => fault.message.clone(),
        action => panic!("{action:?}"),
    };
    let thawing = |event| {
        Story::of(asleep(Depth::Freeze), RESUME)
            .late()
            .then("resume_freeze", event)
            .then("observe", SEEN_FROZEN)
    };
    assert_eq!(message(thawing(refused()).action()), "refused");
    assert_eq!(message(thawing(unknown()).action()), "no answer");
    let silent = thawing(effected(FROZEN));
    assert_eq!(message(silent.action()), "it could not be thawed");
    let ended = silent
        .ends(Phase::Suspended(Depth::Freeze))
        .because(Reason::RestoreFailed);
    assert_eq!(ended.sandbox.compute, FROZEN, "nothing ran");
    let starting = |event| {
        Story::of(asleep(Depth::Stop), RESUME)
            .late()
            .then("start", event)
    };
    assert_eq!(message(starting(refused()).action()), "refused");
    let lost = starting(unknown()).then("observe", SEEN_ABSENT);
    assert_eq!(message(lost.action()), "no answer");
    // It asks for the fallback: what cannot be thawed in time is given up.
    Story::of(asleep(Depth::Freeze), RESUME_OR_START)
        .late()
        .then("resume_freeze", unknown())
        .then("observe", SEEN_FROZEN)
        .records("record_give_up_memory")
        .then("suspend_stop", effected(Compute::Absent))
        .records("record_intent")
        .then("start", effected(LIVE));
}

/// A verb that comes in is seen while somebody looks or waits, too.
#[test]
fn who_is_stopped_while_looking_ends_there() {
    let looking = || Story::of(asleep(Depth::Stop), RESUME).then("start", unknown());
    let by = Stopping::Delete(NEXT);
    let ended = looking()
        .stopped_by(by)
        .then("observe", Event::Stopped(by))
        .ends(Phase::Deleting)
        .because(Reason::Interrupted);
    assert_eq!(
        ended.sandbox.compute,
        Compute::Unknown,
        "the delete's to settle"
    );
    let by = Stopping::TurnBack(None);
    Story::of(ready(), FREEZE)
        .stopped_by(by)
        .then("prepare", Event::Stopped(by))
        .then("unquiesce", Event::Done)
        .ends(Phase::Ready);
}
