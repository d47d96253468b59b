//! What may go wrong at a call to the simulated backend, and the plans that say when.
//!
//! A plan is asked once a call and knows which call it is (kind, sandbox, how many of that kind
//! before), so a history depends on a seed or a script alone and not on how tasks interleave.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use overwinter_lifecycle::ids::SandboxId;

use crate::error::DriverError;

/// Every call that a plan is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CallKind {
    Pin,
    Prepare,
    Create,
    Start,
    Suspend,
    Resume,
    Reattach,
    Delete,
    Discard,
    Observe,
    List,
    Recover,
    /// The agent presents itself.
    Attach,
    Quiesce,
    Unquiesce,
    Detach,
    Terminate,
    /// Every other call to the agent.
    Data,
}

impl CallKind {
    pub const ALL: [Self; 18] = [
        Self::Pin,
        Self::Prepare,
        Self::Create,
        Self::Start,
        Self::Suspend,
        Self::Resume,
        Self::Reattach,
        Self::Delete,
        Self::Discard,
        Self::Observe,
        Self::List,
        Self::Recover,
        Self::Attach,
        Self::Quiesce,
        Self::Unquiesce,
        Self::Detach,
        Self::Terminate,
        Self::Data,
    ];

    const fn class(self) -> Class {
        match self {
            Self::Create
            | Self::Start
            | Self::Suspend
            | Self::Resume
            | Self::Reattach
            | Self::Delete => Class::Effect,
            Self::Pin | Self::Prepare | Self::Discard => Class::Question,
            Self::Observe => Class::Observation,
            Self::List => Class::Listing,
            Self::Recover => Class::Recovery,
            Self::Attach => Class::Attach,
            Self::Quiesce | Self::Unquiesce | Self::Detach | Self::Terminate | Self::Data => {
                Class::Agent
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Effect,
    Question,
    Observation,
    Listing,
    Recovery,
    Attach,
    Agent,
}

/// Which call it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallSite {
    pub kind: CallKind,
    /// None: a call that is about no sandbox (pin, list).
    pub sandbox: Option<SandboxId>,
    /// Of this kind at this sandbox; from 1.
    pub nth: u64,
}

/// What happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It fails so, and nothing happens.
    Fail(DriverError),
    /// It happens after this time.
    Delay(Duration),
    /// It happens at once; its answer comes after this time.
    DelayReply(Duration),
    /// It happens, and `Unknown` is the answer.
    LoseReply,
    /// `Unknown` is the answer, and it happens this long afterwards.
    ActLate {
        after: Duration,
        late: Late,
    },
    /// The gateway dies here: the hook is called and the call never returns.
    Crash(CrashPoint),
    /// Somebody else holds the sandbox's lock for this time.
    LockHeld(Duration),
    /// The answer of before the last change.
    Stale,
    /// "Nothing here", of a backend that was asked at the wrong place.
    Empty,
    /// Neither one nor the other, now.
    InTransition,
    /// The agent does not present itself.
    NeverAttach,
    AttachLate(Duration),
    /// It presents what it had before, and only then what it has.
    OldCredentials,
    /// The agent, and with it the compute, ends at this call.
    AgentDies,
    /// No answer, ever.
    AgentHangs,
    /// It answers as if it had done what it has not, and with what it cannot know.
    AgentLies,
}

/// What a late effect meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Late {
    /// A backend that compares keys: what was overtaken by a higher key, or done already, does not
    /// happen.
    Fenced,
    /// A runtime's process that still holds the sandbox's lock: all else waits for it, and recovery
    /// may kill it.
    Locked,
    /// A backend that does whatever arrives. Only the stated life of a lost request protects.
    Unfenced,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CrashPoint {
    BeforeEffect,
    AfterEffect,
}

impl Fault {
    /// Whether this can happen at such a call.
    #[must_use]
    pub const fn fits(&self, kind: CallKind) -> bool {
        let class = kind.class();
        match self {
            Self::Fail(_) => !matches!(class, Class::Attach | Class::Agent),
            Self::Delay(_) | Self::Crash(CrashPoint::BeforeEffect) => {
                !matches!(class, Class::Attach)
            }
            Self::Crash(CrashPoint::AfterEffect) => matches!(class, Class::Effect),
            Self::DelayReply(_) => matches!(class, Class::Effect | Class::Observation),
            Self::LoseReply | Self::ActLate { .. } => matches!(class, Class::Effect),
            Self::LockHeld(_) => matches!(class, Class::Effect | Class::Recovery),
            Self::Empty => matches!(class, Class::Observation | Class::Listing),
            Self::Stale | Self::InTransition => matches!(class, Class::Observation),
            Self::NeverAttach | Self::AttachLate(_) | Self::OldCredentials => {
                matches!(class, Class::Attach)
            }
            Self::AgentDies => matches!(class, Class::Attach | Class::Agent),
            Self::AgentHangs => matches!(class, Class::Agent),
            Self::AgentLies => matches!(
                kind,
                CallKind::Quiesce | CallKind::Detach | CallKind::Terminate
            ),
        }
    }
}

/// Says what goes wrong.
pub trait FaultPlan: Send + Sync + 'static {
    /// Asked once a call. A fault that does not fit the call is ignored.
    fn decide(&self, call: &CallSite) -> Option<Fault>;

