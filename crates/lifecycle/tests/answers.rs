//! Each action has one kind of answer. What is handed in beside that is no reason to do anything: an
//! event of another kind has told nothing, and an action of another verb leads to a look.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use overwinter_lifecycle::operation::{EffectKind, Operation, Verb};
use overwinter_lifecycle::record::{Compute, DriverReference, Sandbox};
use overwinter_lifecycle::recording::{Ending, Memory, Recording};
use overwinter_lifecycle::steps::{self, Action, Deadline, Effected, Event, Look, Observed};
use overwinter_lifecycle::{Depth, Fault, Reason};
use support::{
    DELETE, FREEZE, HELD, LIVE, RESUME, STOP, Story, asleep, blank, ready, refused, unknown,
};

const FREEZING: EffectKind = EffectKind::Suspend(Depth::Freeze);
const STOPPING: EffectKind = EffectKind::Suspend(Depth::Stop);
const BOTH: [Deadline; 2] = [Deadline::Ahead, Deadline::Up];

/// One of each kind, but for the one that ends an operation whatever was done.
fn events() -> Vec<Event> {
    vec![
        Event::Done,
        Event::DoneWith("said".to_owned()),
        refused(),
        Event::Unreachable,
        Event::Pinned("sha256:1".into()),
        Event::Effected(Effected {
            compute: LIVE,
            reference: DriverReference::default(),
            size_bytes: 0,
            leftovers: Vec::new(),
            remarks: Vec::new(),
            reclaimed: None,
        }),
        unknown(),
        Event::Observed(Observed::Live { held: HELD }),
        Event::Attached,
        Event::AttachTimeout,
        Event::ComputeGone,
        Event::Recorded,
    ]
}

const fn of_being_asked(event: &Event) -> bool {
    matches!(
        event,
        Event::Done | Event::DoneWith(_) | Event::Refused(_) | Event::Unknown(_)
    )
}

const fn of_a_call(event: &Event) -> bool {
    matches!(
        event,
        Event::Effected(_) | Event::Refused(_) | Event::Unknown(_)
    )
}

const fn of_a_look(event: &Event) -> bool {
    matches!(event, Event::Observed(_))
}

const fn of_waiting(event: &Event) -> bool {
    matches!(event, Event::Attached | Event::ComputeGone)
}

const fn of_pinning(event: &Event) -> bool {
    matches!(
        event,
        Event::Pinned(_) | Event::Refused(_) | Event::Unknown(_)
    )
}

const fn call(effect: EffectKind) -> Action {
    Action::Call {
        effect,
        again: false,
    }
}

const fn observe(after: EffectKind, look: Look) -> Action {
    Action::Observe {
        after: Some(after),
        look,
    }
}

fn begun(sandbox: Sandbox, verb: Verb) -> (Sandbox, Operation) {
    let mut story = Story::of(sandbox, verb);
    let op = story.op().clone();
    (story.sandbox, op)
}

/// Silence after `done` leads to what `expected` says, and so does every event but its `own`.
#[track_caller]
fn silence(
    sandbox: Sandbox,
    verb: Verb,
    done: &Action,
    own: fn(&Event) -> bool,
    expected: impl Fn(&Action) -> bool,
) {
    let (sandbox, op) = begun(sandbox, verb);
    for deadline in BOTH {
        for event in events().into_iter().filter(|event| !own(event)) {
            let next = steps::next(&sandbox, &op, done.clone(), event.clone(), deadline);
            assert!(expected(&next), "{} after {event:?}: {next:?}", done.name());
        }
    }
}

const fn ending(action: &Action) -> Option<&Ending> {
    match action {
        Action::Record(Recording::End(ending)) => Some(ending),
        _ => None,
    }
}

fn undone(action: &Action, reason: Reason) -> bool {
    let ending = match action {
        Action::Unquiesce(ending) => Some(&**ending),
        action => ending(action),
    };
    matches!(ending, Some(Ending::Aborted(fault)) if fault.reason == reason)
}

