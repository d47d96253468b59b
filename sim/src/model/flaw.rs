//! Defects that the check must find. Each is a wrapper around a decision or around the backend: the
//! code under test is the shipped one, and what it is told or what is done with its answer is wrong.

use clap::ValueEnum;

use super::invariant::Invariant;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum)]
pub enum Flaw {
    /// A reply that is lost is taken for a success.
    AssumeSuccess,
    /// Beginning does not raise the incarnation.
    ReuseIncarnation,
    /// The backend carries out what a higher key has overtaken.
    DriverSkipsTheFence,
    /// What is seen is believed while a request whose reply was lost may still be carried out.
    BelieveTooSoon,
    /// A verb replaces a waiting delete.
    ReplaceDelete,
    /// A backend that does not answer is taken for an empty one.
    SilenceIsAbsence,
    /// A loss is recorded whatever was issued since it was seen.
    StaleLoss,
    /// A call is let in while a suspend prepares.
    CallWhileSuspending,
    /// A rejected suspend leaves its supervisor quiesced.
    ForgetUnquiesce,
    /// A rejected suspend leaves its wish.
    ForgetDesired,
    /// A stop removes the storage with the compute.
    StopTakesStorage,
    /// A debt of compute is not counted.
    DropDebt,
    /// Memory that was lost is offered again.
    OfferLostMemory,
    /// Unknown compute holds no capacity.
    UnknownIsFree,
    /// A delete that failed is not tried again.
    GiveUpDelete,
    /// After a crash an operation that had an intent starts over from its beginning.
    ForgetIntent,
    /// A suspend that cannot freeze is tried for ever.
    RetryForEver,
    /// A deepening that is turned back waits for a supervisor which sleeps.
    SpeakToSleepers,
    /// A superseded operation is dropped without an outcome.
    LoseTheWaiting,
    /// A suspend does not wait until its supervisor has let go.
    SkipDetach,
    /// Memory on disk that nothing needs any more is not owed.
    ForgetArtifact,
    /// A backend that restores does not know that it has done so already.
    RestoreTwice,
    /// That an artifact is damaged is taken for a refusal that passes.
    TrustDamaged,
}

impl Flaw {
    /// What must find it.
    #[must_use]
    pub const fn found_by(self) -> &'static [Invariant] {
        use Invariant as I;
        match self {
            Self::AssumeSuccess => &[I::OneLiveCompute, I::RecordIsTrue, I::CallsOnlyWhileReady],
            Self::ReuseIncarnation => &[I::IncarnationsAreNew],
            Self::DriverSkipsTheFence => &[I::OneLiveCompute, I::NothingIsLeft],
            Self::BelieveTooSoon => &[I::ConsumedStaysConsumed, I::RecordIsTrue, I::CapacityIsTrue],
            Self::ReplaceDelete => &[I::DeleteDominates],
            Self::SilenceIsAbsence => &[I::RecordIsTrue, I::CapacityIsTrue],
            Self::StaleLoss => &[I::RecordIsTrue, I::CapacityIsTrue],
            Self::CallWhileSuspending => &[I::CallsOnlyWhileReady],
            Self::ForgetUnquiesce => &[I::CallsOnlyWhileReady, I::RejectedChangesNothing],
            Self::ForgetDesired => &[I::RejectedChangesNothing],
            Self::StopTakesStorage => &[I::FilesKept, I::AWayOut],
            Self::DropDebt => &[I::OneLiveCompute, I::CapacityIsTrue],
            Self::OfferLostMemory => &[I::ConsumedStaysConsumed, I::RecordIsTrue],
            Self::UnknownIsFree => &[I::CapacityIsTrue],
            Self::GiveUpDelete => &[I::AWayOut, I::EveryOperationEnds],
            Self::ForgetIntent => &[I::OneLiveCompute, I::RecordIsTrue],
            Self::RetryForEver => &[I::EveryOperationEnds],
            Self::SpeakToSleepers => &[I::SleepersAreLeftAlone],
            Self::LoseTheWaiting => &[I::LineIsServed],
            Self::SkipDetach => &[I::SleepersHaveLetGo],
            Self::ForgetArtifact => &[I::ArtifactsAreOwned],
            Self::RestoreTwice => &[I::ConsumedStaysConsumed, I::OneLiveCompute],
            Self::TrustDamaged => &[I::RecordIsTrue],
        }
    }
}