    /// False: never any fault, so calls need not be counted.
    fn is_active(&self) -> bool {
        true
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub struct NoFaults;

impl FaultPlan for NoFaults {
    fn decide(&self, _: &CallSite) -> Option<Fault> {
        None
    }

    fn is_active(&self) -> bool {
        false
    }
}

/// Faults at named calls, each once. Can be added to while it is in use.
#[derive(Debug, Default)]
pub struct Script(Mutex<Vec<Line>>);

#[derive(Clone, Debug)]
struct Line {
    kind: CallKind,
    sandbox: Option<SandboxId>,
    nth: u64,
    fault: Fault,
}

impl Script {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// At the `nth` call of this kind at any one sandbox (the first one to make it).
    ///
    /// # Panics
    /// When the fault cannot happen at such a call: the test would wait for nothing.
    pub fn at(&self, kind: CallKind, nth: u64, fault: Fault) -> &Self {
        self.add(kind, None, nth, fault)
    }

    /// At the `nth` call of this kind at this sandbox.
    ///
    /// # Panics
    /// As [`Self::at`].
    pub fn at_sandbox(&self, sandbox: SandboxId, kind: CallKind, nth: u64, fault: Fault) -> &Self {
        self.add(kind, Some(sandbox), nth, fault)
    }

    fn add(&self, kind: CallKind, sandbox: Option<SandboxId>, nth: u64, fault: Fault) -> &Self {
        assert!(fault.fits(kind), "{fault:?} cannot happen at {kind:?}");
        self.lines().push(Line {
            kind,
            sandbox,
            nth,
            fault,
        });
        self
    }

    /// How many have not happened: a test that ends with some has not tested them.
    #[must_use]
    pub fn unused(&self) -> usize {
        self.lines().len()
    }

    fn lines(&self) -> std::sync::MutexGuard<'_, Vec<Line>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FaultPlan for Script {
    fn decide(&self, call: &CallSite) -> Option<Fault> {
        let mut lines = self.lines();
        let at = lines.iter().position(|line| {
            line.kind == call.kind
                && line.nth == call.nth
                && (line.sandbox.is_none() || line.sandbox == call.sandbox)
        })?;
        Some(lines.remove(at).fault)
    }
}

/// One dial a fault: of a thousand calls that it fits, how many it happens to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dials {
    pub reject: u16,
    pub missing: u16,
    /// `Unknown`, and nothing has happened.
    pub unknown: u16,
    pub delay: u16,
    pub delay_reply: u16,
    pub lose_reply: u16,
    pub act_late_fenced: u16,
    /// Only where the stated life of a lost request is no shorter than `longest`.
    pub act_late_unfenced: u16,
    pub act_late_locked: u16,
    pub crash_before: u16,
    pub crash_after: u16,
    pub lock_held: u16,
    pub stale: u16,
    pub empty: u16,
    pub in_transition: u16,
    pub never_attach: u16,
    pub attach_late: u16,
    pub old_credentials: u16,
    pub agent_dies: u16,
    pub agent_hangs: u16,
    pub agent_lies: u16,
    /// Delays, holds and latenesses are at most this long.
    pub longest: Duration,
}

/// Faults by chance, one seed one history.
#[derive(Clone, Debug)]
pub struct Seeded {
    pub seed: u64,
    pub dials: Dials,
}

impl FaultPlan for Seeded {
    fn decide(&self, call: &CallSite) -> Option<Fault> {
        let sandbox = call.sandbox.map_or(0, |id| id.0.as_u128());
        let mut dice = Dice::new(&[
            self.seed,
            sandbox as u64,
            (sandbox >> 64) as u64,
            call.kind as u64,
            call.nth,
        ]);
        let dials = &self.dials;
        let longest = dials.longest.as_micros() as u64;
        let time = Duration::from_micros(dice.next() % longest.max(1));
        let text = || "injected".to_owned();
        let faults = [
            (dials.reject, Fault::Fail(DriverError::Rejected(text()))),
            (dials.missing, Fault::Fail(DriverError::Missing(text()))),
            (dials.unknown, Fault::Fail(DriverError::Unknown(text()))),
            (dials.delay, Fault::Delay(time)),
            (dials.delay_reply, Fault::DelayReply(time)),
            (dials.lose_reply, Fault::LoseReply),
            (
                dials.act_late_fenced,
                Fault::ActLate {
                    after: time,
                    late: Late::Fenced,
                },
            ),
            (
                dials.act_late_unfenced,
                Fault::ActLate {
                    after: time,
                    late: Late::Unfenced,
                },
            ),
            (
                dials.act_late_locked,
                Fault::ActLate {
                    after: time,
                    late: Late::Locked,
                },
            ),
            (dials.crash_before, Fault::Crash(CrashPoint::BeforeEffect)),
            (dials.crash_after, Fault::Crash(CrashPoint::AfterEffect)),
            (dials.lock_held, Fault::LockHeld(time)),
            (dials.stale, Fault::Stale),
            (dials.empty, Fault::Empty),
            (dials.in_transition, Fault::InTransition),
            (dials.never_attach, Fault::NeverAttach),
            (dials.attach_late, Fault::AttachLate(time)),
            (dials.old_credentials, Fault::OldCredentials),
            (dials.agent_dies, Fault::AgentDies),
            (dials.agent_hangs, Fault::AgentHangs),
            (dials.agent_lies, Fault::AgentLies),
        ];
        faults
            .into_iter()
            .filter(|(_, fault)| fault.fits(call.kind))
            .find(|(dial, _)| dice.next() % 1000 < u64::from(*dial))
            .map(|(_, fault)| fault)
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014): small, and good enough to choose faults and secrets of a
/// simulation by.
#[derive(Clone, Copy, Debug)]
pub struct Dice(u64);

impl Dice {
    #[must_use]
    pub fn new(words: &[u64]) -> Self {
        let mut dice = Self(0);
        for word in words {
            dice.0 = dice.next() ^ word;
        }
        dice
    }

    #[allow(clippy::should_implement_trait, reason = "it never ends")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }
}
