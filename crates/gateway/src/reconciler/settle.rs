//! Settling what is unknown: looking until there is an answer, and letting time pass between tries.
//!
//! Every wait here ends as well when the operation is asked to stop: a delete always leads out.

use std::sync::Arc;
use std::time::Duration;

use overwinter_driver::Driver;
use overwinter_lifecycle::ids::SandboxId;
use overwinter_lifecycle::operation::{EffectKind, Operation, Stopping};
use overwinter_lifecycle::record::{Compute, Sandbox};
use overwinter_lifecycle::steps::{Deadline, Event, Observed};

use super::Reconciler;
use super::owner::Owned;
use crate::sessions::Slot;

/// Before something is tried or looked at again: doubled each time, up to the longest.
#[derive(Clone, Copy, Debug)]
struct Backoff {
    next: Duration,
    longest: Duration,
}

impl Backoff {
    const fn take(&mut self) -> Duration {
        let now = self.next;
        let doubled = now.saturating_mul(2);
        self.next = if doubled.as_nanos() < self.longest.as_nanos() {
            doubled
        } else {
            self.longest
        };
        now
    }
}

/// Between two looks. A driver's hint that something has changed cuts it short.
const LOOKS: Backoff = Backoff {
    next: Duration::from_millis(10),
    longest: Duration::from_secs(1),
};
/// Between two calls of an effect.
const CALLS: Backoff = Backoff {
    next: Duration::from_millis(50),
    longest: Duration::from_secs(2),
};

/// The time of one operation with one owner, on the monotonic clock.
pub(super) struct Times {
    deadline: Duration,
    calls: Backoff,
    /// Until then a request whose reply was lost may still be carried out.
    lost_until: Duration,
    /// The same, of the operation before this one, which a delete has interrupted.
    interrupted_until: Duration,
}

impl Reconciler {
    /// What an owner is granted when it begins, or takes over. `before`: when it goes on from one
    /// operation to the next.
    pub(super) fn grant(&self, sandbox: &Sandbox, op: &Operation, before: Option<&Times>) -> Times {
        let now = self.ports.clock.monotonic();
        let life = self.lost_request_life(sandbox);
        // An owner that is gone may have sent its request just before.
        let unknown = op.attempt > 1 && op.intent.is_some();
        // The one end that settles nothing is that a delete takes over.
        let unsettled = sandbox.compute == Compute::Unknown;
        let before = before.filter(|_| unsettled);
        let earlier = before.map_or(Duration::ZERO, |before| before.lost_until);
        Times {
            deadline: now + Duration::from_millis(op.deadlines.operation_ms),
            calls: CALLS,
            lost_until: if unknown {
                now + life
            } else {
                earlier.max(now)
            },
            interrupted_until: if unknown && unsettled {
                now + life
            } else {
                earlier
            },
        }
    }

    pub(super) fn deadline(&self, times: &Times) -> Deadline {
        if self.ports.clock.monotonic() < times.deadline {
            Deadline::Ahead
        } else {
            Deadline::Up
        }
    }

    fn lost_request_life(&self, sandbox: &Sandbox) -> Duration {
        let registered = self.drivers.get(&sandbox.spec.driver);
        let modes = registered.map(|registered| &registered.description.modes);
        modes
            .into_iter()
            .flatten()
            .map(|mode| mode.lost_request_life)
            .max()
            .unwrap_or_default()
    }

    /// Remembers whether the request that was just sent may still be on its way.
    pub(super) fn note_request(&self, owned: &mut Owned, event: &Event) {
        if let Event::Unknown(_) = event {
            let life = self.lost_request_life(&owned.sandbox);
            owned.times.lost_until = self.ports.clock.monotonic() + life;
        }
    }

    /// Lets time pass before the same effect is called again.
    pub(super) async fn pause(&self, owned: &mut Owned, slot: &Arc<Slot>) -> Option<Stopping> {
        let pause = owned.times.calls.take();
        tokio::select! {
            biased;
            () = self.ports.clock.sleep(pause) => None,
            stopping = self.stopping(owned.sandbox.id, slot) => Some(stopping),
        }
    }

    /// Waits until the running operation is to stop at its next boundary.
    pub(super) async fn stopping(&self, id: SandboxId, slot: &Arc<Slot>) -> Stopping {
        loop {
            let seen = slot.stop_requests();
            match self.store.get(id).await {
                Ok(found) => {
                    let running = found.and_then(|sandbox| sandbox.running);
                    if let Some(stopping) = running.and_then(|op| op.stopping) {
                        return stopping;
                    }
                }
                // It is seen at the next recording at the latest.
                Err(error) => tracing::error!(%error, "the record cannot be read"),
            }
            slot.stop_requested(seen).await;
        }
    }

