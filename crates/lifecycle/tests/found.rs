//! What the model check (`sim/`) has found, each as its shortest history's last step.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use overwinter_lifecycle::admission::{Disposition, Request, admit};
use overwinter_lifecycle::begin::{Begun, begin};
use overwinter_lifecycle::capacity::{Limits, Usage};
use overwinter_lifecycle::ids::{EffectKey, Millis, Serial};
use overwinter_lifecycle::loss::record_loss;
use overwinter_lifecycle::operation::{EffectKind, Operation, Outcome, Step, Verb};
use overwinter_lifecycle::record::{Compute, Debt, DebtKind, Desired, DriverReference, Sandbox};
use overwinter_lifecycle::recording::{Ending, Memory, Recording, record};
use overwinter_lifecycle::steps::{self, Action, Deadline, Effected, Event, Look, Observed};
use overwinter_lifecycle::{Depth, Fault, Phase, Reason};
use support::{HELD, LIVE, OP, RESUME, asleep, ready, suspend};

fn frozen() -> Sandbox {
    asleep(Depth::Freeze)
}

fn failed(reason: Reason) -> Sandbox {
    support::failed(reason, LIVE)
}

fn begun(mut sandbox: Sandbox, verb: Verb) -> (Sandbox, Begun) {
    let op = Operation::new(OP, sandbox.id, verb, "test", Millis(0));
    let begun = begin(
        &mut sandbox,
        op,
        Usage::default(),
        &Limits::default(),
        Millis(0),
    );
    (sandbox, begun)
}

fn running(sandbox: Sandbox, verb: Verb) -> (Sandbox, Operation) {
    let (sandbox, begun) = begun(sandbox, verb);
    assert_eq!(begun, Begun::Running);
    let op = sandbox.running.clone().unwrap();
    (sandbox, op)
}

fn reason_of(begun: Begun) -> Reason {
    match begun {
        Begun::Ended(op) => match op.outcome {
            Some(Outcome::Failed(fault)) => fault.reason,
            outcome => panic!("{outcome:?}"),
        },
        Begun::Running => panic!("it runs"),
    }
}

#[test]
fn a_tombstone_is_not_deleted_again() {
    let gone = Sandbox {
        desired: Desired::Deleted,
        tombstone_at: Some(Millis(1)),
        ..ready()
    };
    for abandon in [false, true] {
        let answer = admit(&gone, Request::Delete { abandon });
        assert_eq!(answer, Disposition::Deny(Reason::Deleting));
    }
}

fn next(sandbox: &Sandbox, op: &Operation, done: Action, event: Event) -> Action {
    steps::next(sandbox, op, done, event, Deadline::Ahead)
}

/// The owner before had quiesced it. Without the inverse it would be Ready and refuse all work.
#[test]
fn a_suspend_that_is_refused_after_a_restart_lets_work_in_again() {
    let (sandbox, mut op) = running(ready(), suspend(Depth::Freeze));
    let refused = || Event::Refused(Fault::new(Reason::DriverRejected, "no"));
    let first = next(&sandbox, &op, Action::Prepare(Depth::Freeze), refused());
    assert!(matches!(
        first,
        Action::Record(Recording::End(Ending::Aborted(_)))
    ));
    op.attempt = 2;
    let again = next(&sandbox, &op, Action::Prepare(Depth::Freeze), refused());
    let Action::Unquiesce(ending) = again else {
        panic!("{again:?}");
    };
    assert!(matches!(*ending, Ending::Aborted(_)));
    // Who sleeps is not spoken to.
    let (asleep, mut deepening) = running(frozen(), suspend(Depth::Stop));
    deepening.attempt = 2;
    let quietly = next(&asleep, &deepening, Action::Prepare(Depth::Stop), refused());
    assert!(matches!(
        quietly,
        Action::Record(Recording::End(Ending::Aborted(_)))
    ));
}

/// It was started beside what could still write to its storage.
#[test]
fn what_a_stop_leaves_behind_is_removed_before_a_start() {
    let (mut sandbox, op) = running(frozen(), Verb::Start);
    let call = Action::Call {
        effect: EffectKind::Suspend(Depth::Stop),
        again: false,
    };
    let key = EffectKey {
        sandbox: sandbox.id,
        fence: op.fence,
        serial: Serial(1),
    };
    let leftover = Debt {
        key,
        kind: DebtKind::Compute,
        reference: "old".to_owned(),
    };
    let effected = Effected {
        compute: Compute::Absent,
        reference: DriverReference::default(),
        size_bytes: 0,
        leftovers: vec![leftover.clone()],
        remarks: Vec::new(),
        reclaimed: None,
    };
    // What cannot write to it keeps nothing from starting.
    let harmless = Effected {
        leftovers: vec![Debt {
            kind: DebtKind::Artifact,
            ..leftover.clone()
        }],
        ..effected.clone()
    };
    let starts = next(&sandbox, &op, call.clone(), Event::Effected(harmless));
    assert_eq!(starts.name(), "record_intent");
    let next = next(&sandbox, &op, call, Event::Effected(effected));
    let Action::Record(end @ Recording::End(Ending::StillSuspended { .. })) = next else {
        panic!("{next:?}");
    };
    let room = (Usage::default(), &Limits::default());
    let (_, rows) = record(&mut sandbox, (op.id, op.fence), end, room, Millis(0)).unwrap();
    assert_eq!(rows.debts, [leftover]);
    assert_eq!(
        (sandbox.phase(), sandbox.compute_debts),
        (Phase::Suspended(Depth::Stop), 1)
    );
    assert_eq!(
        reason_of(begun(sandbox, Verb::Start).1),
        Reason::StartFailed
    );
}

