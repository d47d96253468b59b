//! States that differ only in numbers that nothing compares are one state: ids become who is in
//! line, fences and incarnations their rank among those that are still spoken of, words are dropped.

use overwinter_lifecycle::Fault;
use overwinter_lifecycle::ids::{
    DiskGeneration, EffectKey, Fence, Incarnation, OperationId, SandboxId, Serial,
};
use overwinter_lifecycle::operation::{Operation, Stopping};
use overwinter_lifecycle::record::{Compute, DriverReference, RetainedStatus};
use overwinter_lifecycle::recording::{Asleep, Ending, Recording};
use overwinter_lifecycle::steps::{Action, Look, Observed};

use super::state::{ENDED, RUNNING, State, WAITING};
use super::world::{Key, Native};

/// Nothing compares the keys of debts: what they name is what counts.
pub(crate) const NO_KEY: EffectKey = EffectKey {
    sandbox: SandboxId(uuid::Uuid::nil()),
    fence: Fence(0),
    serial: Serial(0),
};

pub fn canonical(mut state: State) -> State {
    name_operations(&mut state);
    drop_words(&mut state);
    rank(&mut state, for_each_fence, |fence| &mut fence.0);
    rank(&mut state, for_each_incarnation, |incarnation| {
        &mut incarnation.0
    });
    rank(&mut state, for_each_generation, |generation| {
        &mut generation.0
    });
    state
}

fn name_operations(state: &mut State) {
    let sandbox = &mut state.sandbox;
    let running = sandbox.running.as_ref().map(|op| op.id);
    let waiting = sandbox.waiting.as_ref().map(|op| op.id);
    let name = |id: &mut OperationId| {
        *id = if Some(*id) == running {
            RUNNING
        } else if Some(*id) == waiting {
            WAITING
        } else {
            ENDED
        };
    };
    if let Some(retained) = &mut sandbox.retained
        && let RetainedStatus::BeingConsumed(id) = &mut retained.status
    {
        name(id);
    }
    if let Some(failure) = &mut sandbox.failure {
        failure.operation = None;
    }
    for op in sandbox.running.iter_mut().chain(&mut sandbox.waiting) {
        match &mut op.stopping {
            Some(Stopping::TurnBack(Some(by)) | Stopping::Delete(by)) => name(by),
            Some(Stopping::TurnBack(None)) | None => {}
        }
        name(&mut op.id);
        // Whether it was taken over is all that is asked.
        op.attempt = op.attempt.min(2);
    }
}

fn drop_words(state: &mut State) {
    let sandbox = &mut state.sandbox;
    sandbox.spec.image_digest = None;
    if let Some(failure) = &mut sandbox.failure {
        failure.fault.message = String::new();
    }
    let aborting = |op: &mut Operation| {
        if let Some(fault) = &mut op.aborting {
            fault.message = String::new();
        }
    };
    sandbox.running.iter_mut().for_each(aborting);
    if let Some(action) = &mut state.next {
        drop_words_of(action);
    }
}

fn drop_words_of(action: &mut Action) {
    let silence = |fault: &mut Fault| fault.message = String::new();
    match action {
        Action::Observe {
            look: Look::Called(Some(fault)) | Look::Refused(fault),
            ..
        }
        | Action::Record(Recording::Reattach(fault)) => {
            silence(fault);
        }
        Action::Unquiesce(ending) => drop_words_of_end(ending),
        Action::Record(Recording::End(ending)) => drop_words_of_end(ending),
        Action::Hook { remarks, .. } => remarks.clear(),
        Action::Record(Recording::Intent { pinned, .. }) => *pinned = None,
        Action::Prepare(_)
        | Action::Quiesce
        | Action::Detach
        | Action::Terminate
        | Action::Pin
        | Action::Call { .. }
        | Action::Observe {
            look: Look::First | Look::Called(None) | Look::Spent,
            ..
        }
        | Action::Attach { .. }
        | Action::LiftQuiesce { .. }
        | Action::StartMain { .. }
        | Action::Record(Recording::Terminated | Recording::GiveUpMemory | Recording::FallBack) => {
        }
    }
}

fn drop_words_of_end(ending: &mut Ending) {
    match ending {
        Ending::Ready { remarks, .. } | Ending::Deleted { remarks } => remarks.clear(),
        Ending::Suspended(asleep) => asleep.remarks.clear(),
        Ending::NeverWas { fault, debts } => {
            fault.message = String::new();
            debts.iter_mut().for_each(|debt| debt.key = NO_KEY);
        }
        Ending::Aborted(fault)
        | Ending::StillSuspended { fault, .. }
        | Ending::Failed { fault, .. }
        | Ending::NotDeleted(fault) => fault.message = String::new(),
        Ending::TurnedBack | Ending::Interrupted => {}
    }
}

/// Visits each number of a kind.
type ForEach<N> = fn(&mut State, &mut dyn FnMut(&mut N));

