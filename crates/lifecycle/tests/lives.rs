//! What tells one life of a sandbox from the next: its numbers, and the secret of who is inside.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use overwinter_lifecycle::Depth;
use overwinter_lifecycle::ids::DiskGeneration;
use overwinter_lifecycle::operation::Verb;
use overwinter_lifecycle::record::{Compute, Sandbox};
use overwinter_lifecycle::recording::Recording;
use overwinter_lifecycle::steps::Action;
use support::{
    HELD, RESUME, RESUME_OR_START, SEEN_ABSENT, Story, asleep, effected, refused, starts_anew,
};

/// The disk's generation rises before any compute may write, and an incarnation is never reused.
#[test]
fn each_life_has_its_own_numbers() {
    let before = asleep(Depth::Stop);
    let ended = starts_anew(Story::of(before.clone(), RESUME));
    let numbers = |sandbox: &Sandbox| (sandbox.issued, sandbox.generation);
    assert_eq!(
        numbers(&ended.sandbox),
        (HELD.next(), before.generation.next())
    );
    let story = Story::of(asleep(Depth::Freeze), RESUME_OR_START)
        .then("resume_freeze", refused())
        .then("observe", SEEN_ABSENT);
    assert_eq!(*story.action(), Action::Record(Recording::FallBack));
    let story = story.records("record_fallback");
    assert_eq!(
        numbers(&story.sandbox),
        (HELD.next().next(), DiskGeneration(2))
    );
}

/// From its intent on: what it makes has never attached, and must not be let in by what is known of
/// the life before. What keeps its memory has to prove itself by it.
#[test]
fn what_is_started_anew_is_not_known_by_the_secret_of_before() {
    let before = asleep(Depth::Freeze).secret;
    assert!(before.is_some());
    assert_eq!(Story::of(asleep(Depth::Stop), RESUME).sandbox.secret, None);
    let ending = Story::of(asleep(Depth::Freeze), Verb::Start);
    assert_eq!(ending.sandbox.secret, before, "it is still to be ended");
    let starting = ending
        .then("suspend_stop", effected(Compute::Absent))
        .records("record_intent");
    assert_eq!(starting.sandbox.secret, None);
    let mut thawing = Story::of(asleep(Depth::Freeze), RESUME_OR_START);
    assert_eq!((thawing.op().cold, thawing.sandbox.secret), (false, before));
    let mut fallen_back = thawing
        .then("resume_freeze", refused())
        .then("observe", SEEN_ABSENT)
        .records("record_fallback");
    assert_eq!(
        (fallen_back.op().cold, fallen_back.sandbox.secret),
        (true, None)
    );
}
