//! The steps against a small model of the world: random verbs, and for each action a random outcome that
//! a driver or a supervisor could honestly give, lost replies and sudden deaths among them. Whatever
//! comes, every operation ends, and what the record then says is what is there.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use overwinter_lifecycle::admission::{Disposition, Request, admit};
use overwinter_lifecycle::begin::{Begun, begin};
use overwinter_lifecycle::capacity::{Limits, Usage};
use overwinter_lifecycle::config::{Config, Spec};
use overwinter_lifecycle::ids::{EffectKey, Incarnation, Millis, OperationId, SandboxId};
use overwinter_lifecycle::operation::{EffectKind, Operation, Outcome, Verb};
use overwinter_lifecycle::record::{Compute, Desired, DriverReference, RetainedStatus, Sandbox};
use overwinter_lifecycle::recording::{Ending, Recorded, Recording, record};
use overwinter_lifecycle::steps::{self, Action, Deadline, Effected, Event, Look, Observed};
use overwinter_lifecycle::{Depth, Fault, Name, Phase, Reason};
use proptest::prelude::*;
use uuid::Uuid;

/// More actions than any operation needs, however unlucky.
const MANY: usize = 200;

/// What is really there.
struct World {
    compute: Compute,
    /// How often compute was made, and under which key last: a key makes one at most.
    starts: u64,
    made: Option<EffectKey>,
    dice: Vec<u8>,
    at: usize,
}

fn injected() -> Fault {
    Fault::new(Reason::DriverRejected, "injected")
}

impl World {
    /// 0 to 255; all calm once the dice are used up, so that faults stop.
    fn roll(&mut self) -> u8 {
        let die = self.dice.get(self.at).copied().unwrap_or(0);
        self.at += 1;
        die
    }

    fn observed(&self) -> Observed {
        match self.compute {
            Compute::Absent => Observed::Absent,
            Compute::Live { held } => Observed::Live { held },
            Compute::Frozen { held } => Observed::Frozen { held },
            Compute::Unknown => unreachable!("the world knows itself"),
        }
    }

    /// Carries out what a driver is called for. A start over living compute would be the second.
    fn effect(&mut self, effect: EffectKind, key: EffectKey, issued: Incarnation) {
        match (effect, self.compute) {
            (EffectKind::Create | EffectKind::Start, Compute::Absent) => {
                self.starts += 1;
                self.made = Some(key);
                self.compute = Compute::Live { held: issued };
            }
            // The same key again finds what the first try made.
            (EffectKind::Create | EffectKind::Start, Compute::Live { held }) => {
                assert_eq!(held, issued, "a second compute was asked for");
            }
            (EffectKind::Create | EffectKind::Start, _) => panic!("a start over frozen compute"),
            (EffectKind::Suspend(Depth::Freeze), Compute::Live { held }) => {
                self.compute = Compute::Frozen { held };
            }
            (EffectKind::Resume(Depth::Freeze), Compute::Frozen { held }) => {
                self.compute = Compute::Live { held };
            }
            (EffectKind::Suspend(Depth::Stop) | EffectKind::Delete, _) => {
                self.compute = Compute::Absent;
            }
            _ => {}
        }
    }

    fn call(&mut self, effect: EffectKind, key: EffectKey, issued: Incarnation) -> Event {
        // What this key made has ended: it makes no second one.
        if effect.makes_compute() && self.made == Some(key) && self.compute == Compute::Absent {
            return Event::Refused(injected());
        }
        match self.roll() {
            // It dies just before.
            250.. => {
                self.compute = Compute::Absent;
                Event::Unknown(injected())
            }
            // It happens and the reply is lost.
            240.. => {
                self.effect(effect, key, issued);
                Event::Unknown(injected())
            }
            220.. => Event::Unknown(injected()),
            200.. => Event::Refused(injected()),
            _ => {
                self.effect(effect, key, issued);
                Event::Effected(Effected {
                    compute: self.compute,
                    reference: DriverReference::default(),
                    size_bytes: 0,
                    leftovers: Vec::new(),
                    remarks: Vec::new(),
                })
            }
        }
    }

