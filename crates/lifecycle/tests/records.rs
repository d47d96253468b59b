//! What begins, what a record holds, what is found out while nothing is at work.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use overwinter_lifecycle::begin::{Begun, begin};
use overwinter_lifecycle::capacity::{Limits, Usage};
use overwinter_lifecycle::ids::{Fence, Incarnation, Millis, Serial};
use overwinter_lifecycle::loss::{record_frozen, record_loss, record_main_exit};
use overwinter_lifecycle::operation::{Achieved, EffectKind, Outcome, Verb};
use overwinter_lifecycle::record::{
    Compute, Desired, DriverReference, MainExit, Reclaimed, Sandbox,
};
use overwinter_lifecycle::recording::{Ending, NotRunning, Recorded, Recording, record};
use overwinter_lifecycle::steps::Event;
use overwinter_lifecycle::{Depth, Fault, Phase, Reason};
use support::{
    FREEZE, FROZEN, HELD, LATER, LIVE, NEXT, OP, RESUME, RESUME_OR_START, STOP, Story, asleep,
    blank, failed, operation, ready, room, suspend, why_not, why_not_within,
};

#[test]
fn what_cannot_begin_any_more_ends_and_changes_nothing() {
    let deleting = Sandbox {
        desired: Desired::Deleted,
        ..ready()
    };
    for verb in [Verb::Create, STOP, RESUME, Verb::Start] {
        assert_eq!(why_not(deleting.clone(), verb), Reason::Deleting);
    }
    assert_eq!(why_not(asleep(Depth::Stop), FREEZE), Reason::AlreadyDeeper);
    assert_eq!(
        why_not(failed(Reason::ComputeLost, Compute::Absent), FREEZE),
        Reason::ComputeLost
    );
    assert_eq!(
        why_not(failed(Reason::StopFailed, LIVE), FREEZE),
        Reason::ComputeLost
    );
    let owing = Sandbox {
        compute_debts: 1,
        ..asleep(Depth::Stop)
    };
    assert_eq!(why_not(owing, RESUME), Reason::StartFailed);
    let mut stale = asleep(Depth::Freeze);
    stale.generation = stale.generation.next();
    assert_eq!(why_not(stale, RESUME), Reason::RetainedStale);
    let mut lost = asleep(Depth::Stop);
    lost.retained.as_mut().unwrap().lost = Some(Depth::Freeze);
    assert_eq!(why_not(lost, RESUME), Reason::RetainedLost);
}

#[test]
fn what_is_so_already_is_a_success() {
    for (sandbox, verb) in [
        (ready(), RESUME),
        (ready(), Verb::Start),
        (asleep(Depth::Stop), STOP),
    ] {
        let mut now = sandbox.clone();
        let (op, (others, limits)) = (operation(&now, OP, verb), room());
        let Begun::Ended(op) = begin(&mut now, op, others, limits, Millis(0)) else {
            panic!("{verb:?} runs");
        };
        let done = Outcome::Succeeded {
            achieved: Achieved::Done,
            remarks: Vec::new(),
        };
        assert_eq!((op.outcome, now), (Some(done), sandbox));
    }
}

#[test]
fn who_finds_no_room_stays_as_it_is() {
    let mut sized = asleep(Depth::Stop);
    (
        sized.spec.resources.cpu_millis,
        sized.spec.resources.memory_bytes,
    ) = (500, 1_000);
    let others = Usage {
        running: 1,
        cpu_millis: 600,
        memory_bytes: 3_500,
        disk_bytes: 1,
    };
    let tight = [
        Limits {
            running: Some(1),
            ..Limits::default()
        },
        Limits {
            cpu_millis: Some(1_000),
            ..Limits::default()
        },
        Limits {
            memory_bytes: Some(4_000),
            ..Limits::default()
        },
    ];
    for limits in &tight {
        assert!(limits.are_set());
        for verb in [RESUME, Verb::Start] {
            let why = why_not_within(&mut sized, verb, (others, limits));
            assert_eq!(why, Reason::CapacityExceeded);
        }
    }
    let over = tight[1].admit(&sized, others).unwrap_err();
    assert_eq!(
        over.to_string(),
        "cpu: 600 of 1000 used, 500 more asked for"
    );
    let enough = Limits {
        running: Some(2),
        cpu_millis: Some(1_100),
        memory_bytes: Some(4_500),
        disk_bytes: None,
    };
    assert_eq!(enough.admit(&sized, others), Ok(()));
    // An artifact could need as much disk as there is memory.
    let disk = |bytes| Limits {
        disk_bytes: Some(bytes),
        ..Limits::default()
    };
    let mut awake = ready();
    awake.spec.resources.memory_bytes = 1_000;
    let checkpoint = suspend(Depth::Checkpoint);
    let why = why_not_within(&mut awake, checkpoint, (others, &disk(1_000)));
    assert_eq!(why, Reason::CapacityExceeded);
    assert_eq!(
        disk(1_001).admit_artifact(&awake, Depth::Checkpoint, others),
        Ok(())
    );
    assert_eq!(disk(0).admit_artifact(&awake, Depth::Stop, others), Ok(()));
    assert!(disk(0).are_set() && !Limits::default().are_set());
}

