//! The receipts. The gateway's store writes an effect's row in the commit of its intent, before the
//! driver is called, so a driver of this host needs no ledger of its own.

use async_trait::async_trait;
use overwinter_lifecycle::ids::{EffectKey, SandboxId};

/// A receipt as the ledger has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    pub key: EffectKey,
    /// As `EffectKind::as_str` says.
    pub kind: String,
    /// None: not settled.
    pub outcome: Option<String>,
}

/// The ledger did not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the ledger of receipts cannot be read: {0}")]
pub struct LedgerUnavailable(pub String);

/// The port that a driver reads receipts through.
#[async_trait]
pub trait Ledger: Send + Sync + 'static {
    /// The newest receipt of a sandbox: an effect with a smaller key is fenced.
    ///
    /// # Errors
    /// When it cannot be read; the caller must not go on as if there were none.
    async fn newest(&self, sandbox: SandboxId) -> Result<Option<Receipt>, LedgerUnavailable>;
}
