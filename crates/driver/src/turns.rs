//! One effect at a time on each sandbox, none after a newer one, and each carried on when its caller has
//! stopped waiting. For drivers whose effects are made by this process.

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use overwinter_lifecycle::ids::{EffectKey, SandboxId};
use tokio::sync::OwnedMutexGuard;

use crate::error::DriverError;
use crate::ledger::Ledger;
use crate::types::EffectContext;

/// For an effect that has noticed its own deadline to say more.
const MARGIN: Duration = Duration::from_millis(500);

/// Who may do what when. `L`: what a driver knows of compute that is there.
pub struct Turns<L> {
    ledger: Arc<dyn Ledger>,
    entries: Mutex<HashMap<SandboxId, Arc<Entry<L>>>>,
}

/// What is known of one sandbox in this process's time.
pub struct Entry<L> {
    /// Over each effect; holds the newest key that was carried out.
    effects: Arc<tokio::sync::Mutex<Option<EffectKey>>>,
    /// Whether an effect is under way.
    busy: AtomicBool,
    live: Mutex<Option<L>>,
}

impl<L> Default for Entry<L> {
    fn default() -> Self {
        Self {
            effects: Arc::default(),
            busy: AtomicBool::default(),
            live: Mutex::new(None),
        }
    }
}

impl<L> Entry<L> {
    /// The compute that is there, as far as this process knows.
    pub fn live(&self) -> MutexGuard<'_, Option<L>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces what is known of its compute; none: it is not known to run.
    pub fn set_live(&self, live: Option<L>) {
        *self.live() = live;
    }

    /// Waits until no effect of this process is under way.
    ///
    /// # Errors
    /// `Unknown` when the patience is at its end.
    pub async fn alone(self: &Arc<Self>, patience: Duration) -> Result<Alone<L>, DriverError> {
        let guard = tokio::time::timeout(patience, Arc::clone(&self.effects).lock_owned()).await;
        let newest = guard
            .map_err(|_| DriverError::Unknown("an earlier effect has not ended".to_owned()))?;
        self.busy.store(true, Ordering::Release);
        Ok(Alone {
            entry: Arc::clone(self),
            newest,
        })
    }
}

/// Alone with a sandbox, as far as this process goes.
pub struct Alone<L> {
    entry: Arc<Entry<L>>,
    newest: OwnedMutexGuard<Option<EffectKey>>,
}

impl<L> Alone<L> {
    /// Whose turn it is.
    #[must_use]
    pub const fn entry(&self) -> &Arc<Entry<L>> {
        &self.entry
    }
}

impl<L> Drop for Alone<L> {
    fn drop(&mut self) {
        self.entry.busy.store(false, Ordering::Release);
    }
}

impl<L> Turns<L> {
    #[must_use]
    pub fn new(ledger: Arc<dyn Ledger>) -> Self {
        Self {
            ledger,
            entries: Mutex::default(),
        }
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<SandboxId, Arc<Entry<L>>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of a sandbox; made where nothing is.
    pub fn entry(&self, sandbox: SandboxId) -> Arc<Entry<L>> {
        Arc::clone(self.entries().entry(sandbox).or_default())
    }

    /// After a delete.
    pub fn forget(&self, sandbox: SandboxId) {
        self.entries().remove(&sandbox);
    }

    /// Whether an effect of this process is under way.
    pub fn is_busy(&self, sandbox: SandboxId) -> bool {
        let entry = self.entries().get(&sandbox).cloned();
        entry.is_some_and(|entry| entry.busy.load(Ordering::Acquire))
    }

    /// What is known of the compute of a sandbox.
    pub fn live<T>(&self, sandbox: SandboxId, of: impl FnOnce(&L) -> T) -> Option<T> {
        let entry = self.entries().get(&sandbox).cloned()?;
        let live = entry.live();
        live.as_ref().map(of)
    }

    /// The same of all that there is.
    pub fn lives<T>(&self, of: impl Fn(&L) -> T) -> Vec<(SandboxId, T)> {
        let entries = self.entries();
        let lives = entries
            .iter()
            .filter_map(|(id, entry)| entry.live().as_ref().map(|live| (*id, of(live))));
        lives.collect()
    }

    /// Waits for earlier effects on this sandbox, and refuses smaller keys. No other begins until what is
    /// returned is dropped: hold it until the effect has ended.
    ///
    /// # Errors
    /// `Fenced`; `Unknown` when an earlier effect outlasts the deadline; `Rejected` when the ledger cannot
    /// be read.
    pub async fn next(&self, ctx: &EffectContext) -> Result<Alone<L>, DriverError> {
        let sandbox = ctx.sandbox();
        let mut alone = self.entry(sandbox).alone(ctx.deadline).await?;
        if alone.newest.is_some_and(|newest| newest > ctx.key) {
            return Err(DriverError::Fenced);
        }
        let newest = self.ledger.newest(sandbox).await;
        let newest = newest.map_err(|error| DriverError::Rejected(error.to_string()))?;
        if newest.is_some_and(|newest| newest.key > ctx.key) {
            return Err(DriverError::Fenced);
        }
        *alone.newest = Some(ctx.key);
        Ok(alone)
    }
}

/// Carries on even when the caller stops waiting; past the deadline the caller hears that the outcome is
/// not known, and observations say that it is in transition.
///
/// # Errors
/// The effect's own; `Unknown` past the deadline, and when the effect was broken off.
pub async fn carry_on<T, F>(deadline: Duration, effect: F) -> Result<T, DriverError>
where
    T: Send + 'static,
    F: Future<Output = Result<T, DriverError>> + Send + 'static,
{
    match tokio::time::timeout(deadline + MARGIN, tokio::spawn(effect)).await {
        Ok(Ok(result)) => result,
        Ok(Err(_)) => Err(DriverError::Unknown("the effect was broken off".to_owned())),
        Err(_) => Err(DriverError::Unknown(format!(
            "it has not ended within {} ms and may still go on",
            deadline.as_millis()
        ))),
    }
}
