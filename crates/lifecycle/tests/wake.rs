//! The steps of create, resume and start, told as stories.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use overwinter_lifecycle::operation::{Achieved, EffectKind, Verb};
use overwinter_lifecycle::record::{Compute, DebtKind, Desired, DriverReference, RetainedStatus};
use overwinter_lifecycle::steps::{Action, Effected, Event, Look, Pinned};
use overwinter_lifecycle::{Depth, Fault, Phase, Reason};
use support::{
    DELETE, FROZEN, LIVE, NEXT, RESUME, RESUME_OR_START, SEEN_ABSENT, SEEN_FROZEN, SEEN_LIVE,
    Story, UNSEEN, asleep, blank, effected, failed, operation, refused, starts_anew, unknown,
};

const FROZEN_NOW: Phase = Phase::Suspended(Depth::Freeze);
const STOPPED_NOW: Phase = Phase::Suspended(Depth::Stop);

/// Up to the create itself.
fn creating() -> Story {
    Story::of(blank(), Verb::Create)
        .then("pin", Event::Pinned("sha256:1".into()))
        .records("record_intent")
}

fn lost() -> Compute {
    Compute::Absent
}

#[test]
fn a_create_pins_its_image_and_starts_its_main_process() {
    let ended = creating()
        .then("create", effected(LIVE))
        .then("attach", Event::Attached)
        .then("start_main", Event::DoneWith("no such program".to_owned()))
        .ends(Phase::Ready)
        .achieves(Achieved::Done);
    assert_eq!(ended.remarks(), ["no such program"]);
    assert_eq!(ended.sandbox.spec.image_digest.as_deref(), Some("sha256:1"));
    let mut without = blank();
    without.spec.main.clear();
    // Nothing is resumed: its hook has nothing to do.
    without.config.policy.post_resume_hook = vec!["hook".to_owned()];
    Story::of(without, Verb::Create)
        .then("pin", Event::Pinned("".into()))
        .records("record_intent")
        .then("create", effected(LIVE))
        .then("attach", Event::Attached)
        .ends(Phase::Ready);
}

#[test]
fn what_an_image_runs_by_itself_is_the_main_process_of_who_names_none() {
    let image = || Pinned {
        digest: "sha256:1".to_owned(),
        main: vec!["its own".to_owned()],
    };
    let main = |sandbox| {
        let ended = Story::of(sandbox, Verb::Create)
            .then("pin", Event::Pinned(image()))
            .records("record_intent")
            .then("create", effected(LIVE))
            .then("attach", Event::Attached)
            .then("start_main", Event::Done)
            .ends(Phase::Ready);
        ended.sandbox.spec.main
    };
    let mut without = blank();
    without.spec.main.clear();
    assert_eq!(main(without), ["its own"]);
    assert_eq!(main(blank()), blank().spec.main);
}

/// What the driver has to tell of the effect that made it run, and whatever comes after that.
#[test]
fn what_the_driver_remarks_is_told_at_the_end() {
    let told = || {
        Event::Effected(Effected {
            compute: LIVE,
            reference: DriverReference::default(),
            size_bytes: 0,
            leftovers: Vec::new(),
            remarks: vec!["another host".to_owned()],
            reclaimed: None,
        })
    };
    let mut stopped = asleep(Depth::Stop);
    stopped.config.policy.post_resume_hook = vec!["hook".to_owned()];
    let ended = Story::of(stopped, RESUME)
        .then("start", told())
        .then("attach", Event::Attached)
        .then("start_main", Event::DoneWith("no such program".to_owned()))
        .then("hook", Event::DoneWith("it ended with 1".to_owned()))
        .ends(Phase::Ready);
    assert_eq!(
        ended.remarks(),
        ["another host", "no such program", "it ended with 1"]
    );
    let ended = Story::of(asleep(Depth::Freeze), RESUME)
        .then("resume_freeze", told())
        .then("attach", Event::Attached)
        .then("lift_quiesce", Event::Done)
        .ends(Phase::Ready);
    assert_eq!(ended.remarks(), ["another host"]);
}

