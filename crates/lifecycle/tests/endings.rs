//! What is so once an operation has ended, whichever way.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use overwinter_lifecycle::ids::{EffectKey, Fence, Millis, Serial};
use overwinter_lifecycle::operation::{Achieved, EffectKind, Outcome, Step, Verb};
use overwinter_lifecycle::record::{
    Compute, Debt, DebtKind, Desired, DriverReference, Retained, RetainedStatus, Sandbox,
};
use overwinter_lifecycle::recording::{
    Asleep, Ending, Memory, ProcessesEnded, Recording, Rows, record,
};
use overwinter_lifecycle::{Depth, Fault, Phase, Reason};
use support::{
    DELETE, FREEZE, FROZEN, LIVE, OP, RESUME, RESUME_OR_START, STOP, Story, asleep, blank, failed,
    operation, ready, room, suspend,
};

/// What a stop leaves.
fn stopped() -> Asleep {
    Asleep {
        depth: Depth::Stop,
        compute: Compute::Absent,
        reference: DriverReference::default(),
        size_bytes: 0,
        lost: None,
        debts: Vec::new(),
        remarks: Vec::new(),
        reclaimed: None,
    }
}

fn fault() -> Fault {
    Fault::new(Reason::StartFailed, "no")
}

fn still(memory: Memory) -> Ending {
    Ending::StillSuspended {
        fault: fault(),
        memory,
        compute: Compute::Absent,
        debts: Vec::new(),
    }
}

/// Ends what runs.
fn end(mut sandbox: Sandbox, ending: Ending) -> (Sandbox, Rows) {
    let writer = (OP, sandbox.fence);
    let end = Recording::End(ending);
    let (_, rows) = record(&mut sandbox, writer, end, room(), Millis(1)).unwrap();
    (sandbox, rows)
}

/// An operation of `verb` on `sandbox` that ends as soon as it has begun.
fn ended(sandbox: Sandbox, verb: Verb, ending: Ending) -> (Sandbox, Rows) {
    end(Story::of(sandbox, verb).sandbox, ending)
}

/// Whichever way: the ledger learns what became of the effect, the history of the operation, and a
/// failure says whose it was.
#[test]
fn an_end_closes_its_operation_and_settles_its_effect() {
    let ready = Ending::Ready {
        compute: LIVE,
        achieved: Achieved::Memory,
        remarks: vec!["said".to_owned()],
        secret: None,
    };
    let failed = Ending::Failed {
        fault: fault(),
        compute: Compute::Unknown,
    };
    let never = Ending::NeverWas {
        fault: fault(),
        debts: Vec::new(),
    };
    let deleted = Ending::Deleted {
        remarks: vec!["said".to_owned()],
    };
    let done = |achieved, remarks: &[&str]| Outcome::Succeeded {
        achieved,
        remarks: remarks.iter().copied().map(str::to_owned).collect(),
    };
    let fails = || Outcome::Failed(fault());
    let interrupted = Fault::new(Reason::Interrupted, "a delete took over");
    let (asleep_now, turned) = (Ending::Suspended(stopped()), Outcome::TurnedBack(None));
    for (ending, word, outcome, leaves_failure) in [
        (ready, "done", done(Achieved::Memory, &["said"]), false),
        (asleep_now, "done", done(Achieved::Done, &[]), false),
        (Ending::Aborted(fault()), "aborted", fails(), false),
        (Ending::TurnedBack, "turned back", turned, false),
        (still(Memory::Lost), "failed", fails(), true),
        (failed, "failed", fails(), true),
        (never, "absent", fails(), true),
        (deleted, "done", done(Achieved::Done, &["said"]), false),
        (Ending::NotDeleted(fault()), "failed", fails(), true),
        // The delete settles it by removing.
        (Ending::Interrupted, "", Outcome::Failed(interrupted), false),
    ] {
        let case = format!("{ending:?}");
        let mut story = Story::of(asleep(Depth::Freeze), RESUME);
        let key = story.op().intent_key().unwrap();
        let (sandbox, rows) = end(story.sandbox, ending);
        let settled: Vec<_> = (!word.is_empty())
            .then_some((key, word))
            .into_iter()
            .collect();
        assert_eq!(rows.settled, settled, "{case}");
        let [op] = &rows.ended[..] else {
            panic!("{case}: {rows:?}");
        };
        assert_eq!((op.id, op.step), (OP, Step::Ended), "{case}");
        assert_eq!(op.ended_at, Some(Millis(1)), "{case}");
        assert_eq!(op.outcome, Some(outcome), "{case}");
        assert!(sandbox.running.is_none(), "{case}");
        let of = sandbox.failure.and_then(|failure| failure.operation);
        assert_eq!(of, leaves_failure.then_some(OP), "{case}");
    }
}

