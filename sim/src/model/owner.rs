//! The owner of the running operation, as the gateway's: carry out an action, hand the event to
//! `steps::next`, record through `recording::record`. Each is a step of its own, so that a crash
//! can come between any two of them.

use overwinter_lifecycle::ids::Millis;
use overwinter_lifecycle::operation::{EffectKind, Operation, Verb};
use overwinter_lifecycle::record::{DebtKind, Desired};
use overwinter_lifecycle::recording::{Ending, Memory, Recorded, Recording, SecretHash, record};
use overwinter_lifecycle::steps::{self, Action, Deadline, Event, Observed};
use overwinter_lifecycle::{Depth, Fault, Reason};

use super::call::call;
use super::flaw::Flaw;
use super::invariant::{Invariant, Violation};
use super::line::{LIMITS, others};
use super::moves::{Setup, Taken};
use super::state::State;
use super::world::{Backend, Key};

/// How an action turns out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Luck {
    Good,
    /// What waits for an answer sees that its operation is to stop.
    SeesStop,
    /// It happens; the reply is lost.
    ReplyLost,
    /// It never happens; nobody says so.
    RequestLost,
    /// Nobody says so, and it happens at some time.
    Late,
    /// Surely without an effect.
    Refused,
    /// No answer, nothing done.
    Silent,
    /// No answer, but done.
    SilentDone,
    /// A stop ends what runs and leaves something behind, and says so.
    Leftover,
}

impl Luck {
    pub const ALL: [Self; 9] = [
        Self::Good,
        Self::SeesStop,
        Self::ReplyLost,
        Self::RequestLost,
        Self::Late,
        Self::Refused,
        Self::Silent,
        Self::SilentDone,
        Self::Leftover,
    ];
}

pub(crate) fn injected() -> Fault {
    Fault::new(Reason::DriverRejected, "")
}

/// One step of the owner; none where this luck cannot be had.
pub(crate) fn step(state: &State, luck: Luck, setup: &Setup) -> Result<Option<Taken>, Violation> {
    let (Some(action), Some(op)) = (&state.next, &state.sandbox.running) else {
        return Ok(None);
    };
    if let Action::Record(recording) = action {
        return match luck {
            Luck::Good => write(state, op, recording.clone(), setup).map(Some),
            Luck::SeesStop
            | Luck::ReplyLost
            | Luck::RequestLost
            | Luck::Late
            | Luck::Refused
            | Luck::Silent
            | Luck::SilentDone
            | Luck::Leftover => Ok(None),
        };
    }
    let mut after = state.clone();
    let Some(event) = perform(&mut after, action, op, luck, setup)? else {
        return Ok(None);
    };
    go_on(&mut after, action.clone(), event, setup);
    Ok(Some(Taken::quietly(after)))
}

fn go_on(state: &mut State, done: Action, event: Event, setup: &Setup) {
    let Some(running) = &state.sandbox.running else {
        return;
    };
    let deadline = if setup.flaw == Some(Flaw::RetryForEver) {
        Deadline::Ahead
    } else {
        state.deadline
    };
    let stopped = matches!(event, Event::Stopped(_));
    let next = match steps::next(&state.sandbox, running, done, event, deadline) {
        Action::Record(Recording::End(Ending::TurnedBack))
            if setup.flaw == Some(Flaw::SpeakToSleepers) && stopped =>
        {
            Action::Unquiesce(Box::new(Ending::TurnedBack))
        }
        next => next,
    };
    state.next = Some(next);
}

/// Where a new owner begins.
pub(crate) fn first(state: &mut State) {
    state.deadline = Deadline::Ahead;
    state.next = (state.sandbox.running.as_ref()).map(|op| steps::first(&state.sandbox, op));
}

