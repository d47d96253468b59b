//! The words for what the backend has seen: what must never be so, how often that was put to the test,
//! and where late effects have landed.

use overwinter_lifecycle::ids::{EffectKey, Incarnation, SandboxId};

/// What must never be so, whatever goes wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// Compute was started while other compute of the same sandbox was there.
    TwoLive(SandboxId),
    /// A write that is not of the newest generation. `current`: None when the storage was deleted.
    StaleWrite {
        sandbox: SandboxId,
        by: Incarnation,
        current: Option<Incarnation>,
    },
    /// A main process was started in compute that had been given one.
    TwoMains(SandboxId),
    /// An effect whose reply was lost was carried out after another, newer one.
    Overtaken(EffectKey),
    /// A native name was given twice.
    NameReused(EffectKey),
    /// The gateway's end of the connection was still open.
    FrozenWhileAttached(SandboxId),
    /// The gateway accepted credentials that newer ones had revoked.
    OldCredentialsAccepted(SandboxId),
}

/// What is held against what must never be so, whenever it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Looked {
    /// Compute is to be started.
    Start,
    /// A file is written.
    Write,
    /// Memory is to be kept.
    Freeze,
    /// Credentials that newer ones have revoked are shown to the gateway.
    OldCredentials,
    /// An effect comes late to a backend that compares no keys.
    Unfenced,
}

/// Where an effect finds itself that comes late.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Landing {
    /// Nothing has come in between.
    First,
    /// Its retry was carried out before it.
    AfterRetry,
    /// A newer effect was.
    AfterNewer,
    /// Its sandbox was deleted before it.
    AfterDelete,
}
