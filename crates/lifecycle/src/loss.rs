//! What is found out while nothing is at work on a sandbox: compute that is gone, or that somebody
//! else has frozen; a main process that has ended.

use crate::Depth;
use crate::ids::{Fence, Incarnation, Millis};
use crate::record::{
    Compute, Desired, DriverReference, Failure, MainExit, Retained, RetainedStatus, Sandbox,
};
use crate::{Fault, Phase, Reason};

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

/// Compute that should run was found frozen while nothing was at work on the sandbox: by somebody
/// else, or by a request of ours that the backend has carried out long after it was settled. All of
/// its memory is there: it sleeps, which is what everybody who asks is told, and a resume wakes it.
/// Nothing inside was asked first, and that is said.
///
/// `fence`: the newest when it was looked at. If an operation has begun since, the observation may
/// speak of a freeze of that operation's own and counts for nothing. Returns whether the record
/// changed.
pub fn record_frozen(sandbox: &mut Sandbox, held: Incarnation, fence: Fence, now: Millis) -> bool {
    let is_so = sandbox.phase() == Phase::Ready
        && sandbox.running.is_none()
        && sandbox.fence == fence
        && sandbox.compute == (Compute::Live { held });
    if !is_so {
        return false;
    }
    sandbox.retained = Some(Retained {
        depth: Depth::Freeze,
        status: RetainedStatus::Available,
        reference: DriverReference::default(),
        generation: sandbox.generation,
        size_bytes: 0,
        since: now,
        expires_at: None,
        lost: None,
        quiesced: false,
        artifact: None,
        reclaimed: None,
    });
    sandbox.desired = Desired::Suspended(Depth::Freeze);
    sandbox.compute = Compute::Frozen { held };
    sandbox.updated_at = now;
    true
}

/// The main process has ended: recorded, and never a change of phase.
pub fn record_main_exit(sandbox: &mut Sandbox, exit: MainExit) {
    sandbox.main_exit = Some(exit);
}