/// Only the driver's answer tells what is left; after two lost ones nobody asked any more.
#[test]
fn a_stop_is_asked_again_until_it_answers() {
    let stop = EffectKind::Suspend(Depth::Stop);
    let after = |sandbox, verb, look, deadline| {
        let (sandbox, op) = running(sandbox, verb);
        let observe = Action::Observe {
            after: Some(stop),
            look,
        };
        let absent = Event::Observed(Observed::Absent);
        steps::next(&sandbox, &op, observe, absent, deadline)
    };
    for look in [Look::First, Look::Called(None)] {
        for (sandbox, verb) in [(ready(), suspend(Depth::Stop)), (frozen(), Verb::Start)] {
            let again = after(sandbox, verb, look.clone(), Deadline::Ahead);
            assert!(
                matches!(again, Action::Call { effect, .. } if effect == stop),
                "{again:?}"
            );
        }
    }
    let asleep = after(
        ready(),
        suspend(Depth::Stop),
        Look::Called(None),
        Deadline::Up,
    );
    assert!(matches!(
        asleep,
        Action::Record(Recording::End(Ending::Suspended(_)))
    ));
    let starts = after(frozen(), Verb::Start, Look::Called(None), Deadline::Up);
    assert!(matches!(
        starts,
        Action::Record(Recording::Intent {
            effect: EffectKind::Start,
            ..
        })
    ));
}

/// It was Ready, and its main process had never been started.
#[test]
fn memory_that_never_was_ready_has_its_main_process_still_to_start() {
    let main = |sandbox: Sandbox| {
        let (sandbox, op) = running(sandbox, RESUME);
        let attach = Action::Attach {
            held: HELD,
            remarks: Vec::new(),
        };
        let lift = next(&sandbox, &op, attach, Event::Attached);
        assert_eq!(
            lift,
            Action::LiftQuiesce {
                held: HELD,
                remarks: Vec::new()
            }
        );
        next(&sandbox, &op, lift, Event::Done)
    };
    let new = Sandbox {
        secret: None,
        ..frozen()
    };
    assert_eq!(
        main(new),
        Action::StartMain {
            held: HELD,
            remarks: Vec::new()
        }
    );
    let kept = main(frozen());
    assert!(
        matches!(kept, Action::Record(Recording::End(Ending::Ready { .. }))),
        "{kept:?}"
    );
}

/// A stop had ended its processes and could not end the rest: a resume said `memory`.
#[test]
fn what_a_stop_has_begun_to_end_is_not_resumed_but_started_anew() {
    let (sandbox, op) = running(failed(Reason::StopFailed), RESUME);
    assert!(op.cold);
    assert_eq!(op.step, Step::Intent);
    assert_eq!(op.intent.unwrap().effect, EffectKind::Suspend(Depth::Stop));
    // Unseen, it is still that.
    let look = Action::Observe {
        after: Some(EffectKind::Suspend(Depth::Stop)),
        look: Look::First,
    };
    let unseen = next(&sandbox, &op, look, Event::Observed(Observed::Unknown));
    let Action::Record(Recording::End(Ending::Failed { fault, compute })) = unseen else {
        panic!("{unseen:?}");
    };
    assert_eq!(
        (fault.reason, compute),
        (Reason::StopFailed, Compute::Unknown)
    );
    // Nor is there memory to keep.
    let (_, freeze) = begun(failed(Reason::StopFailed), suspend(Depth::Freeze));
    assert_eq!(reason_of(freeze), Reason::ComputeLost);
    // Any other failure left its processes as they were.
    let (_, op) = running(failed(Reason::AttachTimeout), RESUME);
    assert_eq!((op.cold, op.intent), (false, None));
}

/// A freeze that cannot be settled has ended nothing.
#[test]
fn only_a_stop_that_fails_is_a_stop_that_failed() {
    for (depth, reason) in [
        (Depth::Freeze, Reason::DriverTimeout),
        (Depth::Stop, Reason::StopFailed),
    ] {
        let (sandbox, op) = running(ready(), suspend(depth));
        let look = Action::Observe {
            after: Some(EffectKind::Suspend(depth)),
            look: Look::Called(None),
        };
        let next = next(&sandbox, &op, look, Event::Observed(Observed::Unknown));
        let Action::Record(Recording::End(Ending::Failed { fault, .. })) = next else {
            panic!("{next:?}");
        };
        assert_eq!(fault.reason, reason);
    }
}

/// The frozen compute of a delete that had failed was seen gone, and the delete was taken back.
#[test]
fn a_loss_takes_no_delete_back() {
    let mut deleting = Sandbox {
        desired: Desired::Deleted,
        compute: Compute::Unknown,
        ..frozen()
    };
    let before = deleting.clone();
    assert!(!record_loss(
        &mut deleting,
        Compute::Absent,
        HELD,
        Millis(1)
    ));
    assert_eq!(deleting, before);
}

/// Kept from the model: memory that was lost is not offered again.
#[test]
fn memory_that_is_lost_stays_lost() {
    let (mut sandbox, op) = running(frozen(), RESUME);
    let end = Recording::End(Ending::StillSuspended {
        fault: Fault::new(Reason::RetainedLost, "gone"),
        memory: Memory::Lost,
        compute: Compute::Absent,
        debts: Vec::new(),
    });
    let room = (Usage::default(), &Limits::default());
    record(&mut sandbox, (op.id, op.fence), end, room, Millis(0)).unwrap();
    let retained = sandbox.retained.clone().unwrap();
    assert_eq!(
        (retained.depth, retained.lost),
        (Depth::Stop, Some(Depth::Freeze))
    );
    assert_eq!(reason_of(begun(sandbox, RESUME).1), Reason::RetainedLost);
}
