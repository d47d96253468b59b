//! The records. The running and the waiting operation are rows of their own; a record's row says
//! how many there are, so that a sleeping sandbox is read from one table.

use overwinter_lifecycle::Name;
use overwinter_lifecycle::capacity::Usage;
use overwinter_lifecycle::ids::SandboxId;
use overwinter_lifecycle::operation::Step;
use overwinter_lifecycle::record::Sandbox;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::{blob, decode, encode, int, operations, sandbox_id, uint};
use crate::StoreError;
use crate::core::Tx;

/// What [`Raw::of`] reads.
pub(crate) const COLUMNS: &str = "id, seq, revision, in_line, body";

/// A row before its body is understood.
pub(crate) struct Raw {
    pub(crate) id: SandboxId,
    pub(crate) seq: u64,
    revision: u64,
    in_line: u32,
    body: String,
}

impl Raw {
    pub(crate) fn of(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            id: sandbox_id(row.get(0)?),
            seq: uint(row.get(1)?),
            revision: uint(row.get(2)?),
            in_line: row.get(3)?,
            body: row.get(4)?,
        })
    }

    pub(crate) fn complete(self, conn: &Connection) -> Result<Sandbox, StoreError> {
        let mut sandbox: Sandbox = decode("sandboxes", self.id.0, &self.body)?;
        sandbox.revision = self.revision;
        if self.in_line > 0 {
            for op in operations::unfinished(conn, self.id)? {
                match op.step {
                    Step::Waiting => sandbox.waiting = Some(op),
                    Step::Begun | Step::Intent | Step::Terminated => sandbox.running = Some(op),
                    Step::Ended => {}
                }
            }
        }
        Ok(sandbox)
    }
}

pub(crate) fn get(conn: &Connection, id: SandboxId) -> Result<Option<Sandbox>, StoreError> {
    conn.prepare_cached("SELECT id, seq, revision, in_line, body FROM sandboxes WHERE id = ?1")?
        .query_row([blob(id)], Raw::of)
        .optional()?
        .map(|raw| raw.complete(conn))
        .transpose()
}

/// For a transaction: one that is not there is an error.
pub(crate) fn load(tx: &Tx<'_>, id: SandboxId) -> Result<Sandbox, StoreError> {
    get(tx.conn, id)?.ok_or(StoreError::NotFound(id))
}

/// Who holds a name.
pub(crate) fn holder(
    conn: &Connection,
    tenant: &str,
    name: &Name,
) -> Result<Option<SandboxId>, StoreError> {
    let id = conn
        .prepare_cached(
            "SELECT id FROM sandboxes WHERE tenant = ?1 AND name = ?2 AND tombstone_at IS NULL",
        )?
        .query_row(params![tenant, name.as_str()], |row| row.get(0))
        .optional()?;
    Ok(id.map(sandbox_id))
}

/// What all other records hold; nothing is summed up where there are no limits.
pub(crate) fn usage_of_others(tx: &Tx<'_>, id: SandboxId) -> Result<Usage, StoreError> {
    if !tx.limits.are_set() {
        return Ok(Usage::default());
    }
    let sum = tx
        .conn
        .prepare_cached(
            "SELECT coalesce(sum(running), 0), coalesce(sum(cpu_millis), 0),
                    coalesce(sum(memory_bytes), 0), coalesce(sum(disk_bytes), 0)
             FROM sandboxes INDEXED BY sandboxes_usage
             WHERE (running > 0 OR cpu_millis > 0 OR memory_bytes > 0 OR disk_bytes > 0)
               AND id <> ?1",
        )?
        .query_row([blob(id)], |row| {
            Ok(Usage {
                running: uint(row.get(0)?),
                cpu_millis: uint(row.get(1)?),
                memory_bytes: uint(row.get(2)?),
                disk_bytes: uint(row.get(3)?),
            })
        })?;
    Ok(sum)
}

pub(crate) fn insert(tx: &Tx<'_>, sandbox: &mut Sandbox) -> Result<(), StoreError> {
    sandbox.revision = 1;
    let row = Written::of(sandbox)?;
    tx.conn
        .prepare_cached(
            "INSERT INTO sandboxes (id, revision, seq, phase, in_line, may_exist, running,
                 cpu_millis, memory_bytes, disk_bytes, body, tenant, name, driver)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)",
        )?
        .execute(params![
            blob(sandbox.id),
            int(sandbox.revision),
            int(tx.next_seq()),
            row.phase,
            row.in_line,
            row.may_exist,
            int(row.usage.running),
            int(row.usage.cpu_millis),
            int(row.usage.memory_bytes),
            int(row.usage.disk_bytes),
            row.body,
            sandbox.tenant,
            sandbox.name.as_str(),
            sandbox.spec.driver,
        ])?;
    write_labels(tx, sandbox)?;
    operations::save_line(tx, sandbox)
}

