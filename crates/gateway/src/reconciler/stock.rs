//! Taking stock: what a driver finds on its backend, held against the records. What belongs to a
//! tombstone is removed; what no record owns, or another gateway owns, is listed and left alone.

use std::sync::Arc;

use overwinter_driver::{Debt, DebtKind, Driver, Found};
use overwinter_lifecycle::ids::{EffectKey, Fence, SandboxId, Serial};
use overwinter_lifecycle::record::Sandbox;
use uuid::Uuid;

use super::Reconciler;

/// What is to be done about one compute that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finding {
    /// A record says what it is.
    Owned,
    /// Its sandbox is deleted: a late effect, or a delete that was cut off.
    OfTombstone(SandboxId),
    /// It carries this gateway's label and no record knows it: a store that was restored from a
    /// backup, or a hand on the backend.
    Unowned,
    /// Of another gateway, or of none.
    Foreign,
}

/// Decides, from the label and the record.
fn classify(found: &Found, gateway: Uuid, record: Option<&Sandbox>) -> Finding {
    let ours = found
        .gateway
        .as_deref()
        .is_some_and(|label| label == gateway.to_string());
    match (ours, record) {
        #[cfg(feature = "mutants")]
        (false, None) if overwinter_lifecycle::mutant!(ForeignIsOurs) => {
            found.sandbox.map_or(Finding::Foreign, Finding::OfTombstone)
        }
        (false, _) => Finding::Foreign,
        (true, Some(sandbox)) if sandbox.tombstone_at.is_some() => Finding::OfTombstone(sandbox.id),
        (true, Some(_)) => Finding::Owned,
        (true, None) => Finding::Unowned,
    }
}

impl Reconciler {
    /// Looks at every driver's backend once. A driver that does not answer has said nothing: that is
    /// no empty list. False: it is to be done again.
    pub async fn take_stock(&self) -> bool {
        let mut done = true;
        for registered in self.drivers.iter() {
            match registered.driver.list().await {
                Ok(found) => {
                    #[cfg(feature = "mutants")]
                    if overwinter_lifecycle::mutant!(PruneOnEmpty) {
                        self.prune(&found).await;
                    }
                    for compute in found {
                        done &= self.consider(&registered.driver, compute).await;
                    }
                }
                Err(error) => {
                    let driver = &registered.description().name;
                    tracing::warn!(driver, %error, "the backend could not be listed");
                    done = false;
                }
            }
        }
        done
    }

    #[cfg(feature = "mutants")]
    async fn prune(&self, found: &[Found]) {
        for id in self.store.awake().await.unwrap_or_default() {
            if found.iter().all(|compute| compute.sandbox != Some(id)) {
                self.delete_again(id).await;
            }
        }
    }

    /// False: what has to be done about it could not be done.
    async fn consider(&self, driver: &Arc<dyn Driver>, found: Found) -> bool {
        let record = match found.sandbox {
            Some(id) => match self.store.get(id).await {
                Ok(record) => record,
                Err(error) => {
                    tracing::error!(%error, "a record cannot be read");
                    return false;
                }
            },
            None => None,
        };
        match classify(&found, self.store.meta().gateway, record.as_ref()) {
            Finding::Owned => true,
            Finding::OfTombstone(id) => {
                tracing::warn!(sandbox = %id, native = found.native_name, "removing what a delete left");
                let fence = record.map(|sandbox| sandbox.fence).unwrap_or_default();
                self.remove(driver, id, fence, found.native_name).await
            }
            Finding::Unowned => {
                tracing::warn!(
                    native = found.native_name, sandbox = ?found.sandbox, seen = ?found.observed,
                    "compute of this gateway that no record owns; left alone"
                );
                true
            }
            Finding::Foreign => {
                tracing::info!(
                    native = found.native_name, gateway = ?found.gateway, seen = ?found.observed,
                    "compute of another gateway; left alone"
                );
                true
            }
        }
    }

    /// Compute that came to be after its sandbox was gone, and the storage that a late create has made
    /// with it.
    async fn remove(
        &self,
        driver: &Arc<dyn Driver>,
        id: SandboxId,
        fence: Fence,
        native_name: String,
    ) -> bool {
        let key = EffectKey {
            sandbox: id,
            fence,
            serial: Serial(0),
        };
        for (kind, reference) in [
            (DebtKind::Compute, native_name),
            (DebtKind::Storage, id.to_string()),
        ] {
            let debt = Debt {
                key,
                kind,
                reference,
            };
            if let Err(error) = driver.discard(&debt).await {
                tracing::error!(sandbox = %id, %error, "it could not be removed");
                return false;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use overwinter_driver::Observed;
    use overwinter_lifecycle::Name;
    use overwinter_lifecycle::config::{Config, Spec};
    use overwinter_lifecycle::ids::Millis;

    use super::*;

    const GATEWAY: Uuid = Uuid::from_u128(5);
    const ID: SandboxId = SandboxId(Uuid::from_u128(7));

    fn found(gateway: Option<Uuid>) -> Found {
        Found {
            gateway: gateway.map(|id| id.to_string()),
            sandbox: Some(ID),
            birth: None,
            native_name: "x".to_owned(),
            observed: Observed::Absent,
        }
    }

    #[test]
    fn only_what_belongs_to_a_tombstone_of_this_gateway_is_removed() {
        let name = Name::parse("a").unwrap();
        let living = Sandbox::new(
            ID,
            "default",
            name,
            Spec::default(),
            Config::default(),
            Millis(0),
        );
        let tombstone = Sandbox {
            tombstone_at: Some(Millis(1)),
            ..living.clone()
        };
        let ours = found(Some(GATEWAY));
        assert_eq!(
            classify(&ours, GATEWAY, Some(&tombstone)),
            Finding::OfTombstone(ID)
        );
        assert_eq!(classify(&ours, GATEWAY, Some(&living)), Finding::Owned);
        assert_eq!(classify(&ours, GATEWAY, None), Finding::Unowned);
        for other in [Some(Uuid::from_u128(6)), None] {
            let theirs = found(other);
            assert_eq!(
                classify(&theirs, GATEWAY, Some(&tombstone)),
                Finding::Foreign
            );
        }
    }
}