#[test]
fn a_create_that_leaves_nothing_is_a_tombstone() {
    for event in [refused(), unknown()] {
        let unusable = Story::of(blank(), Verb::Create)
            .then("pin", event)
            .ends(Phase::Tombstone);
        assert_eq!(unusable.rows.debts, []);
    }
    // Its effect may have made storage: that is owed.
    let refused = creating().then("create", refused()).ends(Phase::Tombstone);
    assert_eq!(refused.rows.debts[0].kind, DebtKind::Storage);
    let never = |event: fn() -> Event| {
        let mut story = creating();
        for _ in 0..4 {
            story = story.then("create", event()).then("observe", SEEN_ABSENT);
        }
        let ended = story
            .late()
            .then("create", event())
            .then("observe", SEEN_ABSENT)
            .ends(Phase::Tombstone)
            .because(Reason::StartFailed);
        format!("{:?}", ended.op.outcome)
    };
    assert!(never(unknown).contains("no answer"));
    assert!(never(|| effected(Compute::Absent)).contains("ended before"));
    creating()
        .then("create", effected(LIVE))
        .then("attach", Event::ComputeGone)
        .then("observe", SEEN_ABSENT)
        .ends(Phase::Tombstone);
}

/// Whoever waited for a sandbox that never was is told; a delete has what it wanted.
#[test]
fn nothing_begins_on_a_tombstone() {
    for (verb, succeeds) in [(DELETE, true), (Verb::Start, false)] {
        let mut story = Story::of(blank(), Verb::Create);
        story.sandbox.waiting = Some(operation(&story.sandbox, NEXT, verb));
        let ended = story.then("pin", refused()).ends(Phase::Tombstone);
        let waited = &ended.rows.ended[1];
        let outcome = format!("{:?}", waited.outcome);
        assert_eq!(
            (waited.id, outcome.contains("Succeeded")),
            (NEXT, succeeds),
            "{outcome}"
        );
    }
}

#[test]
fn storage_is_started_anew() {
    for verb in [RESUME, Verb::Start] {
        let story = Story::of(asleep(Depth::Stop), verb);
        let ended = starts_anew(story).achieves(Achieved::Storage);
        assert_eq!(
            (ended.sandbox.retained, ended.sandbox.desired),
            (None, Desired::Running)
        );
    }
}

#[test]
fn memory_comes_back_with_its_hook() {
    let mut frozen = asleep(Depth::Freeze);
    frozen.config.policy.post_resume_hook = vec!["hook".to_owned()];
    let hook = |event| {
        Story::of(frozen.clone(), RESUME)
            .then("resume_freeze", effected(LIVE))
            .then("attach", Event::Attached)
            .then("lift_quiesce", Event::Done)
            .then("hook", event)
            .ends(Phase::Ready)
            .achieves(Achieved::Memory)
            .remarks()
    };
    assert_eq!(hook(Event::Done), [""; 0]);
    assert_eq!(
        hook(Event::DoneWith("it ended with 1".to_owned())),
        ["it ended with 1"]
    );
    assert_eq!(hook(refused()), ["refused"]);
    assert_eq!(hook(unknown()), ["no answer"]);
    assert_eq!(hook(Event::Unreachable), ["its supervisor did not answer"]);
}

#[test]
fn memory_that_cannot_be_thawed_is_kept_or_given_up() {
    let ended = Story::of(asleep(Depth::Freeze), RESUME)
        .then("resume_freeze", refused())
        .then("observe", SEEN_FROZEN)
        .ends(FROZEN_NOW)
        .because(Reason::RestoreFailed);
    let retained = ended.sandbox.retained.unwrap();
    assert_eq!(retained.status, RetainedStatus::Available);
    assert_eq!(retained.generation, ended.sandbox.generation);
    let story = Story::of(asleep(Depth::Freeze), RESUME_OR_START)
        .then("resume_freeze", refused())
        .then("observe", SEEN_FROZEN)
        .records("record_give_up_memory");
    assert_eq!(story.sandbox.secret, None);
    let story = story
        .then("suspend_stop", effected(Compute::Absent))
        .records("record_intent");
    starts_anew(story).achieves(Achieved::Storage);
    // Lost answers are asked for again, as long as it is seen frozen.
    Story::of(asleep(Depth::Freeze), RESUME)
        .then("resume_freeze", unknown())
        .then("observe", SEEN_FROZEN)
        .then("resume_freeze", effected(LIVE))
        .then("attach", Event::Attached);
}

#[test]
fn memory_that_is_gone_is_lost_or_fallen_back_from() {
    let ended = Story::of(asleep(Depth::Freeze), RESUME)
        .then("resume_freeze", refused())
        .then("observe", SEEN_ABSENT)
        .ends(STOPPED_NOW)
        .because(Reason::RetainedLost);
    assert_eq!(ended.sandbox.retained.unwrap().lost, Some(Depth::Freeze));
    let story = Story::of(asleep(Depth::Freeze), RESUME_OR_START)
        .then("resume_freeze", refused())
        .then("observe", SEEN_ABSENT)
        .records("record_fallback");
    starts_anew(story).achieves(Achieved::Storage);
    let checkpoint =
        |verb| Story::of(asleep(Depth::Checkpoint), verb).then("resume_checkpoint", refused());
    let kept = checkpoint(RESUME).ends(Phase::Suspended(Depth::Checkpoint));
    kept.because(Reason::RestoreFailed);
    starts_anew(checkpoint(RESUME_OR_START).records("record_fallback"));
}

