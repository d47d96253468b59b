//! Overwinter's durable store: SQLite, one writer with group commit, reads beside it.
//!
//! It runs the pure functions of `overwinter-lifecycle` inside its transactions and persists what
//! they return; it holds no rule of the lifecycle of its own.

mod core;
mod error;
pub mod label;
mod list;
mod open;
mod options;
mod readers;
mod reads;
mod records;
mod reserve;
mod rows;
mod schema;
mod store;
mod tx;
mod types;
mod writer;

pub use error::{AcceptError, StoreError};
pub use options::{
    CommitHook, CommitPoint, Durability, FullHook, Identity, Location, PaceHook, StoreOptions,
    WriterKind,
};
pub use store::Store;
pub use types::{
    Accept, Accepted, Changes, Disposition, Idempotency, ListFilter, Meta, NewSandbox,
    OperationFilter, ProcessResult, Receipt, Stats, Swept, UpdateConfig, Written,
};