fn write(
    state: &State,
    op: &Operation,
    mut recording: Recording,
    setup: &Setup,
) -> Result<Taken, Violation> {
    let mut after = state.clone();
    match &mut recording {
        Recording::End(Ending::Ready { secret, .. }) => *secret = Some(SecretHash([1; 32])),
        Recording::End(Ending::StillSuspended { memory, .. })
            if setup.flaw == Some(Flaw::OfferLostMemory) =>
        {
            *memory = Memory::NothingRan;
        }
        Recording::End(_)
        | Recording::Intent { .. }
        | Recording::Terminated
        | Recording::Reattach(_)
        | Recording::GiveUpMemory
        | Recording::FallBack => {}
    }
    let writer = (op.id, op.fence);
    let room = (others(state.full), &LIMITS);
    let written = record(
        &mut after.sandbox,
        writer,
        recording.clone(),
        room,
        Millis(0),
    );
    let Ok((recorded, rows)) = written else {
        return Err(Invariant::LineIsServed.broken("the only owner was fenced off"));
    };
    for debt in &rows.debts {
        match debt.kind {
            DebtKind::Compute => after.compute_debt = true,
            DebtKind::Storage => after.storage_debt = true,
            DebtKind::Artifact if setup.flaw == Some(Flaw::ForgetArtifact) => {}
            DebtKind::Artifact => after.artifact_debts.push(Key {
                fence: debt.key.fence,
                serial: debt.key.serial,
            }),
        }
    }
    spoil(state, &mut after, &recording, setup.flaw);
    match recorded {
        Recorded::Done(_) => go_on(
            &mut after,
            Action::Record(recording.clone()),
            Event::Recorded,
            setup,
        ),
        Recorded::Stop(stopping) => {
            let done = Action::Record(recording.clone());
            go_on(&mut after, done, Event::Stopped(stopping), setup);
        }
        Recorded::Ended { .. } => {
            note_end(&mut after, &recording, op);
            first(&mut after);
        }
    }
    Ok(Taken {
        state: after,
        ended: rows.ended,
        recording: Some(recording),
    })
}

fn note_end(after: &mut State, recording: &Recording, op: &Operation) {
    let Recording::End(ending) = recording else {
        return;
    };
    match ending {
        Ending::Ready { .. } => {
            after.used = true;
            after.unseen = false;
        }
        Ending::Deleted { .. } => {
            after.abandoned |= op.verb == Verb::Delete { abandon: true };
            after.unseen = false;
        }
        Ending::Suspended(_)
        | Ending::Aborted(_)
        | Ending::TurnedBack
        | Ending::StillSuspended { .. }
        | Ending::Failed { .. }
        | Ending::NeverWas { .. }
        | Ending::NotDeleted(_)
        | Ending::Interrupted => {}
    }
}

fn spoil(before: &State, after: &mut State, recording: &Recording, flaw: Option<Flaw>) {
    match flaw {
        Some(Flaw::DropDebt) => after.sandbox.compute_debts = 0,
        Some(Flaw::ForgetDesired)
            if matches!(
                recording,
                Recording::End(Ending::Aborted(_) | Ending::TurnedBack)
            ) && before.sandbox.desired != Desired::Deleted =>
        {
            after.sandbox.desired = before.sandbox.desired;
        }
        Some(_) | None => {}
    }
}

