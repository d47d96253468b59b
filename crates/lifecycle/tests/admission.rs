//! The admission table, row by row: every situation of the table in the module's documentation
//! against every request.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use overwinter_lifecycle::Depth::{Checkpoint, Freeze, Stop};
use overwinter_lifecycle::admission::call::{self, CallAdmission, CallRefused};
use overwinter_lifecycle::admission::{Disposition, Request, admit};
use overwinter_lifecycle::config::{Config, Spec};
use overwinter_lifecycle::ids::{DiskGeneration, Incarnation, Millis, OperationId, SandboxId};
use overwinter_lifecycle::operation::{Operation, Step, Stopping, Verb};
use overwinter_lifecycle::record::{
    Compute, Desired, DriverReference, Failure, Retained, RetainedStatus, Sandbox,
};
use overwinter_lifecycle::{Depth, Fault, Name, Phase, Reason};

const RUNNING: OperationId = OperationId(uuid::Uuid::from_u128(1));
const WAITING: OperationId = OperationId(uuid::Uuid::from_u128(2));

fn ready() -> Sandbox {
    let id = SandboxId(uuid::Uuid::from_u128(9));
    let name = Name::parse("a").unwrap();
    let mut sandbox = Sandbox::new(
        id,
        "default",
        name,
        Spec::default(),
        Config::default(),
        Millis(0),
    );
    sandbox.compute = Compute::Live {
        held: Incarnation(1),
    };
    sandbox
}

fn suspended(depth: Depth) -> Sandbox {
    Sandbox {
        desired: Desired::Suspended(depth),
        retained: Some(Retained {
            depth,
            status: RetainedStatus::Available,
            reference: DriverReference::default(),
            generation: DiskGeneration(0),
            size_bytes: 0,
            since: Millis(0),
            expires_at: None,
            lost: None,
            quiesced: true,
            artifact: None,
            reclaimed: None,
        }),
        ..ready()
    }
}

fn failed() -> Sandbox {
    let fault = Fault::new(Reason::ComputeLost, "gone");
    Sandbox {
        failure: Some(Failure {
            fault,
            operation: None,
            at: Millis(0),
        }),
        ..ready()
    }
}

fn with_running(sandbox: Sandbox, verb: Verb, step: Step) -> Sandbox {
    let mut op = Operation::new(RUNNING, sandbox.id, verb, "test", Millis(0));
    op.step = step;
    Sandbox {
        running: Some(op),
        ..sandbox
    }
}

fn with_waiting(sandbox: Sandbox, verb: Verb) -> Sandbox {
    let op = Operation::new(WAITING, sandbox.id, verb, "test", Millis(0));
    Sandbox {
        waiting: Some(op),
        ..sandbox
    }
}

const fn suspend(depth: Depth) -> Request {
    Request::Suspend {
        depth: Some(depth),
        idle: false,
        reclaim: false,
    }
}
const SUSPEND: Request = Request::Suspend {
    depth: None,
    idle: false,
    reclaim: false,
};
const IDLE: Request = Request::Suspend {
    depth: None,
    idle: true,
    reclaim: false,
};
const RESUME: Request = Request::Resume {
    fallback: false,
    prefetch: false,
};
const RESUME_OR_START: Request = Request::Resume {
    fallback: true,
    prefetch: false,
};
const DELETE: Request = Request::Delete { abandon: false };
const ABANDON: Request = Request::Delete { abandon: true };

const fn suspending(depth: Depth) -> Verb {
    Verb::Suspend {
        depth,
        idle: false,
        reclaim: false,
    }
}
const IDLE_STOP: Verb = Verb::Suspend {
    depth: Stop,
    idle: true,
    reclaim: false,
};

fn queue(verb: Verb, supersedes: Option<OperationId>) -> Disposition {
    Disposition::Queue { verb, supersedes }
}

/// One row: a situation, and the answer to each request.
#[track_caller]
fn row(sandbox: &Sandbox, answers: &[(Request, Disposition)]) {
    for (request, expected) in answers {
        assert_eq!(
            admit(sandbox, *request),
            *expected,
            "{request:?} while {:?}",
            sandbox.phase()
        );
    }
}