    /// Looks until the driver can tell, or the time for it has passed.
    pub(super) async fn observe(
        &self,
        driver: &Arc<dyn Driver>,
        owned: &Owned,
        op: &Operation,
        after: Option<EffectKind>,
        slot: &Arc<Slot>,
    ) -> Event {
        let id = owned.sandbox.id;
        let now = self.ports.clock.monotonic();
        let in_flight = owned.times.lost_until.saturating_sub(now);
        let patience = Duration::from_millis(op.deadlines.effect_ms) + in_flight;
        let settled = async {
            let mut looks = LOOKS;
            loop {
                let changes = slot.compute_changes();
                let asked = self.ports.clock.monotonic();
                if let Some(seen) = self.look(driver, id).await
                    && is_final(seen, asked, after, &owned.times)
                {
                    return Event::Observed(seen);
                }
                tokio::select! {
                    biased;
                    () = self.ports.clock.sleep(looks.take()) => {}
                    _ = slot.compute_changed(changes) => {}
                    stopping = self.stopping(id, slot) => return Event::Stopped(stopping),
                }
            }
        };
        self.ports
            .within(patience, settled)
            .await
            .unwrap_or(Event::Observed(Observed::Unknown))
    }

    /// None: it cannot be told now.
    async fn look(&self, driver: &Arc<dyn Driver>, id: SandboxId) -> Option<Observed> {
        match driver.observe(id).await {
            Ok(seen) => match seen.observed {
                Observed::InTransition | Observed::Unknown => {
                    overwinter_lifecycle::mutant!(InTransitionIsAbsent).then_some(Observed::Absent)
                }
                settled @ (Observed::Absent
                | Observed::Stopped
                | Observed::Live { .. }
                | Observed::Frozen { .. }) => Some(settled),
            },
            Err(error) => {
                tracing::warn!(%error, "cannot be observed");
                None
            }
        }
    }
}

/// Whether no request that is still on its way can change it. What is seen was so at some time since
/// the question was `asked`: an answer that took long may be older than what has happened meanwhile.
///
/// That an effect has happened is seen at once; but what an operation before it has asked for, and
/// nobody has settled, may come on top: a create beside the delete that has interrupted it.
fn is_final(seen: Observed, asked: Duration, after: Option<EffectKind>, times: &Times) -> bool {
    let has_happened = after.is_none_or(|effect| seen.shows(effect));
    has_happened && asked >= times.interrupted_until
        || asked >= times.lost_until
        || overwinter_lifecycle::mutant!(BelieveTooSoon)
}

#[cfg(test)]
mod tests {
    use overwinter_lifecycle::Depth;
    use overwinter_lifecycle::ids::Incarnation;

    use super::*;

    /// Memory was given back as untouched: the look had been asked before a late resume landed, and
    /// was answered after the time in which that could.
    #[test]
    fn what_is_seen_counts_from_when_it_was_asked() {
        let at = Duration::from_secs;
        let times = Times {
            deadline: at(60),
            calls: CALLS,
            lost_until: at(10),
            interrupted_until: at(0),
        };
        let resume = Some(EffectKind::Resume(Depth::Freeze));
        let held = Incarnation(1);
        assert!(!is_final(Observed::Frozen { held }, at(9), resume, &times));
        assert!(is_final(Observed::Frozen { held }, at(10), resume, &times));
        // Nothing that is on its way takes back what has happened.
        assert!(is_final(Observed::Live { held }, at(9), resume, &times));
        assert!(is_final(Observed::Frozen { held }, at(9), None, &times));
    }

    /// A delete was told done, and then the create that it had interrupted landed.
    #[test]
    fn what_was_interrupted_may_come_on_top() {
        let at = Duration::from_secs;
        let times = Times {
            deadline: at(60),
            calls: CALLS,
            lost_until: at(10),
            interrupted_until: at(10),
        };
        let delete = Some(EffectKind::Delete);
        assert!(!is_final(Observed::Absent, at(9), delete, &times));
        assert!(is_final(Observed::Absent, at(10), delete, &times));
    }

    #[test]
    fn a_pause_doubles_up_to_the_longest() {
        let mut backoff = CALLS;
        let taken: Vec<u128> = (0..8).map(|_| backoff.take().as_millis()).collect();
        assert_eq!(taken, [50, 100, 200, 400, 800, 1600, 2000, 2000]);
    }
}
