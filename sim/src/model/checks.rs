//! The invariants, held against each state and each move. A check answers
//! whether its premise was met, so that one that never was can be told from one that holds.

use overwinter_lifecycle::Phase;
use overwinter_lifecycle::admission::call::{self, CallAdmission};
use overwinter_lifecycle::admission::{Disposition, Request, admit};
use overwinter_lifecycle::capacity::Usage;
use overwinter_lifecycle::operation::{Achieved, Operation, Outcome, Step, Verb};
use overwinter_lifecycle::record::{Compute, Desired, Sandbox};
use overwinter_lifecycle::recording::{Ending, Recording};
use overwinter_lifecycle::steps::Action;
use overwinter_lifecycle::{Depth, Reason};

use super::flaw::Flaw;
use super::invariant::{Invariant, Violation};
use super::moves::{Move, REQUESTS, Setup, Taken};
use super::retained;
use super::state::State;
use super::world::{Backend, Leftover, Native};
use crate::search::Tally;

pub(super) type Checked = Result<(), Violation>;

pub(super) fn ensure(holds: bool, invariant: Invariant, how: impl FnOnce() -> String) -> Checked {
    if holds {
        Ok(())
    } else {
        Err(invariant.broken(how()))
    }
}

/// Of one state.
pub fn state(state: &State, setup: &Setup, tally: &mut Tally) -> Checked {
    one_live_compute(state, tally)?;
    calls(state, setup, tally)?;
    deletes_are_admitted(state, tally)?;
    files(state, tally)?;
    tombstone(state, tally)?;
    let line = state.sandbox.waiting.is_none() || state.sandbox.running.is_some();
    ensure(line, Invariant::LineIsServed, || {
        "one waits behind nothing".to_owned()
    })?;
    let owned = state.sandbox.running.is_some() == state.next.is_some();
    ensure(owned, Invariant::LineIsServed, || {
        "an operation without an owner".to_owned()
    })?;
    sleepers(state, tally)?;
    retained::artifacts(state, tally)?;
    if state.sandbox.running.is_none() && !state.unseen {
        tally.met(Invariant::RecordIsTrue);
        record(state)?;
    }
    capacity(state, setup, tally)
}

fn sleepers(state: &State, tally: &mut Tally) -> Checked {
    let (Some(op), Some(action)) = (&state.sandbox.running, &state.next) else {
        return Ok(());
    };
    if state.sandbox.retained.is_none() || !matches!(op.verb, Verb::Suspend { .. }) {
        return Ok(());
    }
    tally.met(Invariant::SleepersAreLeftAlone);
    let spoken_to = matches!(
        action,
        Action::Quiesce
            | Action::Unquiesce(_)
            | Action::Detach
            | Action::Terminate
            | Action::Attach { .. }
            | Action::LiftQuiesce { .. }
            | Action::StartMain { .. }
            | Action::Hook { .. }
    );
    ensure(!spoken_to, Invariant::SleepersAreLeftAlone, || {
        format!("it sleeps, and {} comes next", action.name())
    })
}

fn one_live_compute(state: &State, tally: &mut Tally) -> Checked {
    let count = state.world.computes.iter().flatten().count()
        + usize::from(state.world.leftover == Leftover::Told);
    if count > 0 {
        tally.met(Invariant::OneLiveCompute);
    }
    ensure(count <= 1, Invariant::OneLiveCompute, || {
        format!("{count} are there")
    })
}

fn whole(native: &Native, sandbox: &Sandbox) -> bool {
    !native.frozen
        && !native.quiesced
        && !native.detached
        && !native.terminated
        && native.main_started
        && native.credentials == sandbox.issued
}

fn calls(state: &State, setup: &Setup, tally: &mut Tally) -> Checked {
    let sandbox = &state.sandbox;
    let admission = match &sandbox.running {
        Some(op)
            if setup.flaw == Some(Flaw::CallWhileSuspending)
                && matches!(op.verb, Verb::Suspend { .. })
                && op.step == Step::Begun =>
        {
            CallAdmission::Admit
        }
        Some(_) | None => call::admit(sandbox),
    };
    if admission != CallAdmission::Admit {
        return Ok(());
    }
    tally.met(Invariant::CallsOnlyWhileReady);
    let broken = |how: &str| Invariant::CallsOnlyWhileReady.broken(how.to_owned());
    if sandbox.phase() != Phase::Ready || sandbox.running.is_some() {
        return Err(broken("a call is let in while an operation runs"));
    }
    match state.world.compute() {
        // It has died, and nobody has looked yet: the call fails.
        None => Ok(()),
        Some(native) if whole(native, sandbox) => Ok(()),
        Some(native) => Err(broken(&format!("a call is let in to {native:?}"))),
    }
}

