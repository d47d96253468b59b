//! What a sandbox is made from ([`Spec`]) and what may change in its life ([`Config`]).

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Depth;

/// Fixed at create.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Spec {
    pub driver: String,
    /// As asked for: a folder, a rootfs tar or a name that the driver knows.
    pub image: String,
    /// What it was pinned to, once the create has looked.
    pub image_digest: Option<String>,
    pub resources: Resources,
    /// The main process: argv; empty for none. Once the create has looked, what the image runs by
    /// itself where nothing was named.
    pub main: Vec<String>,
    /// "none" today.
    pub network: String,
    /// Names one of the driver's runtimes; empty: its default.
    #[serde(default)]
    pub runtime: String,
}

/// 0 is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Resources {
    /// Thousandths of a CPU.
    pub cpu_millis: u32,
    pub memory_bytes: u64,
    /// Processes and threads; 0: the driver's default.
    pub pids: u32,
    pub disk_bytes: u64,
}

/// Versioned, with the owner of the newest version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Config {
    pub version: u64,
    pub owner: String,
    pub env: BTreeMap<String, String>,
    pub policy: Policy,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Policy {
    /// For a suspend that names no depth.
    pub default_depth: Depth,
    /// As it was recorded; [`Self::stop_grace`] is what holds.
    pub stop_grace_ms: u64,
    /// argv; empty for none.
    pub pre_suspend_hook: Vec<String>,
    /// argv; empty for none.
    pub post_resume_hook: Vec<String>,
    /// As it was recorded; [`Self::hook_timeout`] is what holds.
    pub hook_timeout_ms: u64,
}

impl Policy {
    /// No step of an operation waits for user code longer than this, whatever was recorded.
    pub const LONGEST: Duration = Duration::from_secs(60 * 60);

    /// From SIGTERM to SIGKILL at a suspend with depth `stop`. Zero: SIGKILL at once.
    #[must_use]
    pub fn stop_grace(&self) -> Duration {
        Duration::from_millis(self.stop_grace_ms).min(Self::LONGEST)
    }

    /// For either hook. Zero is no time that a hook can keep: it counts as unset.
    #[must_use]
    pub fn hook_timeout(&self) -> Duration {
        let ms = match self.hook_timeout_ms {
            0 => Self::default().hook_timeout_ms,
            ms => ms,
        };
        Duration::from_millis(ms).min(Self::LONGEST)
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            default_depth: Depth::Stop,
            stop_grace_ms: 10_000,
            pre_suspend_hook: Vec::new(),
            post_resume_hook: Vec::new(),
            hook_timeout_ms: 10_000,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_step_waits_for_ever_whatever_was_recorded() {
        let recorded = |stop_grace_ms, hook_timeout_ms| Policy {
            stop_grace_ms,
            hook_timeout_ms,
            ..Policy::default()
        };
        let endless = recorded(u64::MAX, u64::MAX);
        assert_eq!(endless.stop_grace(), Policy::LONGEST);
        assert_eq!(endless.hook_timeout(), Policy::LONGEST);
        let none = recorded(0, 0);
        assert_eq!(none.stop_grace(), Duration::ZERO);
        assert_eq!(none.hook_timeout(), Policy::default().hook_timeout());
    }
}
