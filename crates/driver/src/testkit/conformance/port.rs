//! A gateway that only checks credentials.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use overwinter_lifecycle::ids::{Incarnation, SandboxId};
use tokio::sync::watch;

use crate::agent::Agent;
use crate::attach::{AttachPort, AttachProof, AttachRefused, Credentials, Io, Peer};
use crate::session;

/// A real supervisor under load attaches in a few milliseconds.
const PATIENCE: Duration = Duration::from_secs(20);

/// Lets in who proves the newest credentials, and remembers who did not.
pub struct TestPort {
    itself: Weak<TestPort>,
    expected: Mutex<HashMap<SandboxId, Expected>>,
    attached: watch::Sender<HashMap<SandboxId, Attached>>,
    refusals: Mutex<Vec<(SandboxId, AttachRefused)>>,
}

#[derive(Clone)]
struct Attached {
    incarnation: Incarnation,
    agent: Arc<dyn Agent>,
}

struct Expected {
    credentials: Credentials,
    /// What the token was used with.
    secret: Option<[u8; 32]>,
    /// What compute that kept its memory must know.
    earlier: Option<[u8; 32]>,
    /// The newest that was accepted, under whatever credentials.
    accepted: Option<[u8; 32]>,
}

impl fmt::Debug for TestPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestPort")
            .field("refusals", &*self.refused())
            .finish_non_exhaustive()
    }
}

impl TestPort {
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new_cyclic(|itself| Self {
            itself: itself.clone(),
            expected: Mutex::default(),
            attached: watch::Sender::default(),
            refusals: Mutex::default(),
        })
    }

    fn expected(&self) -> MutexGuard<'_, HashMap<SandboxId, Expected>> {
        self.expected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refused(&self) -> MutexGuard<'_, Vec<(SandboxId, AttachRefused)>> {
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives out credentials, and revokes all before. `same_memory`: whoever comes must know the
    /// secret that was accepted before.
    pub fn issue(&self, credentials: &Credentials, same_memory: bool) {
        let mut expected = self.expected();
        let accepted = expected
            .get(&credentials.sandbox)
            .and_then(|before| before.accepted);
        expected.insert(
            credentials.sandbox,
            Expected {
                credentials: credentials.clone(),
                secret: None,
                earlier: if same_memory { accepted } else { None },
                accepted,
            },
        );
    }

    /// Waits for the agent of this incarnation.
    ///
    /// # Panics
    /// When it does not come.
    pub async fn attached(&self, sandbox: SandboxId, incarnation: Incarnation) -> Arc<dyn Agent> {
        let mut attached = self.attached.subscribe();
        let here = attached.wait_for(|all| {
            all.get(&sandbox)
                .is_some_and(|it| it.incarnation == incarnation)
        });
        match tokio::time::timeout(PATIENCE, here).await {
            Ok(Ok(all)) => all[&sandbox].agent.clone(),
            Ok(Err(_)) | Err(_) => panic!(
                "nobody attached as {incarnation} of {sandbox}; refused: {:?}",
                self.refusals()
            ),
        }
    }

    /// The gateway dies, and its connections with it. What it has given out is in its store.
    pub fn restart(&self) {
        self.attached.send_replace(HashMap::new());
    }

    /// Forgets the agent of a sandbox, as the gateway does after a detach.
    pub fn forget(&self, sandbox: SandboxId) {
        self.attached.send_modify(|all| {
            all.remove(&sandbox);
        });
    }

    #[must_use]
    pub fn refusals(&self) -> Vec<(SandboxId, AttachRefused)> {
        self.refused().clone()
    }

    fn check(&self, sandbox: SandboxId, proof: &AttachProof) -> Result<(), AttachRefused> {
        let mut all = self.expected();
        let expected = all.get_mut(&sandbox).ok_or(AttachRefused::NoSuchSandbox)?;
        if proof.incarnation != expected.credentials.incarnation {
            return Err(AttachRefused::Revoked);
        }
        if proof.token != expected.credentials.token {
            return Err(AttachRefused::WrongToken);
        }
        match expected.secret {
            Some(secret) if secret == proof.secret => return Ok(()),
            Some(_) => return Err(AttachRefused::TokenUsed),
            None => {}
        }
        if expected.earlier.is_some() && proof.previous_secret != expected.earlier {
            return Err(AttachRefused::WrongPreviousSecret);
        }
        expected.secret = Some(proof.secret);
        expected.accepted = Some(proof.secret);
        Ok(())
    }

    fn admit(&self, sandbox: SandboxId, incarnation: Incarnation, agent: Arc<dyn Agent>) {
        self.attached.send_modify(|all| {
            all.insert(sandbox, Attached { incarnation, agent });
        });
    }

    async fn speak(self: Arc<Self>, sandbox: SandboxId, mut io: Box<dyn Io>) {
        let request = tokio::time::timeout(PATIENCE, session::read_request(&mut io))
            .await
            .unwrap_or(Err(AttachRefused::Malformed))
            .and_then(|request| {
                // The socket is the sandbox's own: nobody else's name counts on it.
                if request.sandbox != sandbox {
                    return Err(AttachRefused::NoSuchSandbox);
                }
                self.check(sandbox, &request.proof)?;
                Ok(request)
            });
        match request {
            Ok(request) => {
                // A connection that ends now comes again.
                if let Ok(agent) = session::accept(io).await {
                    self.admit(sandbox, request.proof.incarnation, agent);
                }
            }
            Err(why) => {
                self.refused().push((sandbox, why));
                session::refuse(io, why).await;
            }
        }
    }
}

impl AttachPort for TestPort {
    fn connection(&self, sandbox: SandboxId, io: Box<dyn Io>, _peer: Peer) {
        if let Some(port) = self.itself.upgrade() {
            tokio::spawn(port.speak(sandbox, io));
        }
    }

    fn agent(
        &self,
        sandbox: SandboxId,
        proof: &AttachProof,
        agent: Arc<dyn Agent>,
    ) -> Result<(), AttachRefused> {
        match self.check(sandbox, proof) {
            Ok(()) => {
                self.admit(sandbox, proof.incarnation, agent);
                Ok(())
            }
            Err(why) => {
                self.refused().push((sandbox, why));
                Err(why)
            }
        }
    }
}
