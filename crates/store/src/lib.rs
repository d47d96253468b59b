//! Overwinter's durable store: SQLite, one writer with group commit, reads beside it.
//!
//! It runs the pure functions of `overwinter-lifecycle` inside its transactions and persists what
//! they return; it holds no rule of the lifecycle of its own.

mod error;
pub mod label;
mod options;
mod store;
mod types;

pub use error::{AcceptError, StoreError};
pub use options::{CommitHook, CommitPoint, Location, StoreOptions, WriterKind};
pub use store::Store;
pub use types::{
    Accept, Accepted, Changes, Disposition, Idempotency, ListFilter, Meta, NewSandbox,
    OperationFilter, ProcessResult, Receipt, Stats, Swept, UpdateConfig, Written,
};
