//! What a history is made of: how many, how long, and how much goes wrong.

use std::time::Duration;

use overwinter_driver::testkit::Dials;
use overwinter_lifecycle::capacity::Limits;
use overwinter_lifecycle::operation::Deadlines;

use super::crashes::CrashDials;
use super::invariant::Invariant;

/// Everything that happens behind the gateway's back; of a thousand looks, one every second or so.
#[derive(Clone, Copy, Debug)]
pub struct Mishaps {
    /// Compute is killed.
    pub kill: u16,
    /// The host goes down and comes up.
    pub reboot: u16,
    /// A supervisor's connection breaks, and it dials again.
    pub reconnect: u16,
    /// Memory on disk is damaged, or removed.
    pub rot: u16,
    /// Somebody sets the clock.
    pub jump: u16,
    /// The disk of the records is full for a while.
    pub full: u16,
    /// It is slow for a while: every commit takes its time.
    pub slow: u16,
    /// No effect is answered for longer than any operation may take.
    pub outage: u16,
    /// Its host loses power just after a commit that does not wait for the disk: of a thousand of those.
    pub power: u16,
}

/// What clients do that a server has to bear; of a thousand.
#[derive(Clone, Copy, Debug)]
pub struct Habits {
    /// The same request twice at once.
    pub twice: u16,
    /// The last request once more, under its key.
    pub again: u16,
    /// It goes away in the middle.
    pub leave: u16,
}

/// A driver's errors that the testkit's dials leave out; of a thousand calls.
#[derive(Clone, Copy, Debug, Default)]
pub struct Errors {
    pub fenced: u16,
    pub unsupported: u16,
    /// Of every sort, also where nothing is restored.
    pub unusable: u16,
}

impl Errors {
    pub(crate) const fn sum(self) -> u16 {
        self.fenced + self.unsupported + self.unusable
    }
}

#[derive(Clone, Debug)]
pub struct Profile {
    pub name: &'static str,
    pub slots: usize,
    pub clients: usize,
    /// What the clients do in all.
    pub steps: u32,
    pub limits: Limits,
    pub dials: Dials,
    pub errors: Errors,
    /// What is owed is not removed, of a thousand tries.
    pub discards: u16,
    /// A thaw is refused, of a thousand.
    pub thaws: u16,
    /// A request that was lost can arrive for so long.
    pub lost_request_life: Duration,
    pub crashes: CrashDials,
    pub mishaps: Mishaps,
    pub habits: Habits,
    /// Between two things that a client does, at most.
    pub think: Duration,
}

/// No profile is called so.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no profile; it is one of crashes, tight, remote, unfenced, crowd")]
pub struct NoSuchProfile(pub String);

/// Other than the defaults, so that they are seen to be kept; and short, so that an operation that
/// does not keep them is found.
pub(crate) const DEADLINES: Deadlines = Deadlines {
    effect_ms: 8_000,
    attach_ms: 8_000,
    agent_ms: 4_000,
    operation_ms: 15_000,
};

impl Profile {
    /// Whether an observation can say what is not so.
    pub(crate) const fn backend_lies(&self) -> bool {
        self.dials.stale > 0
            || self.dials.empty > 0
            || self.dials.missing > 0
            || self.errors.sum() > 0
    }

    #[must_use]
    pub fn all() -> [Self; 5] {
        [
            Self::crashes(),
            Self::crowd(),
            Self::tight(),
            Self::remote(),
            Self::unfenced(),
        ]
    }

    /// A hundred sandboxes, twenty clients, a few of everything.
    #[must_use]
    pub fn crowd() -> Self {
        Self {
            name: "crowd",
            slots: 100,
            clients: 20,
            steps: 1_500,
            limits: Limits {
                running: Some(60),
                ..Limits::default()
            },
            dials: Dials {
                reject: 10,
                missing: 3,
                unknown: 10,
                delay: 100,
                delay_reply: 30,
                lose_reply: 20,
                act_late_fenced: 0,
                act_late_unfenced: 0,
                act_late_locked: 15,
                crash_before: 1,
                crash_after: 1,
                lock_held: 10,
                stale: 10,
                empty: 10,
                in_transition: 20,
                never_attach: 10,
                attach_late: 100,
                old_credentials: 60,
                agent_dies: 2,
                agent_hangs: 3,
                agent_lies: 10,
                longest: Duration::from_secs(4),
            },
            errors: Errors {
                fenced: 3,
                unsupported: 3,
                unusable: 3,
            },
            discards: 200,
            thaws: 60,
            lost_request_life: Duration::ZERO,
            crashes: CrashDials {
                step: 1,
                commit: 1,
                moment: 0,
                most: 12,
                points: 16,
            },
            mishaps: Mishaps {
                kill: 60,
                reboot: 2,
                reconnect: 60,
                rot: 40,
                jump: 10,
                full: 15,
                slow: 10,
                outage: 2,
                power: 10,
            },
            habits: Habits {
                twice: 80,
                again: 30,
                leave: 150,
            },
            think: Duration::from_secs(8),
        }
    }