/// What comes of an action that is not a recording.
fn perform(
    state: &mut State,
    action: &Action,
    op: &Operation,
    luck: Luck,
    setup: &Setup,
) -> Result<Option<Event>, Violation> {
    let issued = state.sandbox.issued;
    let event = match (action, luck) {
        (Action::Call { effect, .. }, luck) => {
            return call(state, op, *effect, luck, setup);
        }
        // It is prepared only when what may still land has landed: whoever holds the lock is waited
        // for by a driver that refuses, whatever a remote backend may still do by the gateway.
        (Action::Prepare(_), Luck::Good) if state.world.flying.is_some() => match setup.backend {
            Backend::Locked => Event::Refused(injected()),
            Backend::Fenced => return Ok(None),
        },
        (Action::Prepare(depth), Luck::Good) => {
            if depth.keeps_memory() && state.world.compute().is_none() {
                Event::Refused(injected())
            } else {
                Event::Done
            }
        }
        (Action::Pin, Luck::Good) => Event::Pinned("".into()),
        (Action::Prepare(_) | Action::Pin, Luck::Refused) => Event::Refused(injected()),

        (Action::Quiesce, Luck::SeesStop) => match op.stopping {
            Some(stopping) => {
                ask_inside(state, |native| native.quiesced = true);
                Event::Stopped(stopping)
            }
            None => return Ok(None),
        },
        // What has had its signal ends, whoever waits for it.
        (Action::Terminate, Luck::SeesStop) => match op.stopping {
            Some(stopping) => {
                ask_inside(state, |native| native.terminated = true);
                Event::Stopped(stopping)
            }
            None => return Ok(None),
        },
        (Action::Attach { .. } | Action::Hook { .. }, Luck::SeesStop) => match op.stopping {
            Some(stopping) => Event::Stopped(stopping),
            None => return Ok(None),
        },
        (Action::Quiesce, Luck::Refused) => {
            // The hook failed after it let nothing new in.
            ask_inside(state, |native| native.quiesced = true);
            Event::Refused(injected())
        }
        (Action::Quiesce, Luck::Good | Luck::SilentDone) => {
            answer(ask_inside(state, |native| native.quiesced = true), luck)
        }
        (Action::Unquiesce(_) | Action::LiftQuiesce { .. }, Luck::Good) => {
            if matches!(action, Action::Unquiesce(_)) && setup.flaw == Some(Flaw::ForgetUnquiesce) {
                Event::Done
            } else {
                answer(lift(state), luck)
            }
        }
        (Action::Detach, Luck::Good) if setup.flaw == Some(Flaw::SkipDetach) => Event::Done,
        (Action::Detach, Luck::Good | Luck::SilentDone) => {
            answer(ask_inside(state, |native| native.detached = true), luck)
        }
        (Action::Terminate, Luck::Good | Luck::SilentDone) => {
            answer(ask_inside(state, |native| native.terminated = true), luck)
        }
        (Action::StartMain { .. }, Luck::Good) => {
            answer(ask_inside(state, |native| native.main_started = true), luck)
        }
        (Action::Hook { .. }, Luck::Good) => Event::Done,
        (Action::Quiesce | Action::Detach | Action::Terminate, Luck::Silent) => Event::Unreachable,

        (Action::Observe { after, .. }, Luck::Good) => {
            let observed = state.world.observed();
            match (state.world.flying, setup.backend) {
                (None, _) => Event::Observed(observed),
                // It is looked at until it is settled: by what is seen, or by the end of the time in
                // which a lost request can still be carried out.
                (Some(_), Backend::Fenced)
                    if after.is_none_or(|effect| observed.shows(effect))
                        || setup.flaw == Some(Flaw::BelieveTooSoon) =>
                {
                    Event::Observed(observed)
                }
                (Some(_), Backend::Fenced) => return Ok(None),
                // These are looked at for as long as it takes.
                (Some(_), Backend::Locked)
                    if matches!(
                        after,
                        Some(
                            EffectKind::Create
                                | EffectKind::Suspend(Depth::Checkpoint)
                                | EffectKind::Resume(Depth::Checkpoint)
                        )
                    ) =>
                {
                    return Ok(None);
                }
                // Whoever carries it out holds the lock: past the deadline nothing is known.
                (Some(_), Backend::Locked) => {
                    state.deadline = Deadline::Up;
                    silence(setup)
                }
            }
        }
        (Action::Observe { .. }, Luck::SeesStop) => match op.stopping {
            Some(stopping) => Event::Stopped(stopping),
            None => return Ok(None),
        },
        (Action::Observe { .. }, Luck::Silent) => silence(setup),

        (Action::Attach { .. }, Luck::Good) => match state.world.compute() {
            None => Event::ComputeGone,
            Some(native) if !native.frozen && !native.detached && native.credentials == issued => {
                Event::Attached
            }
            Some(_) => Event::AttachTimeout,
        },
        (Action::Attach { .. }, Luck::Silent) => Event::AttachTimeout,
        (
            Action::Prepare(_)
            | Action::Quiesce
            | Action::Unquiesce(_)
            | Action::Detach
            | Action::Terminate
            | Action::Pin
            | Action::Observe { .. }
            | Action::Attach { .. }
            | Action::LiftQuiesce { .. }
            | Action::StartMain { .. }
            | Action::Hook { .. }
            | Action::Record(_),
            _,
        ) => return Ok(None),
    };
    Ok(Some(event))
}

fn silence(setup: &Setup) -> Event {
    Event::Observed(if setup.flaw == Some(Flaw::SilenceIsAbsence) {
        Observed::Absent
    } else {
        Observed::Unknown
    })
}

/// A supervisor does as asked if it is there and connected.
fn ask_inside(state: &mut State, ask: impl FnOnce(&mut super::world::Native)) -> bool {
    let native = state.world.live_mut().filter(|native| !native.detached);
    let reached = native.is_some();
    if let Some(native) = native {
        ask(native);
    }
    reached
}

/// One that is not reached now is told when it is there again.
fn lift(state: &mut State) -> bool {
    let native = state.world.live_mut();
    let reached = native.is_some();
    if let Some(native) = native {
        native.quiesced = false;
    }
    reached
}

const fn answer(reached: bool, luck: Luck) -> Event {
    match (reached, luck) {
        (true, Luck::Good) => Event::Done,
        _ => Event::Unreachable,
    }
}
