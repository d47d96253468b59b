//! A call of the driver by the owner, with its luck: what is sent, what comes of it, and what is
//! answered.

use overwinter_lifecycle::operation::{EffectKind, Operation, Verb};
use overwinter_lifecycle::record::{Compute, Debt, DebtKind, DriverReference};
use overwinter_lifecycle::steps::{Deadline, Effected, Event};
use overwinter_lifecycle::{Depth, Fault, Reason};

use super::canonical::NO_KEY;
use super::flaw::Flaw;
use super::invariant::{Invariant, Violation};
use super::moves::Setup;
use super::owner::{Luck, injected};
use super::retained::retained_artifact;
use super::state::State;
use super::world::{Backend, Key, Leftover, Reply, Sent};

/// The model's driver says so in the reference of memory that it has written.
pub(crate) const ON_DISK: &str = "on disk";

pub(crate) fn call(
    state: &mut State,
    op: &Operation,
    effect: EffectKind,
    luck: Luck,
    setup: &Setup,
) -> Result<Option<Event>, Violation> {
    let Some(key) = op.intent_key() else {
        return Err(Invariant::OneLiveCompute.broken("an effect without a recorded intent"));
    };
    let sent = Sent {
        effect,
        key: Key {
            fence: key.fence,
            serial: key.serial,
        },
        incarnation: state.sandbox.issued,
        undoing: matches!(op.verb, Verb::Suspend { .. }),
        artifact: retained_artifact(&state.sandbox),
    };
    let held_up = setup.backend == Backend::Locked && state.world.flying.is_some();
    let event = match luck {
        // The lock is not to be had within the deadline.
        Luck::Good if held_up => {
            state.deadline = Deadline::Up;
            unknown(state, sent, setup)
        }
        Luck::Good => {
            let reply = state.carry_out(sent, setup)?;
            if reply == Reply::Damaged {
                state.world.tell_damage();
            }
            // It is told as often as it is asked for.
            let left = state.world.leftover != Leftover::Nothing;
            if left && effect == EffectKind::Suspend(Depth::Stop) {
                state.world.leftover = Leftover::Told;
                with_leftover(replied(reply, sent, setup))
            } else {
                replied(reply, sent, setup)
            }
        }
        Luck::ReplyLost if !held_up => {
            state.carry_out(sent, setup)?;
            unknown(state, sent, setup)
        }
        Luck::RequestLost => unknown(state, sent, setup),
        Luck::Late if state.world.flying.is_none() => {
            state.world.flying = Some(sent);
            unknown(state, sent, setup)
        }
        Luck::Refused if !held_up && may_refuse(state, sent) => {
            state.world.refuse(sent.key);
            Event::Refused(injected())
        }
        Luck::Leftover
            if !held_up
                && effect == EffectKind::Suspend(Depth::Stop)
                && state.world.compute().is_some()
                && (state.world.newest).is_none_or(|(newest, _)| newest <= sent.key) =>
        {
            let reply = state.carry_out(sent, setup)?;
            state.world.leftover = Leftover::Told;
            with_leftover(replied(reply, sent, setup))
        }
        Luck::ReplyLost
        | Luck::Late
        | Luck::Refused
        | Luck::Leftover
        | Luck::SeesStop
        | Luck::Silent
        | Luck::SilentDone => return Ok(None),
    };
    Ok(Some(event))
}

/// A refusal promises: of a create or start, that no compute is there; of a suspend, that it is as
/// it was; of a resume, that nothing ran.
fn may_refuse(state: &State, sent: Sent) -> bool {
    let done = state.world.newest == Some((sent.key, true));
    match sent.effect {
        EffectKind::Create | EffectKind::Start => state.world.compute().is_none(),
        EffectKind::Resume(_) => !done,
        // Of this call alone: one before it may have done it.
        EffectKind::Suspend(_) | EffectKind::Reattach | EffectKind::Delete => true,
    }
}

fn replied(reply: Reply, sent: Sent, setup: &Setup) -> Event {
    match reply {
        Reply::Done(compute) => {
            let mut reference = DriverReference::default();
            if let Compute::Frozen { held } = compute {
                reference.format = u32::try_from(held.0).unwrap_or(u32::MAX);
            }
            if sent.effect == EffectKind::Suspend(Depth::Checkpoint) {
                reference.location = ON_DISK.to_owned();
            }
            Event::Effected(Effected {
                compute,
                reference,
                size_bytes: 0,
                leftovers: Vec::new(),
                remarks: Vec::new(),
                reclaimed: None,
            })
        }
        Reply::Refused => Event::Refused(injected()),
        // As `gateway/src/reconciler/perform.rs` tells it.
        Reply::Missing => Event::Refused(match sent.effect {
            EffectKind::Resume(_) | EffectKind::Suspend(Depth::Checkpoint) => {
                Fault::new(Reason::RetainedLost, "")
            }
            EffectKind::Create
            | EffectKind::Start
            | EffectKind::Suspend(Depth::Freeze | Depth::Stop)
            | EffectKind::Reattach
            | EffectKind::Delete => injected(),
        }),
        Reply::Damaged if setup.flaw == Some(Flaw::TrustDamaged) => Event::Refused(injected()),
        Reply::Damaged => Event::Refused(Fault::new(Reason::ArtifactDamaged, "")),
        Reply::Unknown => Event::Unknown(injected()),
    }
}

fn with_leftover(event: Event) -> Event {
    match event {
        Event::Effected(effected) => Event::Effected(Effected {
            leftovers: vec![Debt {
                key: NO_KEY,
                kind: DebtKind::Compute,
                reference: String::new(),
            }],
            ..effected
        }),
        event => event,
    }
}

fn unknown(state: &State, sent: Sent, setup: &Setup) -> Event {
    if setup.flaw != Some(Flaw::AssumeSuccess) {
        return Event::Unknown(injected());
    }
    let held = state.sandbox.compute.held().unwrap_or(state.sandbox.issued);
    let issued = state.sandbox.issued;
    let compute = match sent.effect {
        EffectKind::Create | EffectKind::Start => Compute::Live { held: issued },
        EffectKind::Resume(_) | EffectKind::Reattach => Compute::Live { held },
        EffectKind::Suspend(Depth::Freeze) => Compute::Frozen { held },
        EffectKind::Suspend(Depth::Checkpoint | Depth::Stop) | EffectKind::Delete => {
            Compute::Absent
        }
    };
    replied(Reply::Done(compute), sent, setup)
}

impl State {
    pub(crate) fn carry_out(&mut self, sent: Sent, setup: &Setup) -> Result<Reply, Violation> {
        let reply = self.world.carry_out(sent, setup.backend, setup.flaw)?;
        if setup.flaw == Some(Flaw::RestoreTwice)
            && sent.effect == EffectKind::Resume(Depth::Checkpoint)
            && let Some((_, settled)) = &mut self.world.newest
        {
            *settled = false;
        }
        if setup.flaw == Some(Flaw::StopTakesStorage)
            && sent.effect == EffectKind::Suspend(Depth::Stop)
        {
            self.world.storage = false;
        }
        Ok(reply)
    }
}