    /// One sandbox, and a gateway that dies again and again.
    #[must_use]
    pub fn crashes() -> Self {
        let crowd = Self::crowd();
        Self {
            name: "crashes",
            slots: 1,
            clients: 3,
            steps: 150,
            limits: Limits::default(),
            dials: Dials {
                lose_reply: 60,
                act_late_locked: 60,
                crash_before: 10,
                crash_after: 20,
                stale: 0,
                empty: 0,
                missing: 0,
                reject: 40,
                agent_dies: 5,
                ..crowd.dials
            },
            errors: Errors::default(),
            thaws: 200,
            crashes: CrashDials {
                step: 15,
                commit: 20,
                moment: 8,
                most: 60,
                points: 12,
            },
            mishaps: Mishaps {
                kill: 20,
                reboot: 5,
                reconnect: 40,
                rot: 20,
                jump: 10,
                full: 10,
                slow: 30,
                outage: 0,
                power: 100,
            },
            think: Duration::from_secs(6),
            ..crowd
        }
    }

    /// Room for two of six, hasty clients, and a backend that is slow and never wrong.
    #[must_use]
    pub fn tight() -> Self {
        let crashes = Self::crashes();
        Self {
            name: "tight",
            slots: 6,
            clients: 8,
            steps: 400,
            limits: Limits {
                running: Some(2),
                ..Limits::default()
            },
            dials: Dials {
                crash_before: 1,
                crash_after: 2,
                delay_reply: 100,
                reject: 30,
                ..crashes.dials
            },
            crashes: CrashDials {
                step: 2,
                commit: 2,
                moment: 1,
                most: 8,
                points: 12,
            },
            mishaps: Mishaps {
                kill: 80,
                outage: 8,
                ..crashes.mishaps
            },
            think: Duration::from_secs(2),
            ..crashes
        }
    }

    /// A backend far away: what was sent to it can arrive after its retry.
    #[must_use]
    pub fn remote() -> Self {
        let tight = Self::tight();
        Self {
            name: "remote",
            slots: 4,
            clients: 5,
            steps: 250,
            limits: Limits::default(),
            dials: Dials {
                act_late_locked: 0,
                act_late_fenced: 80,
                lock_held: 0,
                ..tight.dials
            },
            lost_request_life: Duration::from_secs(5),
            crashes: CrashDials {
                step: 5,
                commit: 5,
                moment: 3,
                most: 20,
                points: 12,
            },
            mishaps: Mishaps {
                outage: 40,
                ..tight.mishaps
            },
            think: Duration::from_secs(3),
            ..tight
        }
    }

    /// As [`Self::remote`], and the backend compares no keys: what arrives is done, whatever has happened
    /// since. Only the life that it states for a lost request, which is longer than any lateness here,
    /// protects; so much is late, and so soon something else is asked for.
    #[must_use]
    pub fn unfenced() -> Self {
        let remote = Self::remote();
        Self {
            name: "unfenced",
            dials: Dials {
                act_late_fenced: 0,
                act_late_unfenced: 200,
                ..remote.dials
            },
            think: Duration::from_secs(1),
            ..remote
        }
    }

    /// Whether a history of this profile can put it to the test.
    #[must_use]
    pub fn tests(&self, invariant: Invariant) -> bool {
        invariant != Invariant::LostIsWaitedFor || self.dials.act_late_unfenced > 0
    }

    /// # Errors
    /// [`NoSuchProfile`].
    pub fn by_name(name: &str) -> Result<Self, NoSuchProfile> {
        let found = Self::all().into_iter().find(|it| it.name == name);
        found.ok_or_else(|| NoSuchProfile(name.to_owned()))
    }
}
