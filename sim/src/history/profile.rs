//! What a history is made of: how many, how long, and how much goes wrong.

use std::time::Duration;

use overwinter_driver::testkit::Dials;
use overwinter_lifecycle::capacity::Limits;

use super::crashes::CrashDials;

/// Everything that happens behind the gateway's back; of a thousand looks, one every second or so.
#[derive(Clone, Copy, Debug)]
pub struct Mishaps {
    /// Compute is killed.
    pub kill: u16,
    /// The host goes down and comes up.
    pub reboot: u16,
    /// A supervisor's connection breaks, and it dials again.
    pub reconnect: u16,
    /// Somebody sets the clock.
    pub jump: u16,
    /// The disk of the records is full for a while.
    pub full: u16,
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
    /// `Fenced` and `Unsupported`, of a thousand effects.
    pub other_errors: u16,
    pub crashes: CrashDials,
    pub mishaps: Mishaps,
    /// Between two things that a client does, at most.
    pub think: Duration,
}

impl Profile {
    /// Whether an observation can say what is not so.
    pub(crate) const fn backend_lies(&self) -> bool {
        self.dials.stale > 0
            || self.dials.empty > 0
            || self.dials.missing > 0
            || self.other_errors > 0
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
            other_errors: 3,
            crashes: CrashDials {
                step: 1,
                commit: 1,
                moment: 0,
                most: 12,
            },
            mishaps: Mishaps {
                kill: 60,
                reboot: 2,
                reconnect: 60,
                jump: 10,
                full: 15,
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
            other_errors: 0,
            crashes: CrashDials {
                step: 15,
                commit: 20,
                moment: 8,
                most: 60,
            },
            mishaps: Mishaps {
                kill: 20,
                reboot: 5,
                reconnect: 40,
                jump: 10,
                full: 10,
            },
            think: Duration::from_secs(6),
        }
    }

    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        match name {
            "crowd" => Some(Self::crowd()),
            "crashes" => Some(Self::crashes()),
            _ => None,
        }
    }
}
