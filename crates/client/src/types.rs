//! The small types of the answers, and how a sandbox is named.

use overwinter_api::v1;
use v1::__buffa::oneof::sandbox_ref::By;

/// Which sandbox: its id or its name. Text that is a UUID is an id, since no name may be one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SandboxRef(Ref);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Ref {
    Id(String),
    Name(String),
}

impl SandboxRef {
    /// The id or name as text.
    pub fn as_str(&self) -> &str {
        match &self.0 {
            Ref::Id(text) | Ref::Name(text) => text,
        }
    }

    pub(crate) fn message(&self) -> v1::SandboxRef {
        v1::SandboxRef {
            by: Some(match &self.0 {
                Ref::Id(id) => By::Id(id.clone()),
                Ref::Name(name) => By::Name(name.clone()),
            }),
        }
    }
}

impl From<String> for SandboxRef {
    fn from(text: String) -> Self {
        Self(match uuid::Uuid::try_parse(&text) {
            Ok(_) => Ref::Id(text),
            Err(_) => Ref::Name(text),
        })
    }
}

impl From<&str> for SandboxRef {
    fn from(text: &str) -> Self {
        Self::from(text.to_owned())
    }
}

impl From<&String> for SandboxRef {
    fn from(text: &String) -> Self {
        Self::from(text.clone())
    }
}

impl From<&SandboxRef> for SandboxRef {
    fn from(it: &SandboxRef) -> Self {
        it.clone()
    }
}

/// By its id, which stays right when the name is given to another.
impl From<&Sandbox> for SandboxRef {
    fn from(sandbox: &Sandbox) -> Self {
        Self(Ref::Id(sandbox.id().to_owned()))
    }
}

/// What the record says is going on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// Being made; no call is admitted yet.
    Creating,
    /// Awake.
    Ready,
    /// Going to sleep.
    Suspending,
    /// Asleep.
    Suspended,
    /// Waking up, or starting cold.
    Resuming,
    /// Something failed; see the failure. Resume, start, suspend and delete lead out.
    Failed,
    /// Being removed.
    Deleting,
    /// Removed.
    Tombstone,
    /// One that this version of the crate does not know.
    Unknown,
}

impl Phase {
    /// As commands and tables write it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Ready => "ready",
            Self::Suspending => "suspending",
            Self::Suspended => "suspended",
            Self::Resuming => "resuming",
            Self::Failed => "failed",
            Self::Deleting => "deleting",
            Self::Tombstone => "deleted",
            Self::Unknown => "unknown",
        }
    }

    pub(crate) const fn message(self) -> v1::Phase {
        match self {
            Self::Creating => v1::Phase::Creating,
            Self::Ready => v1::Phase::Ready,
            Self::Suspending => v1::Phase::Suspending,
            Self::Suspended => v1::Phase::Suspended,
            Self::Resuming => v1::Phase::Resuming,
            Self::Failed => v1::Phase::Failed,
            Self::Deleting => v1::Phase::Deleting,
            Self::Tombstone => v1::Phase::Tombstone,
            Self::Unknown => v1::Phase::Unspecified,
        }
    }
}

impl From<buffa::EnumValue<v1::Phase>> for Phase {
    fn from(phase: buffa::EnumValue<v1::Phase>) -> Self {
        let Some(phase) = phase.as_known() else {
            return Self::Unknown;
        };
        match phase {
            v1::Phase::PHASE_UNSPECIFIED => Self::Unknown,
            v1::Phase::PHASE_CREATING => Self::Creating,
            v1::Phase::PHASE_READY => Self::Ready,
            v1::Phase::PHASE_SUSPENDING => Self::Suspending,
            v1::Phase::PHASE_SUSPENDED => Self::Suspended,
            v1::Phase::PHASE_RESUMING => Self::Resuming,
            v1::Phase::PHASE_FAILED => Self::Failed,
            v1::Phase::PHASE_DELETING => Self::Deleting,
            v1::Phase::PHASE_TOMBSTONE => Self::Tombstone,
        }
    }
}

/// How deep a sandbox sleeps, shallow first: deeper retains less and releases more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Depth {
    /// Processes halted, memory resident.
    Freeze,
    /// Memory on disk, compute released.
    Checkpoint,
    /// Storage alone, processes ended.
    Stop,
}