#[test]
fn row_1_a_delete_in_line_dominates() {
    let denied = Disposition::Deny(Reason::Deleting);
    let plain = Verb::Delete { abandon: false };
    let deleting = |sandbox| Sandbox {
        desired: Desired::Deleted,
        ..sandbox
    };

    let running = deleting(with_running(ready(), plain, Step::Begun));
    row(
        &running,
        &[
            (suspend(Stop), denied),
            (SUSPEND, denied),
            (IDLE, denied),
            (RESUME, denied),
            (Request::Start, denied),
            (DELETE, Disposition::Join(RUNNING)),
            (ABANDON, queue(Verb::Delete { abandon: true }, None)),
        ],
    );
    let abandoning = deleting(with_running(
        ready(),
        Verb::Delete { abandon: true },
        Step::Begun,
    ));
    row(
        &abandoning,
        &[
            (DELETE, Disposition::Join(RUNNING)),
            (ABANDON, Disposition::Join(RUNNING)),
        ],
    );
    let waiting = deleting(with_waiting(
        with_running(ready(), suspending(Stop), Step::Intent),
        plain,
    ));
    row(
        &waiting,
        &[
            (RESUME, denied),
            (DELETE, Disposition::Join(WAITING)),
            (ABANDON, Disposition::Deny(Reason::DeleteInLine)),
        ],
    );
    // A delete that failed left its wish: the next one begins at once.
    row(
        &deleting(failed()),
        &[(DELETE, Disposition::Accept(plain)), (RESUME, denied)],
    );
}

#[test]
fn row_2_only_an_equal_last_intent_is_joined() {
    let freezing = with_running(ready(), suspending(Freeze), Step::Begun);
    row(
        &freezing,
        &[
            (suspend(Freeze), Disposition::Join(RUNNING)),
            (SUSPEND, Disposition::Join(RUNNING)),
            (suspend(Stop), queue(suspending(Stop), None)),
        ],
    );
    let resuming = with_running(
        suspended(Stop),
        Verb::Resume {
            fallback: false,
            prefetch: false,
        },
        Step::Intent,
    );
    row(
        &resuming,
        &[
            (RESUME, Disposition::Join(RUNNING)),
            (
                RESUME_OR_START,
                queue(
                    Verb::Resume {
                        fallback: true,
                        prefetch: false,
                    },
                    None,
                ),
            ),
        ],
    );
    // The last intent counts, not the running one.
    let changed_mind = with_waiting(resuming, suspending(Stop));
    row(
        &changed_mind,
        &[
            (suspend(Stop), Disposition::Join(WAITING)),
            (
                RESUME,
                queue(
                    Verb::Resume {
                        fallback: false,
                        prefetch: false,
                    },
                    Some(WAITING),
                ),
            ),
        ],
    );
    // One that is being turned back is nobody's to share.
    let mut turned = freezing;
    if let Some(op) = &mut turned.running {
        op.stopping = Some(Stopping::TurnBack(None));
    }
    row(
        &turned,
        &[(suspend(Freeze), queue(suspending(Freeze), None))],
    );
}

/// What is asked for beside the depth is a parameter too.
#[test]
fn row_2_who_wants_memory_given_back_joins_only_what_gives_it_back() {
    let asked = |depth, reclaim| Request::Suspend {
        depth,
        idle: false,
        reclaim,
    };
    let plain = with_running(ready(), suspending(Freeze), Step::Begun);
    let reclaims = Verb::Suspend {
        depth: Freeze,
        idle: false,
        reclaim: true,
    };
    let gives = with_running(ready(), reclaims, Step::Begun);
    row(
        &plain,
        &[(asked(Some(Freeze), true), queue(reclaims, None))],
    );
    row(
        &gives,
        &[
            (asked(Some(Freeze), true), Disposition::Join(RUNNING)),
            (asked(None, false), Disposition::Join(RUNNING)),
            (suspend(Freeze), queue(suspending(Freeze), None)),
        ],
    );
    let prefetch = Request::Resume {
        fallback: false,
        prefetch: true,
    };
    let verb = Verb::Resume {
        fallback: false,
        prefetch: true,
    };
    let waking = with_running(suspended(Freeze), verb, Step::Intent);
    row(&waking, &[(prefetch, Disposition::Join(RUNNING))]);
}

#[test]
fn row_3_a_resume_turns_back_a_suspend_until_its_intent_is_recorded() {
    for depth in [Freeze, Checkpoint, Stop] {
        let verb = Verb::Resume {
            fallback: false,
            prefetch: false,
        };
        let begun = with_running(ready(), suspending(depth), Step::Begun);
        row(
            &begun,
            &[
                (
                    RESUME,
                    Disposition::TurnBack {
                        verb,
                        suspend: RUNNING,
                        supersedes: None,
                    },
                ),
                (Request::Start, queue(Verb::Start, None)),
                (DELETE, queue(Verb::Delete { abandon: false }, None)),
            ],
        );
        let replaces = with_waiting(begun, suspending(Stop));
        let turned = Disposition::TurnBack {
            verb,
            suspend: RUNNING,
            supersedes: Some(WAITING),
        };
        row(&replaces, &[(RESUME, turned)]);
        for step in [Step::Intent, Step::Terminated] {
            let past = with_running(ready(), suspending(depth), step);
            row(&past, &[(RESUME, queue(verb, None))]);
        }
    }
}

