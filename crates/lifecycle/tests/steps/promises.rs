//! What is promised, held against what is there.

use std::fmt;

use overwinter_lifecycle::admission::call::{self, CallAdmission};
use overwinter_lifecycle::admission::{Disposition, Request, admit};
use overwinter_lifecycle::capacity::Usage;
use overwinter_lifecycle::operation::{Achieved, EffectKind, Operation, Outcome, Verb};
use overwinter_lifecycle::record::{
    Compute, Debt, DebtKind, Desired, Retained, RetainedStatus, Sandbox,
};
use overwinter_lifecycle::recording::Recording;
use overwinter_lifecycle::{Depth, Phase, Reason};

use crate::history::History;
use crate::luck::{ARTIFACT_BYTES, artifact_of};
use crate::world::{Artifact, Health, Native, World};

/// At every moment, whoever is at work.
pub(crate) fn always(history: &History) {
    let (sandbox, world) = (&history.sandbox, &history.backend.world);
    assert!(
        sandbox.waiting.is_none() || sandbox.running.is_some(),
        "it waits for nobody"
    );
    status(sandbox);
    calls(sandbox, world);
    if !world.abandoned {
        owners(history);
        capacity(sandbox, world);
    }
}

/// Retained memory is used by one operation, which has said so.
fn status(sandbox: &Sandbox) {
    let Some(retained) = &sandbox.retained else {
        return;
    };
    let Some(op) = &sandbox.running else {
        return;
    };
    let right = match op.verb {
        Verb::Start => RetainedStatus::Discarding,
        Verb::Resume { .. } if op.cold => RetainedStatus::Discarding,
        Verb::Create | Verb::Resume { .. } => RetainedStatus::BeingConsumed(op.id),
        Verb::Suspend { .. } => RetainedStatus::Available,
        Verb::Delete { .. } => return,
    };
    assert_eq!(retained.status, right, "{sandbox:?}");
}

/// A call is let in to compute that is whole alone. (Where it has died, the call fails.)
fn calls(sandbox: &Sandbox, world: &World) {
    if call::admit(sandbox) != CallAdmission::Admit {
        return;
    }
    let whole = |native: &Native| {
        !(native.frozen || native.quiesced || native.detached || native.terminated)
            && native.credentials == sandbox.issued
    };
    let there = world.compute.as_ref();
    assert!(there.is_none_or(whole), "a call is let in to {there:?}");
}

/// Nothing is left without an owner, and nothing has two: what may be on disk is retained, or owed, or
/// what the running operation has said that it writes. A delete removes all of it.
fn owners(history: &History) {
    let (sandbox, world) = (&history.sandbox, &history.backend.world);
    let owes = |kind, key| {
        let same = |debt: &&Debt| debt.kind == kind && debt.key == key;
        history.owed.iter().filter(same).count()
    };
    let deletes = sandbox.desired == Desired::Deleted && sandbox.tombstone_at.is_none();
    let retained = artifact_of(sandbox);
    let writes = sandbox.running.as_ref().and_then(|op| {
        let intent = op.intent?.effect == EffectKind::Suspend(Depth::Checkpoint);
        op.intent_key().filter(|_| intent)
    });
    for artifact in &world.artifacts {
        assert!(history.written.contains(&artifact.key), "{artifact:?}");
    }
    for &key in &history.written {
        let held = usize::from(Some(key) == retained) + usize::from(Some(key) == writes);
        let owners = held + owes(DebtKind::Artifact, key);
        assert!(owners == 1 || deletes, "{owners} own {key:?}: {sandbox:?}");
    }
    if let Some(key) = retained {
        let owed = owes(DebtKind::Artifact, key);
        assert_eq!(owed, 0, "what is retained is to be removed");
    }
    let of_compute = (history.owed.iter()).filter(|debt| debt.kind == DebtKind::Compute);
    assert_eq!(
        of_compute.count(),
        sandbox.compute_debts as usize,
        "{sandbox:?}"
    );
    if sandbox.tombstone_at.is_some() {
        assert_eq!(world.compute, None, "it outlives its sandbox");
        let storage = history
            .owed
            .iter()
            .any(|debt| debt.kind == DebtKind::Storage);
        assert!(!world.storage || storage, "storage outlives its sandbox");
    }
}