/// Found by the simulation: memory that an owner before had restored, and whose compute had ended with
/// its host, was offered once more where the next call was refused for a reason that passes.
#[test]
fn a_refusal_says_nothing_of_a_restore_before_it() {
    let killed = |verb| {
        Story::of(asleep(Depth::Checkpoint), verb)
            .crash()
            .then("observe", SEEN_ABSENT)
            .then("resume_checkpoint", refused())
            .then("observe", SEEN_ABSENT)
    };
    let lost = |story: Story| {
        let ended = story.ends(STOPPED_NOW).because(Reason::RetainedLost);
        assert_eq!(
            ended.sandbox.retained.unwrap().lost,
            Some(Depth::Checkpoint)
        );
    };
    let gone = Event::Refused(Fault::new(Reason::RetainedLost, "restored, and gone"));
    lost(killed(RESUME).then("resume_checkpoint", gone));
    // Nobody could tell in time.
    let asked = killed(RESUME).then("resume_checkpoint", refused());
    lost(asked.late().then("observe", SEEN_ABSENT));
    killed(RESUME)
        .then("resume_checkpoint", effected(LIVE))
        .then("attach", Event::Attached);
    starts_anew(killed(RESUME_OR_START).records("record_fallback"));
    // Nor where the reply of the call before was lost.
    Story::of(asleep(Depth::Checkpoint), RESUME)
        .then("resume_checkpoint", unknown())
        .then("observe", SEEN_ABSENT)
        .then("resume_checkpoint", refused())
        .then("observe", SEEN_ABSENT)
        .then("resume_checkpoint", refused());
    // What its driver has found on the disk it has looked at.
    let other = Event::Refused(Fault::new(Reason::ImageChanged, "another image"));
    let ended = Story::of(asleep(Depth::Checkpoint), RESUME)
        .crash()
        .then("observe", SEEN_ABSENT)
        .then("resume_checkpoint", other)
        .ends(Phase::Suspended(Depth::Checkpoint));
    ended.because(Reason::ImageChanged);
}

#[test]
fn memory_that_must_not_be_used_is_ended_first() {
    let mut stale = asleep(Depth::Freeze);
    stale.generation = stale.generation.next();
    let story = Story::of(stale, RESUME_OR_START)
        .then("suspend_stop", effected(Compute::Absent))
        .records("record_intent");
    starts_anew(story).achieves(Achieved::Storage);
    // What is lost is not there; should it be seen, it goes.
    let mut lost_memory = asleep(Depth::Freeze);
    lost_memory.compute = lost();
    lost_memory.retained.as_mut().unwrap().lost = Some(Depth::Freeze);
    let seen = |event| Story::of(lost_memory.clone(), RESUME_OR_START).then("observe", event);
    seen(SEEN_FROZEN)
        .records("record_intent")
        .then("suspend_stop", unknown());
    starts_anew(seen(SEEN_ABSENT).records("record_intent"));
    // One operation falls back once.
    seen(SEEN_LIVE)
        .records("record_intent")
        .then("reattach", refused())
        .then("observe", SEEN_ABSENT)
        .ends(STOPPED_NOW)
        .because(Reason::RetainedLost);
    let mut storage = asleep(Depth::Stop);
    storage.retained.as_mut().unwrap().lost = Some(Depth::Checkpoint);
    starts_anew(Story::of(storage, RESUME_OR_START));
}

#[test]
fn a_start_discards_memory_on_purpose() {
    let story = Story::of(asleep(Depth::Freeze), Verb::Start);
    assert_eq!(
        story.sandbox.retained.as_ref().unwrap().status,
        RetainedStatus::Discarding
    );
    let failing = story
        .then("suspend_stop", effected(Compute::Absent))
        .records("record_intent")
        .then("start", refused())
        .ends(STOPPED_NOW)
        .because(Reason::StartFailed);
    assert_eq!(
        failing.sandbox.retained.unwrap().lost,
        None,
        "nothing that was promised is missed"
    );
    let mut stubborn = Story::of(asleep(Depth::Freeze), Verb::Start)
        .then("suspend_stop", effected(LIVE))
        .then("observe", SEEN_LIVE);
    for _ in 0..3 {
        stubborn = stubborn
            .then("suspend_stop", refused())
            .then("observe", SEEN_LIVE);
    }
    stubborn
        .late()
        .then("suspend_stop", refused())
        .then("observe", SEEN_LIVE)
        .ends(Phase::Failed)
        .because(Reason::StopFailed);
}