fn deletes_are_admitted(state: &State, tally: &mut Tally) -> Checked {
    let sandbox = &state.sandbox;
    if sandbox.tombstone_at.is_some() {
        tally.met(Invariant::NothingIsLeft);
        for request in REQUESTS {
            let begins = matches!(admit(sandbox, request), Disposition::Accept(_));
            ensure(!begins, Invariant::NothingIsLeft, || {
                format!("{request:?} begins on a tombstone")
            })?;
        }
        return Ok(());
    }
    tally.met(Invariant::DeleteDominates);
    let plain_waits =
        (sandbox.waiting.as_ref()).is_some_and(|op| op.verb == Verb::Delete { abandon: false });
    for abandon in [false, true] {
        match admit(sandbox, Request::Delete { abandon }) {
            // Nothing replaces a waiting delete, not even an abandoning one: it begins first.
            Disposition::Deny(Reason::DeleteInLine) if abandon && plain_waits => {}
            Disposition::Deny(reason) => {
                let how = format!(
                    "a delete is denied in {}: {}",
                    sandbox.phase(),
                    reason.code()
                );
                return Err(Invariant::DeleteDominates.broken(how));
            }
            Disposition::Accept(_)
            | Disposition::Join(_)
            | Disposition::Queue { .. }
            | Disposition::TurnBack { .. }
            | Disposition::NoOp => {}
        }
    }
    Ok(())
}

fn files(state: &State, tally: &mut Tally) -> Checked {
    if !state.used || state.sandbox.desired == Desired::Deleted {
        return Ok(());
    }
    tally.met(Invariant::FilesKept);
    ensure(state.world.storage, Invariant::FilesKept, || {
        "its storage is gone".to_owned()
    })
}

fn usage(sandbox: &Sandbox, setup: &Setup) -> Usage {
    if setup.flaw == Some(Flaw::UnknownIsFree)
        && sandbox.compute == Compute::Unknown
        && sandbox.running.is_none()
    {
        return Usage::default();
    }
    Usage::of(sandbox)
}

fn capacity(state: &State, setup: &Setup, tally: &mut Tally) -> Checked {
    let sandbox = &state.sandbox;
    if state.unseen || state.abandoned {
        return Ok(());
    }
    let held = usage(sandbox, setup);
    let flying = setup.backend == Backend::Locked
        && (state.world.flying).is_some_and(|sent| sent.effect.makes_compute());
    let native = state.world.compute();
    if native.is_some() || flying || state.compute_debt {
        tally.met(Invariant::CapacityIsTrue);
    }
    let runs = flying || state.compute_debt || native.is_some_and(|native| !native.frozen);
    ensure(
        !runs || held.running == 1,
        Invariant::CapacityIsTrue,
        || format!("what runs holds no place: {held:?}"),
    )?;
    ensure(
        native.is_none() || held.memory_bytes > 0,
        Invariant::CapacityIsTrue,
        || format!("what is resident holds no memory: {held:?}"),
    )?;
    let seen_gone = sandbox.running.is_none()
        && sandbox.compute == Compute::Absent
        && sandbox.compute_debts == 0;
    ensure(
        !seen_gone || held == Usage::default(),
        Invariant::CapacityIsTrue,
        || format!("what is gone holds {held:?}"),
    )
}

fn tombstone(state: &State, tally: &mut Tally) -> Checked {
    let sandbox = &state.sandbox;
    if sandbox.tombstone_at.is_none() {
        return Ok(());
    }
    let broken = |how: &str| Invariant::NothingIsLeft.broken(how.to_owned());
    tally.met(Invariant::NothingIsLeft);
    if sandbox.running.is_some() || sandbox.waiting.is_some() {
        return Err(broken("an operation is in line of a tombstone"));
    }
    if state.abandoned || state.unseen {
        return Ok(());
    }
    if state.world.compute().is_some() {
        return Err(broken("compute is there"));
    }
    if state.world.leftover == Leftover::Told && !state.compute_debt {
        return Err(broken("a leftover that nothing speaks of is there"));
    }
    if state.world.storage && !state.storage_debt {
        return Err(broken("storage is there that nothing speaks of"));
    }
    Ok(())
}

