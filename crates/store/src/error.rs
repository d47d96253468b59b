//! What can go wrong. Nothing here is matched by its text.

use overwinter_lifecycle::Fault;
use overwinter_lifecycle::ids::{OperationId, SandboxId};
use uuid::Uuid;

/// Why the store did not answer as asked.
///
/// It is `Clone` because one commit that fails is the answer to every transaction that it carried.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// SQLite refused. `code`: its extended result code.
    #[error("the database refused ({code}): {message}")]
    Sqlite { code: i32, message: String },
    /// The disk is full. Deletes and the records of running operations still find room in the
    /// reserve; all else is refused until there is space again.
    #[error("the disk of the data folder is full")]
    Full,
    /// Another gateway uses the data folder.
    #[error("the data folder {path} is in use by another gateway")]
    Locked { path: String },
    /// The database was written by a newer release.
    #[error("the database has schema {found}; this release knows up to {known}")]
    NewerSchema { found: u32, known: u32 },
    /// This release cannot finish an operation that is under way: run the release that began it,
    /// and drain it first.
    #[error("operation {id} has step schema {step_schema}, which this release does not know")]
    UnfinishableOperation { id: OperationId, step_schema: u32 },
    /// No such sandbox.
    #[error("there is no sandbox {0}")]
    NotFound(SandboxId),
    /// The writer is not the running operation any more (or another one is): it must stop.
    #[error("the operation does not run any more")]
    NotRunning,
    /// The record has changed since it was read. `version`: what it is at now (of the config for
    /// an update, else the record's revision).
    #[error("it has changed in the meantime and is at version {version} now")]
    Conflict { version: u64 },
    /// A row could not be understood: damage, or a hand in the database.
    #[error("the row {id} of {table} cannot be understood: {message}")]
    Corrupt {
        table: &'static str,
        id: Uuid,
        message: String,
    },
    /// A file of the data folder could not be used.
    #[error("{path}: {message}")]
    Io {
        path: String,
        kind: std::io::ErrorKind,
        message: String,
    },
    /// The writer has ended; nothing more is accepted.
    #[error("the store is closed")]
    Closed,
}

/// Why a verb was not accepted. Nothing was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AcceptError {
    /// Held by this sandbox, until its delete has ended.
    #[error("the name is taken by sandbox {id}")]
    NameTaken { id: SandboxId },
    /// Admission or capacity said no.
    #[error(transparent)]
    Denied(Fault),
    /// The idempotency key was used before for a request with another body.
    #[error("the idempotency key was used before, for another request")]
    KeyReused,
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        let message = error.to_string();
        let code = match &error {
            rusqlite::Error::SqliteFailure(failure, _) => {
                // The shared-memory index of the log grows by a write of its own.
                if failure.code == rusqlite::ErrorCode::DiskFull
                    || failure.extended_code == rusqlite::ffi::SQLITE_IOERR_SHMSIZE
                {
                    return Self::Full;
                }
                failure.extended_code
            }
            _ => rusqlite::ffi::SQLITE_ERROR,
        };
        Self::Sqlite { code, message }
    }
}

impl StoreError {
    pub(crate) fn io(path: &std::path::Path, error: &std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::StorageFull {
            return Self::Full;
        }
        Self::Io {
            path: path.display().to_string(),
            kind: error.kind(),
            message: error.to_string(),
        }
    }
}

/// An error of a transaction: whether a full disk is behind it decides whether it is tried again.
pub(crate) trait Failure: From<StoreError> + Send + 'static {
    fn is_full(&self) -> bool;
}

impl Failure for StoreError {
    fn is_full(&self) -> bool {
        *self == Self::Full
    }
}

impl Failure for AcceptError {
    fn is_full(&self) -> bool {
        *self == Self::Store(StoreError::Full)
    }
}

impl From<rusqlite::Error> for AcceptError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Store(error.into())
    }
}