#[test]
fn capacity_is_what_the_record_says() {
    let sized = |sandbox: Sandbox| {
        let mut sandbox = sandbox;
        (
            sandbox.spec.resources.cpu_millis,
            sandbox.spec.resources.memory_bytes,
        ) = (500, 1_000);
        sandbox
    };
    let held = |sandbox: &Sandbox| {
        let usage = Usage::of(sandbox);
        (
            usage.running,
            usage.cpu_millis,
            usage.memory_bytes,
            usage.disk_bytes,
        )
    };
    let all = (1, 500, 1_000, 0);
    assert_eq!(held(&sized(ready())), all);
    assert_eq!(
        held(&sized(failed(Reason::DriverTimeout, Compute::Unknown))),
        all
    );
    let frozen = sized(asleep(Depth::Freeze));
    assert_eq!(held(&frozen), (0, 0, 1_000, 0));
    assert_eq!(
        held(&Story::of(frozen.clone(), STOP).sandbox),
        all,
        "until it has ended"
    );
    let mut given_back = frozen;
    for (left_bytes, holds) in [(300, 300), (1_100, 1_000)] {
        given_back.retained.as_mut().unwrap().reclaimed = Some(Reclaimed {
            freed_bytes: 700,
            left_bytes,
        });
        assert_eq!(held(&given_back), (0, 0, holds, 0));
        let waking = Story::of(given_back.clone(), RESUME).sandbox;
        assert_eq!(held(&waking), all, "it may need all of it again");
    }
    let mut stored = sized(asleep(Depth::Checkpoint));
    stored.retained.as_mut().unwrap().size_bytes = 70;
    assert_eq!(held(&stored), (0, 0, 0, 70));
    let owing = Sandbox {
        compute_debts: 1,
        ..stored.clone()
    };
    assert_eq!(held(&owing), (1, 500, 1_000, 70));
    assert_eq!(
        held(&Story::of(stored, RESUME).sandbox),
        (1, 500, 1_000, 70)
    );
}

#[test]
fn memory_that_was_promised_is_lost_and_running_compute_has_failed() {
    let lose = |mut sandbox: Sandbox, observed, issued| {
        let before = sandbox.clone();
        let changed = record_loss(&mut sandbox, observed, issued, Millis(5));
        assert_eq!(changed, sandbox != before);
        changed.then_some(sandbox)
    };
    let mut thawable = asleep(Depth::Freeze);
    thawable.retained.as_mut().unwrap().reference.data = vec![1];
    let frozen = lose(thawable, Compute::Absent, HELD).unwrap();
    assert_eq!(frozen.phase(), Phase::Suspended(Depth::Stop));
    assert_eq!(frozen.desired, Desired::Suspended(Depth::Stop));
    assert_eq!(frozen.updated_at, Millis(5));
    let retained = frozen.retained.unwrap();
    assert_eq!(retained.lost, Some(Depth::Freeze));
    assert_eq!(
        retained.reference,
        DriverReference::default(),
        "of what is gone"
    );
    let running = lose(ready(), Compute::Absent, HELD).unwrap();
    assert_eq!(
        (running.phase(), running.compute),
        (Phase::Failed, Compute::Absent)
    );
    // What sleeps without compute misses none, nor does what had none.
    for depth in [Depth::Checkpoint, Depth::Stop] {
        assert_eq!(lose(asleep(depth), Compute::Absent, HELD), None);
    }
    let none = failed(Reason::ComputeLost, Compute::Absent);
    assert_eq!(lose(none, Compute::Absent, HELD), None);
    // Somebody is at work; something is there; it speaks of a compute of before.
    assert_eq!(
        lose(Story::of(ready(), STOP).sandbox, Compute::Absent, HELD),
        None
    );
    assert_eq!(lose(ready(), Compute::Unknown, HELD), None);
    assert_eq!(lose(ready(), Compute::Absent, Incarnation(0)), None);
}

#[test]
fn the_end_of_the_main_process_changes_no_phase() {
    let mut sandbox = ready();
    let exit = MainExit {
        code: 3,
        signal: 0,
        at: Millis(1),
    };
    record_main_exit(&mut sandbox, exit);
    assert_eq!(
        (sandbox.main_exit, sandbox.phase()),
        (Some(exit), Phase::Ready)
    );
}

