//! Memory of what is frozen: given back after a freeze, brought in before a thaw. Neither decides
//! whether the effect succeeds: it stands still, or runs, wherever its memory is. What came of it is a
//! remark.

use std::sync::Arc;
use std::time::{Duration, Instant};

use overwinter_driver::{Effected, Reclaimed};
use overwinter_lifecycle::ids::SandboxId;

use crate::driver::{Shared, Turn, blocking};
use crate::error::LocalError;
use crate::reclaim::{self, Advice, NoReclaim, Swaps};

/// Why none was given back.
#[derive(Debug, thiserror::Error)]
enum Kept {
    #[error(transparent)]
    Nowhere(#[from] NoReclaim),
    #[error(transparent)]
    Failed(#[from] LocalError),
}

/// What was given back.
struct Moved {
    reclaimed: Reclaimed,
    swapped: u64,
    took: Duration,
}

impl Shared {
    /// Frozen already.
    pub(super) async fn give_back(
        self: &Arc<Self>,
        turn: &Turn,
        sandbox: SandboxId,
        frozen: Effected,
    ) -> Effected {
        let _paging = self.paging.acquire().await;
        let (shared, until) = (Arc::clone(self), half_of(turn.until));
        let moved = blocking(move || Ok(shared.move_out(sandbox, until))).await;
        let mut effected = frozen;
        match moved.map_err(Kept::Failed).and_then(|moved| moved) {
            Ok(moved) => {
                effected.reclaimed = Some(moved.reclaimed);
                effected.remarks.push(format!(
                    "swapped={}B freed={}B reclaim={:.1}ms",
                    moved.swapped,
                    moved.reclaimed.freed_bytes,
                    moved.took.as_secs_f64() * 1000.0
                ));
            }
            Err(why) => {
                tracing::warn!(%sandbox, %why, "its memory stays");
                effected.remarks.push(format!("its memory stays: {why}"));
            }
        }
        effected
    }

    fn move_out(&self, sandbox: SandboxId, until: Instant) -> Result<Moved, Kept> {
        let swaps = Swaps::find()?;
        let look = self.host.look(sandbox)?;
        let native = &look.record().ok_or(LocalError::BrokenOff)?.native;
        let cgroups = &self.host.cgroups;
        let begun = Instant::now();
        reclaim::advise(cgroups, native, Advice::PageOut, until)?;
        let took = begun.elapsed();
        let (reclaimed, swapped) = reclaim::reclaimed(&swaps, cgroups, native)?;
        Ok(Moved {
            reclaimed,
            swapped,
            took,
        })
    }

    /// Still frozen. Says what came of it.
    pub(super) fn bring_in(&self, turn: &Turn, native: &str) -> String {
        let begun = Instant::now();
        let until = half_of(turn.until);
        match reclaim::advise(&self.host.cgroups, native, Advice::WillNeed, until) {
            Ok(()) => format!("prefetch={:.1}ms", begun.elapsed().as_secs_f64() * 1000.0),
            Err(why) => format!("its memory comes in as it is used: {why}"),
        }
    }
}

/// The other half of what is left is for the effect itself.
fn half_of(until: Instant) -> Instant {
    let now = Instant::now();
    now + until.saturating_duration_since(now) / 2
}