#[test]
fn out_of_failed_what_is_there_decides() {
    let seen = |event| {
        Story::of(failed(Reason::AttachTimeout, Compute::Unknown), RESUME).then("observe", event)
    };
    let live = seen(SEEN_LIVE)
        .records("record_intent")
        .then("reattach", effected(LIVE))
        .then("attach", Event::Attached)
        .then("lift_quiesce", Event::Unreachable)
        .ends(Phase::Ready);
    live.achieves(Achieved::Memory);
    seen(SEEN_FROZEN)
        .records("record_intent")
        .then("resume_freeze", refused())
        .then("observe", SEEN_FROZEN)
        .ends(FROZEN_NOW);
    starts_anew(seen(SEEN_ABSENT).records("record_intent")).achieves(Achieved::Storage);
    seen(UNSEEN)
        .ends(Phase::Failed)
        .because(Reason::DriverTimeout);
    seen(SEEN_LIVE)
        .records("record_intent")
        .then("reattach", refused())
        .then("observe", SEEN_ABSENT)
        .ends(STOPPED_NOW)
        .because(Reason::ComputeLost);
    let story = seen(SEEN_FROZEN)
        .records("record_intent")
        .then("resume_freeze", effected(Compute::Absent))
        .then("observe", SEEN_ABSENT);
    let gone = story.ends(STOPPED_NOW);
    assert_eq!(
        gone.sandbox.retained.unwrap().lost,
        None,
        "nothing was retained"
    );
    // Fallen back from with nothing retained to discard.
    let story = Story::of(failed(Reason::AttachTimeout, LIVE), RESUME_OR_START)
        .then("observe", SEEN_LIVE)
        .records("record_intent")
        .then("reattach", refused())
        .then("observe", SEEN_ABSENT)
        .records("record_fallback");
    starts_anew(story);
    let start = Story::of(failed(Reason::ComputeLost, Compute::Absent), Verb::Start)
        .then("start", refused())
        .ends(STOPPED_NOW);
    start.because(Reason::StartFailed);
}

#[test]
fn a_root_that_is_lost_is_named_and_nothing_is_given_up() {
    let lost = || Event::Refused(Fault::new(Reason::RootLost, "gone"));
    let refused = Story::of(asleep(Depth::Stop), RESUME)
        .then("start", lost())
        .ends(STOPPED_NOW)
        .because(Reason::RootLost);
    assert_eq!(refused.sandbox.retained.unwrap().lost, None);
    Story::of(failed(Reason::ComputeLost, Compute::Absent), RESUME)
        .then("observe", SEEN_ABSENT)
        .records("record_intent")
        .then("start", lost())
        .ends(STOPPED_NOW)
        .because(Reason::RootLost);
}

#[test]
fn compute_that_does_not_attach_is_failed_and_live() {
    let started = || Story::of(asleep(Depth::Stop), RESUME).then("start", effected(LIVE));
    let silent = || started().then("attach", Event::AttachTimeout);
    let ended = silent().then("observe", SEEN_LIVE).ends(Phase::Failed);
    assert_eq!(ended.because(Reason::AttachTimeout).sandbox.compute, LIVE);
    silent()
        .then("observe", SEEN_FROZEN)
        .ends(Phase::Failed)
        .because(Reason::AttachTimeout);
    // It has run: it is not started twice by one resume.
    silent()
        .then("observe", SEEN_ABSENT)
        .ends(STOPPED_NOW)
        .because(Reason::StartFailed);
    // A lost answer is no reason not to let it in.
    Story::of(asleep(Depth::Stop), RESUME)
        .then("start", effected(FROZEN))
        .then("observe", SEEN_ABSENT)
        .then("start", unknown())
        .then("observe", SEEN_LIVE)
        .then("attach", Event::Attached);
}

#[test]
fn after_a_crash_it_goes_on_from_the_recorded_step() {
    Story::of(blank(), Verb::Create)
        .crash()
        .then("pin", refused());
    creating()
        .crash()
        .then("observe", SEEN_LIVE)
        .then("attach", Event::Attached);
    Story::of(failed(Reason::ComputeLost, LIVE), RESUME)
        .crash()
        .then("observe", SEEN_LIVE);
    let story = Story::of(asleep(Depth::Freeze), RESUME).crash();
    assert_eq!(
        *story.action(),
        Action::Observe {
            after: Some(EffectKind::Resume(Depth::Freeze)),
            look: Look::First,
        }
    );
}