    fn perform(&mut self, action: &Action, op: &Operation, issued: Incarnation) -> Event {
        let live = matches!(self.compute, Compute::Live { .. });
        let unlucky = |die: u8| die >= 235;
        match action {
            Action::Call { effect, .. } => {
                self.call(*effect, op.intent_key().expect("a recorded intent"), issued)
            }
            Action::Observe { .. } if self.roll() >= 250 => Event::Observed(Observed::Unknown),
            Action::Observe { .. } => Event::Observed(self.observed()),
            Action::Attach { .. } => match (live, self.roll()) {
                (true, 250..) => {
                    self.compute = Compute::Absent;
                    Event::ComputeGone
                }
                (true, 235..) => Event::AttachTimeout,
                (true, _) => Event::Attached,
                (false, _) => Event::ComputeGone,
            },
            Action::Prepare(_) | Action::Pin | Action::Quiesce if unlucky(self.roll()) => {
                Event::Refused(injected())
            }
            Action::Pin => Event::Pinned("sha256:0".to_owned()),
            Action::Quiesce | Action::Detach | Action::Terminate | Action::Unquiesce(_)
                if !live || unlucky(self.roll()) =>
            {
                Event::Unreachable
            }
            Action::Prepare(_)
            | Action::Quiesce
            | Action::Unquiesce(_)
            | Action::Detach
            | Action::Terminate
            | Action::LiftQuiesce { .. }
            | Action::StartMain { .. }
            | Action::Hook { .. } => Event::Done,
            Action::Record(_) => unreachable!("recorded by the harness"),
        }
    }
}

/// Runs what runs, and what begins after it, to the end.
fn settle(sandbox: &mut Sandbox, world: &mut World) {
    let (others, limits) = (Usage::default(), Limits::default());
    while let Some(op) = sandbox.running.clone() {
        let writer = (op.id, op.fence);
        let mut action = steps::first(sandbox, &op);
        let (mut actions, mut again) = (0, 0);
        // Time passes with each try; how much there is of it is luck as well.
        let time = u32::from(world.roll() / 64);
        while let Some(running) = sandbox.running.as_mut().filter(|op| op.id == writer.0) {
            actions += 1;
            assert!(
                actions < MANY,
                "{} does not end, at {action:?}",
                op.verb.as_str()
            );
            if world.roll() >= 248 {
                // A crash: the next owner goes on from the record.
                running.attempt += 1;
                let running = running.clone();
                action = steps::first(sandbox, &running);
                again = 0;
            }
            if matches!(action, Action::Call { again: true, .. }) {
                again += 1;
            }
            let done = action.clone();
            let event = match action {
                Action::Record(recording) => {
                    let recorded = record(sandbox, writer, recording, (others, &limits), Millis(0));
                    match recorded.unwrap() {
                        (Recorded::Done(_), _) => Event::Recorded,
                        (Recorded::Stop(stopping), _) => Event::Stopped(stopping),
                        (Recorded::Ended { .. }, rows) => {
                            check(sandbox, world, &rows.ended[0]);
                            break;
                        }
                    }
                }
                action => {
                    let running = sandbox.running.clone().unwrap();
                    world.perform(&action, &running, sandbox.issued)
                }
            };
            let running = sandbox.running.clone().unwrap();
            let deadline = if again > time {
                Deadline::Up
            } else {
                Deadline::Ahead
            };
            action = steps::next(sandbox, &running, done, event, deadline);
        }
    }
}