/// Numbers keep their order and lose their distance; none stays none.
fn rank<N: Copy>(state: &mut State, for_each: ForEach<N>, value: fn(&mut N) -> &mut u64) {
    let mut seen = [0; 48];
    let mut len = 1;
    for_each(state, &mut |number| {
        let number = *value(number);
        if let Err(at) = seen[..len].binary_search(&number) {
            seen.copy_within(at..len, at + 1);
            seen[at] = number;
            len += 1;
        }
    });
    for_each(state, &mut |number| {
        let number = value(number);
        *number = seen[..len].partition_point(|seen| seen < number) as u64;
    });
}

fn for_each_fence(state: &mut State, f: &mut dyn FnMut(&mut Fence)) {
    f(&mut state.sandbox.fence);
    if let Some(op) = &mut state.sandbox.running {
        f(&mut op.fence);
    }
    let retained =
        (state.sandbox.retained.as_mut()).and_then(|retained| retained.artifact.as_mut());
    if let Some(artifact) = retained {
        f(&mut artifact.fence);
    }
    for_each_key(state, &mut |key| f(&mut key.fence));
}

fn for_each_key(state: &mut State, f: &mut dyn FnMut(&mut Key)) {
    let world = &mut state.world;
    if let Some((newest, _)) = &mut world.newest {
        f(newest);
    }
    if let Some(flying) = &mut world.flying {
        f(&mut flying.key);
        flying.artifact.iter_mut().for_each(&mut *f);
    }
    f(&mut world.given.1);
    let written = world.artifacts.iter_mut().map(|artifact| {
        f(&mut artifact.written_by);
        &mut artifact.native
    });
    let written: Vec<&mut Native> = written.collect();
    for native in world.computes.iter_mut().flatten().chain(written) {
        f(&mut native.made_by);
        native.restored_by.iter_mut().for_each(&mut *f);
    }
    state.artifact_debts.iter_mut().for_each(f);
}

fn for_each_generation(state: &mut State, f: &mut dyn FnMut(&mut DiskGeneration)) {
    f(&mut state.sandbox.generation);
    if let Some(retained) = &mut state.sandbox.retained {
        f(&mut retained.generation);
    }
}

fn for_each_incarnation(state: &mut State, f: &mut dyn FnMut(&mut Incarnation)) {
    let sandbox = &mut state.sandbox;
    f(&mut sandbox.issued);
    of_compute(&mut sandbox.compute, f);
    if let Some(retained) = &mut sandbox.retained {
        of_reference(&mut retained.reference, f);
    }
    if let Some(look) = &mut state.look {
        f(&mut look.issued);
        match &mut look.observed {
            Observed::Live { held } | Observed::Frozen { held } => f(held),
            Observed::Absent | Observed::Stopped | Observed::InTransition | Observed::Unknown => {}
        }
    }
    let world = &mut state.world;
    f(&mut world.given.0);
    if let Some(flying) = &mut world.flying {
        f(&mut flying.incarnation);
    }
    let written = world
        .artifacts
        .iter_mut()
        .map(|artifact| &mut artifact.native);
    for native in world.computes.iter_mut().flatten().chain(written) {
        f(&mut native.held);
        f(&mut native.credentials);
    }
    match &mut state.next {
        Some(
            Action::Attach { held, .. }
            | Action::LiftQuiesce { held, .. }
            | Action::StartMain { held, .. }
            | Action::Hook { held, .. },
        ) => f(held),
        Some(Action::Record(Recording::End(ending))) => of_ending(ending, f),
        Some(Action::Unquiesce(ending)) => of_ending(ending, f),
        Some(
            Action::Prepare(_)
            | Action::Quiesce
            | Action::Detach
            | Action::Terminate
            | Action::Pin
            | Action::Call { .. }
            | Action::Observe { .. }
            | Action::Record(
                Recording::Intent { .. }
                | Recording::Terminated
                | Recording::Reattach(_)
                | Recording::GiveUpMemory
                | Recording::FallBack,
            ),
        )
        | None => {}
    }
}

fn of_ending(ending: &mut Ending, f: &mut dyn FnMut(&mut Incarnation)) {
    match ending {
        Ending::Suspended(Asleep {
            compute, reference, ..
        }) => {
            of_compute(compute, f);
            of_reference(reference, f);
        }
        Ending::Ready { compute, .. }
        | Ending::StillSuspended { compute, .. }
        | Ending::Failed { compute, .. } => of_compute(compute, f),
        Ending::Aborted(_)
        | Ending::TurnedBack
        | Ending::NeverWas { .. }
        | Ending::Deleted { .. }
        | Ending::NotDeleted(_)
        | Ending::Interrupted => {}
    }
}

fn of_compute(compute: &mut Compute, f: &mut dyn FnMut(&mut Incarnation)) {
    match compute {
        Compute::Live { held } | Compute::Frozen { held } => f(held),
        Compute::Absent | Compute::Unknown => {}
    }
}

/// The model's driver writes into its reference which compute it was.
fn of_reference(reference: &mut DriverReference, f: &mut dyn FnMut(&mut Incarnation)) {
    let mut held = Incarnation(u64::from(reference.format));
    f(&mut held);
    reference.format = u32::try_from(held.0).unwrap_or(u32::MAX);
}
