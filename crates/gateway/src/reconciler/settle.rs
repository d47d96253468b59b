//! Settling what is unknown: looking until there is an answer, and letting time pass between tries.
//!
//! Every wait here ends as well when the operation is asked to stop: a delete always leads out.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use overwinter_driver::Driver;
use overwinter_lifecycle::ids::{EffectKey, SandboxId};
use overwinter_lifecycle::operation::{EffectKind, Operation, Stopping, Verb};
use overwinter_lifecycle::record::Sandbox;
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
    pub(super) deadline: Duration,
    calls: Backoff,
    /// Until then a request whose reply was lost may still be carried out.
    lost_until: Duration,
}

/// Requests whose replies were lost, and which their backend may still carry out: they block every
/// different effect on their sandbox, whatever has become of their operation. In memory only; a
/// gateway that begins takes it that there is one for every sandbox.
pub(super) struct Lost {
    began: Duration,
    newest: Mutex<HashMap<SandboxId, (EffectKey, Duration)>>,
}

impl Lost {
    pub(super) fn new(now: Duration) -> Self {
        Self {
            began: now,
            newest: Mutex::default(),
        }
    }

    fn newest(&self) -> MutexGuard<'_, HashMap<SandboxId, (EffectKey, Duration)>> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, id: SandboxId, key: EffectKey, now: Duration, life: Duration) {
        if life.is_zero() {
            return;
        }
        let mut newest = self.newest();
        // Those whose time is over are cleared by those that come.
        newest.retain(|_, (_, until)| *until > now);
        newest.insert(id, (key, now + life));
    }

    /// Until when a call under `key` is blocked, or what must go before any call. The same request is
    /// no different effect.
    fn blocks(&self, id: SandboxId, key: Option<EffectKey>, life: Duration) -> Duration {
        match self.newest().get(&id) {
            Some((lost, _)) if Some(*lost) == key => Duration::ZERO,
            Some((_, until)) => *until,
            None if life.is_zero() => Duration::ZERO,
            None => self.began + life,
        }
    }
}

impl Reconciler {
    /// What an owner is granted when it begins, or takes over.
    pub(super) fn grant(&self, sandbox: &Sandbox, op: &Operation) -> Times {
        let now = self.ports.clock.monotonic();
        // An owner that is gone may have sent its request just before.
        let unknown = op.attempt > 1 && op.intent.is_some();
        Times {
            deadline: now + Duration::from_millis(op.deadlines.operation_ms),
            calls: CALLS,
            lost_until: if unknown {
                now + self.lost_request_life(sandbox)
            } else {
                now
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
        let Some(registered) = self.drivers.get(&sandbox.spec.driver) else {
            return Duration::ZERO;
        };
        let description = registered.description();
        let lives = description.modes.iter().map(|mode| mode.lost_request_life);
        lives.max().unwrap_or_default()
    }

    /// Remembers whether the request that was just sent may still be on its way.
    pub(super) fn note_request(&self, owned: &mut Owned, op: &Operation, event: &Event) {
        if let (Event::Unknown(_), Some(key)) = (event, op.intent_key()) {
            let life = self.lost_request_life(&owned.sandbox);
            let now = self.ports.clock.monotonic();
            owned.times.lost_until = now + life;
            self.lost.note(owned.sandbox.id, key, now, life);
        }
    }

    /// Waits until no request of another effect is on its way: it would be carried out on top of
    /// this one.
    pub(super) async fn wait_for_lost(
        &self,
        sandbox: &Sandbox,
        op: &Operation,
        slot: &Arc<Slot>,
    ) -> Option<Stopping> {
        match op.verb {
            // Who abandons it does not wait for what may come.
            Verb::Delete { abandon: true } => return None,
            // There was nothing before it.
            Verb::Create if op.attempt == 1 => return None,
            Verb::Create
            | Verb::Delete { abandon: false }
            | Verb::Suspend { .. }
            | Verb::Resume { .. }
            | Verb::Start => {}
        }
        let life = self.lost_request_life(sandbox);
        let until = self.lost.blocks(sandbox.id, op.intent_key(), life);
        let left = until.saturating_sub(self.ports.clock.monotonic());
        if left.is_zero() || overwinter_lifecycle::mutant!(LostIsForgotten) {
            return None;
        }
        tracing::info!(?left, "a request of before may still be carried out");
        tokio::select! {
            biased;
            () = self.ports.clock.sleep(left) => None,
            stopping = self.stopping(sandbox.id, slot) => Some(stopping),
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
fn is_final(seen: Observed, asked: Duration, after: Option<EffectKind>, times: &Times) -> bool {
    after.is_none_or(|effect| seen.shows(effect))
        || asked >= times.lost_until
        || overwinter_lifecycle::mutant!(BelieveTooSoon)
}

#[cfg(test)]
mod tests {
    use overwinter_lifecycle::Depth;
    use overwinter_lifecycle::ids::{Fence, Incarnation, Serial};
    use uuid::Uuid;

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
        };
        let resume = Some(EffectKind::Resume(Depth::Freeze));
        let held = Incarnation(1);
        assert!(!is_final(Observed::Frozen { held }, at(9), resume, &times));
        assert!(is_final(Observed::Frozen { held }, at(10), resume, &times));
        // Nothing that is on its way takes back what has happened.
        assert!(is_final(Observed::Live { held }, at(9), resume, &times));
        assert!(is_final(Observed::Frozen { held }, at(9), None, &times));
    }

    /// A stop whose reply was lost landed on the compute that the next resume had started.
    #[test]
    fn what_was_lost_blocks_every_different_effect_for_its_life() {
        let at = Duration::from_secs;
        let (life, id) = (at(5), SandboxId(Uuid::from_u128(1)));
        let key = |fence| EffectKey {
            sandbox: id,
            fence: Fence(fence),
            serial: Serial(1),
        };
        let lost = Lost::new(at(100));
        // Of a gateway before this one.
        assert_eq!(lost.blocks(id, Some(key(1)), life), at(105));
        lost.note(id, key(1), at(200), life);
        assert_eq!(lost.blocks(id, Some(key(2)), life), at(205));
        assert_eq!(
            lost.blocks(id, Some(key(1)), life),
            at(0),
            "the same request"
        );
        // Where nothing is carried out late, nothing waits.
        let none = Lost::new(at(100));
        none.note(id, key(1), at(200), at(0));
        assert_eq!(none.blocks(id, Some(key(2)), at(0)), at(0));
    }

    #[test]
    fn a_pause_doubles_up_to_the_longest() {
        let mut backoff = CALLS;
        let taken: Vec<u128> = (0..8).map(|_| backoff.take().as_millis()).collect();
        assert_eq!(taken, [50, 100, 200, 400, 800, 1600, 2000, 2000]);
    }
}
