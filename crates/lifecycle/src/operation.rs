//! Operations: the durable intent behind every verb.

use serde::{Deserialize, Serialize};

use crate::ids::{EffectKey, Fence, Millis, OperationId, SandboxId, Serial};
use crate::{Depth, Fault};

/// Raised when the meaning of a persisted step changes: a binary that cannot finish what is
/// recorded refuses to start.
pub const STEP_SCHEMA: u32 = 1;

/// A verb with its parameters, as it is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "verb")]
pub enum Verb {
    Create,
    Suspend {
        depth: Depth,
        /// Asked for by the idle policy: any call that arrives turns it back.
        idle: bool,
        /// `freeze` alone: give the memory back, as far as the driver can.
        #[serde(default)]
        reclaim: bool,
    },
    Resume {
        /// Go on with a cold start when the restore fails.
        fallback: bool,
        /// Memory that a freeze has given back is brought in before anything runs.
        #[serde(default)]
        prefetch: bool,
    },
    Start,
    Delete {
        abandon: bool,
    },
}

impl Verb {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Suspend { .. } => "suspend",
            Self::Resume { .. } => "resume",
            Self::Start => "start",
            Self::Delete { .. } => "delete",
        }
    }

    /// Whether beginning it may lead to compute that runs.
    #[must_use]
    pub const fn starts_compute(self) -> bool {
        match self {
            Self::Create | Self::Resume { .. } | Self::Start => true,
            Self::Suspend { .. } | Self::Delete { .. } => false,
        }
    }
}

/// Where an operation stands, durably. In between, its owner keeps finer states in memory; what
/// was only in memory is done again after a crash, so each of those is safe to repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// In line. Has changed nothing.
    Waiting,
    /// Begun; no effect yet.
    Begun,
    /// An effect's intent is recorded: it may have happened.
    Intent,
    /// `stop` alone: the processes have ended and their results are recorded.
    Terminated,
    Ended,
}

impl Step {
    pub const ALL: [Self; 5] = [
        Self::Waiting,
        Self::Begun,
        Self::Intent,
        Self::Terminated,
        Self::Ended,
    ];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Begun => "begun",
            Self::Intent => "intent",
            Self::Terminated => "terminated",
            Self::Ended => "ended",
        }
    }
}

/// The kinds of effect that a driver carries out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EffectKind {
    Create,
    Start,
    Suspend(Depth),
    Resume(Depth),
    /// New credentials for live compute.
    Reattach,
    Delete,
}

impl EffectKind {
    /// Whether what runs after it is new: nothing of before is known to it.
    #[must_use]
    pub const fn makes_compute(self) -> bool {
        match self {
            Self::Create | Self::Start => true,
            Self::Suspend(_) | Self::Resume(_) | Self::Reattach | Self::Delete => false,
        }
    }

    /// For the ledger: a word and, where there is one, a depth.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Start => "start",
            Self::Suspend(Depth::Freeze) => "suspend_freeze",
            Self::Suspend(Depth::Checkpoint) => "suspend_checkpoint",
            Self::Suspend(Depth::Stop) => "suspend_stop",
            Self::Resume(Depth::Freeze) => "resume_freeze",
            Self::Resume(Depth::Checkpoint) => "resume_checkpoint",
            Self::Resume(Depth::Stop) => "resume_stop",
            Self::Reattach => "reattach",
            Self::Delete => "delete",
        }
    }
}

/// The effect that an operation has recorded and not yet settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Intent {
    pub serial: Serial,
    pub effect: EffectKind,
}

/// How it ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Succeeded {
        achieved: Achieved,
        remarks: Vec<String>,
    },
    Failed(Fault),
    SupersededBy(OperationId),
    /// By this operation; none when a call of the data plane did it.
    TurnedBack(Option<OperationId>),
}

/// What a success brought back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Achieved {
    Done,
    /// The same processes with their memory.
    Memory,
    /// The storage; processes were started anew.
    Storage,
}

