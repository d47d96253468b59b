//! Idle: one named predicate that lists every condition.

use serde::{Deserialize, Serialize};

/// What is known of a sandbox's use, all of it counted or timed by the gateway itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Use {
    /// Open execs, attaches, tunnels, uploads and HTTP requests.
    pub open_calls: u32,
    pub running_processes: u32,
    /// Since the last of them ended, by the monotonic clock.
    pub quiet_ms: u64,
}

/// The part of the policy that idleness reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdlePolicy {
    /// None: never by itself.
    pub timeout_ms: Option<u64>,
    /// Whether a process that nobody is attached to keeps it awake.
    pub background_counts: bool,
}

/// One condition that keeps a sandbox awake; shown in every surface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhyAwake {
    NeverSleeps,
    OpenCalls,
    RunningProcesses,
    UsedRecently,
}

impl WhyAwake {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NeverSleeps => "the policy has no idle timeout",
            Self::OpenCalls => "calls are open",
            Self::RunningProcesses => "processes are running",
            Self::UsedRecently => "it was used a moment ago",
        }
    }
}

/// Whether a sandbox is idle, which is when all of these hold:
///
/// - the policy has a timeout;
/// - no exec, attach, tunnel, upload or HTTP request is open;
/// - no process runs, unless the policy says that background processes do not count;
/// - nothing of that happened since the timeout.
///
/// Reads, listings, heartbeats and dashboards are not use. One that was never used is as eligible as
/// any other.
#[must_use]
pub fn is_idle(policy: IdlePolicy, used: Use) -> bool {
    why_awake(policy, used).is_empty()
}

/// The conditions of [`is_idle`] that do not hold.
#[must_use]
pub fn why_awake(policy: IdlePolicy, used: Use) -> Vec<WhyAwake> {
    let mut why = Vec::new();
    if policy.timeout_ms.is_none() {
        why.push(WhyAwake::NeverSleeps);
    }
    if used.open_calls > 0 {
        why.push(WhyAwake::OpenCalls);
    }
    if policy.background_counts && used.running_processes > 0 {
        why.push(WhyAwake::RunningProcesses);
    }
    if policy
        .timeout_ms
        .is_some_and(|timeout| used.quiet_ms < timeout)
    {
        why.push(WhyAwake::UsedRecently);
    }
    why
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: IdlePolicy = IdlePolicy {
        timeout_ms: Some(1_000),
        background_counts: true,
    };

    #[test]
    fn each_condition_alone_keeps_it_awake() {
        let idle = Use {
            open_calls: 0,
            running_processes: 0,
            quiet_ms: 1_000,
        };
        assert!(is_idle(POLICY, idle));
        let awake = |policy, used| why_awake(policy, used);
        assert_eq!(
            awake(
                POLICY,
                Use {
                    open_calls: 1,
                    ..idle
                }
            ),
            [WhyAwake::OpenCalls]
        );
        assert_eq!(
            awake(
                POLICY,
                Use {
                    quiet_ms: 999,
                    ..idle
                }
            ),
            [WhyAwake::UsedRecently]
        );
        let busy = Use {
            running_processes: 1,
            ..idle
        };
        assert_eq!(awake(POLICY, busy), [WhyAwake::RunningProcesses]);
        assert!(is_idle(
            IdlePolicy {
                background_counts: false,
                ..POLICY
            },
            busy
        ));
        let never = IdlePolicy {
            timeout_ms: None,
            ..POLICY
        };
        assert_eq!(awake(never, idle), [WhyAwake::NeverSleeps]);
    }
}
