//! Records as they are found, and a story: an operation told as what its owner does and is answered.

#![allow(dead_code, reason = "each test binary uses its part")]

use overwinter_lifecycle::begin::{Begun, begin};
use overwinter_lifecycle::capacity::{Limits, Usage};
use overwinter_lifecycle::config::{Config, Spec};
use overwinter_lifecycle::ids::{
    EffectKey, Fence, Incarnation, Millis, OperationId, SandboxId, Serial,
};
use overwinter_lifecycle::operation::{Operation, Outcome, Stopping, Verb};
use overwinter_lifecycle::record::{
    Compute, Debt, Desired, DriverReference, Failure, Retained, RetainedStatus, Sandbox,
};
use overwinter_lifecycle::recording::{Ending, Recorded, Recording, Rows, SecretHash, record};
use overwinter_lifecycle::steps::{self, Action, Deadline, Effected, Event, Observed};
use overwinter_lifecycle::{Depth, Fault, Name, Phase, Reason};
use uuid::Uuid;

pub(crate) const HELD: Incarnation = Incarnation(1);
pub(crate) const LIVE: Compute = Compute::Live { held: HELD };
pub(crate) const FROZEN: Compute = Compute::Frozen { held: HELD };
pub(crate) const OP: OperationId = OperationId(Uuid::from_u128(1));
pub(crate) const NEXT: OperationId = OperationId(Uuid::from_u128(2));
/// When a story's steps are written; it begins at 0.
pub(crate) const LATER: Millis = Millis(1);
pub(crate) const SEEN_LIVE: Event = Event::Observed(Observed::Live { held: HELD });
pub(crate) const SEEN_FROZEN: Event = Event::Observed(Observed::Frozen { held: HELD });
pub(crate) const SEEN_ABSENT: Event = Event::Observed(Observed::Absent);
pub(crate) const UNSEEN: Event = Event::Observed(Observed::Unknown);

/// What a sleeper at `checkpoint` has on disk.
pub(crate) const ARTIFACT: EffectKey = EffectKey {
    sandbox: ID,
    fence: Fence(1),
    serial: Serial(1),
};
const ID: SandboxId = SandboxId(Uuid::from_u128(7));

pub(crate) const FREEZE: Verb = suspend(Depth::Freeze);
pub(crate) const STOP: Verb = suspend(Depth::Stop);
pub(crate) const RESUME: Verb = Verb::Resume {
    fallback: false,
    prefetch: false,
};
pub(crate) const RESUME_OR_START: Verb = Verb::Resume {
    fallback: true,
    prefetch: false,
};
pub(crate) const DELETE: Verb = Verb::Delete { abandon: false };
pub(crate) const ABANDON: Verb = Verb::Delete { abandon: true };

pub(crate) const fn suspend(depth: Depth) -> Verb {
    Verb::Suspend {
        depth,
        idle: false,
        reclaim: false,
    }
}

/// Of a create that has not begun, with a main process.
pub(crate) fn blank() -> Sandbox {
    let spec = Spec {
        main: vec!["main".to_owned()],
        ..Spec::default()
    };
    let name = Name::parse("a").unwrap();
    Sandbox::new(ID, "default", name, spec, Config::default(), Millis(0))
}

pub(crate) fn ready() -> Sandbox {
    Sandbox {
        fence: Fence(1),
        issued: HELD,
        compute: LIVE,
        secret: Some(SecretHash([1; 32])),
        ..blank()
    }
}

pub(crate) fn asleep(depth: Depth) -> Sandbox {
    let compute = match depth {
        Depth::Freeze => FROZEN,
        Depth::Checkpoint | Depth::Stop => Compute::Absent,
    };
    let retained = Retained {
        depth,
        status: RetainedStatus::Available,
        reference: DriverReference::default(),
        generation: ready().generation,
        size_bytes: 0,
        since: Millis(0),
        expires_at: None,
        lost: None,
        quiesced: true,
        artifact: (depth == Depth::Checkpoint).then_some(ARTIFACT),
        reclaimed: None,
    };
    Sandbox {
        desired: Desired::Suspended(depth),
        compute,
        retained: Some(retained),
        ..ready()
    }
}

