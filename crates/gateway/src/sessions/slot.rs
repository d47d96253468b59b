//! One awake sandbox: its session, its gate and its use. In memory only; what a decision depends on
//! for longer is in the record.
//!
//! **The gate.** A call of the data plane is admitted only while the gate is open, and counted until
//! it has reached the supervisor. A suspend closes the gate and waits for that count to be zero
//! before it quiesces, so no call can slip in behind it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use overwinter_driver::Agent;
use overwinter_driver::attach::{AttachProof, AttachRefused, Refusals};
use overwinter_lifecycle::ids::{Incarnation, SandboxId};
use overwinter_lifecycle::recording::SecretHash;
use tokio::sync::Notify;

use super::credentials::{CredentialKey, Expected, Proof, hash};

/// A proved connection.
#[derive(Clone)]
pub struct Session {
    pub incarnation: Incarnation,
    pub agent: Arc<dyn Agent>,
    pub secret: SecretHash,
    /// Of this slot, from 1.
    pub number: u64,
}

#[derive(Default)]
struct State {
    expected: Option<Expected>,
    session: Option<Session>,
    sessions: u64,
    gate_open: bool,
    /// Admitted, and not yet with the supervisor.
    entering: u32,
    /// Open from their admission to their end.
    open_calls: u32,
    last_use: Duration,
    /// Hints of the driver that the compute has changed.
    compute_changes: u64,
    /// Hints that the running operation was asked to stop at its next boundary.
    stop_requests: u64,
    /// Under which its processes are followed already.
    followed: Option<Incarnation>,
    /// Attaches that were refused.
    refusals: Refusals,
    /// It sleeps or is gone: nobody need wait here.
    closed: bool,
}

/// See the module.
pub struct Slot {
    pub id: SandboxId,
    pub name: String,
    state: Mutex<State>,
    changed: Notify,
}

impl Slot {
    pub(super) fn new(id: SandboxId, name: &str) -> Self {
        Self {
            id,
            name: name.to_owned(),
            state: Mutex::new(State::default()),
            changed: Notify::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change is one assignment: a panic elsewhere leaves nothing half-made.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        let result = f(&mut self.lock());
        self.changed.notify_waiters();
        result
    }

    /// Waits until `f` finds what it looks for.
    async fn until<T>(&self, mut f: impl FnMut(&mut State) -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Enabled before the look, so that no change falls between.
            changed.as_mut().enable();
            if let Some(found) = f(&mut self.lock()) {
                return found;
            }
            changed.await;
        }
    }

    /// From here on only this is let in; what was attached under another incarnation is let go.
    pub fn expect(&self, expected: Expected) {
        let revoked = self.change(|state| {
            let revoked = state
                .session
                .take_if(|session| session.incarnation != expected.incarnation);
            state.expected = Some(expected);
            state.closed = false;
            revoked
        });
        // Its supervisor looks for new credentials once this connection has ended.
        if let Some(session) = revoked {
            session.agent.hang_up();
        }
    }

    /// Whether an attach under `incarnation` is awaited, or was made.
    #[must_use]
    pub fn is_expecting(&self, incarnation: Incarnation) -> bool {
        self.lock()
            .expected
            .is_some_and(|expected| expected.incarnation == incarnation)
    }

    /// Checks a proof. On success the expectation becomes "the same again".
    pub(super) fn verify(
        &self,
        key: &CredentialKey,
        proof: &AttachProof,
    ) -> Result<(), AttachRefused> {
        let mut state = self.lock();
        let expected = state.expected.ok_or(AttachRefused::Revoked)?;
        state.expected = Some(expected.verify(key, self.id, proof)?);
        Ok(())
    }

    /// Waits for a session under `incarnation` that is not the one of `number`; none when the
    /// sandbox sleeps instead.
    pub async fn next_session(&self, incarnation: Incarnation, number: u64) -> Option<Session> {
        self.until(|state| {
            if state.closed {
                return Some(None);
            }
            let session = state.session.as_ref()?;
            let new = session.incarnation == incarnation && session.number != number;
            new.then(|| Some(session.clone()))
        })
        .await
    }

    /// Whether the caller is the first to follow the processes of this incarnation.
    pub fn claim_following(&self, incarnation: Incarnation) -> bool {
        let mut state = self.lock();
        let first = state.followed != Some(incarnation);
        state.followed = Some(incarnation);
        first
    }

    /// Installs a session whose proof was verified; the newest connection wins, and the one before
    /// is let go: a supervisor dials again only when it has lost it. None: newer credentials were
    /// issued in between.
    pub(super) fn install(&self, proof: &AttachProof, agent: Arc<dyn Agent>) -> Option<u64> {
        let (number, before) = self.change(|state| {
            state
                .expected
                .filter(|expected| expected.incarnation == proof.incarnation)?;
            state.sessions += 1;
            let before = state.session.replace(Session {
                incarnation: proof.incarnation,
                agent,
                secret: hash(&proof.secret),
                number: state.sessions,
            });
            Some((state.sessions, before))
        })?;
        if let Some(before) = before {
            before.agent.hang_up();
        }
        Some(number)
    }