/// A create under way whose effect was called, and nobody can tell what came of it.
fn created_unknown() -> (Sandbox, Operation) {
    let id = SandboxId(Uuid::from_u128(7));
    let (spec, config) = (Spec::default(), Config::default());
    let name = Name::parse("a").unwrap();
    let mut sandbox = Sandbox::new(id, "default", name, spec, config, Millis(0));
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
    let pinned = Event::Pinned("sha256:0".to_owned());
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

/// What the record says is what is there.
fn check(sandbox: &Sandbox, world: &World, ended: &Operation) {
    let at = format!(
        "after {:?} ended {:?}: {sandbox:?}",
        ended.verb, ended.outcome
    );
    // Death between the last look and the end is found by the next look.
    // An abandoning delete says so itself.
    let abandoned = ended.verb == Verb::Delete { abandon: true };
    if sandbox.running.is_none() && world.compute != Compute::Absent && !abandoned {
        let known = sandbox.compute == Compute::Unknown || sandbox.compute == world.compute;
        assert!(known, "{:?} is there {at}", world.compute);
    }
    match sandbox.phase() {
        Phase::Ready => {
            assert!(
                sandbox.retained.is_none() && sandbox.failure.is_none(),
                "{at}"
            );
            assert_eq!(sandbox.desired, Desired::Running, "{at}");
        }
        Phase::Suspended(depth) => {
            let retained = sandbox.retained.as_ref().unwrap();
            assert_eq!(retained.status, RetainedStatus::Available, "{at}");
            assert_eq!(retained.generation, sandbox.generation, "{at}");
            assert_eq!(sandbox.desired, Desired::Suspended(depth), "{at}");
            assert!(depth != Depth::Stop || !sandbox.compute.may_exist(), "{at}");
        }
        Phase::Failed => assert!(sandbox.failure.is_some(), "{at}"),
        Phase::Deleting => assert_eq!(sandbox.desired, Desired::Deleted, "{at}"),
        Phase::Tombstone => assert!(sandbox.running.is_none(), "{at}"),
        Phase::Creating | Phase::Suspending(_) | Phase::Resuming => {
            assert!(
                sandbox.running.is_some(),
                "in motion with nobody at work {at}"
            );
        }
    }
    if let (Verb::Suspend { .. }, Some(Outcome::Succeeded { .. })) = (ended.verb, &ended.outcome) {
        assert!(matches!(sandbox.phase(), Phase::Suspended(_)), "{at}");
    }
}

fn request() -> impl Strategy<Value = Request> {
    prop_oneof![
        Just(Request::Suspend {
            depth: Some(Depth::Freeze),
            idle: false
        }),
        Just(Request::Suspend {
            depth: Some(Depth::Stop),
            idle: false
        }),
        Just(Request::Suspend {
            depth: None,
            idle: false
        }),
        any::<bool>().prop_map(|fallback| Request::Resume { fallback }),
        Just(Request::Start),
        any::<bool>().prop_map(|abandon| Request::Delete { abandon }),
    ]
}

/// All sorts of luck, or one sort that does not end: a backend that always fails in the same way.
/// (From 248 on it is the gateway that never lives to the next step.)
fn dice() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        3 => prop::collection::vec(any::<u8>(), 0..400),
        1 => (0..248_u8).prop_map(|die| vec![die; 5_000]),
    ]
}

/// Asks for a verb as the store does, and sees it through.
fn ask(sandbox: &mut Sandbox, world: &mut World, number: u128, request: Request) {
    if let Disposition::Accept(verb) = admit(sandbox, request) {
        let id = OperationId(Uuid::from_u128(number));
        let op = Operation::new(id, sandbox.id, verb, "test", Millis(0));
        begin(sandbox, op, Usage::default(), &Limits::default(), Millis(0));
        settle(sandbox, world);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_operation_ends_and_the_record_tells_the_truth(
        requests in prop::collection::vec(request(), 1..8),
        dice in dice(),
    ) {
        let id = SandboxId(Uuid::from_u128(7));
        let (spec, config) = (Spec::default(), Config::default());
        let mut sandbox =
            Sandbox::new(id, "default", Name::parse("a").unwrap(), spec, config, Millis(0));
        let mut world = World { compute: Compute::Absent, starts: 0, made: None, dice, at: 0 };
        let op = OperationId(Uuid::from_u128(1));
        let create = Operation::new(op, id, Verb::Create, "test", Millis(0));
        let begun = begin(&mut sandbox, create, Usage::default(), &Limits::default(), Millis(0));
        prop_assert_eq!(begun, Begun::Running);
        settle(&mut sandbox, &mut world);
        for (number, request) in requests.into_iter().enumerate() {
            let issued = sandbox.issued;
            if sandbox.phase() != Phase::Tombstone {
                ask(&mut sandbox, &mut world, 10 + number as u128, request);
            }
            prop_assert!(sandbox.issued >= issued);
        }
        // Once faults stop there is a way out that keeps the storage, and one that ends it all.
        world.dice.clear();
        if sandbox.desired != Desired::Deleted {
            ask(&mut sandbox, &mut world, 50, Request::Resume { fallback: true });
            prop_assert_eq!(sandbox.phase(), Phase::Ready, "no way out: {:?}", sandbox);
        }
        if sandbox.phase() != Phase::Tombstone {
            ask(&mut sandbox, &mut world, 51, Request::Delete { abandon: false });
        }
        prop_assert_eq!(sandbox.phase(), Phase::Tombstone);
        prop_assert!(world.starts <= sandbox.issued.0);
    }
}