#[test]
fn what_a_suspend_is_not_told_it_does_not_believe() {
    let prepare = Action::Prepare(Depth::Freeze);
    let aborts = |next: &Action| undone(next, Reason::DriverTimeout);
    silence(ready(), FREEZE, &prepare, of_being_asked, aborts);
    let goes_back = |next: &Action| undone(next, Reason::SupervisorUnreachable);
    silence(ready(), FREEZE, &Action::Quiesce, of_being_asked, goes_back);
    // A stop needs nobody's consent.
    silence(ready(), STOP, &Action::Quiesce, of_being_asked, |next| {
        *next
            == Action::Record(Recording::Intent {
                effect: STOPPING,
                pinned: None,
                quiesced: false,
            })
    });
    silence(ready(), STOP, &Action::Terminate, of_being_asked, |next| {
        *next == call(STOPPING)
    });
    silence(
        ready(),
        FREEZE,
        &Action::Detach,
        of_being_asked,
        |next| matches!(next, Action::Record(Recording::Reattach(fault)) if fault.reason == Reason::SuspendAborted),
    );
    for effect in [FREEZING, EffectKind::Reattach] {
        silence(ready(), FREEZE, &call(effect), of_a_call, |next| {
            *next == observe(effect, Look::Called(None))
        });
    }
    for (effect, reason) in [
        (FREEZING, Reason::DriverTimeout),
        (EffectKind::Reattach, Reason::AttachTimeout),
    ] {
        let look = observe(effect, Look::First);
        silence(ready(), FREEZE, &look, of_a_look, |next| {
            matches!(
                ending(next),
                Some(Ending::Failed { fault, compute: Compute::Unknown }) if fault.reason == reason
            )
        });
    }
    let attach = Action::Attach {
        held: HELD,
        remarks: Vec::new(),
    };
    silence(ready(), FREEZE, &attach, of_waiting, |next| {
        *next == observe(EffectKind::Reattach, Look::Spent)
    });
}

#[test]
fn what_a_create_is_not_told_it_does_not_believe() {
    silence(blank(), Verb::Create, &Action::Pin, of_pinning, |next| {
        matches!(
            ending(next),
            Some(Ending::NeverWas { fault, debts })
                if fault.reason == Reason::DriverTimeout && debts.is_empty()
        )
    });
    let create = EffectKind::Create;
    silence(blank(), Verb::Create, &call(create), of_a_call, |next| {
        *next == observe(create, Look::Called(None))
    });
    // It is looked for until somebody can tell.
    for look in [Look::First, Look::Spent] {
        let look = observe(create, look);
        silence(blank(), Verb::Create, &look, of_a_look, |next| {
            *next == look
        });
    }
}

#[test]
fn what_a_resume_is_not_told_it_does_not_believe() {
    let thaw = EffectKind::Resume(Depth::Freeze);
    let frozen = || asleep(Depth::Freeze);
    silence(frozen(), RESUME, &call(thaw), of_a_call, |next| {
        *next == observe(thaw, Look::Called(None))
    });
    let look = observe(thaw, Look::First);
    silence(frozen(), RESUME, &look, of_a_look, |next| {
        matches!(
            ending(next),
            Some(Ending::Failed { fault, compute: Compute::Unknown })
                if fault.reason == Reason::DriverTimeout
        )
    });
    let attach = Action::Attach {
        held: HELD,
        remarks: Vec::new(),
    };
    silence(frozen(), RESUME, &attach, of_waiting, |next| {
        *next == observe(thaw, Look::Spent)
    });
}

/// What fails nothing is not told where nothing was said.
#[test]
fn there_is_no_remark_where_nothing_was_said() {
    const fn says(event: &Event) -> bool {
        matches!(
            event,
            Event::DoneWith(_) | Event::Refused(_) | Event::Unknown(_) | Event::Unreachable
        )
    }
    for done in [
        Action::StartMain {
            held: HELD,
            remarks: Vec::new(),
        },
        Action::Hook {
            held: HELD,
            remarks: Vec::new(),
        },
    ] {
        silence(
            asleep(Depth::Stop),
            RESUME,
            &done,
            says,
            |next| matches!(ending(next), Some(Ending::Ready { remarks, .. }) if remarks.is_empty()),
        );
    }
}

#[test]
fn what_a_delete_is_not_told_it_does_not_believe() {
    let delete = EffectKind::Delete;
    let looks = |next: &Action| *next == observe(delete, Look::Called(None));
    silence(ready(), DELETE, &call(delete), of_a_call, looks);
    let (sandbox, op) = begun(ready(), DELETE);
    let look = observe(delete, Look::Called(None));
    for event in events().into_iter().filter(|event| !of_a_look(event)) {
        let next = |deadline| steps::next(&sandbox, &op, look.clone(), event.clone(), deadline);
        let again = Action::Call {
            effect: delete,
            again: true,
        };
        assert_eq!(next(Deadline::Ahead), again);
        let ended = next(Deadline::Up);
        assert!(
            matches!(ending(&ended), Some(Ending::NotDeleted(fault)) if fault.reason == Reason::DeleteFailed),
            "{ended:?}"
        );
    }
}