/// The record holds at least what is there.
fn capacity(sandbox: &Sandbox, world: &World) {
    let held = Usage::of(sandbox);
    let resident = world.compute.is_some();
    let runs = world.compute.is_some_and(|native| !native.frozen);
    assert!(!runs || held.running == 1, "{held:?} of {sandbox:?}");
    assert!(
        !resident || held.memory_bytes > 0,
        "{held:?} of {sandbox:?}"
    );
    let written = artifact_of(sandbox).map_or(0, |_| ARTIFACT_BYTES);
    assert!(held.disk_bytes >= written, "{held:?} of {sandbox:?}");
}

/// Who is let into the line. Nothing but a delete is, once there is one, and nothing on a tombstone.
pub(crate) fn admitted(sandbox: &Sandbox, request: Request) -> Disposition {
    let disposition = admit(sandbox, request);
    let verb = match disposition {
        Disposition::Accept(verb)
        | Disposition::Queue { verb, .. }
        | Disposition::TurnBack { verb, .. } => verb,
        Disposition::Join(id) => {
            let mut line = sandbox.running.iter().chain(&sandbox.waiting);
            let joined = line.find(|op| op.id == id).expect("it is in line").verb;
            assert!(
                is_content_with(request, joined),
                "{request:?} joins {joined:?}"
            );
            joined
        }
        Disposition::NoOp | Disposition::Deny(_) => return disposition,
    };
    let is_delete = matches!(verb, Verb::Delete { .. });
    let wanted = is_delete || sandbox.desired != Desired::Deleted;
    let fits = wanted && sandbox.tombstone_at.is_none();
    assert!(fits, "{request:?}: {disposition:?} on {sandbox:?}");
    disposition
}

/// Whether what comes of `joined` is what was asked for.
fn is_content_with(request: Request, joined: Verb) -> bool {
    match (request, joined) {
        (
            Request::Suspend {
                depth,
                idle,
                reclaim,
            },
            Verb::Suspend {
                depth: to,
                idle: is_idle,
                reclaim: reclaims,
            },
        ) => {
            depth.is_none_or(|depth| depth == to)
                && idle == is_idle
                && (reclaim == reclaims || (depth.is_none() && !reclaim))
        }
        (
            Request::Resume { fallback, prefetch },
            Verb::Resume {
                fallback: falls,
                prefetch: fetches,
            },
        ) => fallback == falls && prefetch == fetches,
        (Request::Start, Verb::Start) => true,
        (Request::Delete { abandon }, Verb::Delete { abandon: abandons }) => !abandon || abandons,
        _ => false,
    }
}

/// What only rises, and what is never taken back.
pub(crate) fn moved(before: &Sandbox, after: &Sandbox) {
    assert!(after.fence >= before.fence, "{after:?}");
    assert!(after.issued >= before.issued, "{after:?}");
    assert!(after.generation >= before.generation, "{after:?}");
    let stays = before.desired != Desired::Deleted || after.desired == Desired::Deleted;
    assert!(stays, "a delete is taken back: {after:?}");
}

/// What a suspend returns to where it does not happen.
fn as_it_was(before: &Sandbox, after: &Sandbox) -> bool {
    (&before.compute, &before.retained, &before.failure)
        == (&after.compute, &after.retained, &after.failure)
        && (before.secret, before.generation) == (after.secret, after.generation)
}

/// Of a suspend that was rejected, undone or turned back. (What begins behind it changes things.)
pub(crate) fn undone(begun: &Sandbox, after: &Sandbox) {
    let same = as_it_was(begun, after) || after.running.is_some();
    assert!(same, "{begun:?} became {after:?}");
}

/// Of an operation that goes on.
pub(crate) fn on_its_way(before: &Sandbox, after: &Sandbox, recording: &Recording) {
    match recording {
        Recording::Terminated | Recording::Reattach(_) => {
            assert!(as_it_was(before, after), "{recording:?}: {after:?}");
        }
        // What is cold is new: nothing of before is good for it.
        Recording::GiveUpMemory | Recording::FallBack => {
            assert!(after.issued > before.issued && after.generation > before.generation);
            assert_eq!(after.secret, None);
        }
        Recording::Intent { .. } | Recording::End(_) => {}
    }
}

