//! Rows of each table, in and out. Nothing here decides anything.

pub(crate) mod debts;
pub(crate) mod effects;
pub(crate) mod idempotency;
pub(crate) mod operations;
pub(crate) mod processes;
pub(crate) mod sandboxes;

use overwinter_lifecycle::ids::{OperationId, SandboxId};
use serde::Serialize;
use serde::de::DeserializeOwned;
use uuid::Uuid;

use crate::StoreError;

/// As ids are stored: 16 bytes.
pub(crate) const fn blob(id: SandboxId) -> [u8; 16] {
    id.0.into_bytes()
}

pub(crate) const fn sandbox_id(bytes: [u8; 16]) -> SandboxId {
    SandboxId(Uuid::from_bytes(bytes))
}

pub(crate) const fn operation_id(bytes: [u8; 16]) -> OperationId {
    OperationId(Uuid::from_bytes(bytes))
}

/// SQLite's integers are signed; the bits stay the same.
pub(crate) const fn int(number: u64) -> i64 {
    number.cast_signed()
}

pub(crate) const fn uint(number: i64) -> u64 {
    number.cast_unsigned()
}

/// A page's size as SQLite takes it.
pub(crate) fn limit(rows: usize) -> i64 {
    i64::try_from(rows).unwrap_or(i64::MAX)
}

pub(crate) fn encode<T: Serialize>(
    table: &'static str,
    id: Uuid,
    value: &T,
) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|error| corrupt(table, id, &error))
}

pub(crate) fn decode<T: DeserializeOwned>(
    table: &'static str,
    id: Uuid,
    body: &str,
) -> Result<T, StoreError> {
    serde_json::from_str(body).map_err(|error| corrupt(table, id, &error))
}

fn corrupt(table: &'static str, id: Uuid, error: &serde_json::Error) -> StoreError {
    StoreError::Corrupt {
        table,
        id,
        message: error.to_string(),
    }
}
