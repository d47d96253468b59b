//! The gateway's end of every connection, which dies with it.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use overwinter_lifecycle::ids::SandboxId;
use tokio::task::JoinHandle;

use super::TestPort;
use crate::agent::Agent;
use crate::attach::{AttachPort, AttachProof, AttachRefused, Io, Peer};

/// A [`TestPort`] behind connections that can be cut all at once, as a gateway that is killed cuts them.
pub struct Wires {
    port: Arc<TestPort>,
    carried: Mutex<Vec<JoinHandle<()>>>,
}

impl fmt::Debug for Wires {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wires")
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}

impl Wires {
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            port: TestPort::new(),
            carried: Mutex::default(),
        })
    }

    #[must_use]
    pub fn port(&self) -> Arc<TestPort> {
        Arc::clone(&self.port)
    }

    /// Ends every connection.
    pub fn cut(&self) {
        let mut carried = self.carried.lock().unwrap_or_else(PoisonError::into_inner);
        for connection in carried.drain(..) {
            connection.abort();
        }
    }
}

impl AttachPort for Wires {
    fn connection(&self, sandbox: SandboxId, mut io: Box<dyn Io>, peer: Peer) {
        let (mut near, far) = tokio::io::duplex(1 << 16);
        let carried = tokio::spawn(async move {
            // However it ends, it has ended.
            let _ = tokio::io::copy_bidirectional(&mut io, &mut near).await;
        });
        let mut all = self.carried.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(carried);
        self.port.connection(sandbox, Box::new(far), peer);
    }

    fn agent(
        &self,
        sandbox: SandboxId,
        proof: &AttachProof,
        agent: Arc<dyn Agent>,
    ) -> Result<(), AttachRefused> {
        self.port.agent(sandbox, proof, agent)
    }
}
