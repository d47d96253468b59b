//! What goes into the store's methods and what comes out.

use std::collections::BTreeMap;
use std::fmt;

use overwinter_lifecycle::Phase;
use overwinter_lifecycle::admission;
use overwinter_lifecycle::config::Policy;
use overwinter_lifecycle::ids::{EffectKey, Millis, OperationId, SandboxId};
use overwinter_lifecycle::operation::{Deadlines, Operation};
use overwinter_lifecycle::record::Sandbox;
use overwinter_lifecycle::recording::Recorded;
use uuid::Uuid;

use crate::Durability;

/// A key that makes a mutating call repeatable: (tenant, `method`, `key`), bound to a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Idempotency {
    /// The full name of the RPC.
    pub method: String,
    /// As the client chose it.
    pub key: String,
    /// SHA-256 of the request without its key.
    pub body_hash: [u8; 32],
    /// How long it is remembered from now on; milliseconds.
    pub life_ms: u64,
}

/// A create.
#[derive(Clone, Debug, PartialEq)]
pub struct NewSandbox {
    /// From [`Sandbox::new`], with its labels.
    pub sandbox: Sandbox,
    /// From [`Operation::new`] with [`overwinter_lifecycle::operation::Verb::Create`].
    pub operation: Operation,
    pub idempotency: Option<Idempotency>,
    pub now: Millis,
}

/// Any verb but create.
#[derive(Clone, Debug, PartialEq)]
pub struct Accept {
    pub sandbox: SandboxId,
    pub request: admission::Request,
    /// For the operation, should there be a new one.
    pub operation: OperationId,
    pub requester: String,
    pub deadlines: Deadlines,
    pub idempotency: Option<Idempotency>,
    /// [`Durability::Soon`] where nobody is told before the operation has ended, and the verb begins with
    /// no effect.
    pub durability: Durability,
    pub now: Millis,
}

/// How a verb was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// A new operation: begun, or ended at once with nothing done.
    Accepted,
    /// An equal operation was in line.
    Joined,
    /// It waits while the running suspend is turned back.
    TurnedBack,
    /// It waits.
    Queued,
    /// It is so already; there is no operation.
    NoOp,
    /// The answer to an earlier call with the same idempotency key.
    Replay,
}

/// A verb that was taken.
#[derive(Clone, Debug, PartialEq)]
pub struct Accepted {
    pub disposition: Disposition,
    /// None for a [`Disposition::NoOp`], and for the replay of one.
    pub operation: Option<Operation>,
    /// As the transaction left it.
    pub sandbox: Sandbox,
    /// Waiting operations that this one superseded.
    pub superseded: Vec<OperationId>,
    /// Whether `operation` began in this transaction: it needs an owner now.
    pub begun: bool,
}

/// What a recording wrote.
#[derive(Clone, Debug, PartialEq)]
pub struct Written {
    pub recorded: Recorded,
    /// As the transaction left it.
    pub sandbox: Sandbox,
    /// Operations that ended in this transaction: the one that recorded, and a waiting one that
    /// had nothing to do.
    pub ended: Vec<Operation>,
}

/// What is remembered of a process.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessResult {
    pub process: Uuid,
    /// None: it has not ended, as far as is known.
    pub exited_at: Option<Millis>,
    /// The gateway's own; opaque here but for [`Self::CAUSE`].
    pub body: serde_json::Value,
}

impl ProcessResult {
    /// The key of the body that says why it ended. Written here where a transaction ends the
    /// processes of a sandbox.
    pub const CAUSE: &str = "cause";
    /// A suspension ended it.
    pub const SUSPENSION: &str = "suspension";
    /// Its compute went away.
    pub const LOST: &str = "lost";
}

/// A change of what may change. None leaves a part as it is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UpdateConfig {
    /// All labels, anew.
    pub labels: Option<BTreeMap<String, String>>,
    /// The whole environment, anew.
    pub env: Option<BTreeMap<String, String>>,
    pub policy: Option<Policy>,
    /// Who makes the change.
    pub owner: String,
    /// The config's version that the caller has seen; none: any.
    pub expected_version: Option<u64>,
}

/// Which sandboxes, in the order of their ids (oldest first).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ListFilter {
    /// None: of all tenants.
    pub tenant: Option<String>,
    /// All of them must be there with these values.
    pub labels: BTreeMap<String, String>,
    /// Any of them, depths left out; empty: all but tombstones.
    pub phases: Vec<Phase>,
    /// Where the last page ended.
    pub after: Option<SandboxId>,
    pub limit: usize,
    /// With tombstones, where `phases` is empty.
    pub tombstones: bool,
}

/// Which operations, newest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OperationFilter {
    pub sandbox: Option<SandboxId>,
    pub tenant: Option<String>,
    pub unfinished_only: bool,
    /// Where the last page ended.
    pub before: Option<OperationId>,
    pub limit: usize,
}

/// What changed after a sequence number.
#[derive(Clone, Debug, PartialEq)]
pub struct Changes {
    /// Each sandbox once, as it is now, with the number of its newest change; ascending.
    pub changes: Vec<(u64, Sandbox)>,
    /// Ask from here next.
    pub next: u64,
    /// Records were swept after the number that was asked for: list anew instead.
    pub gap: bool,
}

/// One effect in the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    pub key: EffectKey,
    /// As `EffectKind::as_str` says.
    pub kind: String,
    /// [`EffectKey::native_name`].
    pub native_ref: String,
    /// None: not settled.
    pub outcome: Option<String>,
}

/// What the store is.
#[derive(Clone, PartialEq, Eq)]
pub struct Meta {
    /// Minted once.
    pub gateway: Uuid,
    /// Minted once; what credentials are derived from.
    pub key: [u8; 32],
    /// Raised each time the store is opened.
    pub epoch: u64,
    /// Of the database.
    pub schema: u32,
}

impl fmt::Debug for Meta {
    /// Without the key: it must not end up in a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Meta")
            .field("gateway", &self.gateway)
            .field("epoch", &self.epoch)
            .field("schema", &self.schema)
            .finish_non_exhaustive()
    }
}

/// Counted since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Transactions that were carried out and are durable. Reads are none.
    pub transactions: u64,
    /// Durable commits: each carried one or more transactions. One that wrote nothing is none.
    pub commits: u64,
}

/// What a sweep removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    pub tombstones: u64,
    pub operations: u64,
    pub idempotency_keys: u64,
    pub process_results: u64,
}
