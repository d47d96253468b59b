//! After a restart: nothing is assumed. Each sandbox with an unfinished operation goes on from its
//! recorded step; each that may have compute is looked at; sleeping ones are left alone, unread.

use std::sync::Arc;

use futures::StreamExt;
use overwinter_driver::DriverError;
use overwinter_lifecycle::Phase;
use overwinter_lifecycle::ids::SandboxId;
use overwinter_lifecycle::record::Sandbox;
use overwinter_store::StoreError;

use super::expect::expected;
use super::{LOCK_PATIENCE, Reconciler, Unrecovered};

/// How many sandboxes are looked at at once.
const AT_ONCE: usize = 8;

impl Reconciler {
    /// Takes up everything that was left. Answers when all that is needed to serve is set up; the
    /// work itself goes on in tasks.
    ///
    /// # Errors
    /// When the records cannot be read.
    pub async fn take_up(&self) -> Result<(), StoreError> {
        let unfinished = self.store.recover().await?;
        let awake = self.store.awake().await?;
        {
            let mut unrecovered = self.unrecovered.lock().await;
            let left = unfinished.iter().map(|sandbox| sandbox.id);
            let all = left.chain(awake.iter().copied());
            unrecovered.extend(all.map(|id| (id, Unrecovered::default())));
        }
        if !unfinished.is_empty() || !awake.is_empty() {
            tracing::info!(
                unfinished = unfinished.len(),
                awake = awake.len(),
                "taking up what was left"
            );
        }
        for sandbox in unfinished {
            let deleting = sandbox.running.is_none() && sandbox.phase() == Phase::Deleting;
            if !deleting && !overwinter_lifecycle::mutant!(RecoverNothing) {
                // Nobody has told what became of its compute meanwhile, and an operation that ends as
                // it began looks at nothing: it is looked at when its owner is done.
                self.leave_to_coming_owner(sandbox.id);
                self.own(sandbox);
            }
        }
        let this = self.clone();
        self.tasks.spawn(async move {
            futures::stream::iter(awake)
                .for_each_concurrent(AT_ONCE, |id| this.adopt(id))
                .await;
        });
        Ok(())
    }

    /// A sandbox on which nothing runs and that may have compute.
    async fn adopt(&self, id: SandboxId) {
        let sandbox = match self.store.get(id).await {
            Ok(Some(sandbox)) if sandbox.running.is_none() => sandbox,
            Ok(_) => return,
            Err(error) => {
                tracing::error!(sandbox = %id, %error, "the record cannot be read");
                return;
            }
        };
        if let Err(error) = self.ensure_recovered(&sandbox).await {
            tracing::error!(sandbox = %id, %error, "its driver could not recover it");
        }
        self.check_for_loss(id).await;
    }

    /// Has the driver take the sandbox's lock and clear up, once in the life of this gateway.
    ///
    /// # Errors
    /// What the driver says; it is asked again the next time.
    pub(super) async fn ensure_recovered(&self, sandbox: &Sandbox) -> Result<(), DriverError> {
        let turn = {
            let mut unrecovered = self.unrecovered.lock().await;
            let Some(one) = unrecovered.get_mut(&sandbox.id) else {
                return Ok(());
            };
            // Once, under the lock: who comes later may hold an older record than the first, and
            // must not open a gate that a suspend has closed since.
            if !std::mem::replace(&mut one.met, true) {
                self.meet(sandbox);
            }
            Arc::clone(&one.turn)
        };
        let _turn = turn.lock().await;
        if !self.unrecovered.lock().await.contains_key(&sandbox.id) {
            return Ok(());
        }
        if let Some(driver) = self.driver_of(sandbox) {
            let driver = Arc::clone(driver);
            driver.recover(sandbox.id, LOCK_PATIENCE).await?;
        }
        self.unrecovered.lock().await.remove(&sandbox.id);
        Ok(())
    }

    /// A call has come to a sandbox that is Ready. Where it was not taken up yet since the start, it
    /// is next; the call may go away meanwhile.
    pub(crate) async fn take_up_now(&self, sandbox: &Sandbox) {
        if !self.unrecovered.lock().await.contains_key(&sandbox.id) {
            return;
        }
        let (this, sandbox) = (self.clone(), sandbox.clone());
        let taken = self.tasks.spawn(async move {
            if let Err(error) = this.ensure_recovered(&sandbox).await {
                tracing::error!(sandbox = %sandbox.id, %error, "its driver could not recover it");
            }
        });
        // One that panicked has said so; whoever waits for its supervisor waits in vain, for a time.
        let _ = taken.await;
    }

    /// The supervisor may knock as soon as its socket is there, and is refused unless it is awaited.
    fn meet(&self, sandbox: &Sandbox) {
        let ready = sandbox.phase() == Phase::Ready;
        let expected = expected(sandbox);
        if expected.is_none() && !ready {
            return;
        }
        let slot = self.hub.slot(sandbox.id, sandbox.name.as_str());
        if let Some(expected) = expected
            && !slot.is_expecting(sandbox.issued)
        {
            slot.expect(expected);
        }
        if ready {
            slot.open_gate();
            self.follow(sandbox, &slot);
        }
    }
}
