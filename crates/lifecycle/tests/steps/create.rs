//! A create of which nobody can tell what came of it.

use overwinter_lifecycle::Phase;
use overwinter_lifecycle::begin::begin;
use overwinter_lifecycle::capacity::{Limits, Usage};
use overwinter_lifecycle::ids::{Incarnation, Millis, OperationId};
use overwinter_lifecycle::operation::{EffectKind, Operation, Verb};
use overwinter_lifecycle::record::Sandbox;
use overwinter_lifecycle::recording::{Ending, Recording, record};
use overwinter_lifecycle::steps::{self, Action, Deadline, Event, Look, Observed};
use uuid::Uuid;

use crate::history::new_sandbox;
use crate::luck::injected;

/// A create under way whose effect was called, and nobody can tell what came of it.
fn created_unknown() -> (Sandbox, Operation) {
    let mut sandbox = new_sandbox();
    let id = sandbox.id;
    let create = Operation::new(
        OperationId(Uuid::from_u128(1)),
        id,
        Verb::Create,
        "test",
        Millis(0),
    );
    let (others, limits) = (Usage::default(), Limits::default());
    begin(&mut sandbox, create, others, &limits, Millis(0));
    let op = sandbox.running.clone().unwrap();
    let pinned = Event::Pinned("sha256:0".into());
    let first = steps::first(&sandbox, &op);
    let Action::Record(intent) = steps::next(&sandbox, &op, first, pinned, Deadline::Ahead) else {
        panic!("no intent")
    };
    let writer = (op.id, op.fence);
    record(&mut sandbox, writer, intent, (others, &limits), Millis(0)).unwrap();
    let op = sandbox.running.clone().unwrap();
    (sandbox, op)
}

#[test]
fn a_create_of_which_nobody_can_tell_stays_creating_until_it_is_settled() {
    let (sandbox, op) = created_unknown();
    let effect = EffectKind::Create;
    let unknown = Event::Unknown(injected());
    let called = Action::Call {
        effect,
        again: false,
    };
    let mut action = steps::next(&sandbox, &op, called, unknown, Deadline::Ahead);
    for seen in [Observed::Unknown, Observed::InTransition, Observed::Unknown] {
        let event = Event::Observed(seen);
        action = steps::next(&sandbox, &op, action, event, Deadline::Up);
        assert!(matches!(action, Action::Observe { .. }), "{action:?}");
    }
    assert_eq!(sandbox.phase(), Phase::Creating);
    let settled = |seen, deadline| {
        let event = Event::Observed(seen);
        steps::next(&sandbox, &op, action.clone(), event, deadline)
    };
    let held = Incarnation(1);
    assert_eq!(
        settled(Observed::Live { held }, Deadline::Up),
        Action::Attach {
            held,
            remarks: Vec::new()
        }
    );
    let again = Action::Call {
        effect,
        again: true,
    };
    assert_eq!(settled(Observed::Absent, Deadline::Ahead), again);
    assert!(matches!(
        settled(Observed::Absent, Deadline::Up),
        Action::Record(Recording::End(Ending::NeverWas { .. }))
    ));
}

#[test]
fn no_number_of_tries_ends_an_operation_before_its_deadline() {
    let (sandbox, op) = created_unknown();
    let effect = EffectKind::Create;
    let mut action = Action::Observe {
        after: Some(effect),
        look: Look::First,
    };
    for _ in 0..1_000 {
        let absent = Event::Observed(Observed::Absent);
        let call = steps::next(&sandbox, &op, action, absent, Deadline::Ahead);
        assert!(matches!(call, Action::Call { .. }), "{call:?}");
        let unknown = Event::Unknown(injected());
        action = steps::next(&sandbox, &op, call, unknown, Deadline::Ahead);
    }
    // It says what it failed with.
    let absent = Event::Observed(Observed::Absent);
    let end = steps::next(&sandbox, &op, action, absent, Deadline::Up);
    let Action::Record(Recording::End(Ending::NeverWas { fault, .. })) = end else {
        panic!("{end:?}")
    };
    assert_eq!(fault.message, "injected");
}