/// Why an operation is to end at its next boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stopping {
    /// By this resume; none for a call of the data plane.
    TurnBack(Option<OperationId>),
    /// By this delete.
    Delete(OperationId),
}

/// The durable intent.
#[derive(Clone, Debug, PartialEq, Hash, Serialize, Deserialize)]
pub struct Operation {
    pub id: OperationId,
    pub sandbox: SandboxId,
    pub verb: Verb,
    pub step: Step,
    pub step_schema: u32,
    /// Zero until it begins.
    pub fence: Fence,
    /// The newest that was given to an effect of it.
    pub serial: Serial,
    pub intent: Option<Intent>,
    /// Raised at each recovery.
    pub attempt: u32,
    pub deadlines: Deadlines,
    pub requester: String,
    pub stopping: Option<Stopping>,
    /// Whether it goes on as a cold start (the fallback of a resume).
    pub cold: bool,
    /// Quiesce could be asked for (suspend).
    pub quiesced: bool,
    /// Why it is being undone (a suspend whose effect did not happen).
    pub aborting: Option<Fault>,
    pub created_at: Millis,
    pub began_at: Option<Millis>,
    pub ended_at: Option<Millis>,
    pub outcome: Option<Outcome>,
    /// Microseconds that each step took, in order.
    pub timings: Vec<(String, u64)>,
}

/// Durations, granted anew at each recovery; milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Deadlines {
    /// For one call of the driver.
    pub effect_ms: u64,
    /// For the supervisor to attach.
    pub attach_ms: u64,
    /// For one call of the supervisor.
    pub agent_ms: u64,
    /// For the whole: past it no effect is tried again. What is unknown is still settled by looking.
    #[serde(default = "default_operation_ms")]
    pub operation_ms: u64,
}

/// Of operations that were recorded before there was such a deadline.
const fn default_operation_ms() -> u64 {
    120_000
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            effect_ms: 60_000,
            attach_ms: 20_000,
            agent_ms: 10_000,
            operation_ms: default_operation_ms(),
        }
    }
}

impl Operation {
    #[must_use]
    pub fn new(
        id: OperationId,
        sandbox: SandboxId,
        verb: Verb,
        requester: &str,
        now: Millis,
    ) -> Self {
        Self {
            id,
            sandbox,
            verb,
            step: Step::Waiting,
            step_schema: STEP_SCHEMA,
            fence: Fence(0),
            serial: Serial(0),
            intent: None,
            attempt: 1,
            deadlines: Deadlines::default(),
            requester: requester.to_owned(),
            stopping: None,
            cold: false,
            quiesced: false,
            aborting: None,
            created_at: now,
            began_at: None,
            ended_at: None,
            outcome: None,
            timings: Vec::new(),
        }
    }

    /// A suspend before its intent can be turned back; nothing else can.
    #[must_use]
    pub fn can_turn_back(&self) -> bool {
        match self.verb {
            Verb::Suspend { .. } => {
                (matches!(self.step, Step::Waiting | Step::Begun)
                    || crate::mutant!(TurnBackTooLate))
                    && self.stopping.is_none()
            }
            Verb::Create | Verb::Resume { .. } | Verb::Start | Verb::Delete { .. } => false,
        }
    }

    /// The key of the intent that is recorded and not settled.
    #[must_use]
    pub fn intent_key(&self) -> Option<EffectKey> {
        self.intent.map(|intent| self.key_of(intent))
    }

    /// The key of the artifact that the effect which is recorded and not settled writes.
    pub(crate) fn artifact(&self) -> Option<EffectKey> {
        let intent = self.intent?;
        (intent.effect == EffectKind::Suspend(Depth::Checkpoint)).then(|| self.key_of(intent))
    }

    pub(crate) const fn key_of(&self, intent: Intent) -> EffectKey {
        EffectKey {
            sandbox: self.sandbox,
            fence: self.fence,
            serial: intent.serial,
        }
    }
}
