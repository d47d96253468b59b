//! The model: one sandbox, its clients, its gateway, its backend, and all that may go wrong.
//!
//! What is decided is decided by `overwinter-lifecycle` as the gateway ships it. What is here is what
//! is around it: the order of steps of an owner (`gateway/src/reconciler/owner.rs`), of a verb's
//! transaction (`store/src/tx/accept.rs`), of the housekeeping, and a backend that keeps the
//! driver's contract.
//!
//! ```text
//!   state ── a move ──► state      a verb of a client · the owner's next action, with its luck
//!                                  SIGKILL · a death · a late effect · the gateway's housekeeping
//! ```
//!
//! An owner's step is an action with what came of it, and the pure decision on what comes next. What
//! was decided is only in memory, so a crash after it, before it, or before the answer was read
//! lead to the same state: a crash is a move like any other, possible in every state.

mod call;
mod canonical;
pub mod checks;
mod flaw;
mod invariant;
mod line;
mod moves;
mod owner;
pub mod rest;
mod retained;
mod state;
mod world;

use overwinter_lifecycle::begin::begin;
use overwinter_lifecycle::ids::Millis;
use overwinter_lifecycle::operation::{Operation, Verb};
use overwinter_lifecycle::steps::Deadline;

pub use canonical::canonical;
pub use flaw::Flaw;
pub use invariant::{Invariant, Violation};
pub use moves::{MOVES, Move, REQUESTS, Setup, Taken, make};
pub use owner::Luck;
pub use state::{Budget, Look, State};
pub use world::{Artifact, Backend, Health, Key, Leftover, Native, Sent, World};

/// A create has begun.
#[must_use]
pub fn initial(setup: &Setup) -> State {
    let mut sandbox = state::blank();
    let create = Operation::new(state::NEW, sandbox.id, Verb::Create, "", Millis(0));
    begin(
        &mut sandbox,
        create,
        line::others(false),
        &line::LIMITS,
        Millis(0),
    );
    let mut state = State {
        sandbox,
        compute_debt: false,
        storage_debt: false,
        artifact_debts: Vec::new(),
        next: None,
        deadline: Deadline::Ahead,
        look: None,
        world: World::default(),
        full: false,
        used: false,
        abandoned: false,
        unseen: false,
        left: setup.budget,
    };
    owner::first(&mut state);
    state
}