/// Of an operation that has ended; `begun` is as it found the sandbox, `before` as it was to end.
pub(crate) fn ended(history: &mut History, (begun, before): (&Sandbox, &Sandbox), op: &Operation) {
    let world = &mut history.backend.world;
    // Whoever abandons it does not wait for what cannot be removed.
    world.abandoned |= op.verb == Verb::Delete { abandon: true };
    let (sandbox, world) = (&history.sandbox, &history.backend.world);
    let at = &At(op, sandbox);
    match op.outcome.as_ref().unwrap() {
        Outcome::Succeeded { achieved, .. } => {
            succeeded(sandbox, world, (before, op, *achieved), at);
        }
        Outcome::TurnedBack(_) | Outcome::Failed(_) | Outcome::SupersededBy(_) => {}
    }
    if matches!(op.verb, Verb::Suspend { .. } | Verb::Resume { .. }) {
        losses(begun, sandbox, op, at);
    }
    let given_up = |key| artifact_of(sandbox) != Some(key) && is_whole(world.artifact(key));
    let heard = &history.backend.heard;
    match (op.verb, &op.outcome) {
        (
            Verb::Suspend {
                depth: Depth::Checkpoint,
                ..
            },
            Some(Outcome::Failed(fault)),
        ) if fault.reason == Reason::RetainedLost => {
            let written = before.running.as_ref().and_then(Operation::intent_key);
            let whole = written.is_some_and(given_up);
            assert!(!whole || heard.refusal, "nobody said that it is gone {at}");
        }
        (
            Verb::Resume {
                fallback: false, ..
            },
            Some(Outcome::Failed(_)),
        ) => {
            let whole = artifact_of(before).is_some_and(given_up);
            assert!(!whole || heard.nothing, "nobody said that it is gone {at}");
        }
        _ => {}
    }
    let wanted = sandbox.desired != Desired::Deleted;
    let offered = wanted && (sandbox.retained.as_ref()).is_some_and(offers_memory);
    assert!(!(offered && heard.damage), "it was refused as damaged {at}");
}

/// What to say where it is not so; put into words only then.
struct At<'a>(&'a Operation, &'a Sandbox);

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(op, sandbox) = self;
        let (verb, outcome) = (op.verb, &op.outcome);
        write!(f, "after {verb:?} ended {outcome:?}: {sandbox:?}")
    }
}

fn is_whole(artifact: Option<&Artifact>) -> bool {
    artifact.is_some_and(|it| it.health == Health::Whole && !it.restored)
}

fn offers_memory(retained: &Retained) -> bool {
    retained.depth.keeps_memory() && retained.lost.is_none()
}

/// What was promised and is gone is told by its name, and nothing else is.
fn losses(begun: &Sandbox, sandbox: &Sandbox, op: &Operation, at: &At<'_>) {
    let promised = match (&begun.retained, op.verb) {
        (Some(slept), _) if slept.depth.keeps_memory() => Some(slept.depth),
        (Some(slept), _) => slept.lost,
        (None, Verb::Suspend { depth, .. }) => Some(depth).filter(|depth| depth.keeps_memory()),
        (None, _) => None,
    };
    let Some(retained) = &sandbox.retained else {
        return;
    };
    let told = retained.lost.is_none() || retained.lost == promised;
    assert!(told, "{promised:?} was promised {at}");
    let strict = matches!(
        op.verb,
        Verb::Resume {
            fallback: false,
            ..
        }
    );
    let failed = matches!(op.outcome, Some(Outcome::Failed(_)));
    if strict && failed && retained.depth == Depth::Stop {
        assert_eq!(retained.lost, promised, "{at}");
    }
}

