//! Receipts in memory.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use overwinter_lifecycle::ids::{EffectKey, SandboxId};
use overwinter_lifecycle::operation::EffectKind;

use crate::ledger::{Ledger, LedgerUnavailable, Receipt};

/// What the suite writes before each effect, as a gateway's store does.
#[derive(Debug, Default)]
pub struct TestLedger(Mutex<HashMap<SandboxId, Receipt>>);

impl TestLedger {
    /// Records the intent of an effect. A smaller key than the newest is not recorded: no gateway
    /// could write it any more.
    pub fn intend(&self, key: EffectKey, kind: EffectKind) {
        let mut receipts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let receipt = Receipt {
            key,
            kind: kind.as_str().to_owned(),
            outcome: None,
        };
        match receipts.get(&key.sandbox) {
            Some(newest) if newest.key >= key => {}
            Some(_) | None => {
                receipts.insert(key.sandbox, receipt);
            }
        }
    }
}

#[async_trait]
impl Ledger for TestLedger {
    async fn newest(&self, sandbox: SandboxId) -> Result<Option<Receipt>, LedgerUnavailable> {
        let receipts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(receipts.get(&sandbox).cloned())
    }
}
