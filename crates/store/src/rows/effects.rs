//! The ledger of effects.

use overwinter_lifecycle::ids::{EffectKey, Fence, Millis, SandboxId, Serial};
use overwinter_lifecycle::operation::EffectKind;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::{blob, int, uint};
use crate::core::Tx;
use crate::{Receipt, StoreError};

pub(crate) fn insert(
    tx: &Tx<'_>,
    key: EffectKey,
    kind: EffectKind,
    now: Millis,
) -> Result<(), StoreError> {
    tx.conn
        .prepare_cached(
            "INSERT INTO effects (sandbox, fence, serial, kind, native_ref, recorded_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        )?
        .execute(params![
            blob(key.sandbox),
            int(key.fence.0),
            int(key.serial.0),
            kind.as_str(),
            key.native_name(),
            now.0,
        ])?;
    Ok(())
}

pub(crate) fn settle(tx: &Tx<'_>, key: EffectKey, outcome: &str) -> Result<(), StoreError> {
    tx.conn
        .prepare_cached(
            "UPDATE effects SET outcome = ?4 WHERE sandbox = ?1 AND fence = ?2 AND serial = ?3",
        )?
        .execute(params![
            blob(key.sandbox),
            int(key.fence.0),
            int(key.serial.0),
            outcome,
        ])?;
    Ok(())
}

/// Whatever of a sandbox is not settled yet: its delete has taken it over and is done.
pub(crate) fn settle_all(tx: &Tx<'_>, sandbox: SandboxId, outcome: &str) -> Result<(), StoreError> {
    tx.conn
        .prepare_cached("UPDATE effects SET outcome = ?2 WHERE sandbox = ?1 AND outcome IS NULL")?
        .execute(params![blob(sandbox), outcome])?;
    Ok(())
}

pub(crate) fn newest(conn: &Connection, sandbox: SandboxId) -> Result<Option<Receipt>, StoreError> {
    Ok(conn
        .prepare_cached(
            "SELECT sandbox, fence, serial, kind, native_ref, outcome FROM effects
             WHERE sandbox = ?1 ORDER BY fence DESC, serial DESC LIMIT 1",
        )?
        .query_row([blob(sandbox)], receipt)
        .optional()?)
}

pub(crate) fn all(conn: &Connection, sandbox: SandboxId) -> Result<Vec<Receipt>, StoreError> {
    let receipts = conn
        .prepare_cached(
            "SELECT sandbox, fence, serial, kind, native_ref, outcome FROM effects
             WHERE sandbox = ?1 ORDER BY fence, serial",
        )?
        .query_map([blob(sandbox)], receipt)?
        .collect::<Result<_, _>>()?;
    Ok(receipts)
}

/// Forgets settled effects below a fence that were recorded before a time. They are kept longer
/// than a driver's lost request can live, so that a late one finds itself fenced.
pub(crate) fn forget(
    tx: &Tx<'_>,
    sandbox: SandboxId,
    below: Fence,
    before: Millis,
) -> Result<usize, StoreError> {
    Ok(tx
        .conn
        .prepare_cached(
            "DELETE FROM effects WHERE sandbox = ?1 AND fence < ?2 AND recorded_at < ?3
             AND outcome IS NOT NULL",
        )?
        .execute(params![blob(sandbox), int(below.0), before.0])?)
}

fn receipt(row: &Row<'_>) -> rusqlite::Result<Receipt> {
    Ok(Receipt {
        key: EffectKey {
            sandbox: super::sandbox_id(row.get(0)?),
            fence: Fence(uint(row.get(1)?)),
            serial: Serial(uint(row.get(2)?)),
        },
        kind: row.get(3)?,
        native_ref: row.get(4)?,
        outcome: row.get(5)?,
    })
}