/// Of every verb.
fn actions() -> Vec<Action> {
    let fault = Fault::new(Reason::SuspendAborted, "undone");
    let still = Ending::StillSuspended {
        fault: fault.clone(),
        memory: Memory::NothingRan,
        compute: Compute::Absent,
        debts: Vec::new(),
    };
    vec![
        Action::Prepare(Depth::Stop),
        Action::Quiesce,
        Action::Unquiesce(Box::new(Ending::TurnedBack)),
        Action::Detach,
        Action::Terminate,
        Action::Pin,
        call(EffectKind::Create),
        call(EffectKind::Start),
        call(EffectKind::Resume(Depth::Freeze)),
        call(EffectKind::Delete),
        Action::Attach {
            held: HELD,
            remarks: Vec::new(),
        },
        Action::LiftQuiesce {
            held: HELD,
            remarks: Vec::new(),
        },
        Action::StartMain {
            held: HELD,
            remarks: Vec::new(),
        },
        Action::Hook {
            held: HELD,
            remarks: Vec::new(),
        },
        Action::Record(Recording::Intent {
            effect: EffectKind::Create,
            pinned: None,
            quiesced: false,
        }),
        Action::Record(Recording::Terminated),
        Action::Record(Recording::Reattach(fault)),
        Action::Record(Recording::GiveUpMemory),
        Action::Record(Recording::FallBack),
        Action::Record(Recording::End(still)),
    ]
}

/// Whatever it is said to have led to, each of these actions leads to this one look.
#[track_caller]
fn foreign(sandbox: Sandbox, verb: Verb, names: &[&str], look: &Action) {
    let (sandbox, op) = begun(sandbox, verb);
    let foreign = actions()
        .into_iter()
        .filter(|done| names.contains(&done.name()));
    let mut tried = 0;
    for done in foreign {
        tried += 1;
        for event in events() {
            for deadline in BOTH {
                let next = steps::next(&sandbox, &op, done.clone(), event.clone(), deadline);
                assert_eq!(next, *look, "{} after {event:?}", done.name());
            }
        }
    }
    assert_eq!(tried, names.len(), "one of {names:?} is none");
}

/// A look that is spent: nothing is called after it, whatever is seen.
#[test]
fn an_action_of_another_verb_leads_to_a_look() {
    foreign(
        ready(),
        FREEZE,
        &[
            "pin",
            "create",
            "start",
            "resume_freeze",
            "delete",
            "lift_quiesce",
            "start_main",
            "hook",
            "record_give_up_memory",
            "record_fallback",
            "record_end",
        ],
        &observe(FREEZING, Look::Spent),
    );
    let suspending = [
        "prepare",
        "quiesce",
        "unquiesce",
        "detach",
        "terminate",
        "record_terminated",
        "record_reattach",
        "record_end",
    ];
    let thaw = EffectKind::Resume(Depth::Freeze);
    let look = observe(thaw, Look::Spent);
    foreign(asleep(Depth::Freeze), RESUME, &suspending, &look);
    // Its image is not pinned: no effect of it is there to look for.
    let look = Action::Observe {
        after: None,
        look: Look::Spent,
    };
    foreign(blank(), Verb::Create, &suspending, &look);
    // A delete calls again after its look: removing twice is removing once.
    let mut others = actions();
    others.retain(|done| !matches!(done, Action::Call { .. }));
    let others: Vec<_> = others.iter().map(Action::name).collect();
    let look = observe(EffectKind::Delete, Look::Called(None));
    foreign(ready(), DELETE, &others, &look);
}

#[test]
fn a_suspend_that_was_not_being_undone_says_so() {
    let (sandbox, op) = begun(ready(), FREEZE);
    let attach = Action::Attach {
        held: HELD,
        remarks: Vec::new(),
    };
    let next = steps::next(&sandbox, &op, attach, Event::Attached, Deadline::Ahead);
    assert!(undone(&next, Reason::SuspendAborted), "{next:?}");
}
