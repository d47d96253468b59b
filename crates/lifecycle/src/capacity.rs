//! Capacity, computed from the records: nothing is counted up or down, so nothing can leak.

use serde::{Deserialize, Serialize};

use crate::Depth;
use crate::operation::Verb;
use crate::record::{Compute, Sandbox};

/// What one record holds, or many together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Usage {
    pub running: u64,
    pub cpu_millis: u64,
    pub memory_bytes: u64,
    /// Of artifacts.
    pub disk_bytes: u64,
}

impl Usage {
    /// What `sandbox` holds now. Unknown outcomes and whatever still has live compute hold
    /// everything until absence is observed.
    #[must_use]
    pub fn of(sandbox: &Sandbox) -> Self {
        let resources = sandbox.spec.resources;
        let full = Self {
            running: 1,
            cpu_millis: u64::from(resources.cpu_millis),
            memory_bytes: resources.memory_bytes,
            disk_bytes: 0,
        };
        let starting = sandbox
            .running
            .as_ref()
            .is_some_and(|op| op.verb.starts_compute());
        let suspending = sandbox
            .running
            .as_ref()
            .is_some_and(|op| matches!(op.verb, Verb::Suspend { .. }));
        let retained = (sandbox.retained.as_ref()).map_or(0, |retained| retained.size_bytes);
        // Until it is known what a checkpoint takes.
        let reserved = (sandbox.running.as_ref()).map_or(0, |op| match op.verb {
            Verb::Suspend { depth, .. } => artifact_at_most(sandbox, depth),
            Verb::Create | Verb::Resume { .. } | Verb::Start | Verb::Delete { .. } => 0,
        });
        let disk_bytes = retained.saturating_add(reserved);
        if starting || sandbox.compute_debts > 0 {
            return Self { disk_bytes, ..full };
        }
        match sandbox.compute {
            #[cfg(feature = "mutants")]
            Compute::Live { .. } if suspending && crate::mutant!(CapacityFreedEarly) => Self {
                disk_bytes,
                ..Self::default()
            },
            Compute::Absent => Self {
                disk_bytes,
                ..Self::default()
            },
            Compute::Live { .. } | Compute::Unknown => Self { disk_bytes, ..full },
            Compute::Frozen { .. } if suspending => Self { disk_bytes, ..full },
            // A freeze gives back its CPU and its place, and keeps its memory: all of it, or what is
            // left where it was given back. What stands still takes no more.
            Compute::Frozen { .. } => Self {
                running: 0,
                cpu_millis: 0,
                memory_bytes: (sandbox.retained.as_ref())
                    .and_then(|retained| retained.reclaimed)
                    .map_or(full.memory_bytes, |reclaimed| {
                        reclaimed.left_bytes.min(full.memory_bytes)
                    }),
                disk_bytes,
            },
        }
    }
}

/// What a suspend at `depth` may write to disk.
const fn artifact_at_most(sandbox: &Sandbox, depth: Depth) -> u64 {
    match depth {
        Depth::Checkpoint => sandbox.spec.resources.memory_bytes,
        Depth::Freeze | Depth::Stop => 0,
    }
}

/// The gateway's limits; none is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    pub running: Option<u64>,
    pub cpu_millis: Option<u64>,
    pub memory_bytes: Option<u64>,
    pub disk_bytes: Option<u64>,
}

/// What there is too little of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {used} of {limit} used, {asked} more asked for")]
pub struct OverCapacity {
    pub what: &'static str,
    pub used: u64,
    pub asked: u64,
    pub limit: u64,
}

impl Limits {
    #[must_use]
    pub const fn are_set(&self) -> bool {
        self.running.is_some()
            || self.cpu_millis.is_some()
            || self.memory_bytes.is_some()
            || self.disk_bytes.is_some()
    }

    /// Whether `sandbox` may begin to run beside `others` (the sum of all other records).
    ///
    /// # Errors
    /// Names the first thing that there is too little of.
    pub fn admit(&self, sandbox: &Sandbox, others: Usage) -> Result<(), OverCapacity> {
        #[cfg(feature = "mutants")]
        if crate::mutant!(CapacityIgnored) {
            return Ok(());
        }
        let resources = sandbox.spec.resources;
        let checks = [
            ("running sandboxes", self.running, others.running, 1),
            (
                "cpu",
                self.cpu_millis,
                others.cpu_millis,
                u64::from(resources.cpu_millis),
            ),
            (
                "memory",
                self.memory_bytes,
                others.memory_bytes,
                resources.memory_bytes,
            ),
        ];
        for (what, limit, used, asked) in checks {
            if let Some(limit) = limit
                && used.saturating_add(asked) > limit
            {
                return Err(OverCapacity {
                    what,
                    used,
                    asked,
                    limit,
                });
            }
        }
        Ok(())
    }

    /// Whether suspending `sandbox` at `depth` may reserve what its artifact could need.
    ///
    /// # Errors
    /// As [`Self::admit`].
    pub fn admit_artifact(
        &self,
        sandbox: &Sandbox,
        depth: Depth,
        others: Usage,
    ) -> Result<(), OverCapacity> {
        let asked = artifact_at_most(sandbox, depth);
        match self.disk_bytes {
            Some(limit) if asked > 0 && others.disk_bytes.saturating_add(asked) > limit => {
                Err(OverCapacity {
                    what: "disk for artifacts",
                    used: others.disk_bytes,
                    asked,
                    limit,
                })
            }
            Some(_) | None => Ok(()),
        }
    }
}