/// What is said to have been achieved is so.
fn succeeded(
    sandbox: &Sandbox,
    world: &World,
    (before, op, achieved): (&Sandbox, &Operation, Achieved),
    at: &At<'_>,
) {
    let native = world.compute.as_ref();
    let kept = (before.retained.as_ref()).is_some_and(offers_memory);
    match (op.verb, achieved) {
        (Verb::Suspend { depth, .. }, Achieved::Done) => {
            let retained = sandbox.retained.as_ref();
            let lost = |it: &Retained| depth.keeps_memory() && it.lost.is_some();
            let right = |it: &Retained| it.depth == depth && !lost(it);
            assert!(retained.is_some_and(right), "{at}");
        }
        // The same processes, of compute that an earlier operation made and that was Ready.
        (Verb::Resume { .. }, Achieved::Memory) => {
            let same = |it: &Native| it.was_ready && !it.terminated && it.made_by.fence < op.fence;
            assert!(native.is_none_or(same), "{native:?} {at}");
        }
        // Strictly, that is what there is where no memory was promised.
        (
            Verb::Resume {
                fallback: false, ..
            },
            Achieved::Storage,
        ) => {
            let promised = |it: &Native| it.was_ready || it.made_by.fence == op.fence;
            assert!(!(kept && native.is_some_and(promised)), "{native:?} {at}");
        }
        (Verb::Resume { fallback: true, .. } | Verb::Start, Achieved::Storage) => {}
        (Verb::Create, Achieved::Done) => {}
        (Verb::Delete { .. }, Achieved::Done) => {
            assert!(sandbox.tombstone_at.is_some(), "{at}");
            let gone = native.is_none() && !world.storage && world.artifacts.is_empty();
            assert!(
                gone && world.remains.is_none() || world.abandoned,
                "{world:?} {at}"
            );
        }
        (_, Achieved::Done | Achieved::Memory | Achieved::Storage) => panic!("{at}"),
    }
    match op.verb {
        Verb::Create | Verb::Resume { .. } | Verb::Start => {
            let main = native.is_none_or(|it| it.was_ready || it.main);
            assert!(main, "no main process {at}");
            let compute = sandbox.compute.held().is_some();
            assert!(compute && sandbox.failure.is_none(), "{at}");
            assert!(sandbox.retained.is_none(), "{at}");
        }
        Verb::Suspend { .. } | Verb::Delete { .. } => {}
    }
}

/// Where nothing is at work, what the record says is what is there.
pub(crate) fn at_rest(history: &History) {
    let (sandbox, world) = (&history.sandbox, &history.backend.world);
    if world.abandoned {
        return;
    }
    // Death is found by the next look.
    let known = world.compute.is_none()
        || sandbox.compute == Compute::Unknown
        || sandbox.compute == world.compute();
    assert!(known, "{:?} is there: {sandbox:?}", world.compute);
    if let Some(remains) = world.remains.filter(|remains| remains.told) {
        let owed = history.owed.iter().any(|debt| debt.key == remains.key);
        assert!(owed, "{remains:?} is told and not owed");
    }
    match sandbox.phase() {
        Phase::Ready => {
            assert_eq!(sandbox.desired, Desired::Running, "{sandbox:?}");
            assert!(
                matches!(sandbox.compute, Compute::Live { .. }),
                "{sandbox:?}"
            );
        }
        Phase::Suspended(depth) => asleep(sandbox, world, depth),
        Phase::Failed => assert_ne!(sandbox.desired, Desired::Deleted, "{sandbox:?}"),
        Phase::Deleting | Phase::Tombstone => {
            assert_eq!(sandbox.desired, Desired::Deleted, "{sandbox:?}");
        }
        Phase::Creating | Phase::Suspending(_) | Phase::Resuming => {
            panic!("in motion with nobody at work: {sandbox:?}")
        }
    }
}

/// What it sleeps with is there, and nothing ran on it.
fn asleep(sandbox: &Sandbox, world: &World, depth: Depth) {
    let retained = sandbox.retained.as_ref().unwrap();
    assert_eq!(retained.status, RetainedStatus::Available, "{sandbox:?}");
    assert_eq!(retained.generation, sandbox.generation, "{sandbox:?}");
    assert_eq!(sandbox.desired, Desired::Suspended(depth), "{sandbox:?}");
    assert!(
        retained.lost.is_none_or(|lost| lost.keeps_memory()),
        "{sandbox:?}"
    );
    match depth {
        Depth::Freeze => {
            assert!(
                matches!(sandbox.compute, Compute::Frozen { .. }),
                "{sandbox:?}"
            );
            assert_eq!(
                (retained.lost, retained.artifact),
                (None, None),
                "{sandbox:?}"
            );
        }
        Depth::Checkpoint => {
            assert_eq!(sandbox.compute, Compute::Absent, "{sandbox:?}");
            assert_eq!(retained.lost, None, "{sandbox:?}");
            let artifact = retained.artifact.and_then(|key| world.artifact(key));
            let artifact = artifact.expect("what holds its memory");
            assert!(world.is_untouched(artifact), "{artifact:?} of {sandbox:?}");
            assert_eq!(retained.size_bytes, ARTIFACT_BYTES, "{sandbox:?}");
        }
        Depth::Stop => {
            assert_eq!(sandbox.compute, Compute::Absent, "{sandbox:?}");
            assert_eq!(retained.artifact, None, "{sandbox:?}");
        }
    }
}
