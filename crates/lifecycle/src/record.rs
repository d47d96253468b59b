//! The durable record of one sandbox: what is wanted, what was observed, and who works on it.
//!
//! Who may write what: the verbs write `desired` and the two places in line (admission); the owner
//! of the running operation writes all the rest. Nothing else writes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::config::{Config, Spec};
use crate::ids::{DiskGeneration, EffectKey, Fence, Incarnation, Millis, OperationId, SandboxId};
use crate::operation::Operation;
use crate::phase::Phase;
use crate::recording::SecretHash;
use crate::{Depth, Fault, Name, Reason};

/// What the user wants of it. The phase is derived from this and what was observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Desired {
    Running,
    Suspended(Depth),
    Deleted,
}

/// What was last observed of the compute. Missing, frozen, running and unknown are four different
/// answers; unknown is settled by observing, never by assuming.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Compute {
    Absent,
    /// `held`: the incarnation that it was started with.
    Live {
        held: Incarnation,
    },
    Frozen {
        held: Incarnation,
    },
    Unknown,
}

impl Compute {
    /// Whether something may be there that holds capacity and could write to the storage.
    #[must_use]
    pub const fn may_exist(self) -> bool {
        match self {
            Self::Absent => false,
            Self::Live { .. } | Self::Frozen { .. } | Self::Unknown => true,
        }
    }

    #[must_use]
    pub const fn held(self) -> Option<Incarnation> {
        match self {
            Self::Live { held } | Self::Frozen { held } => Some(held),
            Self::Absent | Self::Unknown => None,
        }
    }
}

/// How the retained state may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RetainedStatus {
    Available,
    /// Only this operation may use it, and only it may give it back.
    BeingConsumed(OperationId),
    Consumed,
    Discarding,
}

/// What a suspension left.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Retained {
    pub depth: Depth,
    pub status: RetainedStatus,
    /// The driver's own, at most 64 KiB; opaque here.
    pub reference: DriverReference,
    /// The state of the disk that it belongs to.
    pub generation: DiskGeneration,
    /// Bytes of artifacts on disk.
    pub size_bytes: u64,
    pub since: Millis,
    pub expires_at: Option<Millis>,
    /// A depth that was promised and is gone.
    pub lost: Option<Depth>,
    /// Whether the supervisor was asked to quiesce.
    pub quiesced: bool,
    /// The effect that wrote its memory to disk; its name is derived from this key. None: nothing
    /// was written.
    #[serde(default)]
    pub artifact: Option<EffectKey>,
    /// Of a freeze that was asked to give its memory back. None: it takes all that it had.
    #[serde(default)]
    pub reclaimed: Option<Reclaimed>,
}

/// What has become of the memory of a freeze that was asked to give it back; in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Reclaimed {
    /// What others have now: what was moved out, less the room that its copy takes in memory.
    pub freed_bytes: u64,
    /// What it still takes: what was not moved, and the copy.
    pub left_bytes: u64,
}

/// An opaque reference, stamped so that no other driver or version takes it for its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DriverReference {
    pub driver: String,
    pub format: u32,
    pub location: String,
    pub data: Vec<u8>,
}

/// An observed fact, cleared by the next success.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Failure {
    pub fault: Fault,
    pub operation: Option<OperationId>,
    pub at: Millis,
}

/// Something that must still be removed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Debt {
    pub key: EffectKey,
    pub kind: DebtKind,
    /// Its exact native reference.
    pub reference: String,
}

impl Debt {
    /// The artifact that the effect with this key has written, or may have.
    #[must_use]
    pub fn artifact(key: EffectKey) -> Self {
        Self {
            key,
            kind: DebtKind::Artifact,
            reference: key.native_name(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DebtKind {
    /// Blocks every effect that would start compute.
    Compute,
    /// Memory on disk. The core owes it itself wherever nothing refers to it any more: a driver
    /// derives its name from the key, and need not tell.
    Artifact,
    Storage,
}

/// How the main process last ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MainExit {
    pub code: i32,
    pub signal: i32,
    pub at: Millis,
}

/// The record.
#[derive(Clone, Debug, PartialEq, Hash, Serialize, Deserialize)]
pub struct Sandbox {
    pub id: SandboxId,
    pub tenant: String,
    pub name: Name,
    pub labels: BTreeMap<String, String>,
    pub spec: Spec,
    pub config: Config,
    pub desired: Desired,
    pub compute: Compute,
    pub retained: Option<Retained>,
    pub failure: Option<Failure>,
    /// The newest that was given out.
    pub fence: Fence,
    pub issued: Incarnation,
    pub generation: DiskGeneration,
    pub running: Option<Operation>,
    pub waiting: Option<Operation>,
    /// What the supervisor attached with under the newest incarnation that reached Ready. Compute
    /// that kept its memory must present it again. None from the intent of a cold start on: what
    /// that makes has never attached.
    pub secret: Option<SecretHash>,
    /// What is owed of its compute: blocks starts.
    pub compute_debts: u32,
    pub main_exit: Option<MainExit>,
    pub created_at: Millis,
    pub updated_at: Millis,
    /// Set when a delete has ended (or a create has failed with nothing left).
    pub tombstone_at: Option<Millis>,
    /// Detects concurrent writes; nothing else.
    pub revision: u64,
}

impl Sandbox {
    /// A record as a create writes it, before the create begins.
    #[must_use]
    pub fn new(
        id: SandboxId,
        tenant: &str,
        name: Name,
        spec: Spec,
        config: Config,
        now: Millis,
    ) -> Self {
        Self {
            id,
            tenant: tenant.to_owned(),
            name,
            labels: BTreeMap::new(),
            spec,
            config,
            desired: Desired::Running,
            compute: Compute::Absent,
            retained: None,
            failure: None,
            fence: Fence(0),
            issued: Incarnation(0),
            generation: DiskGeneration(0),
            running: None,
            waiting: None,
            secret: None,
            compute_debts: 0,
            main_exit: None,
            created_at: now,
            updated_at: now,
            tombstone_at: None,
            revision: 0,
        }
    }

    /// Derived; never stored beside what it is derived from.
    #[must_use]
    pub fn phase(&self) -> Phase {
        Phase::of(self)
    }

    /// Whether a stop has begun to end what runs, and could not finish: its processes may be gone,
    /// its supervisor alone may be left.
    #[must_use]
    pub fn was_being_stopped(&self) -> bool {
        (self.failure.as_ref()).is_some_and(|failure| failure.fault.reason == Reason::StopFailed)
    }

    /// Whether its name is taken: until its delete has ended.
    #[must_use]
    pub const fn holds_name(&self) -> bool {
        self.tombstone_at.is_none()
    }
}