pub(crate) fn failed(reason: Reason, compute: Compute) -> Sandbox {
    let failure = Failure {
        fault: Fault::new(reason, "it failed"),
        operation: None,
        at: Millis(0),
    };
    Sandbox {
        failure: Some(failure),
        compute,
        ..ready()
    }
}

pub(crate) fn refused() -> Event {
    Event::Refused(Fault::new(Reason::DriverRejected, "refused"))
}

pub(crate) fn unknown() -> Event {
    Event::Unknown(Fault::new(Reason::DriverTimeout, "no answer"))
}

pub(crate) fn effected(compute: Compute) -> Event {
    leaving(compute, Vec::new())
}

pub(crate) fn leaving(compute: Compute, leftovers: Vec<Debt>) -> Event {
    Event::Effected(Effected {
        compute,
        reference: DriverReference::default(),
        size_bytes: 0,
        leftovers,
        remarks: Vec::new(),
        reclaimed: None,
    })
}

pub(crate) fn room() -> (Usage, &'static Limits) {
    const NO_LIMITS: &Limits = &Limits {
        running: None,
        cpu_millis: None,
        memory_bytes: None,
        disk_bytes: None,
    };
    (Usage::default(), NO_LIMITS)
}

pub(crate) fn operation(sandbox: &Sandbox, id: OperationId, verb: Verb) -> Operation {
    Operation::new(id, sandbox.id, verb, "test", Millis(0))
}

/// Why it does not begin.
pub(crate) fn why_not(mut sandbox: Sandbox, verb: Verb) -> Reason {
    why_not_within(&mut sandbox, verb, room())
}

pub(crate) fn why_not_within(
    sandbox: &mut Sandbox,
    verb: Verb,
    (others, limits): (Usage, &Limits),
) -> Reason {
    let before = sandbox.clone();
    let op = operation(sandbox, OP, verb);
    match begin(sandbox, op, others, limits, Millis(0)) {
        Begun::Ended(op) => match op.outcome {
            Some(Outcome::Failed(fault)) => {
                assert_eq!(*sandbox, before, "a refusal changes nothing");
                fault.reason
            }
            outcome => panic!("{outcome:?}"),
        },
        Begun::Running => panic!("it runs"),
    }
}

/// An operation from its beginning, one action at a time.
#[derive(Clone)]
pub(crate) struct Story {
    pub(crate) sandbox: Sandbox,
    action: Action,
    deadline: Deadline,
}

/// How it ended.
pub(crate) struct Ended {
    pub(crate) sandbox: Sandbox,
    pub(crate) op: Operation,
    pub(crate) rows: Rows,
    pub(crate) recorded: Recorded,
}

impl Story {
    pub(crate) fn of(mut sandbox: Sandbox, verb: Verb) -> Self {
        let op = operation(&sandbox, OP, verb);
        let (others, limits) = room();
        let begun = begin(&mut sandbox, op, others, limits, Millis(0));
        assert_eq!(begun, Begun::Running);
        let action = steps::first(&sandbox, sandbox.running.as_ref().unwrap());
        Self {
            sandbox,
            action,
            deadline: Deadline::Ahead,
        }
    }

    pub(crate) fn op(&mut self) -> &mut Operation {
        self.sandbox.running.as_mut().unwrap()
    }

    pub(crate) fn action(&self) -> &Action {
        &self.action
    }

    /// The next action is this one, and this comes of it.
    #[track_caller]
    pub(crate) fn then(mut self, name: &str, event: Event) -> Self {
        assert_eq!(self.action.name(), name);
        self.hand(event);
        self
    }

