//! Operations: that they were accepted, and how they have ended. In between, the record of their
//! sandbox has them.

use overwinter_lifecycle::ids::{OperationId, SandboxId};
use overwinter_lifecycle::operation::Operation;
use overwinter_lifecycle::record::Sandbox;
use rusqlite::{Connection, OptionalExtension, Row, params};
use uuid::Uuid;

use super::{blob, decode, encode, limit, operation_id, sandboxes};
use crate::core::Tx;
use crate::{OperationFilter, StoreError};

/// A row. One without an end is in line on its sandbox, whose record has it as it is now.
struct Raw {
    id: [u8; 16],
    sandbox: SandboxId,
    ended: bool,
    body: String,
}

impl Raw {
    const COLUMNS: &str = "id, sandbox, ended_at IS NOT NULL, body";

    fn of(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            id: row.get(0)?,
            sandbox: super::sandbox_id(row.get(1)?),
            ended: row.get(2)?,
            body: row.get(3)?,
        })
    }

    fn complete(self, conn: &Connection) -> Result<Operation, StoreError> {
        if !self.ended
            && let Some(sandbox) = sandboxes::get(conn, self.sandbox)?
            && let Some(op) = in_line(sandbox).find(|op| op.id == operation_id(self.id))
        {
            return Ok(op);
        }
        decode("operations", Uuid::from_bytes(self.id), &self.body)
    }
}

fn in_line(sandbox: Sandbox) -> impl Iterator<Item = Operation> {
    sandbox.running.into_iter().chain(sandbox.waiting)
}

pub(crate) fn get(conn: &Connection, id: OperationId) -> Result<Option<Operation>, StoreError> {
    conn.prepare_cached(
        "SELECT id, sandbox, ended_at IS NOT NULL, body FROM operations WHERE id = ?1",
    )?
    .query_row([id.0.into_bytes()], Raw::of)
    .optional()?
    .map(|raw| raw.complete(conn))
    .transpose()
}

/// An operation as it is accepted, or as it has ended.
pub(crate) fn save<'a>(
    tx: &Tx<'_>,
    tenant: &str,
    operations: impl IntoIterator<Item = &'a Operation>,
) -> Result<(), StoreError> {
    for op in operations {
        tx.conn
            .prepare_cached(
                "INSERT INTO operations (id, sandbox, tenant, ended_at, body)
                 VALUES (?1, ?2, ?3, ?4, ?5)
                 ON CONFLICT (id) DO UPDATE SET ended_at = excluded.ended_at,
                     body = excluded.body",
            )?
            .execute(params![
                op.id.0.into_bytes(),
                blob(op.sandbox),
                tenant,
                op.ended_at.map(|at| at.0),
                encode("operations", op.id.0, op)?,
            ])?;
    }
    Ok(())
}

/// A page, newest first: ids are UUIDv7, so their order is that of time.
pub(crate) fn list(
    conn: &Connection,
    filter: &OperationFilter,
) -> Result<Vec<Operation>, StoreError> {
    if filter.unfinished_only {
        return list_unfinished(conn, filter);
    }
    // Each combination has its own statement, for the index that serves it.
    let mut sql = format!("SELECT {} FROM operations WHERE id < ?1", Raw::COLUMNS);
    if filter.sandbox.is_some() {
        sql.push_str(" AND sandbox = ?2");
    }
    if filter.tenant.is_some() {
        sql.push_str(" AND tenant = ?3");
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
        page.push(Raw::of(row)?.complete(conn)?);
    }
    Ok(page)
}

fn list_unfinished(
    conn: &Connection,
    filter: &OperationFilter,
) -> Result<Vec<Operation>, StoreError> {
    let sandboxes = match filter.sandbox {
        Some(id) => sandboxes::get(conn, id)?.into_iter().collect(),
        None => sandboxes::with_line(conn)?,
    };
    let mut page: Vec<Operation> = sandboxes
        .into_iter()
        .filter(|sandbox| {
            filter
                .tenant
                .as_ref()
                .is_none_or(|tenant| *tenant == sandbox.tenant)
        })
        .flat_map(in_line)
        .filter(|op| filter.before.is_none_or(|before| op.id < before))
        .collect();
    page.sort_unstable_by_key(|op| std::cmp::Reverse(op.id));
    page.truncate(filter.limit);
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