/// It is all that a resume will be given.
#[test]
fn what_a_suspension_left_is_kept_as_the_driver_wrote_it() {
    let reference = DriverReference {
        driver: "sim".to_owned(),
        format: 3,
        location: "there".to_owned(),
        data: vec![1, 2],
    };
    let slept = Ending::Suspended(Asleep {
        depth: Depth::Checkpoint,
        reference: reference.clone(),
        size_bytes: 70,
        ..stopped()
    });
    let (sandbox, _) = ended(ready(), suspend(Depth::Checkpoint), slept);
    let expected = Retained {
        depth: Depth::Checkpoint,
        status: RetainedStatus::Available,
        reference,
        generation: sandbox.generation,
        size_bytes: 70,
        since: Millis(1),
        expires_at: None,
        lost: None,
        quiesced: false,
        artifact: None,
        reclaimed: None,
    };
    assert_eq!(sandbox.retained, Some(expected));
}

/// What nobody has told of processes is told by the end of what ran beside them.
#[test]
fn an_end_says_what_became_of_the_processes() {
    let ready_with = |achieved| Ending::Ready {
        compute: LIVE,
        achieved,
        remarks: Vec::new(),
        secret: None,
    };
    let slept = |depth, compute, lost| {
        Ending::Suspended(Asleep {
            depth,
            compute,
            lost,
            ..stopped()
        })
    };
    let failed_with = |compute| Ending::Failed {
        fault: fault(),
        compute,
    };
    let never = || Ending::NeverWas {
        fault: fault(),
        debts: Vec::new(),
    };
    let deleted = || Ending::Deleted {
        remarks: Vec::new(),
    };
    let frozen = || asleep(Depth::Freeze);
    let by_sleep = Some(ProcessesEnded::Suspension);
    let lost = Some(ProcessesEnded::Lost);
    let at = |depth, compute| slept(depth, compute, None);
    let gone = slept(Depth::Stop, Compute::Absent, Some(Depth::Freeze));
    for (sandbox, verb, ending, processes) in [
        (frozen(), RESUME, ready_with(Achieved::Memory), None),
        (blank(), Verb::Create, ready_with(Achieved::Done), None),
        (frozen(), RESUME, ready_with(Achieved::Storage), lost),
        // A start discards them on purpose.
        (
            frozen(),
            Verb::Start,
            ready_with(Achieved::Storage),
            by_sleep,
        ),
        (ready(), STOP, at(Depth::Stop, Compute::Absent), by_sleep),
        (ready(), FREEZE, at(Depth::Freeze, FROZEN), None),
        // Its memory is on the disk, and they with it.
        (ready(), STOP, at(Depth::Checkpoint, Compute::Absent), None),
        (ready(), FREEZE, gone, lost),
        (frozen(), RESUME, still(Memory::NothingRan), None),
        (frozen(), RESUME, still(Memory::Lost), lost),
        (frozen(), Verb::Start, still(Memory::Lost), by_sleep),
        (ready(), STOP, failed_with(Compute::Absent), lost),
        (ready(), STOP, failed_with(LIVE), None),
        (ready(), STOP, failed_with(FROZEN), None),
        (ready(), STOP, failed_with(Compute::Unknown), None),
        (blank(), Verb::Create, never(), lost),
        (ready(), DELETE, deleted(), lost),
        (ready(), DELETE, Ending::NotDeleted(fault()), None),
        (ready(), STOP, Ending::Aborted(fault()), None),
        (ready(), STOP, Ending::TurnedBack, None),
        (ready(), STOP, Ending::Interrupted, None),
    ] {
        let case = format!("{verb:?}: {ending:?}");
        assert_eq!(
            ended(sandbox, verb, ending).1.processes,
            processes,
            "{case}"
        );
    }
}

/// Whoever carries out a recording can tell before it is written what is to be removed after it.
#[test]
fn what_an_end_leaves_is_owed() {
    let debt = |kind, serial| Debt {
        key: EffectKey {
            sandbox: ready().id,
            fence: Fence(1),
            serial: Serial(serial),
        },
        kind,
        reference: "left".to_owned(),
    };
    let of_compute = debt(DebtKind::Compute, 1);
    let debts = vec![
        of_compute,
        debt(DebtKind::Artifact, 2),
        debt(DebtKind::Storage, 3),
    ];
    let slept = Ending::Suspended(Asleep {
        debts: debts.clone(),
        ..stopped()
    });
    let still = Ending::StillSuspended {
        fault: fault(),
        memory: Memory::NothingRan,
        compute: Compute::Absent,
        debts: debts.clone(),
    };
    let never = Ending::NeverWas {
        fault: fault(),
        debts: debts.clone(),
    };
    for (sandbox, verb, ending) in [
        (ready(), STOP, slept),
        (asleep(Depth::Stop), RESUME, still),
        (blank(), Verb::Create, never),
    ] {
        let recording = Recording::End(ending.clone());
        assert_eq!(recording.debts(), debts, "{ending:?}");
        let (sandbox, rows) = ended(sandbox, verb, ending);
        assert_eq!(rows.debts, debts);
        assert_eq!(sandbox.compute_debts, 1, "no other keeps it from starting");
    }
    for ending in [Ending::TurnedBack, Ending::Aborted(fault())] {
        let recording = Recording::End(ending.clone());
        assert_eq!(recording.debts(), []);
        assert_eq!(ended(ready(), STOP, ending).1.debts, []);
    }
    assert_eq!(Recording::Reattach(fault()).debts(), []);
}