#[test]
fn only_the_operation_that_runs_may_write() {
    let (mut sandbox, room) = (Story::of(ready(), STOP).sandbox, room());
    let before = sandbox.clone();
    let write = |sandbox: &mut Sandbox, writer| {
        record(sandbox, writer, Recording::Terminated, room, Millis(1)).map(|(done, _)| done)
    };
    let fence = sandbox.fence;
    assert_eq!(write(&mut sandbox, (NEXT, fence)), Err(NotRunning));
    assert_eq!(
        write(&mut sandbox, (OP, Fence(fence.0 - 1))),
        Err(NotRunning)
    );
    assert_eq!(sandbox, before);
    assert_eq!(write(&mut sandbox, (OP, fence)), Ok(Recorded::Done(None)));
    assert_eq!(write(&mut ready(), (OP, fence)), Err(NotRunning));
    assert_eq!(
        NotRunning.to_string(),
        "the operation does not run any more"
    );
}

/// A key names one effect for ever: what an operation goes on to is another, under the next serial,
/// and the ledger learns what became of the one before.
#[test]
fn each_effect_has_a_key_of_its_own() {
    let intent = |effect| Recording::Intent {
        effect,
        pinned: None,
        quiesced: false,
    };
    let reattach = Recording::Reattach(Fault::new(Reason::SuspendAborted, "undone"));
    let stop = EffectKind::Suspend(Depth::Stop);
    let freeze = EffectKind::Suspend(Depth::Freeze);
    let thawing = Story::of(asleep(Depth::Freeze), RESUME_OR_START);
    for (mut story, steps) in [
        (
            thawing.clone(),
            [
                (Recording::GiveUpMemory, stop, "restore failed"),
                (intent(EffectKind::Start), EffectKind::Start, "settled"),
            ],
        ),
        (
            thawing,
            [
                (Recording::FallBack, EffectKind::Start, "restore failed"),
                (intent(EffectKind::Start), EffectKind::Start, "settled"),
            ],
        ),
        (
            Story::of(ready(), FREEZE)
                .then("prepare", Event::Done)
                .then("quiesce", Event::Done)
                .records("record_intent"),
            [
                (reattach, EffectKind::Reattach, "did not happen"),
                (intent(freeze), freeze, "settled"),
            ],
        ),
    ] {
        let mut key = story.op().intent_key().unwrap();
        assert_eq!((key.fence, key.serial), (Fence(2), Serial(1)));
        assert_eq!(story.op().began_at, Some(Millis(0)));
        for (recording, effect, word) in steps {
            let (recorded, rows) = story.write(recording);
            assert_eq!(rows.settled, [(key, word)]);
            key.serial = key.serial.next();
            assert_eq!(recorded, Recorded::Done(Some(key)));
            assert_eq!(rows.intents, [(key, effect)]);
            assert_eq!(story.op().intent_key(), Some(key));
            assert_eq!(story.sandbox.updated_at, LATER);
        }
        let interrupted = Recording::End(Ending::Interrupted);
        let (_, rows) = story.write(interrupted);
        assert_eq!(rows.settled, [], "the delete settles it by removing");
    }
}

#[test]
fn compute_knows_what_it_was_started_with() {
    assert_eq!((LIVE.held(), FROZEN.held()), (Some(HELD), Some(HELD)));
    assert_eq!(
        (Compute::Absent.held(), Compute::Unknown.held()),
        (None, None)
    );
    assert_eq!(blank().phase(), Phase::Ready, "as a create finds it");
}

#[test]
fn compute_that_somebody_else_has_frozen_sleeps_and_nothing_older_counts() {
    let freeze = |mut sandbox: Sandbox, held, fence| {
        let before = sandbox.clone();
        let changed = record_frozen(&mut sandbox, held, fence, Millis(5));
        assert_eq!(changed, sandbox != before);
        changed.then_some(sandbox)
    };
    let fence = ready().fence;
    let frozen = freeze(ready(), HELD, fence).unwrap();
    assert_eq!(frozen.phase(), Phase::Suspended(Depth::Freeze));
    assert_eq!(frozen.desired, Desired::Suspended(Depth::Freeze));
    assert_eq!(frozen.compute, FROZEN);
    assert_eq!(frozen.updated_at, Millis(5));
    let retained = frozen.retained.clone().unwrap();
    assert_eq!((retained.lost, retained.quiesced), (None, false));
    // Its memory is thawed, as after a freeze of ours.
    assert_eq!(Story::of(frozen, RESUME).action().name(), "resume_freeze");

    assert_eq!(freeze(ready(), HELD, fence.next()), None, "seen before");
    assert_eq!(freeze(ready(), HELD.next(), fence), None, "another compute");
    let busy = Story::of(ready(), STOP).sandbox;
    let begun = busy.fence;
    assert_eq!(freeze(busy, HELD, begun), None, "an operation is at work");
    for other in [
        asleep(Depth::Freeze),
        asleep(Depth::Stop),
        failed(Reason::AttachTimeout, LIVE),
    ] {
        let fence = other.fence;
        assert_eq!(freeze(other, HELD, fence), None);
    }
}