    fn hand(&mut self, event: Event) {
        let op = self.sandbox.running.clone().unwrap();
        let done = self.action.clone();
        self.action = steps::next(&self.sandbox, &op, done, event, self.deadline);
    }

    /// The next action records a step.
    #[track_caller]
    pub(crate) fn records(mut self, name: &str) -> Self {
        assert_eq!(self.action.name(), name);
        match self.write_next() {
            (Recorded::Done(_), _) => self.hand(Event::Recorded),
            (Recorded::Stop(stopping), _) => self.hand(Event::Stopped(stopping)),
            (ended @ Recorded::Ended { .. }, _) => panic!("{ended:?}"),
        }
        self
    }

    fn write_next(&mut self) -> (Recorded, Rows) {
        let Action::Record(mut recording) = self.action.clone() else {
            panic!("{:?} records nothing", self.action);
        };
        // As the owner does.
        if let Recording::End(Ending::Ready { secret, .. }) = &mut recording {
            *secret = Some(SecretHash([2; 32]));
        }
        self.write(recording)
    }

    /// Whatever its owner would do next.
    pub(crate) fn write(&mut self, recording: Recording) -> (Recorded, Rows) {
        let writer = (self.op().id, self.op().fence);
        record(&mut self.sandbox, writer, recording, room(), LATER).unwrap()
    }

    /// The operation's time is up: nothing is tried again from here on.
    pub(crate) fn late(mut self) -> Self {
        self.deadline = Deadline::Up;
        self
    }

    /// A verb came in between.
    pub(crate) fn stopped_by(mut self, stopping: Stopping) -> Self {
        self.op().stopping = Some(stopping);
        if let Stopping::Delete(_) = stopping {
            self.sandbox.desired = Desired::Deleted;
        }
        self
    }

    /// The gateway dies; the next one goes on from the record.
    pub(crate) fn crash(mut self) -> Self {
        self.op().attempt += 1;
        // Each owner is granted the whole time anew.
        self.deadline = Deadline::Ahead;
        self.action = steps::first(&self.sandbox, self.sandbox.running.as_ref().unwrap());
        self
    }

    /// The next action records the end.
    #[track_caller]
    pub(crate) fn ends(mut self, phase: Phase) -> Ended {
        assert_eq!(self.action.name(), "record_end", "{:?}", self.action);
        let id = self.op().id;
        let (recorded, rows) = self.write_next();
        assert!(matches!(recorded, Recorded::Ended { .. }), "{recorded:?}");
        assert_eq!(self.sandbox.phase(), phase);
        let op = rows.ended.iter().find(|op| op.id == id).unwrap().clone();
        Ended {
            sandbox: self.sandbox,
            op,
            rows,
            recorded,
        }
    }
}

impl Ended {
    #[track_caller]
    pub(crate) fn because(self, reason: Reason) -> Self {
        match &self.op.outcome {
            Some(Outcome::Failed(fault)) => assert_eq!(fault.reason, reason, "{fault:?}"),
            outcome => panic!("{outcome:?}"),
        }
        self
    }

    #[track_caller]
    pub(crate) fn achieves(self, expected: overwinter_lifecycle::operation::Achieved) -> Self {
        match &self.op.outcome {
            Some(Outcome::Succeeded { achieved, .. }) => assert_eq!(*achieved, expected),
            outcome => panic!("{outcome:?}"),
        }
        self
    }

    /// What there was to tell.
    pub(crate) fn remarks(&self) -> Vec<String> {
        match &self.op.outcome {
            Some(Outcome::Succeeded { remarks, .. }) => remarks.clone(),
            outcome => panic!("{outcome:?}"),
        }
    }
}

/// From the call that starts compute anew to Ready.
pub(crate) fn starts_anew(story: Story) -> Ended {
    story
        .then("start", effected(LIVE))
        .then("attach", Event::Attached)
        .then("start_main", Event::Done)
        .ends(Phase::Ready)
}