/// What the record says where nothing is at work.
fn record(state: &State) -> Checked {
    let (sandbox, world) = (&state.sandbox, &state.world);
    let broken = |how: String| Err(Invariant::RecordIsTrue.broken(how));
    // Death is found by the next look.
    let there = match (sandbox.compute, world.compute()) {
        (Compute::Unknown, _)
        | (Compute::Absent | Compute::Live { .. } | Compute::Frozen { .. }, None) => true,
        (Compute::Live { held }, Some(native)) => !native.frozen && native.held == held,
        (Compute::Frozen { held }, Some(native)) => native.frozen && native.held == held,
        (Compute::Absent, Some(_)) => state.abandoned,
    };
    if !there {
        return broken(format!(
            "{:?} is there, {:?} is recorded",
            world.compute(),
            sandbox.compute
        ));
    }
    match sandbox.phase() {
        Phase::Ready => {
            if sandbox.desired != Desired::Running
                || !matches!(sandbox.compute, Compute::Live { .. })
            {
                return broken(format!(
                    "Ready, and {:?}, {:?}",
                    sandbox.desired, sandbox.compute
                ));
            }
        }
        Phase::Suspended(depth) => return retained::asleep(state, depth),
        Phase::Failed => {
            if sandbox.desired == Desired::Deleted {
                return broken("Failed, and deleted".to_owned());
            }
        }
        Phase::Deleting | Phase::Tombstone => {
            if sandbox.desired != Desired::Deleted {
                return broken("deleting what is wanted".to_owned());
            }
        }
        Phase::Creating | Phase::Suspending(_) | Phase::Resuming => {
            return broken("in motion with nobody at work".to_owned());
        }
    }
    Ok(())
}

/// Of one move.
pub fn step(before: &State, mv: Move, taken: &Taken, tally: &mut Tally) -> Checked {
    let after = &taken.state;
    let (old, new) = (&before.sandbox, &after.sandbox);
    let rise =
        new.fence >= old.fence && new.issued >= old.issued && new.generation >= old.generation;
    ensure(rise, Invariant::FencesRise, || {
        format!("{} {} {} fall", old.fence, old.issued, old.generation)
    })?;
    if new.fence > old.fence {
        tally.met(Invariant::FencesRise);
    }
    if before.world.given != after.world.given {
        tally.met(Invariant::IncarnationsAreNew);
    }
    let asleep = |state: &State| {
        let frozen = state.world.compute().is_some_and(|native| native.frozen);
        (frozen, state.world.artifacts.len())
    };
    if asleep(after) > asleep(before) {
        tally.met(Invariant::SleepersHaveLetGo);
    }
    line(before, taken, tally)?;
    if old.desired == Desired::Deleted {
        ensure(
            new.desired == Desired::Deleted,
            Invariant::DeleteDominates,
            || "a delete is taken back".to_owned(),
        )?;
    }
    retained::offered(before, taken, tally)?;
    if let (Some(op), Some(recording)) = (&old.running, &taken.recording)
        && matches!(op.verb, Verb::Suspend { .. })
    {
        suspend(before, taken, recording, tally)?;
    }
    for op in &taken.ended {
        outcome(before, op, taken, tally)?;
    }
    if matches!(mv, Move::Die | Move::Land) {
        ensure(old == new, Invariant::RecordIsTrue, || {
            "a record changes by itself".to_owned()
        })?;
    }
    Ok(())
}