/// Writes a record that was read in this transaction, and who is in line on it: compare-and-swap
/// on its revision.
pub(crate) fn save(tx: &Tx<'_>, sandbox: &mut Sandbox) -> Result<(), StoreError> {
    let read = sandbox.revision;
    sandbox.revision += 1;
    let row = Written::of(sandbox)?;
    // SQLite rewrites the entries of every index with a column that is set, changed or not: most
    // steps change none of them.
    let changed = if row.is_indexed_so(tx, sandbox.id)? {
        tx.conn
            .prepare_cached(
                "UPDATE sandboxes SET revision = ?3, seq = ?4, body = ?5
                 WHERE id = ?1 AND revision = ?2",
            )?
            .execute(params![
                blob(sandbox.id),
                int(read),
                int(sandbox.revision),
                int(tx.next_seq()),
                row.body,
            ])?
    } else {
        tx.conn
            .prepare_cached(
                "UPDATE sandboxes SET revision = ?3, seq = ?4, body = ?5, phase = ?6,
                     in_line = ?7, may_exist = ?8, running = ?9, cpu_millis = ?10,
                     memory_bytes = ?11, disk_bytes = ?12
                 WHERE id = ?1 AND revision = ?2",
            )?
            .execute(params![
                blob(sandbox.id),
                int(read),
                int(sandbox.revision),
                int(tx.next_seq()),
                row.body,
                row.phase,
                row.in_line,
                row.may_exist,
                int(row.usage.running),
                int(row.usage.cpu_millis),
                int(row.usage.memory_bytes),
                int(row.usage.disk_bytes),
            ])?
    };
    if changed == 0 {
        let now = get(tx.conn, sandbox.id)?.ok_or(StoreError::NotFound(sandbox.id))?;
        return Err(StoreError::Conflict {
            version: now.revision,
        });
    }
    if let Some(at) = sandbox.tombstone_at {
        tx.conn
            .prepare_cached(
                "UPDATE sandboxes SET tombstone_at = ?2 WHERE id = ?1 AND tombstone_at IS NULL",
            )?
            .execute(params![blob(sandbox.id), at.0])?;
    }
    operations::save_line(tx, sandbox)
}

/// The labels anew, as the record has them.
pub(crate) fn write_labels(tx: &Tx<'_>, sandbox: &Sandbox) -> Result<(), StoreError> {
    tx.conn
        .prepare_cached("DELETE FROM labels WHERE sandbox = ?1")?
        .execute([blob(sandbox.id)])?;
    for (key, value) in &sandbox.labels {
        tx.conn
            .prepare_cached("INSERT INTO labels (key, value, sandbox) VALUES (?1, ?2, ?3)")?
            .execute(params![key, value, blob(sandbox.id)])?;
    }
    Ok(())
}

/// The columns that are derived from a record.
struct Written {
    phase: &'static str,
    in_line: u32,
    may_exist: bool,
    usage: Usage,
    body: String,
}

impl Written {
    fn of(sandbox: &mut Sandbox) -> Result<Self, StoreError> {
        let phase = sandbox.phase().as_str();
        let usage = Usage::of(sandbox);
        let line = (sandbox.running.take(), sandbox.waiting.take());
        let body = encode("sandboxes", sandbox.id.0, sandbox);
        (sandbox.running, sandbox.waiting) = line;
        Ok(Self {
            phase,
            in_line: u32::from(sandbox.running.is_some()) + u32::from(sandbox.waiting.is_some()),
            may_exist: sandbox.compute.may_exist(),
            usage,
            body: body?,
        })
    }

    /// Whether the row says the same in every column that an index has, `seq` apart.
    fn is_indexed_so(&self, tx: &Tx<'_>, id: SandboxId) -> Result<bool, StoreError> {
        Ok(tx
            .conn
            .prepare_cached(
                "SELECT 1 FROM sandboxes WHERE id = ?1 AND phase = ?2 AND in_line = ?3
                   AND may_exist = ?4 AND running = ?5 AND cpu_millis = ?6
                   AND memory_bytes = ?7 AND disk_bytes = ?8",
            )?
            .exists(params![
                blob(id),
                self.phase,
                self.in_line,
                self.may_exist,
                int(self.usage.running),
                int(self.usage.cpu_millis),
                int(self.usage.memory_bytes),
                int(self.usage.disk_bytes),
            ])?)
    }
}
