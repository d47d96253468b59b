//! What must still be removed.

use overwinter_lifecycle::ids::{EffectKey, Fence, Millis, SandboxId, Serial};
use overwinter_lifecycle::record::{Debt, DebtKind};
use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ValueRef};
use rusqlite::{Connection, Row, params};

use super::{blob, int, limit, uint};
use crate::StoreError;
use crate::core::Tx;

struct Kind(DebtKind);

impl Kind {
    const fn as_str(&self) -> &'static str {
        match self.0 {
            DebtKind::Compute => "compute",
            DebtKind::Artifact => "artifact",
            DebtKind::Storage => "storage",
        }
    }
}

impl FromSql for Kind {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        let word = value.as_str()?;
        [DebtKind::Compute, DebtKind::Artifact, DebtKind::Storage]
            .into_iter()
            .map(Kind)
            .find(|kind| kind.as_str() == word)
            .ok_or(FromSqlError::InvalidType)
    }
}

/// Adds those that are not there yet: due at once.
pub(crate) fn insert(tx: &Tx<'_>, debts: &[Debt], now: Millis) -> Result<(), StoreError> {
    for debt in debts {
        tx.conn
            .prepare_cached(
                "INSERT INTO debts (sandbox, fence, serial, reference, kind, due_at)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6)
                 ON CONFLICT (sandbox, fence, serial, reference) DO NOTHING",
            )?
            .execute(params![
                blob(debt.key.sandbox),
                int(debt.key.fence.0),
                int(debt.key.serial.0),
                debt.reference,
                Kind(debt.kind).as_str(),
                now.0,
            ])?;
    }
    Ok(())
}

/// Whether it was there.
pub(crate) fn delete(tx: &Tx<'_>, debt: &Debt) -> Result<bool, StoreError> {
    let changed = tx
        .conn
        .prepare_cached(
            "DELETE FROM debts
             WHERE sandbox = ?1 AND fence = ?2 AND serial = ?3 AND reference = ?4",
        )?
        .execute(params![
            blob(debt.key.sandbox),
            int(debt.key.fence.0),
            int(debt.key.serial.0),
            debt.reference,
        ])?;
    Ok(changed > 0)
}

pub(crate) fn defer(tx: &Tx<'_>, debt: &Debt, due: Millis) -> Result<(), StoreError> {
    tx.conn
        .prepare_cached(
            "UPDATE debts SET due_at = ?5
             WHERE sandbox = ?1 AND fence = ?2 AND serial = ?3 AND reference = ?4",
        )?
        .execute(params![
            blob(debt.key.sandbox),
            int(debt.key.fence.0),
            int(debt.key.serial.0),
            debt.reference,
            due.0,
        ])?;
    Ok(())
}

/// Of compute: what blocks every start of the sandbox.
pub(crate) fn of_compute(conn: &Connection, sandbox: SandboxId) -> Result<u32, StoreError> {
    Ok(conn
        .prepare_cached("SELECT count(*) FROM debts WHERE sandbox = ?1 AND kind = 'compute'")?
        .query_row([blob(sandbox)], |row| row.get(0))?)
}

/// Nobody defers for longer. What is due later than that was deferred before the clock was set back.
const LONGEST_MS: i64 = 3_600_000;

pub(crate) fn due(conn: &Connection, now: Millis, most: usize) -> Result<Vec<Debt>, StoreError> {
    let debts = conn
        .prepare_cached(
            "SELECT sandbox, fence, serial, reference, kind FROM debts
             WHERE due_at <= ?1 OR due_at > ?2 ORDER BY due_at LIMIT ?3",
        )?
        .query_map(params![now.0, now.0 + LONGEST_MS, limit(most)], debt)?
        .collect::<Result<_, _>>()?;
    Ok(debts)
}

pub(crate) fn count(conn: &Connection, sandbox: Option<SandboxId>) -> Result<u64, StoreError> {
    let count: i64 = match sandbox {
        Some(id) => conn
            .prepare_cached("SELECT count(*) FROM debts WHERE sandbox = ?1")?
            .query_row([blob(id)], |row| row.get(0))?,
        None => conn
            .prepare_cached("SELECT count(*) FROM debts")?
            .query_row([], |row| row.get(0))?,
    };
    Ok(uint(count))
}

fn debt(row: &Row<'_>) -> rusqlite::Result<Debt> {
    Ok(Debt {
        key: EffectKey {
            sandbox: super::sandbox_id(row.get(0)?),
            fence: Fence(uint(row.get(1)?)),
            serial: Serial(uint(row.get(2)?)),
        },
        reference: row.get(3)?,
        kind: row.get::<_, Kind>(4)?.0,
    })
}
