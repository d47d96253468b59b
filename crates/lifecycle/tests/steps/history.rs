//! One sandbox's history: verbs that arrive at any moment, an owner for each operation, crashes
//! between any two of its actions, and what happens while nobody is at work. What is promised is
//! looked at after everything that is written down.

use std::collections::{BTreeSet, VecDeque};

use overwinter_lifecycle::admission::call::{self, CallAdmission};
use overwinter_lifecycle::admission::{Disposition, Request};
use overwinter_lifecycle::begin::{Begun, begin};
use overwinter_lifecycle::capacity::{Limits, Usage};
use overwinter_lifecycle::config::{Config, Policy, Resources, Spec};
use overwinter_lifecycle::ids::{EffectKey, Incarnation, Millis, OperationId, SandboxId};
use overwinter_lifecycle::loss::record_loss;
use overwinter_lifecycle::operation::{EffectKind, Operation, Stopping, Verb};
use overwinter_lifecycle::record::{Compute, Debt, DebtKind, Desired, Sandbox};
use overwinter_lifecycle::recording::{Ending, Recorded, Recording, record};
use overwinter_lifecycle::steps::{self, Action, Deadline, Event};
use overwinter_lifecycle::{Depth, Name};
use uuid::Uuid;

use crate::luck::{Backend, Dice, Heard};
use crate::promises;
use crate::world::Remains;

/// More actions than any operation needs, however unlucky.
const MANY: usize = 200;

pub(crate) struct History {
    pub(crate) sandbox: Sandbox,
    pub(crate) backend: Backend,
    /// Verbs that are still to come.
    pub(crate) requests: VecDeque<Request>,
    /// What is owed now, and whatever was.
    pub(crate) owed: Vec<Debt>,
    ever_owed: Vec<Debt>,
    /// Of each effect that was to write memory to disk, and may have: until it is removed.
    pub(crate) written: BTreeSet<EffectKey>,
    accepted: BTreeSet<OperationId>,
    ended: BTreeSet<OperationId>,
    /// As it was when the running operation had begun.
    begun: Option<Sandbox>,
    /// What ended last.
    pub(crate) last: Option<Operation>,
}

pub(crate) fn new_sandbox() -> Sandbox {
    let spec = Spec {
        main: vec!["main".to_owned()],
        resources: Resources {
            cpu_millis: 1,
            memory_bytes: 64,
            ..Resources::default()
        },
        ..Spec::default()
    };
    let policy = Policy {
        post_resume_hook: vec!["hook".to_owned()],
        ..Policy::default()
    };
    let config = Config {
        policy,
        ..Config::default()
    };
    let id = SandboxId(Uuid::from_u128(7));
    let name = Name::parse("a").unwrap();
    Sandbox::new(id, "default", name, spec, config, Millis(0))
}

fn room() -> (Usage, Limits) {
    (Usage::default(), Limits::default())
}

impl History {
    pub(crate) fn new(requests: Vec<Request>, dice: Vec<u8>) -> Self {
        let mut history = Self {
            sandbox: new_sandbox(),
            backend: Backend {
                dice: Dice { dice, at: 0 },
                ..Backend::default()
            },
            requests: requests.into(),
            owed: Vec::new(),
            ever_owed: Vec::new(),
            written: BTreeSet::new(),
            accepted: BTreeSet::new(),
            ended: BTreeSet::new(),
            begun: None,
            last: None,
        };
        assert!(history.begin(Verb::Create));
        history
    }

    /// Asks for a verb as the store does.
    pub(crate) fn ask(&mut self, request: Request) {
        let before = self.sandbox.clone();
        match promises::admitted(&before, request) {
            Disposition::Accept(verb) => {
                if !self.begin(verb) {
                    assert_eq!(self.sandbox, before, "what does not begin changes nothing");
                }
            }
            Disposition::Queue { verb, .. } => {
                let stops = matches!(verb, Verb::Delete { .. });
                if stops {
                    self.sandbox.desired = Desired::Deleted;
                }
                self.wait(verb, stops.then_some(Stopping::Delete));
            }
            Disposition::TurnBack { verb, .. } => {
                self.wait(verb, Some(|by| Stopping::TurnBack(Some(by))));
            }
            Disposition::Join(_) | Disposition::NoOp | Disposition::Deny(_) => {}
        }
        promises::moved(&before, &self.sandbox);
        self.hold();
    }

