//! Keys that make a call repeatable.

use overwinter_lifecycle::ids::{Millis, OperationId, SandboxId};
use rusqlite::{Connection, OptionalExtension, params};

use super::{blob, limit, operation_id, sandbox_id};
use crate::core::Tx;
use crate::{AcceptError, Idempotency, StoreError};

/// What an earlier call with the same key came to.
pub(crate) struct Earlier {
    pub(crate) sandbox: SandboxId,
    pub(crate) operation: Option<OperationId>,
}

/// Looks a key up. One that has expired is as good as new.
pub(crate) fn find(
    conn: &Connection,
    tenant: &str,
    asked: &Idempotency,
    now: Millis,
) -> Result<Option<Earlier>, AcceptError> {
    let found = conn
        .prepare_cached(
            "SELECT body_hash, sandbox, operation FROM idempotency
             WHERE tenant = ?1 AND method = ?2 AND key = ?3 AND expires_at > ?4",
        )?
        .query_row(params![tenant, asked.method, asked.key, now.0], |row| {
            Ok((
                row.get::<_, [u8; 32]>(0)?,
                Earlier {
                    sandbox: sandbox_id(row.get(1)?),
                    operation: row.get::<_, Option<[u8; 16]>>(2)?.map(operation_id),
                },
            ))
        })
        .optional()?;
    match found {
        None => Ok(None),
        Some((hash, earlier)) if hash == asked.body_hash => Ok(Some(earlier)),
        Some(_) => Err(AcceptError::KeyReused),
    }
}

pub(crate) fn remember(
    tx: &Tx<'_>,
    tenant: &str,
    asked: &Idempotency,
    sandbox: SandboxId,
    operation: Option<OperationId>,
    now: Millis,
) -> Result<(), StoreError> {
    let life = i64::try_from(asked.life_ms).unwrap_or(i64::MAX);
    tx.conn
        .prepare_cached(
            "INSERT OR REPLACE INTO idempotency
                 (tenant, method, key, body_hash, sandbox, operation, expires_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        )?
        .execute(params![
            tenant,
            asked.method,
            asked.key,
            asked.body_hash,
            blob(sandbox),
            operation.map(|id| id.0.into_bytes()),
            now.0.saturating_add(life),
        ])?;
    Ok(())
}

/// Removes at most `most` that have expired.
pub(crate) fn expire(tx: &Tx<'_>, now: Millis, most: usize) -> Result<usize, StoreError> {
    Ok(tx
        .conn
        .prepare_cached(
            "DELETE FROM idempotency WHERE rowid IN
                 (SELECT rowid FROM idempotency WHERE expires_at <= ?1 LIMIT ?2)",
        )?
        .execute(params![now.0, limit(most)])?)
}
