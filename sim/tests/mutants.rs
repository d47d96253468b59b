//! The small form of `make prove-mutants`: a handful of defects, each caught by an invariant that speaks
//! of it. One test: a process has one defect at a time.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use overwinter_lifecycle::mutant::Mutant;
use overwinter_sim::history::invariant::Invariant;
use overwinter_sim::history::mutants::catch;

#[test]
fn a_handful_of_defects_is_caught() {
    let handful = [
        (Mutant::DeleteReplaced, Invariant::DeleteDominates),
        (Mutant::JoinUnequal, Invariant::JoinedIsEqual),
        (
            Mutant::CloseBeforeEffect,
            Invariant::RejectedSuspendLeavesIt,
        ),
        (Mutant::ConsumeLate, Invariant::UsedOnce),
        (Mutant::ReceiptLost, Invariant::IntentFirst),
        (Mutant::EndNotWritten, Invariant::NoIntentIsLost),
    ];
    for (mutant, by) in handful {
        let caught = catch(mutant, 4).unwrap().1;
        let caught = caught.unwrap_or_else(|| panic!("{} survives", mutant.name()));
        assert!(caught.right);
        assert_eq!(caught.invariant, by, "{}: {}", mutant.name(), caught.how);
    }
}
