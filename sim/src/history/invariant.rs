//! What must be so, by name. Each is of a kind of fault that users of other systems have met.

use std::fmt;

macro_rules! invariants {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Invariant { $($(#[doc = $doc])+ $name,)+ }

        impl Invariant {
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)+ }
            }

            /// Its meaning, in a line.
            #[must_use]
            pub const fn means(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc,)+),)+ }
            }
        }
    };
}

invariants! {
    /// What was written and acknowledged is there, with its bytes, until the sandbox is deleted.
    ContentsStay,
    /// A name stands for one id until that is deleted.
    IdStays,
    /// At most one live compute of a sandbox, and no native name twice.
    NeverTwo,
    /// Until a request whose reply was lost is settled, or can come no more, nothing else is sent.
    LostIsWaitedFor,
    /// Nothing writes to the storage but the newest incarnation.
    NoStaleWrite,
    /// The supervisor has let go before its memory is kept.
    DetachedBeforeFrozen,
    /// Credentials that newer ones have revoked let nobody in.
    OldCredentialsRefused,
    /// A call of the data plane succeeds only where the sandbox was Ready during it.
    CallsOnlyWhenReady,
    /// A suspend that idleness asked for never ends a call that is under way.
    IdleCutsNothing,
    /// "memory" is said only of the very processes that were suspended.
    MemoryIsMemory,
    /// A suspend that ends with the sandbox Ready has left what runs untouched.
    RejectedSuspendLeavesIt,
    /// What is retained is in the hands of one operation while that wakes it, and given back only where nothing ran on it.
    UsedOnce,
    /// Memory on disk that a record speaks of is there, whole, and of the very processes that were suspended.
    MemoryIsOnDisk,
    /// A suspend tells of memory that is lost only where nothing holds it.
    LostIsGone,
    /// A strict resume brings memory back, or fails.
    StrictIsStrict,
    /// Only a delete that was asked for, or a create that came to nothing, makes a tombstone, and only its sweep takes a record away.
    RecordsStay,
    /// Once asked for, deleted is what is wanted, nothing takes a delete's place in line or comes behind it; a tombstone is for ever.
    DeleteDominates,
    /// At rest, what is wanted is what is so.
    WishIsSo,
    /// What an operation is told to have done is so.
    ToldIsSo,
    /// Done is said of a wake only when the supervisor has proved the newest incarnation.
    ReadyIsProved,
    /// No effect reaches the backend whose intent is not in the ledger.
    IntentFirst,
    /// Fence, incarnation and revision never go back, and a new operation has a new fence.
    NumbersRise,
    /// Compute holds an incarnation that was issued.
    HeldWasIssued,
    /// Nothing begins that nobody has asked for: reads never wake.
    NothingUnasked,
    /// The same request under the same key is one operation.
    OneKeyOneOperation,
    /// Whoever is told of an operation has asked for just that.
    JoinedIsEqual,
    /// Whoever waits for an operation is told at once when it ends.
    WaitersAreTold,
    /// Whatever runs holds its place in the capacity.
    CapacityHolds,
    /// No start begins over the limits.
    LimitsHold,
    /// Where there is room, nobody is refused for want of it.
    RoomIsGiven,
    /// No owner goes on for longer than the deadlines of its operation allow.
    DeadlinesHold,
    /// Once faults have stopped, every operation ends.
    EveryOperationEnds,
    /// Once faults have stopped, what the records say of compute is so.
    RecordsAreTrue,
    /// Compute that is lost is noticed without anybody's asking.
    LossIsNoticed,
    /// What is Ready and attached can be used.
    ReadyIsUsable,
    /// An accepted operation is not forgotten, and one that was superseded names its successor.
    NoIntentIsLost,
    /// From wherever it is left, a verb leads back to Ready.
    AlwaysAWayOut,
    /// A delete leads out of every phase.
    DeleteLeadsOut,
    /// After the deletes nothing is on the backend, before them no memory on disk that no record speaks of, and no debt is left.
    NothingLeft,
    /// Compute of another gateway is left alone.
    ForeignLeftAlone,
    /// Whatever is committed can be read by the next gateway.
    AlwaysStarts,
    /// No part of the gateway panics.
    NoPanic,
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// One that does not hold.
#[derive(Clone, Debug)]
pub struct Violation {
    pub invariant: Invariant,
    pub how: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {}\n  ({})",
            self.invariant,
            self.how,
            self.invariant.means().trim()
        )
    }
}