    fn operation(&mut self, verb: Verb) -> Operation {
        let id = OperationId(Uuid::from_u128(1 + self.accepted.len() as u128));
        self.accepted.insert(id);
        Operation::new(id, self.sandbox.id, verb, "test", Millis(0))
    }

    fn begin(&mut self, verb: Verb) -> bool {
        let op = self.operation(verb);
        let (others, limits) = room();
        match begin(&mut self.sandbox, op, others, &limits, Millis(0)) {
            Begun::Running => true,
            Begun::Ended(op) => {
                self.end(&[*op]);
                false
            }
        }
    }

    /// Takes the waiting place.
    fn wait(&mut self, verb: Verb, stopping: Option<fn(OperationId) -> Stopping>) {
        let op = self.operation(verb);
        let running = self.sandbox.running.as_mut().expect("it waits for one");
        if let Some(stopping) = stopping {
            running.stopping = Some(stopping(op.id));
        }
        if let Some(superseded) = self.sandbox.waiting.replace(op) {
            let is_delete = matches!(superseded.verb, Verb::Delete { .. });
            assert!(!is_delete, "a waiting delete is replaced");
            self.ended.insert(superseded.id);
        }
    }

    fn end(&mut self, ops: &[Operation]) {
        for op in ops {
            assert!(op.outcome.is_some(), "{op:?}");
            assert!(self.ended.insert(op.id), "{op:?} ends twice");
        }
    }

    /// Runs what runs, and what begins after it, to the end.
    pub(crate) fn settle(&mut self) {
        while self.sandbox.running.is_some() {
            self.own();
        }
        promises::at_rest(self);
        assert_eq!(self.accepted, self.ended, "each has ended");
    }

    /// The owner of what runs, and whoever takes over from it.
    fn own(&mut self) {
        self.backend.heard = Heard::default();
        self.begun = Some(self.sandbox.clone());
        let op = self.sandbox.running.clone().unwrap();
        let mut action = steps::first(&self.sandbox, &op);
        let (mut actions, mut again) = (0, 0);
        // Time passes with each try; how much there is of it is luck as well.
        let time = u32::from(self.backend.dice.roll() / 64);
        loop {
            actions += usize::from(!self.is_question(&action));
            let verb = op.verb.as_str();
            assert!(actions < MANY, "{verb} does not end, at {action:?}");
            match self.backend.dice.roll() {
                // A crash: the next owner goes on from the record.
                248.. => {
                    let running = self.sandbox.running.as_mut().unwrap();
                    running.attempt += 1;
                    let running = running.clone();
                    action = steps::first(&self.sandbox, &running);
                    again = 0;
                    self.backend.heard.damage = false;
                }
                230.. => self.arrive(),
                _ => {}
            }
            again += u32::from(matches!(action, Action::Call { again: true, .. }));
            let done = action.clone();
            let event = match action {
                Action::Record(recording) => match self.write(op.id, recording) {
                    Recorded::Done(_) => Event::Recorded,
                    Recorded::Stop(stopping) => Event::Stopped(stopping),
                    Recorded::Ended { .. } => return,
                },
                action => {
                    let running = self.sandbox.running.clone().unwrap();
                    self.backend.perform(&self.sandbox, &running, &action)
                }
            };
            let running = self.sandbox.running.clone().unwrap();
            let deadline = if again > time {
                Deadline::Up
            } else {
                Deadline::Ahead
            };
            action = steps::next(&self.sandbox, &running, done, event, deadline);
        }
    }

    /// What is asked for as long as nobody answers: a backend that never does keeps it waiting, so
    /// that no name is free and no memory given up on a guess.
    fn is_question(&self, action: &Action) -> bool {
        const WRITTEN: EffectKind = EffectKind::Suspend(Depth::Checkpoint);
        let asked = match action {
            Action::Observe { after, .. } => *after,
            Action::Call { effect, again } if *effect == WRITTEN => again.then_some(*effect),
            Action::Call { .. }
            | Action::Prepare(_)
            | Action::Quiesce
            | Action::Unquiesce(_)
            | Action::Detach
            | Action::Terminate
            | Action::Pin
            | Action::Attach { .. }
            | Action::LiftQuiesce { .. }
            | Action::StartMain { .. }
            | Action::Hook { .. }
            | Action::Record(_) => None,
        };
        let until_answered = [
            EffectKind::Create,
            WRITTEN,
            EffectKind::Resume(Depth::Checkpoint),
        ];
        let asks = asked.is_some_and(|effect| until_answered.contains(&effect));
        asks && !self.backend.dice.is_calm()
    }

