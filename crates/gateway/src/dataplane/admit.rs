//! Letting a call of the data plane in. The fast way is in memory: the sandbox's gate is open and its
//! supervisor is there. Only when that fails is the record asked, for the reason.

use std::sync::Arc;
use std::time::Duration;

use overwinter_lifecycle::admission::call::{self, CallAdmission, CallRefused};
use overwinter_lifecycle::ids::SandboxId;
use overwinter_lifecycle::record::Sandbox;
use overwinter_store::StoreError;

use crate::reconciler::Reconciler;
use crate::sessions::{Admission, Session, Slot};

/// How long a call waits for a supervisor that is on its way back.
const REDIAL_TIME: Duration = Duration::from_secs(10);

/// Why a call was not let in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAdmitted {
    #[error("there is no such sandbox")]
    NoSuchSandbox,
    #[error(transparent)]
    Refused(#[from] CallRefused),
    #[error("its supervisor is not connected")]
    SupervisorUnreachable,
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Reconciler {
    /// Lets a call to a sandbox in. `slot`: where the caller has found it in memory.
    ///
    /// # Errors
    /// [`NotAdmitted`] says what the caller can do.
    pub async fn admit_call(
        &self,
        slot: Option<Arc<Slot>>,
        id: SandboxId,
        kind: &'static str,
    ) -> Result<Admission, NotAdmitted> {
        let now = self.ports.clock.monotonic();
        let slot = slot.or_else(|| self.hub.find(id));
        if let Some(admission) = slot.as_ref().and_then(|slot| slot.admit(now)) {
            self.telemetry.call(kind);
            return Ok(admission);
        }
        self.ports
            .within(REDIAL_TIME, self.admit_slowly(id, kind))
            .await
            .unwrap_or(Err(NotAdmitted::SupervisorUnreachable))
    }

    async fn admit_slowly(
        &self,
        id: SandboxId,
        kind: &'static str,
    ) -> Result<Admission, NotAdmitted> {
        loop {
            let sandbox = self
                .store
                .get(id)
                .await?
                .ok_or(NotAdmitted::NoSuchSandbox)?;
            match call::admit(&sandbox) {
                CallAdmission::Refuse(refused) => return Err(refused.into()),
                CallAdmission::TurnBack(suspend) => {
                    self.store.turn_back_for_call(id, suspend).await?;
                    if let Some(slot) = self.hub.find(id) {
                        slot.note_stop_request();
                    }
                }
                CallAdmission::Admit => self.take_up_now(&sandbox).await,
            }
            let Some(slot) = self.hub.find(id) else {
                // It has gone to sleep since the record was read.
                return Err(NotAdmitted::SupervisorUnreachable);
            };
            if !slot.usable().await {
                continue;
            }
            if let Some(admission) = slot.admit(self.ports.clock.monotonic()) {
                self.telemetry.call(kind);
                return Ok(admission);
            }
        }
    }

    /// Whoever is inside a sandbox that is Ready, waiting for one that is on its way back. None: it
    /// has not come in time, or the sandbox has gone to sleep.
    pub async fn session_of(&self, sandbox: &Sandbox) -> Option<Session> {
        let attached = async {
            self.take_up_now(sandbox).await;
            let slot = self.hub.find(sandbox.id)?;
            slot.next_session(sandbox.issued, 0).await
        };
        self.ports
            .within(REDIAL_TIME, attached)
            .await
            .ok()
            .flatten()
    }

    /// A sandbox by id or name, as the API names it.
    ///
    /// # Errors
    /// When the record cannot be read.
    pub async fn resolve(&self, tenant: &str, by: &Target) -> Result<Option<Sandbox>, StoreError> {
        match by {
            Target::Id(id) => Ok(self
                .store
                .get(*id)
                .await?
                .filter(|sandbox| sandbox.tenant == tenant)),
            Target::Name(name) => self.store.find(tenant, name).await,
        }
    }
}

/// How a caller names a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    Id(SandboxId),
    Name(overwinter_lifecycle::Name),
}