/// What a discarded or lost memory was is remembered only where it was promised.
#[test]
fn what_was_lost_is_remembered() {
    let lost_after = |sandbox, verb| {
        let (sandbox, _) = ended(sandbox, verb, still(Memory::Lost));
        sandbox.retained.unwrap().lost
    };
    assert_eq!(
        lost_after(asleep(Depth::Freeze), RESUME),
        Some(Depth::Freeze)
    );
    assert_eq!(lost_after(asleep(Depth::Freeze), Verb::Start), None);
    let mut stop = asleep(Depth::Stop);
    stop.retained.as_mut().unwrap().lost = Some(Depth::Checkpoint);
    assert_eq!(
        lost_after(stop, RESUME_OR_START),
        None,
        "it was discarded to go on"
    );
}

/// Every end, while a delete is wanted: none takes it back.
#[test]
fn no_end_takes_a_delete_back() {
    let ends = [
        (ready(), STOP, Ending::Suspended(stopped())),
        (ready(), STOP, Ending::Aborted(fault())),
        (asleep(Depth::Freeze), STOP, Ending::Aborted(fault())),
        (asleep(Depth::Freeze), RESUME, still(Memory::Lost)),
        (
            failed(Reason::ComputeLost, LIVE),
            RESUME,
            still(Memory::NothingRan),
        ),
        (ready(), DELETE, Ending::NotDeleted(fault())),
    ];
    for (sandbox, verb, ending) in ends {
        let mut sandbox = Story::of(sandbox, verb).sandbox;
        sandbox.desired = Desired::Deleted;
        let (sandbox, _) = end(sandbox, ending);
        assert_eq!(
            (sandbox.desired, sandbox.phase()),
            (Desired::Deleted, Phase::Deleting)
        );
    }
    let mut running = Story::of(ready(), DELETE).sandbox;
    running.desired = Desired::Running;
    assert_eq!(
        running.phase(),
        Phase::Deleting,
        "whoever runs is what is shown"
    );
}

/// A session that came and went before the end leaves what was known before.
#[test]
fn a_secret_that_is_not_known_replaces_none() {
    let before = asleep(Depth::Freeze).secret;
    let ending = Ending::Ready {
        compute: LIVE,
        achieved: Achieved::Memory,
        remarks: Vec::new(),
        secret: None,
    };
    let (sandbox, _) = ended(asleep(Depth::Freeze), RESUME, ending);
    assert!(before.is_some());
    assert_eq!((sandbox.phase(), sandbox.secret), (Phase::Ready, before));
}

/// The next life finds out again what a power loss takes of these, and of nothing else.
#[test]
fn only_a_wake_that_is_done_may_be_told_before_it_is_on_the_disk() {
    let rows = |verb, outcome| {
        let mut op = operation(&ready(), OP, verb);
        op.outcome = Some(outcome);
        Rows {
            ended: vec![op],
            ..Rows::default()
        }
    };
    let done = || Outcome::Succeeded {
        achieved: Achieved::Done,
        remarks: Vec::new(),
    };
    let woken = rows(RESUME, done());
    assert!(woken.are_found_again());
    assert!(rows(Verb::Start, done()).are_found_again());
    for verb in [Verb::Create, FREEZE, STOP, DELETE] {
        assert!(!rows(verb, done()).are_found_again(), "{verb:?}");
    }
    assert!(!rows(RESUME, Outcome::Failed(fault())).are_found_again());
    // Somebody else is told as well, or goes on.
    let mut two = woken.clone();
    two.ended.extend(rows(RESUME, done()).ended);
    assert!(!two.are_found_again());
    let mut next = woken;
    let key = EffectKey {
        sandbox: ready().id,
        fence: Fence(4),
        serial: Serial(1),
    };
    next.intents.push((key, EffectKind::Delete));
    assert!(!next.are_found_again());
    assert!(!Rows::default().are_found_again());
}
