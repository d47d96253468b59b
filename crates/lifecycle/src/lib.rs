//! Overwinter's pure core: what a sandbox is, which verbs are admitted, and the steps that lead from
//! one phase to the next. No I/O, no clock, no async: everything here can be run a million times a
//! second by a test, and is run as it stands by the gateway.
//!
//! | module | its one idea |
//! |---|---|
//! | [`admission`] | may this verb, now, and in which way |
//! | [`begin`] | what beginning an operation writes |
//! | [`steps`] | what its owner does next, and what a result means |
//! | [`recording`] | what each durable step writes |
//! | [`loss`] | what is found out while nothing is at work |
//! | [`phase`] | the phase, derived from what is wanted and what was observed |
//! | [`capacity`] | what each record holds, and whether there is room |
//! | [`idle`] | the one predicate |

pub mod admission;
pub mod begin;
pub mod capacity;
pub mod config;
mod depth;
pub mod idle;
pub mod ids;
pub mod loss;
pub mod mutant;
mod name;
pub mod operation;
pub mod phase;
mod reason;
pub mod record;
pub mod recording;
pub mod steps;

pub use depth::{Depth, NoSuchDepth};
pub use name::{BadName, Name};
pub use phase::Phase;
pub use reason::{Fault, Reason};
