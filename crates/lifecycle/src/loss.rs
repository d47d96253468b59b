//! What is found out while nothing is at work on a sandbox: compute that is gone, a main process that
//! has ended.

use crate::Depth;
use crate::ids::{Incarnation, Millis};
use crate::record::{Compute, Desired, DriverReference, Failure, MainExit, Sandbox};
use crate::{Fault, Reason};

/// Compute was found gone while nothing was at work on the sandbox. Memory that was promised is
/// `lost`; running compute promised nothing, and its sandbox is Failed with the storage intact.
///
/// `issued`: the newest incarnation when it was looked at. If another has been issued since, the
/// observation speaks of a compute of before and counts for nothing. Returns whether the record
/// changed.
pub fn record_loss(
    sandbox: &mut Sandbox,
    observed: Compute,
    issued: Incarnation,
    now: Millis,
) -> bool {
    if sandbox.issued != issued && !crate::mutant!(LateObservation) {
        return false;
    }
    if sandbox.running.is_some() || observed.may_exist() {
        return false;
    }
    // The next try of its delete looks for itself; nothing brings its wish back.
    if sandbox.desired == Desired::Deleted {
        return false;
    }
    #[cfg(feature = "mutants")]
    if crate::mutant!(LossMakesTombstone) {
        sandbox.tombstone_at = Some(now);
    }
    match &mut sandbox.retained {
        Some(retained) if retained.depth == Depth::Freeze && !crate::mutant!(LostMemoryStays) => {
            retained.depth = Depth::Stop;
            retained.lost = Some(Depth::Freeze);
            retained.reference = DriverReference::default();
            sandbox.desired = Desired::Suspended(Depth::Stop);
        }
        // Neither needs compute.
        Some(_) => return false,
        None if sandbox.compute.may_exist() => {
            let fault = Fault::new(
                Reason::ComputeLost,
                "its compute is gone; its storage is intact",
            );
            sandbox.failure = Some(Failure {
                fault,
                operation: None,
                at: now,
            });
        }
        None => return false,
    }
    sandbox.compute = observed;
    sandbox.updated_at = now;
    true
}

/// The main process has ended: recorded, and never a change of phase.
pub fn record_main_exit(sandbox: &mut Sandbox, exit: MainExit) {
    sandbox.main_exit = Some(exit);
}
