//! All awake sandboxes, and the door that supervisors knock on.
//!
//! A sleeping sandbox has no slot: it costs the gateway nothing but its row.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use overwinter_driver::attach::{AttachProof, AttachRefused, Io, Refusals};
use overwinter_driver::{Agent, AttachPort, Credentials, Peer, session};
use overwinter_lifecycle::ids::{Incarnation, SandboxId};

use super::connections::Connections;
use super::credentials::CredentialKey;
use super::slot::Slot;

/// How long a peer may take for the head of its request.
const HEAD_TIME: Duration = Duration::from_secs(5);

#[derive(Default)]
struct Slots {
    by_id: HashMap<SandboxId, Arc<Slot>>,
    by_name: HashMap<String, SandboxId>,
}

/// See the module. Cheap to clone.
#[derive(Clone)]
pub struct Hub {
    key: CredentialKey,
    slots: Arc<Mutex<Slots>>,
    connections: Connections,
    /// Of those whose sandbox sleeps or is not known.
    strangers: Arc<Mutex<Refusals>>,
}

impl Hub {
    #[must_use]
    pub fn new(key: CredentialKey) -> Self {
        Self {
            key,
            slots: Arc::default(),
            connections: Connections::default(),
            strangers: Arc::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[must_use]
    pub fn issue(&self, sandbox: SandboxId, incarnation: Incarnation) -> Credentials {
        self.key.issue(sandbox, incarnation)
    }

    /// The slot of a sandbox that is awake, or about to be.
    pub fn slot(&self, id: SandboxId, name: &str) -> Arc<Slot> {
        let mut slots = self.lock();
        slots.by_name.insert(name.to_owned(), id);
        slots
            .by_id
            .entry(id)
            .or_insert_with(|| Arc::new(Slot::new(id, name)))
            .clone()
    }

    #[must_use]
    pub fn find(&self, id: SandboxId) -> Option<Arc<Slot>> {
        self.lock().by_id.get(&id).cloned()
    }

    #[must_use]
    pub fn find_by_name(&self, name: &str) -> Option<Arc<Slot>> {
        let slots = self.lock();
        slots
            .by_name
            .get(name)
            .and_then(|id| slots.by_id.get(id))
            .cloned()
    }

    /// It sleeps or is gone: whoever waits on its slot is told, and the slot is dropped.
    pub fn remove(&self, id: SandboxId) {
        let slot = {
            let mut slots = self.lock();
            let slot = slots.by_id.remove(&id);
            if let Some(slot) = &slot
                && slots.by_name.get(&slot.name) == Some(&id)
            {
                slots.by_name.remove(&slot.name);
            }
            slot
        };
        if let Some(slot) = slot {
            slot.close();
        }
    }

    pub fn compute_changed(&self, id: SandboxId) {
        if let Some(slot) = self.find(id) {
            slot.note_compute_change();
        }
    }

    #[must_use]
    pub fn attached(&self) -> u64 {
        self.lock()
            .by_id
            .values()
            .filter(|slot| slot.is_attached())
            .count() as u64
    }

    fn verify(&self, id: SandboxId, proof: &AttachProof) -> Result<Arc<Slot>, AttachRefused> {
        let slot = self.find(id).ok_or(AttachRefused::NoSuchSandbox)?;
        slot.verify(&self.key, proof)?;
        Ok(slot)
    }

    /// Notes that somebody of a sandbox was not let in. Some: so many were not, and it is to be said.
    fn refused(&self, id: SandboxId) -> Option<u64> {
        match self.find(id) {
            Some(slot) => slot.note_refusal(),
            None => {
                let mut strangers = self
                    .strangers
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner);
                strangers.note()
            }
        }
    }

    fn install(slot: Arc<Slot>, proof: &AttachProof, agent: Arc<dyn Agent>) {
        let Some(number) = slot.install(proof, agent.clone()) else {
            return agent.hang_up();
        };
        tracing::debug!(sandbox = %slot.id, incarnation = %proof.incarnation, "supervisor attached");
        tokio::spawn(async move {
            // A suspend that was undone while it redialled could not tell it so. Saying it once
            // more changes nothing where it was told.
            if slot.gate_is_open()
                && let Err(error) = agent.unquiesce().await
            {
                tracing::debug!(sandbox = %slot.id, %error, "not told that it is let in again");
            }
            agent.gone().await;
            tracing::debug!(sandbox = %slot.id, "supervisor gone");
            slot.gone(number);
        });
    }

    async fn serve(self, sandbox: SandboxId, mut io: Box<dyn Io>) {
        let request = match tokio::time::timeout(HEAD_TIME, session::read_request(&mut io)).await {
            Ok(Ok(request)) => request,
            Ok(Err(refused)) => return session::refuse(io, refused).await,
            Err(_late) => return,
        };
        let verified = if request.sandbox == sandbox {
            self.verify(sandbox, &request.proof)
        } else {
            Err(AttachRefused::NoSuchSandbox)
        };
        match verified {
            Ok(slot) => match session::accept(io).await {
                Ok(agent) => Self::install(slot, &request.proof, agent),
                Err(error) => {
                    if let Some(times) = self.refused(sandbox) {
                        tracing::warn!(%sandbox, %error, times, "attach broke off");
                    }
                }
            },
            Err(refused) => {
                if let Some(times) = self.refused(sandbox) {
                    tracing::warn!(
                        %sandbox, incarnation = %request.proof.incarnation, reason = %refused, times,
                        "attach refused"
                    );
                }
                session::refuse(io, refused).await;
            }
        }
    }
}

impl AttachPort for Hub {
    fn connection(&self, sandbox: SandboxId, io: Box<dyn Io>, _peer: Peer) {
        // Too many: closed without a word, as nobody in need of one has so many.
        if let Some(io) = self.connections.count(sandbox, io) {
            tokio::spawn(self.clone().serve(sandbox, io));
        }
    }

    fn agent(
        &self,
        sandbox: SandboxId,
        proof: &AttachProof,
        agent: Arc<dyn Agent>,
    ) -> Result<(), AttachRefused> {
        let slot = self.verify(sandbox, proof).inspect_err(|refused| {
            if let Some(times) = self.refused(sandbox) {
                tracing::warn!(%sandbox, reason = %refused, times, "attach refused");
            }
        })?;
        Self::install(slot, proof, agent);
        Ok(())
    }
}
