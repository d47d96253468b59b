//! What goes on beside the verbs: compute that is lost, debts to be paid, deletes to be tried again,
//! rows that have had their time. What is due is found by an indexed query; a timer only makes it
//! run sooner.

use std::time::Duration;

use futures::StreamExt;
use overwinter_lifecycle::admission::Request;
use overwinter_lifecycle::ids::{Millis, SandboxId};
use overwinter_lifecycle::record::Compute;
use overwinter_lifecycle::steps::Observed;
use overwinter_store::{Accept, Durability};

use super::Reconciler;

const ROUND: Duration = Duration::from_secs(30);
const DEBTS_A_ROUND: usize = 64;
/// Until a debt that could not be paid is tried again.
const DEBT_PAUSE_MS: i64 = 60_000;

impl Reconciler {
    /// Starts the watches and the rounds. They end with the process.
    pub fn keep_house(&self) {
        for registered in self.drivers.iter() {
            let mut changes = registered.driver.watch();
            let this = self.clone();
            tokio::spawn(async move {
                while let Some(change) = changes.next().await {
                    this.hub.compute_changed(change.sandbox);
                    let this = this.clone();
                    tokio::spawn(async move { this.check_for_loss(change.sandbox).await });
                }
            });
        }
        let this = self.clone();
        tokio::spawn(async move { this.write_what_is_learnt().await });
        let this = self.clone();
        tokio::spawn(async move {
            let mut taken = false;
            loop {
                taken = taken || this.take_stock().await;
                this.round().await;
                this.ports.clock.sleep(ROUND).await;
            }
        });
    }

    async fn round(&self) {
        let unseen = std::mem::take(&mut self.owners().unseen);
        for id in unseen {
            self.check_for_loss(id).await;
        }
        self.pay_debts().await;
        match self.store.deleting_idle().await {
            Ok(ids) => {
                for id in ids {
                    self.delete_again(id).await;
                }
            }
            Err(error) => tracing::error!(%error, "deletes to be tried again cannot be read"),
        }
        match self.store.sweep(self.ports.clock.wall()).await {
            Ok(swept) => tracing::debug!(?swept, "swept"),
            Err(error) => tracing::error!(%error, "sweeping failed"),
        }
    }

    pub(super) async fn delete_again(&self, id: SandboxId) {
        let accepted = self
            .store
            .accept(Accept {
                sandbox: id,
                request: Request::Delete { abandon: false },
                operation: self.ports.ids.operation(),
                requester: "gateway: a delete that failed is tried again".to_owned(),
                deadlines: self.deadlines,
                idempotency: None,
                durability: Durability::Before,
                now: self.ports.clock.wall(),
            })
            .await;
        match accepted {
            Ok(accepted) if accepted.begun => self.own(accepted.sandbox),
            Ok(_) => {}
            Err(error) => tracing::warn!(sandbox = %id, %error, "delete not tried again"),
        }
    }

    /// Pays what is due. Debts run beside any verb, and are never fenced.
    pub async fn pay_debts(&self) {
        let now = self.ports.clock.wall();
        // What is removed is not to be needed again where a power loss takes the debt.
        if let Err(error) = self.store.sync().await {
            return tracing::error!(%error, "what is owed cannot be had on the disk");
        }
        let debts = match self.store.debts_due(now, DEBTS_A_ROUND).await {
            Ok(debts) => debts,
            Err(error) => return tracing::error!(%error, "debts cannot be read"),
        };
        for debt in debts {
            let sandbox = match self.store.get(debt.key.sandbox).await {
                Ok(Some(sandbox)) => sandbox,
                Ok(None) => continue,
                Err(error) => return tracing::error!(%error, "a debtor cannot be read"),
            };
            let Some(driver) = self.driver_of(&sandbox).cloned() else {
                continue;
            };
            let paid = match driver.discard(&debt).await {
                Ok(()) => self.store.settle_debt(debt).await,
                Err(_) if overwinter_lifecycle::mutant!(UnpaidIsPaid) => {
                    self.store.settle_debt(debt).await
                }
                Err(error) => {
                    tracing::warn!(sandbox = %sandbox.id, %error, "a debt could not be paid");
                    self.store
                        .defer_debt(debt, Millis(now.0 + DEBT_PAUSE_MS))
                        .await
                }
            };
            if let Err(error) = paid {
                tracing::error!(sandbox = %sandbox.id, %error, "a debt could not be recorded");
            }
        }
    }

    /// Looks at a sandbox on which nothing runs, and records compute that is gone, or frozen where it
    /// should run. An owner looks for itself, and again when it is done.
    pub async fn check_for_loss(&self, id: SandboxId) {
        if overwinter_lifecycle::mutant!(LossUnseen) || self.leave_to_owner(id) {
            return;
        }
        let sandbox = match self.store.get(id).await {
            Ok(Some(sandbox)) => sandbox,
            Ok(None) => return,
            Err(error) => {
                tracing::error!(sandbox = %id, %error, "cannot be read");
                self.owners().unseen.insert(id);
                return;
            }
        };
        if sandbox.running.is_some() {
            return self.leave_to_coming_owner(id);
        }
        let Some(driver) = self.driver_of(&sandbox) else {
            return;
        };
        let observed = match driver.observe(id).await {
            Ok(seen) => seen.observed,
            Err(error) => {
                tracing::warn!(sandbox = %id, %error, "cannot be observed");
                Observed::Unknown
            }
        };
        let now = self.ports.clock.wall();
        let (found, recorded) = match observed {
            // It should run: what has frozen it is no operation of ours.
            Observed::Frozen { held } if sandbox.retained.is_none() => {
                let frozen = self.store.record_frozen(id, held, sandbox.fence, now);
                ("it was frozen by somebody else: it sleeps", frozen.await)
            }
            // The next resume attaches to it.
            Observed::Live { .. } if sandbox.retained.is_some() => {
                let phase = sandbox.phase();
                return tracing::warn!(sandbox = %id, %phase, "it runs, which its record does not say");
            }
            Observed::Live { .. } | Observed::Frozen { .. } => return,
            // Never taken for absence; looked at again in the next round.
            Observed::InTransition | Observed::Unknown
                if !overwinter_lifecycle::mutant!(UnknownIsAbsent) =>
            {
                self.owners().unseen.insert(id);
                return;
            }
            Observed::Absent | Observed::Stopped | Observed::InTransition | Observed::Unknown => {
                // An end that was told is no loss.
                self.save_learnt().await;
                let gone = self
                    .store
                    .record_loss(id, Compute::Absent, sandbox.issued, now);
                ("its compute is gone", gone.await)
            }
        };
        match recorded {
            Ok(Some(changed)) => {
                tracing::warn!(sandbox = %id, phase = %changed.phase(), "{found}");
                // Not from under a resume that has been asked for since: its owner has said by now
                // what it expects.
                let owners = self.owners();
                if !owners.at_work.contains_key(&id) {
                    self.hub.remove(id);
                }
            }
            // An operation that has begun since may end as it began, without a look of its own.
            Ok(None) if self.leave_to_owner(id) => {}
            Ok(None) => {
                let now = self.store.get(id).await.ok().flatten();
                if now.is_some_and(|sandbox| sandbox.running.is_some()) {
                    self.leave_to_coming_owner(id);
                }
            }
            // No other hint of it will come.
            Err(error) => {
                tracing::error!(sandbox = %id, %error, "what was found was not recorded");
                self.owners().unseen.insert(id);
            }
        }
    }
}