    pub(super) fn gone(&self, number: u64) {
        self.change(|state| {
            if state
                .session
                .as_ref()
                .is_some_and(|session| session.number == number)
            {
                state.session = None;
            }
        });
    }

    #[must_use]
    pub fn session(&self) -> Option<Session> {
        self.lock().session.clone()
    }

    #[must_use]
    pub fn is_attached(&self) -> bool {
        self.lock().session.is_some()
    }

    /// Waits for a session under `incarnation`.
    pub async fn attached(&self, incarnation: Incarnation) -> Session {
        self.until(|state| {
            state
                .session
                .as_ref()
                .filter(|session| session.incarnation == incarnation)
                .cloned()
        })
        .await
    }

    /// The number to give to [`Self::compute_changed`].
    #[must_use]
    pub fn compute_changes(&self) -> u64 {
        self.lock().compute_changes
    }

    pub(super) fn note_compute_change(&self) {
        self.change(|state| state.compute_changes += 1);
    }

    /// Waits for a hint newer than `seen`; answers the newest number.
    pub async fn compute_changed(&self, seen: u64) -> u64 {
        self.until(|state| (state.compute_changes > seen).then_some(state.compute_changes))
            .await
    }

    /// The number to give to [`Self::stop_requested`].
    #[must_use]
    pub fn stop_requests(&self) -> u64 {
        self.lock().stop_requests
    }

    /// Somebody inside was not let in. Some: so many were not, and it is to be said.
    pub(super) fn note_refusal(&self) -> Option<u64> {
        self.lock().refusals.note()
    }

    /// The running operation is to be turned back, or a delete waits for it. What exactly is in the
    /// record.
    pub fn note_stop_request(&self) {
        self.change(|state| state.stop_requests += 1);
    }

    /// Waits for a hint newer than `seen`.
    pub async fn stop_requested(&self, seen: u64) {
        self.until(|state| (state.stop_requests > seen).then_some(()))
            .await;
    }

    pub fn open_gate(&self) {
        self.change(|state| state.gate_open = true);
    }

    /// Closes the gate; what is on its way in goes on.
    pub fn shut_gate(&self) {
        if overwinter_lifecycle::mutant!(GateStaysOpen) {
            return;
        }
        self.change(|state| state.gate_open = false);
    }

    /// Closes the gate and waits until every call that was admitted has reached the supervisor or
    /// failed.
    pub async fn close_gate(&self) {
        self.shut_gate();
        self.until(|state| (state.entering == 0).then_some(()))
            .await;
    }

    pub(super) fn close(&self) {
        let session = self.change(|state| {
            state.gate_open = false;
            state.closed = true;
            state.expected = None;
            state.session.take()
        });
        if let Some(session) = session {
            session.agent.hang_up();
        }
    }

    /// Lets a call in, if the gate is open and somebody is there to take it.
    pub fn admit(self: &Arc<Self>, now: Duration) -> Option<Admission> {
        let mut state = self.lock();
        if !state.gate_open {
            return None;
        }
        let session = state.session.clone()?;
        state.entering += 1;
        state.open_calls += 1;
        state.last_use = now;
        Some(Admission {
            entering: Some(Entering(self.clone())),
            open: Open(self.clone()),
            session,
        })
    }

    /// Waits until the session of `number` is not the one that calls are given any more.
    pub async fn left(&self, number: u64) {
        self.until(|state| {
            let session = state.session.as_ref();
            session
                .is_none_or(|session| session.number != number)
                .then_some(())
        })
        .await;
    }

    /// Waits until calls are let in; false when it has gone to sleep instead.
    pub async fn usable(&self) -> bool {
        self.until(|state| {
            if state.closed {
                Some(false)
            } else {
                (state.gate_open && state.session.is_some()).then_some(true)
            }
        })
        .await
    }

    #[must_use]
    pub fn gate_is_open(&self) -> bool {
        self.lock().gate_open
    }

    #[must_use]
    pub fn open_calls(&self) -> u32 {
        self.lock().open_calls
    }

    #[must_use]
    pub fn last_use(&self) -> Duration {
        self.lock().last_use
    }

    /// What the supervisor has proved, for the record.
    #[must_use]
    pub fn secret(&self) -> Option<SecretHash> {
        match self.lock().expected {
            Some(Expected {
                proof: Proof::Same(secret),
                ..
            }) => Some(secret),
            Some(_) | None => None,
        }
    }
}

struct Entering(Arc<Slot>);

impl Drop for Entering {
    fn drop(&mut self) {
        self.0.change(|state| state.entering -= 1);
    }
}

struct Open(Arc<Slot>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.change(|state| state.open_calls -= 1);
    }
}

/// An admitted call. Dropped when the call ends.
pub struct Admission {
    entering: Option<Entering>,
    open: Open,
    pub session: Session,
}

impl Admission {
    /// It has reached the supervisor: a suspend need not wait for it any more.
    pub fn entered(&mut self) {
        self.entering = None;
    }

    #[must_use]
    pub fn slot(&self) -> &Arc<Slot> {
        &self.open.0
    }
}