#[test]
fn row_4_a_newer_verb_takes_the_waiting_place() {
    let creating = with_running(ready(), Verb::Create, Step::Begun);
    row(
        &creating,
        &[
            (suspend(Stop), queue(suspending(Stop), None)),
            (SUSPEND, queue(suspending(Stop), None)),
            (IDLE, Disposition::Deny(Reason::NotIdle)),
            (
                RESUME,
                queue(
                    Verb::Resume {
                        fallback: false,
                        prefetch: false,
                    },
                    None,
                ),
            ),
            (Request::Start, queue(Verb::Start, None)),
            (DELETE, queue(Verb::Delete { abandon: false }, None)),
        ],
    );
    let waited = with_waiting(creating, Verb::Start);
    row(
        &waited,
        &[(suspend(Freeze), queue(suspending(Freeze), Some(WAITING)))],
    );
}

#[test]
fn rows_5_to_9_with_nothing_in_line() {
    let accept = Disposition::Accept;
    let resume = Verb::Resume {
        fallback: false,
        prefetch: false,
    };
    let delete = Verb::Delete { abandon: false };
    row(
        &ready(),
        &[
            (suspend(Freeze), accept(suspending(Freeze))),
            (SUSPEND, accept(suspending(Stop))),
            (IDLE, accept(IDLE_STOP)),
            (RESUME, Disposition::NoOp),
            (Request::Start, Disposition::NoOp),
            (DELETE, accept(delete)),
        ],
    );
    row(
        &failed(),
        &[
            (suspend(Stop), accept(suspending(Stop))),
            (SUSPEND, accept(suspending(Stop))),
            (IDLE, Disposition::Deny(Reason::NotIdle)),
            (RESUME, accept(resume)),
            (Request::Start, accept(Verb::Start)),
            (DELETE, accept(delete)),
        ],
    );
    for now in Depth::ALL {
        row(
            &suspended(now),
            &[
                (SUSPEND, Disposition::NoOp),
                (IDLE, Disposition::Deny(Reason::NotIdle)),
                (RESUME, accept(resume)),
                (Request::Start, accept(Verb::Start)),
                (DELETE, accept(delete)),
            ],
        );
        for asked in Depth::ALL {
            let expected = match asked.cmp(&now) {
                std::cmp::Ordering::Equal => Disposition::NoOp,
                std::cmp::Ordering::Greater => accept(suspending(asked)),
                std::cmp::Ordering::Less => Disposition::Deny(Reason::AlreadyDeeper),
            };
            row(&suspended(now), &[(suspend(asked), expected)]);
        }
    }
}

#[test]
fn the_policy_fills_in_the_depth() {
    let mut sandbox = ready();
    sandbox.config.policy.default_depth = Freeze;
    row(
        &sandbox,
        &[(SUSPEND, Disposition::Accept(suspending(Freeze)))],
    );
}

#[test]
fn a_call_is_admitted_only_while_ready_and_turns_back_an_idle_suspend() {
    let refuse = CallAdmission::Refuse;
    let cases = [
        (ready(), CallAdmission::Admit),
        (
            with_running(ready(), suspending(Stop), Step::Begun),
            refuse(CallRefused::Suspending),
        ),
        (
            with_running(ready(), IDLE_STOP, Step::Begun),
            CallAdmission::TurnBack(RUNNING),
        ),
        (
            with_running(ready(), IDLE_STOP, Step::Intent),
            refuse(CallRefused::Suspending),
        ),
        (
            with_running(ready(), Verb::Create, Step::Begun),
            refuse(CallRefused::Creating),
        ),
        (
            with_running(suspended(Stop), Verb::Start, Step::Begun),
            refuse(CallRefused::Resuming),
        ),
        (suspended(Freeze), refuse(CallRefused::Suspended)),
        (failed(), refuse(CallRefused::Failed)),
        (
            Sandbox {
                desired: Desired::Deleted,
                ..ready()
            },
            refuse(CallRefused::Deleting),
        ),
    ];
    for (sandbox, expected) in cases {
        assert_eq!(
            call::admit(&sandbox),
            expected,
            "while {:?}",
            sandbox.phase()
        );
    }
}

#[test]
fn the_phase_is_derived_from_what_is_wanted_and_observed() {
    assert_eq!(ready().phase(), Phase::Ready);
    assert_eq!(failed().phase(), Phase::Failed);
    assert_eq!(suspended(Freeze).phase(), Phase::Suspended(Freeze));
    // A failed resume left it asleep: that is what counts.
    let asleep = Sandbox {
        failure: failed().failure,
        ..suspended(Stop)
    };
    assert_eq!(asleep.phase(), Phase::Suspended(Stop));
    let tombstone = Sandbox {
        tombstone_at: Some(Millis(1)),
        ..ready()
    };
    assert_eq!(tombstone.phase(), Phase::Tombstone);
}
