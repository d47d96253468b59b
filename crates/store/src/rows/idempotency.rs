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
    let mut look = conn.prepare_cached(
        "SELECT body_hash, sandbox, operation FROM idempotency
         WHERE day = ?1 AND tenant = ?2 AND method = ?3 AND key = ?4 AND expires_at > ?5",
    )?;
    // A day more: a clock that was set back since then must not make a call happen twice.
    for day in day(now)..=day(expiry(asked, now)) + 1 {
        let found = look
            .query_row(
                params![day, tenant, asked.method, asked.key, now.0],
                |row| {
                    Ok((
                        row.get::<_, [u8; 32]>(0)?,
                        Earlier {
                            sandbox: sandbox_id(row.get(1)?),
                            operation: row.get::<_, Option<[u8; 16]>>(2)?.map(operation_id),
                        },
                    ))
                },
            )
            .optional()?;
        match found {
            None => {}
            Some((hash, earlier))
                if hash == asked.body_hash || overwinter_lifecycle::mutant!(KeyBodyIgnored) =>
            {
                return Ok(Some(earlier));
            }
            Some(_) => return Err(AcceptError::KeyReused),
        }
    }
    Ok(None)
}

pub(crate) fn remember(
    tx: &Tx<'_>,
    tenant: &str,
    asked: &Idempotency,
    sandbox: SandboxId,
    operation: Option<OperationId>,
    now: Millis,
) -> Result<(), StoreError> {
    if overwinter_lifecycle::mutant!(ForgetKeys) {
        return Ok(());
    }
    let expires_at = expiry(asked, now);
    tx.conn
        .prepare_cached(
            "INSERT OR REPLACE INTO idempotency
                 (day, tenant, method, key, body_hash, sandbox, operation, expires_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        )?
        .execute(params![
            day(expires_at),
            tenant,
            asked.method,
            asked.key,
            asked.body_hash,
            blob(sandbox),
            operation.map(|id| id.0.into_bytes()),
            expires_at.0,
        ])?;
    Ok(())
}

/// Removes at most `most` whose day is over.
pub(crate) fn expire(tx: &Tx<'_>, now: Millis, most: usize) -> Result<usize, StoreError> {
    Ok(tx
        .conn
        .prepare_cached(
            "DELETE FROM idempotency WHERE (day, tenant, method, key) IN
                 (SELECT day, tenant, method, key FROM idempotency WHERE day < ?1 LIMIT ?2)",
        )?
        .execute(params![day(now), limit(most)])?)
}

fn expiry(asked: &Idempotency, now: Millis) -> Millis {
    let life = i64::try_from(asked.life_ms).unwrap_or(i64::MAX);
    Millis(now.0.saturating_add(life))
}

const fn day(at: Millis) -> i64 {
    at.0.div_euclid(24 * 60 * 60 * 1_000)
}
