//! Does the proof bite? Each seeded defect of the real code, until an invariant catches it.

use std::io;

use overwinter_lifecycle::mutant::{self, Mutant};

use super::invariant::Invariant;
use super::many::{Sum, run_all};
use super::profile::Profile;

/// What the clients of one history do, where it is to be many.
const STEPS: u32 = 400;

/// By which invariant, and where.
pub struct Caught {
    pub invariant: Invariant,
    /// It is one that may catch it.
    pub right: bool,
    pub profile: &'static str,
    pub seed: u64,
    pub how: String,
}

/// Every seed of the budget, of each profile.
#[must_use]
pub fn line(budget: u64) -> Vec<(u64, Profile)> {
    let of_seed = |seed| {
        Profile::all().map(|profile| {
            let steps = profile.steps.min(STEPS);
            (seed, Profile { steps, ..profile })
        })
    };
    (0..budget).flat_map(of_seed).collect()
}

/// What may catch it: that whose meaning it breaks. Anything else that fails says that the simulation is
/// wrong, or that this list is.
#[must_use]
pub const fn found_by(mutant: Mutant) -> &'static [Invariant] {
    use Invariant as I;
    use Mutant as M;
    match mutant {
        M::ReuseIncarnation => &[I::NumbersRise],
        M::DeleteWithoutWish => &[I::DeleteDominates, I::RecordsStay],
        // It queues a resume, whatever was asked for.
        M::WakeWhileDeleting => &[I::DeleteDominates, I::JoinedIsEqual],
        M::DeleteReplaced => &[I::DeleteDominates],
        M::ColdToldAsMemory => &[I::MemoryIsMemory],
        M::LossMakesTombstone | M::PruneOnEmpty => &[I::RecordsStay],
        M::CapacityIgnored => &[I::LimitsHold],
        M::UsageNotWritten => &[I::LimitsHold, I::RoomIsGiven],
        M::CapacityFreedEarly => &[I::CapacityHolds, I::LimitsHold],
        // What is held to be so is not so, whichever part of it shows first.
        M::LostReplyIsSuccess
        | M::UnknownIsAbsent
        | M::InTransitionIsAbsent
        | M::BelieveTooSoon
        | M::LateObservation => &[
            I::CapacityHolds,
            I::LossIsNoticed,
            I::MemoryIsMemory,
            I::MemoryIsOnDisk,
            I::NeverTwo,
            I::NothingLeft,
            I::ReadyIsProved,
            I::RecordsAreTrue,
            I::ToldIsSo,
            I::UsedOnce,
        ],
        M::DeleteNotDone => &[I::CapacityHolds, I::NothingLeft],
        M::SkipDetach => &[I::DetachedBeforeFrozen],
        M::GateStaysOpen => &[I::CallsOnlyWhenReady, I::IdleCutsNothing],
        M::AnyCredentials => &[I::OldCredentialsRefused],
        M::RecoverNothing => &[I::DeadlinesHold, I::EveryOperationEnds],
        // One that is gone in the middle of a suspend leaves the gate as it was.
        M::OwnerOfClient => &[
            I::CallsOnlyWhenReady,
            I::DeadlinesHold,
            I::EveryOperationEnds,
        ],
        M::ForgetDeadline => &[I::DeadlinesHold],
        M::ReadWakes => &[I::NothingUnasked],
        M::ForgetKeys | M::KeyBodyIgnored => &[I::OneKeyOneOperation],
        M::LossUnseen => &[I::LossIsNoticed, I::RecordsAreTrue],
        M::LostMemoryStays => &[I::LossIsNoticed, I::RecordsAreTrue, I::UsedOnce],
        M::SkipFence => &[I::NeverTwo, I::NumbersRise],
        // The ledger takes no second row under one key, and the operation does not get past it.
        M::ReuseSerial => &[I::DeadlinesHold, I::EveryOperationEnds, I::NeverTwo],
        M::ConsumeLate => &[I::UsedOnce],
        // Of memory on disk it shows as soon as the record speaks of what is not there.
        M::OldMemoryKept => &[I::MemoryIsMemory, I::MemoryIsOnDisk, I::UsedOnce],
        M::FallsBackUnasked => &[I::StrictIsStrict],
        M::SecretForgotten => &[I::MemoryIsMemory, I::ReadyIsUsable, I::StrictIsStrict],
        // What was on its way puts to sleep what is told to be Ready.
        M::TurnBackTooLate => &[I::RecordsAreTrue, I::RejectedSuspendLeavesIt],
        M::CloseBeforeEffect => &[I::RejectedSuspendLeavesIt],
        M::JoinUnequal => &[I::JoinedIsEqual],
        M::WaitingDropped | M::SupersededForgotten | M::OperationsForgottenSoon => {
            &[I::NoIntentIsLost]
        }
        // Whoever asks later than its end reads it from there.
        M::EndNotWritten => &[I::NoIntentIsLost, I::WaitersAreTold],
        // A verb is carried out, and nothing durable says that anybody asked for it.
        M::CommitLate => &[
            I::CapacityHolds,
            I::IntentFirst,
            I::NoIntentIsLost,
            I::RecordsStay,
        ],
        // What was not written is believed by whoever goes on from it, or nobody goes on.
        M::CommitUnchecked => &[
            I::DeadlinesHold,
            I::IntentFirst,
            I::LossIsNoticed,
            I::NoIntentIsLost,
            I::OneKeyOneOperation,
        ],
        // The owner goes by what was never written, and does not get on.
        M::RolledBackIsKept => &[
            I::DeadlinesHold,
            I::EveryOperationEnds,
            I::LossIsNoticed,
            I::NoIntentIsLost,
            I::NumbersRise,
        ],
        M::SweepTooSoon => &[I::NoIntentIsLost, I::RecordsStay],
        M::DesiredStays => &[I::WishIsSo],
        M::FailureStays => &[I::ToldIsSo],
        M::DropDebt | M::DebtRowLost | M::UnpaidIsPaid => &[I::NothingLeft],
        M::StartsBesideIt => &[I::NeverTwo],
        M::ArtifactForgotten => &[I::NothingLeft],
        M::DamagedStays => &[I::MemoryIsOnDisk],
        M::WritesTheConnected => &[I::DetachedBeforeFrozen],
        M::UnaskedIsUnwritten => &[I::LostIsGone],
        M::StaysQuiesced => &[I::ReadyIsUsable],
        M::ReadyWithoutAttach => &[I::ReadyIsProved],
        M::ForeignIsOurs => &[I::ForeignLeftAlone],
        M::IdleCuts => &[I::IdleCutsNothing],
        M::WaitersForgotten => &[I::WaitersAreTold],
        M::ReceiptLost => &[I::IntentFirst],
        // Without its storage nothing leads out of a failure.
        M::StopOwesStorage => &[I::AlwaysAWayOut, I::ContentsStay],
        M::StorageUnderfoot => &[I::NoStaleWrite],
        M::SleepFreesName => &[I::IdStays],
        M::FailedForEver => &[I::AlwaysAWayOut],
        M::SleepersStay => &[I::DeleteLeadsOut],
        M::OtherIncarnation => &[I::HeldWasIssued],
        M::KeyCutShort => &[I::AlwaysStarts],
        M::LostIsForgotten => &[I::LostIsWaitedFor],
        M::IntentNotAwaited => &[I::IntentFirst],
    }
}

/// None: it survives. A panic does not count: it is no invariant of ours that found it. One defect
/// at a time in a process.
///
/// # Errors
/// When there is no place for the records.
pub fn catch(mutant: Mutant, budget: u64) -> io::Result<(Sum, Option<Caught>)> {
    mutant::choose(Some(mutant));
    let caught = run_all(&line(budget), 0, |told| {
        told.violation
            .as_ref()
            .is_some_and(|violation| violation.invariant != Invariant::NoPanic)
    });
    mutant::choose(None);
    let (sum, violated) = caught?;
    let caught = violated.and_then(|violated| {
        let violation = violated.told.violation?;
        Some(Caught {
            invariant: violation.invariant,
            right: found_by(mutant).contains(&violation.invariant),
            profile: violated.profile.name,
            seed: violated.seed,
            how: violation.how,
        })
    });
    Ok((sum, caught))
}
