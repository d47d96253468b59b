//! The steps of a delete, told as stories.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use overwinter_lifecycle::record::Compute;
use overwinter_lifecycle::{Depth, Phase, Reason};
use support::{
    ABANDON, DELETE, SEEN_ABSENT, SEEN_LIVE, Story, UNSEEN, asleep, effected, ready, refused,
    unknown,
};

#[test]
fn it_removes_and_sees_that_it_is_gone() {
    for sandbox in [ready(), asleep(Depth::Freeze)] {
        let gone = Story::of(sandbox, DELETE)
            .then("delete", unknown())
            .then("delete", effected(Compute::Absent))
            .then("observe", SEEN_LIVE)
            .then("delete", effected(Compute::Absent))
            .then("observe", SEEN_ABSENT)
            .ends(Phase::Tombstone);
        assert!(gone.sandbox.retained.is_none() && !gone.sandbox.holds_name());
    }
    Story::of(ready(), DELETE)
        .crash()
        .then("delete", effected(Compute::Absent));
}

#[test]
fn one_that_fails_leaves_the_wish() {
    for event in [refused, unknown] {
        let mut story = Story::of(ready(), DELETE);
        for _ in 0..4 {
            story = story.then("delete", event());
        }
        let ended = story
            .late()
            .then("delete", event())
            .ends(Phase::Deleting)
            .because(Reason::DeleteFailed);
        assert!(ended.sandbox.holds_name());
        assert_eq!(ended.sandbox.compute, Compute::Unknown);
    }
    let mut story = Story::of(ready(), DELETE);
    for _ in 0..4 {
        story = story
            .then("delete", effected(Compute::Absent))
            .then("observe", UNSEEN);
    }
    story
        .late()
        .then("delete", effected(Compute::Absent))
        .then("observe", UNSEEN)
        .ends(Phase::Deleting)
        .because(Reason::DeleteFailed);
}

#[test]
fn an_abandoning_one_says_what_may_remain() {
    let unanswered = |event| {
        let ended = Story::of(ready(), ABANDON).then("delete", event);
        ended.ends(Phase::Tombstone).remarks()
    };
    assert_eq!(unanswered(unknown()), ["what may remain: no answer"]);
    assert_eq!(unanswered(refused()), ["what may remain: refused"]);
    let mut story = Story::of(ready(), ABANDON);
    for _ in 0..4 {
        story = story
            .then("delete", effected(Compute::Absent))
            .then("observe", SEEN_LIVE);
    }
    let ended = story
        .late()
        .then("delete", effected(Compute::Absent))
        .then("observe", SEEN_LIVE)
        .ends(Phase::Tombstone);
    let remarks = ended.remarks();
    assert!(remarks[0].contains("not seen to be gone"), "{remarks:?}");
}
