//! What must hold, by name. Each is a row of `docs/` and of the table that a run prints.

use std::fmt;

macro_rules! invariants {
    ($($name:ident = $code:literal, $means:literal;)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Invariant { $($name,)* }

        impl Invariant {
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $code,)* }
            }

            #[must_use]
            pub const fn means(self) -> &'static str {
                match self { $(Self::$name => $means,)* }
            }
        }
    };
}

invariants! {
    OneLiveCompute = "one-live-compute", "at most one compute of a sandbox is there, leftovers counted";
    ConsumedStaysConsumed = "consumed-stays-consumed", "memory is available again only if nothing ran since it was retained";
    RejectedChangesNothing = "rejected-changes-nothing", "a suspend that is rejected, undone or turned back leaves record and compute as they were";
    DeleteDominates = "delete-dominates", "a delete is admitted in every phase, never replaced, never taken back";
    NothingIsLeft = "nothing-is-left", "of a tombstone nothing is there, and on it nothing begins";
    CallsOnlyWhileReady = "calls-only-while-ready", "a call is let in only to compute that is attached, whole and the newest incarnation's";
    SleepersAreLeftAlone = "sleepers-are-left-alone", "a suspend of what sleeps already speaks to nobody inside, however it ends";
    SleepersHaveLetGo = "sleepers-have-let-go", "memory is frozen or written only when its supervisor has closed its connection";
    ArtifactsAreOwned = "artifacts-are-owned", "memory on disk is what a record retains, or is owed, or its operation runs";
    IncarnationsAreNew = "incarnations-are-new", "credentials are given for an incarnation that no other effect was given";
    FilesKept = "files-kept", "from its first Ready on, only a delete removes a sandbox's storage";
    CapacityIsTrue = "capacity-is-true", "the records hold at least what is there, and nothing once it is seen to be gone";
    RecordIsTrue = "record-is-true", "where nothing is at work, what the record says is what is there";
    OutcomeIsTrue = "outcome-is-true", "what an operation is said to have achieved is so";
    FencesRise = "fences-rise", "fence, incarnation and disk generation never fall";
    LineIsServed = "line-is-served", "nothing waits behind nothing, and each operation ends once, with an outcome";
    EveryOperationEnds = "every-operation-ends", "once faults stop, whatever order things happen in leads to rest";
    AWayOut = "a-way-out", "at rest, a resume leads to Ready and a delete to nothing";
}

impl Invariant {
    pub(crate) fn broken(self, how: impl Into<String>) -> Violation {
        Violation {
            invariant: self,
            how: how.into(),
        }
    }
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One that does not hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{invariant}: {how}")]
pub struct Violation {
    pub invariant: Invariant,
    pub how: String,
}