/// Whoever was in line is still there, or has ended with an outcome.
fn line(before: &State, taken: &Taken, tally: &mut Tally) -> Checked {
    let new = &taken.state.sandbox;
    for (op, waited) in [
        (&before.sandbox.running, false),
        (&before.sandbox.waiting, true),
    ] {
        let Some(op) = op else { continue };
        tally.met(Invariant::LineIsServed);
        let ended = taken.ended.iter().filter(|ended| ended.id == op.id).count();
        let in_line = usize::from(
            [&new.running, &new.waiting]
                .into_iter()
                .flatten()
                .any(|now| now.id == op.id),
        );
        let invariant = if waited && matches!(op.verb, Verb::Delete { .. }) {
            Invariant::DeleteDominates
        } else {
            Invariant::LineIsServed
        };
        ensure(ended + in_line == 1, invariant, || {
            format!(
                "{} is in line {in_line} times and ends {ended} times",
                op.verb.as_str()
            )
        })?;
        if invariant == Invariant::DeleteDominates {
            let replaced = (taken.ended.iter()).any(|ended| {
                ended.id == op.id && matches!(ended.outcome, Some(Outcome::SupersededBy(_)))
            });
            ensure(!replaced, invariant, || {
                "a waiting delete is replaced".to_owned()
            })?;
        }
    }
    let with_outcome = taken
        .ended
        .iter()
        .all(|op| op.outcome.is_some() && op.step == Step::Ended);
    ensure(with_outcome, Invariant::LineIsServed, || {
        "one ends without an outcome".to_owned()
    })
}

/// A suspend changes nothing of what is observed until it ends; one that does not succeed sets the
/// wish back to what is so.
fn suspend(before: &State, taken: &Taken, recording: &Recording, tally: &mut Tally) -> Checked {
    let (old, new) = (&before.sandbox, &taken.state.sandbox);
    let as_it_was = (
        &old.compute,
        &old.retained,
        &old.failure,
        &old.secret,
        old.generation,
    ) == (
        &new.compute,
        &new.retained,
        &new.failure,
        &new.secret,
        new.generation,
    );
    match recording {
        Recording::Intent { .. } | Recording::Terminated | Recording::Reattach(_) => ensure(
            as_it_was && old.issued == new.issued,
            Invariant::RejectedChangesNothing,
            || format!("{recording:?} changes what it is undone to"),
        ),
        Recording::End(Ending::Aborted(_) | Ending::TurnedBack) if new.running.is_none() => {
            tally.met(Invariant::RejectedChangesNothing);
            let wish = match (new.desired, new.phase()) {
                (Desired::Deleted, _) => old.desired == Desired::Deleted,
                (Desired::Running, phase) => matches!(phase, Phase::Ready | Phase::Failed),
                (Desired::Suspended(wish), phase) => phase == Phase::Suspended(wish),
            };
            ensure(as_it_was && wish, Invariant::RejectedChangesNothing, || {
                format!("{recording:?} leaves {:?} in {}", new.desired, new.phase())
            })
        }
        Recording::End(_) | Recording::GiveUpMemory | Recording::FallBack => Ok(()),
    }
}

fn outcome(before: &State, op: &Operation, taken: &Taken, tally: &mut Tally) -> Checked {
    let Some(Outcome::Succeeded { achieved, .. }) = &op.outcome else {
        return Ok(());
    };
    tally.met(Invariant::OutcomeIsTrue);
    let new = &taken.state.sandbox;
    let native = taken.state.world.compute();
    let is_true = match (op.verb, achieved) {
        (Verb::Suspend { depth, .. }, _) => new.retained.as_ref().is_some_and(|retained| {
            retained.depth == depth && (depth == Depth::Stop || retained.lost.is_none())
        }),
        // The same processes, of compute that an earlier operation made.
        (Verb::Resume { .. } | Verb::Start, Achieved::Memory) => {
            matches!(op.verb, Verb::Resume { .. })
                && native.is_none_or(|native| !native.terminated && native.made_by.fence < op.fence)
        }
        (Verb::Resume { fallback, .. }, Achieved::Storage) => {
            // Memory of a compute that never was Ready holds nobody's processes.
            fallback
                || before.sandbox.secret.is_none()
                || !before
                    .sandbox
                    .retained
                    .as_ref()
                    .is_some_and(|was| was.depth.keeps_memory())
        }
        // Nothing was to be done, or the sandbox is new.
        (Verb::Create | Verb::Resume { .. } | Verb::Start, Achieved::Done | Achieved::Storage) => {
            true
        }
        (Verb::Create, Achieved::Memory) => false,
        (Verb::Delete { .. }, _) => new.tombstone_at.is_some(),
    };
    ensure(is_true, Invariant::OutcomeIsTrue, || {
        format!(
            "{:?} is said to have achieved {achieved:?}; there is {native:?}",
            op.verb
        )
    })
}