    /// While it runs: another verb, or a call of the data plane.
    fn arrive(&mut self) {
        if let CallAdmission::TurnBack(_) = call::admit(&self.sandbox) {
            let running = self.sandbox.running.as_mut().unwrap();
            running.stopping = Some(Stopping::TurnBack(None));
        } else if let Some(request) = self.requests.pop_front() {
            self.ask(request);
        }
    }

    /// One transaction of the owner.
    fn write(&mut self, id: OperationId, mut recording: Recording) -> Recorded {
        let native = self.backend.world.compute;
        if let Recording::End(Ending::Ready { secret, .. }) = &mut recording {
            *secret = native.map(|native| native.secret());
        }
        let before = self.sandbox.clone();
        let fence = self.sandbox.running.as_ref().unwrap().fence;
        let (others, limits) = room();
        let room = (others, &limits);
        let written = record(
            &mut self.sandbox,
            (id, fence),
            recording.clone(),
            room,
            Millis(0),
        );
        let (recorded, rows) = written.unwrap();
        promises::moved(&before, &self.sandbox);
        self.owe(&rows.debts);
        let writes = rows.intents.iter();
        let writes = writes.filter(|(_, effect)| *effect == EffectKind::Suspend(Depth::Checkpoint));
        self.written.extend(writes.map(|(key, _)| *key));
        match &recorded {
            Recorded::Done(_) => promises::on_its_way(&before, &self.sandbox, &recording),
            Recorded::Stop(_) => assert_eq!(before, self.sandbox),
            Recorded::Ended { .. } => {
                self.end(&rows.ended);
                let begun = self.begun.take().unwrap();
                let op = &rows.ended[0];
                if self.sandbox.tombstone_at.is_some() && matches!(op.verb, Verb::Delete { .. }) {
                    self.written.clear();
                }
                promises::ended(self, (&begun, &before), op);
                if let Recording::End(Ending::Aborted(_) | Ending::TurnedBack) = recording {
                    promises::undone(&begun, &self.sandbox);
                }
                self.last = Some(op.clone());
                if let Recording::End(Ending::Ready { .. }) = recording {
                    let ready = self.backend.world.compute.iter_mut();
                    ready.for_each(|native| native.was_ready = true);
                }
            }
        }
        self.hold();
        recorded
    }

    fn owe(&mut self, debts: &[Debt]) {
        for debt in debts {
            assert!(!self.ever_owed.contains(debt), "{debt:?} is owed again");
            if debt.kind == DebtKind::Compute {
                let told = |it: Remains| Remains { told: true, ..it };
                self.backend.world.remains = self.backend.world.remains.map(told);
            }
            self.ever_owed.push(debt.clone());
            self.owed.push(debt.clone());
        }
    }

    fn hold(&self) {
        promises::always(self);
    }

    /// While nobody is at work.
    pub(crate) fn rest(&mut self) {
        // What was seen of compute of before counts for nothing.
        let before = self.sandbox.clone();
        let old = Incarnation(before.issued.0.saturating_sub(1));
        let counts = record_loss(&mut self.sandbox, Compute::Absent, old, Millis(0));
        assert!(!counts && self.sandbox == before, "a late look counts");
        match self.backend.dice.roll() {
            250.. => self.backend.world.compute = None,
            240.. => {
                self.backend.world.compute = None;
                let issued = self.sandbox.issued;
                record_loss(&mut self.sandbox, Compute::Absent, issued, Millis(0));
                let known = self.sandbox.desired == Desired::Deleted
                    || self.sandbox.compute == Compute::Absent;
                assert!(known, "{:?}", self.sandbox);
            }
            225.. => self.backend.world.damage(),
            200.. => self.pay(),
            _ => {}
        }
        self.hold();
        promises::at_rest(self);
    }

    /// What is owed is removed.
    pub(crate) fn pay(&mut self) {
        for debt in self.owed.drain(..) {
            self.backend.world.pay(debt.key, debt.kind);
            match debt.kind {
                DebtKind::Compute => self.sandbox.compute_debts -= 1,
                // A delete may have been quicker.
                DebtKind::Artifact => self.written.retain(|key| *key != debt.key),
                DebtKind::Storage => {}
            }
        }
    }
}
