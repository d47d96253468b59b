//! Seeded defects of the real code, to prove that the simulation bites. Compiled in with the feature
//! `mutants` alone, which no release has; one at a time is chosen at start.

macro_rules! mutants {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Mutant { $($(#[doc = $doc])+ $name,)+ }

        impl Mutant {
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)+ }
            }
        }
    };
}

mutants! {
    /// A start or a resume keeps the incarnation.
    ReuseIncarnation,
    /// A delete that is accepted does not say that the sandbox is to go.
    DeleteWithoutWish,
    /// A sandbox whose delete runs can be woken.
    WakeWhileDeleting,
    /// Any verb takes the place of a delete that waits.
    DeleteReplaced,
    /// A cold start is told as memory.
    ColdToldAsMemory,
    /// Compute that is gone takes the record with it.
    LossMakesTombstone,
    /// What runs is not counted.
    CapacityIgnored,
    /// A lost reply is taken for success.
    LostReplyIsSuccess,
    /// A delete is told before it is done.
    DeleteNotDone,
    /// Memory is kept while the supervisor is attached.
    SkipDetach,
    /// What cannot be told is taken for absence.
    UnknownIsAbsent,
    /// Calls are let in while a suspend runs.
    GateStaysOpen,
    /// Whatever credentials are shown are good.
    AnyCredentials,
    /// What was left unfinished is not taken up.
    RecoverNothing,
    /// A read wakes what sleeps.
    ReadWakes,
    /// Keys are not remembered.
    ForgetKeys,
    /// Its compute changes behind the gateway's back, and nobody looks.
    LossUnseen,
    /// Memory on disk that nothing needs any more is not owed.
    ArtifactForgotten,
    /// A resume starts compute beside what it has seen to be there.
    StartsBesideIt,
    /// An artifact that was refused as damaged is offered again.
    DamagedStays,
    /// Taken up after a crash, memory is written of what has not let go.
    WritesTheConnected,
    /// Compute that is gone is taken to have left nothing on disk.
    UnaskedIsUnwritten,
    /// An operation begins under the fence of the one before it.
    SkipFence,
    /// A second effect of an operation has the serial of the first.
    ReuseSerial,
    /// What a wake consumes is not marked when it begins.
    ConsumeLate,
    /// Memory that is gone, or that something has run on, is kept as if nothing had.
    OldMemoryKept,
    /// A strict resume goes on with a cold start.
    FallsBackUnasked,
    /// What the supervisor has proved is not kept.
    SecretForgotten,
    /// A suspend gives its room back when it begins.
    CapacityFreedEarly,
    /// Frozen memory that is lost is still told to be there.
    LostMemoryStays,
    /// What was seen of one compute is believed of the next.
    LateObservation,
    /// A suspend is turned back past its point of no turning back.
    TurnBackTooLate,
    /// A verb joins one with other parameters.
    JoinUnequal,
    /// Who waits in line is forgotten when the running operation ends.
    WaitingDropped,
    /// A suspend that did not happen leaves its wish behind.
    DesiredStays,
    /// A failure outlives the next success.
    FailureStays,
    /// What a failed create has left is not owed.
    DropDebt,
    /// The row of a debt is not written.
    DebtRowLost,
    /// A debt that could not be paid is struck off.
    UnpaidIsPaid,
    /// Sessions are closed when a suspend begins.
    CloseBeforeEffect,
    /// A suspend that was undone does not let new work in again.
    StaysQuiesced,
    /// Ready before the supervisor has attached.
    ReadyWithoutAttach,
    /// What is in transition is taken for absent.
    InTransitionIsAbsent,
    /// What is seen is believed while a lost request can still arrive.
    BelieveTooSoon,
    /// What a backend does not list is deleted.
    PruneOnEmpty,
    /// Compute of another gateway is removed.
    ForeignIsOurs,
    /// Open calls do not keep it from being put to sleep.
    IdleCuts,
    /// Who waits for an operation is not told of its end.
    WaitersForgotten,
    /// An operation that has begun gets its owner from its client's own task.
    OwnerOfClient,
    /// An operation's deadlines are not what was configured.
    ForgetDeadline,
    /// An operation that is superseded does not end.
    SupersededForgotten,
    /// The end of an operation is not written to its row.
    EndNotWritten,
    /// The intent of an effect has no row in the ledger.
    ReceiptLost,
    /// What a record holds of the capacity is not written with it.
    UsageNotWritten,
    /// A key answers for any request of its method.
    KeyBodyIgnored,
    /// Tombstones are swept at once.
    SweepTooSoon,
    /// Ended operations are swept that are to be kept.
    OperationsForgottenSoon,
    /// A commit that failed is answered as done.
    CommitUnchecked,
    /// An accepted verb is answered before its commit.
    CommitLate,
    /// A write that was rolled back is kept in memory.
    RolledBackIsKept,
    /// A stop leaves the storage to be removed.
    StopOwesStorage,
    /// A create removes the storage from under what it has started.
    StorageUnderfoot,
    /// What sleeps gives its name away.
    SleepFreesName,
    /// What has failed can only be deleted.
    FailedForEver,
    /// What sleeps cannot be deleted.
    SleepersStay,
    /// The driver is told of another incarnation than the record.
    OtherIncarnation,
    /// A gateway that starts leaves its key in a form that the next cannot read.
    KeyCutShort,
    /// An effect does not wait for what was lost before it.
    LostIsForgotten,
    /// An effect does not wait for its intent to be on the disk.
    IntentNotAwaited,
}

/// Whether the code is to be wrong here.
#[macro_export]
macro_rules! mutant {
    ($name:ident) => {
        $crate::mutant::is_on($crate::mutant::Mutant::$name)
    };
}

/// What is right, left out where the code is to be wrong. Without the feature nothing is asked: the
/// core has no branch that its tests cannot take.
#[cfg(feature = "mutants")]
macro_rules! unless {
    ($name:ident, $right:block) => {
        if !$crate::mutant!($name) $right
    };
}
#[cfg(not(feature = "mutants"))]
macro_rules! unless {
    ($name:ident, $right:block) => {
        $right
    };
}
pub(crate) use unless;

#[cfg(feature = "mutants")]
static CHOSEN: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(u8::MAX);

/// Switches one on, and every other off.
#[cfg(feature = "mutants")]
pub fn choose(mutant: Option<Mutant>) {
    let number = mutant.map_or(u8::MAX, |mutant| mutant as u8);
    CHOSEN.store(number, std::sync::atomic::Ordering::Relaxed);
}

/// Whether the code is to be wrong here.
#[cfg(feature = "mutants")]
#[must_use]
pub fn is_on(mutant: Mutant) -> bool {
    CHOSEN.load(std::sync::atomic::Ordering::Relaxed) == mutant as u8
}

#[cfg(not(feature = "mutants"))]
#[must_use]
#[inline(always)]
pub const fn is_on(_: Mutant) -> bool {
    false
}
