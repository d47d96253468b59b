//! Luck: what an owner hears of its actions. Whatever a driver or a supervisor could honestly answer,
//! it answers here for some die.

use overwinter_lifecycle::ids::EffectKey;
use overwinter_lifecycle::operation::{EffectKind, Operation, Verb};
use overwinter_lifecycle::record::{Debt, DebtKind, DriverReference, Sandbox};
use overwinter_lifecycle::steps::{Action, Effected, Event, Observed};
use overwinter_lifecycle::{Depth, Fault, Reason};

use crate::world::{Native, Remains, Reply, Sent, World};

/// What an artifact takes of the disk.
pub(crate) const ARTIFACT_BYTES: u64 = 10;

pub(crate) fn injected() -> Fault {
    Fault::new(Reason::DriverRejected, "injected")
}

/// 0 to 255, the higher the worse; all calm once they are used up, so that faults stop.
#[derive(Debug, Default)]
pub(crate) struct Dice {
    pub(crate) dice: Vec<u8>,
    pub(crate) at: usize,
}

impl Dice {
    pub(crate) fn roll(&mut self) -> u8 {
        let die = self.dice.get(self.at).copied().unwrap_or(0);
        self.at += 1;
        die
    }

    pub(crate) const fn is_calm(&self) -> bool {
        self.at >= self.dice.len()
    }
}

/// What the owners of the running operation have heard so far.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    /// A call was not answered.
    pub(crate) nothing: bool,
    /// The driver refused a suspend.
    pub(crate) refusal: bool,
    /// The last word on what is on disk: it cannot be restored.
    pub(crate) damage: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Backend {
    pub(crate) world: World,
    pub(crate) dice: Dice,
    pub(crate) heard: Heard,
}

impl Backend {
    pub(crate) fn perform(&mut self, sandbox: &Sandbox, op: &Operation, action: &Action) -> Event {
        assert_sleeper_is_left_alone(sandbox, op, action);
        match action {
            Action::Call { effect, .. } => self.call(Sent {
                effect: *effect,
                key: op.intent_key().expect("a recorded intent"),
                issued: sandbox.issued,
                undoing: matches!(op.verb, Verb::Suspend { .. }),
                generation: sandbox.generation,
                artifact: artifact_of(sandbox),
            }),
            Action::Observe { .. } => self.look(op),
            Action::Prepare(depth) => match self.dice.roll() {
                235.. => Event::Refused(injected()),
                225.. => Event::Unreachable,
                _ if depth.keeps_memory() && self.world.compute.is_none() => {
                    Event::Refused(injected())
                }
                _ => Event::Done,
            },
            Action::Pin => match self.dice.roll() {
                235.. => Event::Refused(injected()),
                225.. => Event::Unreachable,
                _ => Event::Pinned("sha256:0".into()),
            },
            Action::Attach { held, .. } => self.attach(sandbox, *held),
            Action::Hook { .. } => match self.dice.roll() {
                235.. => Event::Refused(injected()),
                _ => Event::DoneWith("it said so".to_owned()),
            },
            Action::Quiesce
            | Action::Unquiesce(_)
            | Action::Detach
            | Action::Terminate
            | Action::LiftQuiesce { .. }
            | Action::StartMain { .. } => self.ask_inside(op, action),
            Action::Record(_) => unreachable!("recorded by its owner"),
        }
    }

    fn call(&mut self, sent: Sent) -> Event {
        let die = self.dice.roll();
        let is_there = self.world.compute.is_some();
        let event = match (die, sent.effect) {
            // It dies just before.
            (250.., _) => {
                self.world.compute = None;
                Event::Unknown(injected())
            }
            // It happens and the reply is lost.
            (240.., effect) => {
                self.world.carry_out(sent);
                if effect == EffectKind::Suspend(Depth::Stop) && is_there && die >= 245 {
                    self.leave(sent.key);
                }
                Event::Unknown(injected())
            }
            (220.., _) => Event::Unknown(injected()),
            (200.., _) if self.may_refuse(sent) => {
                self.world.arrived(sent);
                Event::Refused(Fault::new(passing(sent.effect, die), "injected"))
            }
            (190.., EffectKind::Suspend(Depth::Stop)) if is_there => {
                let reply = self.world.carry_out(sent);
                self.leave(sent.key);
                self.replied(reply, sent, die)
            }
            (190.., EffectKind::Resume(Depth::Checkpoint)) => {
                self.world.damage();
                let reply = self.world.carry_out(sent);
                self.replied(reply, sent, die)
            }
            // Not what it was called for.
            (180.., EffectKind::Suspend(_) | EffectKind::Delete) if is_there => {
                self.world.arrived(sent);
                self.replied(Reply::Done, sent, die)
            }
            _ => {
                let reply = self.world.carry_out(sent);
                self.replied(reply, sent, die)
            }
        };
        self.hear(sent.effect, &event);
        event
    }

    fn hear(&mut self, effect: EffectKind, event: &Event) {
        self.heard.nothing |= matches!(event, Event::Unknown(_));
        if let Event::Refused(fault) = event {
            self.heard.refusal |= matches!(effect, EffectKind::Suspend(_));
            self.heard.damage =
                effect == EffectKind::Resume(Depth::Checkpoint) && fault.reason.condemns_memory();
        }
    }

    fn leave(&mut self, key: EffectKey) {
        self.world
            .remains
            .get_or_insert(Remains { key, told: false });
    }

    /// A refusal promises: of a create or a start, that no compute is there; of a resume, that
    /// nothing ran. Any other speaks of this call alone: one before it may have happened.
    fn may_refuse(&self, sent: Sent) -> bool {
        match sent.effect {
            EffectKind::Create | EffectKind::Start => self.world.compute.is_none(),
            EffectKind::Resume(_) => !self.world.is_done(sent.key),
            EffectKind::Suspend(_) | EffectKind::Reattach | EffectKind::Delete => true,
        }
    }

