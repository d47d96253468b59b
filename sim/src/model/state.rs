//! One state: what is durable, what is only in the gateway's memory, what is really there, and how
//! much may still go wrong.

use overwinter_lifecycle::Name;
use overwinter_lifecycle::config::{Config, Resources, Spec};
use overwinter_lifecycle::ids::{Incarnation, Millis, OperationId, SandboxId};
use overwinter_lifecycle::record::Sandbox;
use overwinter_lifecycle::steps::{Action, Deadline, Observed};
use uuid::Uuid;

use super::world::{Key, World};

/// How often each thing may still happen in one history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Budget {
    /// Verbs of clients, and calls that turn a suspend back, after the create.
    pub verbs: u8,
    /// SIGKILL of the gateway.
    pub crashes: u8,
    /// Requests or replies that are lost.
    pub lost: u8,
    /// Requests that are carried out after their caller has given up.
    pub late: u8,
    /// All else: refusals, supervisors that do not answer, observations that fail, deaths of the
    /// compute, compute that a stop leaves behind, a gateway that is full.
    pub mishaps: u8,
}

/// What the gateway has in memory alone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Look {
    pub observed: Observed,
    /// The newest incarnation when it was looked at.
    pub issued: Incarnation,
}

#[derive(Clone, Debug, PartialEq, Hash)]
pub struct State {
    pub sandbox: Sandbox,
    /// Debts of compute that are recorded, and of storage.
    pub compute_debt: bool,
    pub storage_debt: bool,
    /// Debts of artifacts, by what wrote them.
    pub artifact_debts: Vec<Key>,
    /// The owner's next action; there is an owner exactly while an operation runs.
    pub next: Option<Action>,
    /// Whether the owner may try again.
    pub deadline: Deadline,
    /// A look at a sandbox on which nothing ran, not yet recorded.
    pub look: Option<Look>,
    pub world: World,
    /// Other sandboxes have taken all there is.
    pub full: bool,
    /// It has been Ready: a user's files are there.
    pub used: bool,
    /// The user has given it up with what may remain.
    pub abandoned: bool,
    /// An effect has landed that no caller was waiting for; until the next end that saw it.
    pub unseen: bool,
    pub left: Budget,
}

pub(crate) const RUNNING: OperationId = OperationId(Uuid::from_u128(1));
pub(crate) const WAITING: OperationId = OperationId(Uuid::from_u128(2));
/// The next that is accepted. It becomes one of the above before the state is compared.
pub(crate) const NEW: OperationId = OperationId(Uuid::from_u128(3));
/// One that has ended: nothing refers to it any more, but as one of before.
pub(crate) const ENDED: OperationId = OperationId(Uuid::from_u128(4));

/// The record of a sandbox whose create is about to begin.
pub(crate) fn blank() -> Sandbox {
    let spec = Spec {
        resources: Resources {
            cpu_millis: 1,
            memory_bytes: 1,
            ..Resources::default()
        },
        main: vec!["main".to_owned()],
        ..Spec::default()
    };
    let Ok(name) = Name::parse("a") else {
        unreachable!("a name")
    };
    let id = SandboxId(Uuid::from_u128(9));
    Sandbox::new(id, "", name, spec, Config::default(), Millis(0))
}
