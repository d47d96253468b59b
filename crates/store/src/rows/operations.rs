//! Operations: those in line, and the newest that have ended.

use overwinter_lifecycle::ids::{OperationId, SandboxId};
use overwinter_lifecycle::operation::Operation;
use overwinter_lifecycle::record::Sandbox;
use rusqlite::{Connection, OptionalExtension, Row, params};
use uuid::Uuid;

use super::{blob, decode, encode, int, limit, operation_id};
use crate::core::Tx;
use crate::{OperationFilter, StoreError};

type Raw = ([u8; 16], String);

fn raw(row: &Row<'_>) -> rusqlite::Result<Raw> {
    Ok((row.get(0)?, row.get(1)?))
}

fn understand((id, body): Raw) -> Result<Operation, StoreError> {
    decode("operations", Uuid::from_bytes(id), &body)
}

pub(crate) fn get(conn: &Connection, id: OperationId) -> Result<Option<Operation>, StoreError> {
    conn.prepare_cached("SELECT id, body FROM operations WHERE id = ?1")?
        .query_row([id.0.into_bytes()], raw)
        .optional()?
        .map(understand)
        .transpose()
}

pub(crate) fn unfinished(conn: &Connection, id: SandboxId) -> Result<Vec<Operation>, StoreError> {
    conn.prepare_cached(
        "SELECT id, body FROM operations INDEXED BY operations_unfinished
         WHERE sandbox = ?1 AND ended_at IS NULL ORDER BY id",
    )?
    .query_map([blob(id)], raw)?
    .map(|row| understand(row?))
    .collect()
}

/// Sandboxes with an operation in line.
pub(crate) fn unfinished_sandboxes(conn: &Connection) -> Result<Vec<SandboxId>, StoreError> {
    let ids = conn
        .prepare_cached(
            "SELECT DISTINCT sandbox FROM operations INDEXED BY operations_unfinished
             WHERE ended_at IS NULL ORDER BY sandbox",
        )?
        .query_map([], |row| Ok(super::sandbox_id(row.get(0)?)))?
        .collect::<Result<_, _>>()?;
    Ok(ids)
}

/// Who runs and who waits, as the record has them.
pub(crate) fn save_line(tx: &Tx<'_>, sandbox: &Sandbox) -> Result<(), StoreError> {
    let line = sandbox.running.iter().chain(&sandbox.waiting);
    save(tx, &sandbox.tenant, line)
}

pub(crate) fn save<'a>(
    tx: &Tx<'_>,
    tenant: &str,
    operations: impl IntoIterator<Item = &'a Operation>,
) -> Result<(), StoreError> {
    for op in operations {
        // The index of the unfinished is rewritten only when an operation leaves it.
        let sql = match op.ended_at {
            None => {
                "INSERT INTO operations
                     (id, sandbox, tenant, verb, step, step_schema, fence, body, ended_at)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
                 ON CONFLICT (id) DO UPDATE SET step = excluded.step,
                     step_schema = excluded.step_schema, fence = excluded.fence,
                     body = excluded.body"
            }
            Some(_) => {
                "INSERT INTO operations
                     (id, sandbox, tenant, verb, step, step_schema, fence, body, ended_at)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
                 ON CONFLICT (id) DO UPDATE SET step = excluded.step,
                     step_schema = excluded.step_schema, fence = excluded.fence,
                     body = excluded.body, ended_at = excluded.ended_at"
            }
        };
        tx.conn.prepare_cached(sql)?.execute(params![
            op.id.0.into_bytes(),
            blob(op.sandbox),
            tenant,
            op.verb.as_str(),
            op.step.as_str(),
            op.step_schema,
            int(op.fence.0),
            encode("operations", op.id.0, op)?,
            op.ended_at.map(|at| at.0),
        ])?;
    }
    Ok(())
}

/// A page, newest first: ids are UUIDv7, so their order is that of time.
pub(crate) fn list(
    conn: &Connection,
    filter: &OperationFilter,
) -> Result<Vec<Operation>, StoreError> {
    // Each combination has its own index, so each has its own statement.
    let mut sql = "SELECT id, body FROM operations WHERE id < ?1".to_owned();
    if filter.sandbox.is_some() {
        sql.push_str(" AND sandbox = ?2");
    }
    if filter.tenant.is_some() {
        sql.push_str(" AND tenant = ?3");
    }
    if filter.unfinished_only {
        sql.push_str(" AND ended_at IS NULL");
    }
    sql.push_str(" ORDER BY id DESC LIMIT ?4");
    let before = filter
        .before
        .map_or([0xff; 16], |before| before.0.into_bytes());
    let mut statement = conn.prepare_cached(&sql)?;
    statement.raw_bind_parameter(1, before)?;
    if let Some(sandbox) = filter.sandbox {
        statement.raw_bind_parameter(2, blob(sandbox))?;
    }
    if let Some(tenant) = &filter.tenant {
        statement.raw_bind_parameter(3, tenant)?;
    }
    statement.raw_bind_parameter(4, limit(filter.limit))?;
    let mut rows = statement.raw_query();
    let mut page = Vec::new();
    while let Some(row) = rows.next()? {
        page.push(understand(raw(row)?)?);
    }
    Ok(page)
}

/// The newest ended operation that is not to be kept, where a sandbox has more than `keep`.
pub(crate) fn surplus(
    conn: &Connection,
    sandbox: SandboxId,
    keep: usize,
) -> Result<Option<OperationId>, StoreError> {
    let newest = conn
        .prepare_cached(
            "SELECT id FROM operations WHERE sandbox = ?1 AND ended_at IS NOT NULL
             ORDER BY id DESC LIMIT 1 OFFSET ?2",
        )?
        .query_row(params![blob(sandbox), limit(keep)], |row| row.get(0))
        .optional()?;
    Ok(newest.map(operation_id))
}

/// Forgets the ended operations of a sandbox up to one.
pub(crate) fn forget(
    tx: &Tx<'_>,
    sandbox: SandboxId,
    up_to: OperationId,
) -> Result<usize, StoreError> {
    Ok(tx
        .conn
        .prepare_cached(
            "DELETE FROM operations
             WHERE sandbox = ?1 AND id <= ?2 AND ended_at IS NOT NULL",
        )?
        .execute(params![blob(sandbox), up_to.0.into_bytes()])?)
}