    fn replied(&self, reply: Reply, sent: Sent, die: u8) -> Event {
        let fault = match (reply, sent.effect) {
            (Reply::Done, effect) => {
                let written = effect == EffectKind::Suspend(Depth::Checkpoint);
                return Event::Effected(Effected {
                    compute: self.world.compute(),
                    reference: DriverReference::default(),
                    size_bytes: if written { ARTIFACT_BYTES } else { 0 },
                    leftovers: self.leftovers(effect),
                    remarks: Vec::new(),
                    reclaimed: None,
                });
            }
            (Reply::Missing, EffectKind::Resume(_) | EffectKind::Suspend(Depth::Checkpoint)) => {
                Fault::new(Reason::RetainedLost, "it is gone")
            }
            (Reply::Damaged, _) => Fault::new(condemning(die), "it is damaged"),
            (Reply::Missing | Reply::Refused, _) => injected(),
        };
        Event::Refused(fault)
    }

    fn leftovers(&self, effect: EffectKind) -> Vec<Debt> {
        let untold = self.world.remains.filter(|remains| !remains.told);
        let untold = untold.filter(|_| effect == EffectKind::Suspend(Depth::Stop));
        let debt = |remains: Remains| Debt {
            key: remains.key,
            kind: DebtKind::Compute,
            reference: remains.key.native_name(),
        };
        untold.map(debt).into_iter().collect()
    }

    fn look(&mut self, op: &Operation) -> Event {
        let die = self.dice.roll();
        if let (128.., Some(stopping)) = (die, op.stopping) {
            return Event::Stopped(stopping);
        }
        let observed = match (die, self.world.observed()) {
            (250.., _) => Observed::Unknown,
            (245.., _) => Observed::InTransition,
            (225.., Observed::Absent) => Observed::Stopped,
            (_, observed) => observed,
        };
        Event::Observed(observed)
    }

    fn attach(&mut self, sandbox: &Sandbox, held: overwinter_lifecycle::ids::Incarnation) -> Event {
        let die = self.dice.roll();
        if die >= 250 {
            self.world.compute = None;
        }
        let Some(native) = self.world.live() else {
            return Event::ComputeGone;
        };
        assert_eq!(native.held, held, "another is waited for");
        if die >= 235 || native.detached || native.credentials != sandbox.issued {
            return Event::AttachTimeout;
        }
        // As the gateway asks it for: what kept its memory proves that it did.
        let asked = sandbox.secret;
        assert!(
            asked.is_none_or(|asked| asked == native.secret()),
            "{sandbox:?}"
        );
        Event::Attached
    }

    /// A supervisor does as asked if it is there and connected; its answer may be lost.
    fn ask_inside(&mut self, op: &Operation, action: &Action) -> Event {
        let die = self.dice.roll();
        if let (Action::StartMain { .. }, Some(native)) = (action, &mut self.world.compute) {
            assert!(!native.was_ready, "a second main process");
            native.main = true;
        }
        let lifts = matches!(action, Action::Unquiesce(_) | Action::LiftQuiesce { .. });
        // Who is not reached now is told of this when it is there again.
        let reached = |native: &&mut Native| lifts || (!native.detached && die < 235);
        let Some(native) = self.world.live().filter(reached) else {
            return Event::Unreachable;
        };
        match action {
            Action::Quiesce => native.quiesced = true,
            Action::Detach => native.detached = true,
            Action::Terminate => native.terminated = true,
            Action::StartMain { .. } => {}
            Action::Unquiesce(_) | Action::LiftQuiesce { .. } => native.quiesced = false,
            Action::Prepare(_)
            | Action::Pin
            | Action::Call { .. }
            | Action::Observe { .. }
            | Action::Attach { .. }
            | Action::Hook { .. }
            | Action::Record(_) => unreachable!("nobody inside is asked"),
        }
        match (action, die, op.stopping) {
            (Action::Quiesce, 128.., Some(stopping)) => Event::Stopped(stopping),
            (_, 225.., _) => Event::Unreachable,
            // A hook that failed, a program that is not there.
            (Action::Quiesce | Action::StartMain { .. }, 200.., _) => Event::Refused(injected()),
            _ => Event::Done,
        }
    }
}

/// What the record says that its memory is in.
pub(crate) fn artifact_of(sandbox: &Sandbox) -> Option<EffectKey> {
    sandbox.retained.as_ref().and_then(|it| it.artifact)
}

/// Why a driver refuses what it may carry out another time.
const fn passing(effect: EffectKind, die: u8) -> Reason {
    match (effect, die) {
        (EffectKind::Resume(Depth::Checkpoint), ..205) => Reason::RuntimeChanged,
        (EffectKind::Resume(Depth::Checkpoint), ..210) => Reason::ImageChanged,
        _ => Reason::DriverRejected,
    }
}

/// Why it refuses to restore what it never can.
const fn condemning(die: u8) -> Reason {
    match die % 3 {
        0 => Reason::ArtifactDamaged,
        1 => Reason::ArtifactForeign,
        _ => Reason::RetainedStale,
    }
}

/// A suspend of what sleeps already speaks to nobody inside.
fn assert_sleeper_is_left_alone(sandbox: &Sandbox, op: &Operation, action: &Action) {
    let deepens = sandbox.retained.is_some() && matches!(op.verb, Verb::Suspend { .. });
    let alone = matches!(
        action,
        Action::Prepare(_) | Action::Call { .. } | Action::Observe { .. }
    );
    assert!(!deepens || alone, "it sleeps, and {} comes", action.name());
}