impl Depth {
    /// As commands and tables write it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Freeze => "freeze",
            Self::Checkpoint => "checkpoint",
            Self::Stop => "stop",
        }
    }

    /// The wire's value.
    pub const fn message(self) -> v1::Depth {
        match self {
            Self::Freeze => v1::Depth::Freeze,
            Self::Checkpoint => v1::Depth::Checkpoint,
            Self::Stop => v1::Depth::Stop,
        }
    }

    /// The depth that the wire's value names; `None` for "unspecified" and for unknown ones.
    pub fn from_message(depth: buffa::EnumValue<v1::Depth>) -> Option<Self> {
        match depth.as_known()? {
            v1::Depth::DEPTH_UNSPECIFIED => None,
            v1::Depth::DEPTH_FREEZE => Some(Self::Freeze),
            v1::Depth::DEPTH_CHECKPOINT => Some(Self::Checkpoint),
            v1::Depth::DEPTH_STOP => Some(Self::Stop),
        }
    }
}

/// What an operation brought back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Achieved {
    /// It was done; nothing needed restoring.
    Done,
    /// The same processes with their memory.
    Memory,
    /// The storage; processes were started anew.
    Storage,
}

impl Achieved {
    pub(crate) fn from_message(achieved: buffa::EnumValue<v1::Achieved>) -> Self {
        match achieved.as_known() {
            Some(v1::Achieved::ACHIEVED_MEMORY) => Self::Memory,
            Some(v1::Achieved::ACHIEVED_STORAGE) => Self::Storage,
            Some(v1::Achieved::ACHIEVED_DONE | v1::Achieved::ACHIEVED_UNSPECIFIED) | None => {
                Self::Done
            }
        }
    }
}

/// How a verb was admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Disposition {
    /// A new operation began.
    Accepted,
    /// An equal operation was in line: its outcome is shared.
    Joined,
    /// It turned back a suspend.
    TurnedBack,
    /// It waits for the running operation.
    Queued,
    /// It was so already.
    NoOp,
    /// One that this version of the crate does not know.
    Unknown,
}

impl From<buffa::EnumValue<v1::Disposition>> for Disposition {
    fn from(it: buffa::EnumValue<v1::Disposition>) -> Self {
        match it.as_known() {
            Some(v1::Disposition::DISPOSITION_ACCEPTED) => Self::Accepted,
            Some(v1::Disposition::DISPOSITION_JOINED) => Self::Joined,
            Some(v1::Disposition::DISPOSITION_TURNED_BACK) => Self::TurnedBack,
            Some(v1::Disposition::DISPOSITION_QUEUED) => Self::Queued,
            Some(v1::Disposition::DISPOSITION_NO_OP) => Self::NoOp,
            Some(v1::Disposition::DISPOSITION_UNSPECIFIED) | None => Self::Unknown,
        }
    }
}

/// A sandbox's record as it stood when the answer was made. Serialises as the message's canonical
/// JSON.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[serde(transparent)]
pub struct Sandbox(pub(crate) v1::Sandbox);

impl Sandbox {
    /// Its UUID, which is never given to another.
    pub fn id(&self) -> &str {
        &self.0.id
    }

    /// Its name, unique among the living.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// What is going on.
    pub fn phase(&self) -> Phase {
        self.0.phase.into()
    }

    /// How deep it sleeps, or is about to; `None` while it is awake.
    pub fn depth(&self) -> Option<Depth> {
        self.0
            .retained
            .as_option()
            .and_then(|retained| Depth::from_message(retained.depth))
    }

    /// The depth that was promised and is gone, after its memory was lost.
    pub fn lost(&self) -> Option<Depth> {
        self.0
            .retained
            .as_option()
            .and_then(|retained| Depth::from_message(retained.lost))
    }

    /// The reason code of its failure.
    pub fn failure(&self) -> Option<&str> {
        self.0.failure.as_option().map(|it| it.reason.as_str())
    }

    /// Rises with every change of any sandbox; what a watch counts in.
    pub fn revision(&self) -> u64 {
        self.0.revision
    }

    /// The whole message.
    pub fn raw(&self) -> &v1::Sandbox {
        &self.0
    }
}
