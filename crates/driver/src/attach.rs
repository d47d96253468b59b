//! How whoever is inside reaches the gateway.
//!
//! A supervisor dials a socket that the driver has put where it can reach it; the driver hands each
//! connection on through [`AttachPort::connection`]. A backend with an agent of its own, or a
//! simulated one, presents itself through [`AttachPort::agent`]. Either way the gateway alone
//! decides whether the credentials are good.

use std::fmt;
use std::sync::Arc;

use overwinter_lifecycle::ids::{Incarnation, SandboxId};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::agent::Agent;

/// What lets a supervisor attach under one incarnation. Not shown in logs.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Token(pub String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// What a driver puts where only the supervisor can read it, before anything inside runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    pub sandbox: SandboxId,
    pub incarnation: Incarnation,
    pub token: Token,
}

/// The attach file, `attach` in the folder that is mounted at `/run/overwinter`. Replaced as a whole,
/// by rename.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachFile {
    /// [`AttachFile::VERSION`].
    pub version: u32,
    /// `unix:` and a path inside the sandbox.
    pub endpoint: String,
    pub sandbox_id: SandboxId,
    pub incarnation: Incarnation,
    /// Rises when the same incarnation is to attach again after a detach.
    pub reattach: u64,
    pub token: Token,
}

impl AttachFile {
    pub const VERSION: u32 = 1;
}

/// Who is at the other end of a connection, as the kernel says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// In the host's namespaces; None where the transport cannot tell.
    pub uid: Option<u32>,
    pub pid: Option<i32>,
}

/// A byte stream to a supervisor.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin + 'static {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Io for T {}

/// What an agent presents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachProof {
    pub incarnation: Incarnation,
    pub token: Token,
    /// 32 random bytes of the agent's own making.
    pub secret: [u8; 32],
    /// What it had before, where it kept its memory.
    pub previous_secret: Option<[u8; 32]>,
}

/// How often somebody was refused, and whether that is to be said: whoever is inside can knock as often
/// as it likes, and a log is for others too. The first time is, then the 10th, the 100th and so on.
#[derive(Debug, Default)]
pub struct Refusals(u64);

impl Refusals {
    /// One more. Some: so many until now, and it is to be said.
    pub const fn note(&mut self) -> Option<u64> {
        self.0 += 1;
        let magnitude = 10_u64.pow(self.0.ilog10());
        if self.0 == magnitude {
            Some(self.0)
        } else {
            None
        }
    }
}

/// Why an attach was refused. Audited; the answer to the peer is as short as the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttachRefused {
    #[error("no such sandbox here")]
    NoSuchSandbox,
    #[error("the incarnation is not the newest that was issued")]
    Revoked,
    #[error("the token is wrong")]
    WrongToken,
    #[error("the token was used with another secret")]
    TokenUsed,
    #[error("the compute kept its memory and does not know its earlier secret")]
    WrongPreviousSecret,
    #[error("the request is malformed")]
    Malformed,
}

/// The gateway's side.
pub trait AttachPort: Send + Sync + 'static {
    /// A connection on the socket of `sandbox`. The gateway speaks the attach protocol on it in a
    /// task of its own.
    fn connection(&self, sandbox: SandboxId, io: Box<dyn Io>, peer: Peer);

    /// An agent that needs no connection of the gateway's making.
    ///
    /// # Errors
    /// [`AttachRefused`]: it has no authority.
    fn agent(
        &self,
        sandbox: SandboxId,
        proof: &AttachProof,
        agent: Arc<dyn Agent>,
    ) -> Result<(), AttachRefused>;
}

#[cfg(test)]
mod tests {
    use super::Refusals;

    #[test]
    fn a_million_refusals_are_seven_lines() {
        let mut refusals = Refusals::default();
        let said: Vec<u64> = (0..1_000_000).filter_map(|_| refusals.note()).collect();
        assert_eq!(said, [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000]);
    }
}
