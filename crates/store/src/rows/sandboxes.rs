//! The records, whoever runs and waits on them included: a step reads and writes one row.

use overwinter_lifecycle::Name;
use overwinter_lifecycle::capacity::Usage;
use overwinter_lifecycle::ids::SandboxId;
use overwinter_lifecycle::record::Sandbox;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::{blob, decode, encode, int, sandbox_id, uint};
use crate::StoreError;
use crate::core::Tx;

/// What [`Raw::of`] reads.
pub(crate) const COLUMNS: &str = "id, seq, revision, body";

/// A row before its body is understood.
pub(crate) struct Raw {
    pub(crate) id: SandboxId,
    pub(crate) seq: u64,
    revision: u64,
    body: String,
}

impl Raw {
    pub(crate) fn of(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            id: sandbox_id(row.get(0)?),
            seq: uint(row.get(1)?),
            revision: uint(row.get(2)?),
            body: row.get(3)?,
        })
    }

    pub(crate) fn understand(self) -> Result<Sandbox, StoreError> {
        let mut sandbox: Sandbox = decode("sandboxes", self.id.0, &self.body)?;
        sandbox.revision = self.revision;
        Ok(sandbox)
    }
}

pub(crate) fn get(conn: &Connection, id: SandboxId) -> Result<Option<Sandbox>, StoreError> {
    conn.prepare_cached("SELECT id, seq, revision, body FROM sandboxes WHERE id = ?1")?
        .query_row([blob(id)], Raw::of)
        .optional()?
        .map(Raw::understand)
        .transpose()
}

/// As this transaction sees it.
pub(crate) fn find(tx: &Tx<'_>, id: SandboxId) -> Result<Option<Sandbox>, StoreError> {
    match tx.records.find(id) {
        Some(known) => {
            debug_assert_eq!(
                get(tx.conn, id)?.as_ref(),
                Some(&*known),
                "what is kept in memory"
            );
            Ok(Some(Sandbox::clone(&known)))
        }
        None => get(tx.conn, id),
    }
}

/// The same where one that is not there is an error.
pub(crate) fn load(tx: &Tx<'_>, id: SandboxId) -> Result<Sandbox, StoreError> {
    find(tx, id)?.ok_or(StoreError::NotFound(id))
}

/// All with an operation in line.
pub(crate) fn with_line(conn: &Connection) -> Result<Vec<Sandbox>, StoreError> {
    conn.prepare_cached(
        "SELECT id, seq, revision, body FROM sandboxes INDEXED BY sandboxes_active
         WHERE active = 1 AND in_line > 0 ORDER BY id",
    )?
    .query_map([], Raw::of)?
    .map(|row| row?.understand())
    .collect()
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
             FROM sandboxes INDEXED BY sandboxes_active WHERE active = 1 AND id <> ?1",
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
    let row = Indexed::of(sandbox);
    tx.conn
        .prepare_cached(
            "INSERT INTO sandboxes (id, revision, seq, body, in_line, phase, may_exist, running,
                 cpu_millis, memory_bytes, disk_bytes, active, tenant, name, driver)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)",
        )?
        .execute(params![
            blob(sandbox.id),
            int(sandbox.revision),
            int(tx.next_seq()),
            encode("sandboxes", sandbox.id.0, sandbox)?,
            in_line(sandbox),
            row.phase,
            row.held.may_exist,
            int(row.held.usage.running),
            int(row.held.usage.cpu_millis),
            int(row.held.usage.memory_bytes),
            int(row.held.usage.disk_bytes),
            row.held.active,
            sandbox.tenant,
            sandbox.name.as_str(),
            sandbox.spec.driver,
        ])?;
    tx.records.wrote(sandbox);
    write_labels(tx, sandbox)
}

/// Writes a record that was read in this transaction: compare-and-swap on its revision.
pub(crate) fn save(tx: &Tx<'_>, sandbox: &mut Sandbox) -> Result<(), StoreError> {
    let read = sandbox.revision;
    sandbox.revision += 1;
    let before = tx
        .records
        .find(sandbox.id)
        .filter(|before| before.revision == read)
        .map(|before| Indexed::of(&before));
    let row = Indexed::of(sandbox);
    // SQLite rewrites the entries of every index with a column that is set, changed or not: most
    // steps change none of them.
    let phase = before
        .as_ref()
        .is_none_or(|before| before.phase != row.phase);
    let held = before.as_ref().is_none_or(|before| before.held != row.held)
        && !overwinter_lifecycle::mutant!(UsageNotWritten);
    let mut update = tx.conn.prepare_cached(match (phase, held) {
        (false, false) => {
            "UPDATE sandboxes SET revision = ?3, seq = ?4, body = ?5, in_line = ?6
             WHERE id = ?1 AND revision = ?2"
        }
        (true, false) => {
            "UPDATE sandboxes SET revision = ?3, seq = ?4, body = ?5, in_line = ?6, phase = ?7
             WHERE id = ?1 AND revision = ?2"
        }
        (false, true) => {
            "UPDATE sandboxes SET revision = ?3, seq = ?4, body = ?5, in_line = ?6,
                 may_exist = ?8, running = ?9, cpu_millis = ?10, memory_bytes = ?11,
                 disk_bytes = ?12, active = ?13
             WHERE id = ?1 AND revision = ?2"
        }
        (true, true) => {
            "UPDATE sandboxes SET revision = ?3, seq = ?4, body = ?5, in_line = ?6, phase = ?7,
                 may_exist = ?8, running = ?9, cpu_millis = ?10, memory_bytes = ?11,
                 disk_bytes = ?12, active = ?13
             WHERE id = ?1 AND revision = ?2"
        }
    })?;
    update.raw_bind_parameter(1, blob(sandbox.id))?;
    update.raw_bind_parameter(2, int(read))?;
    update.raw_bind_parameter(3, int(sandbox.revision))?;
    update.raw_bind_parameter(4, int(tx.next_seq()))?;
    update.raw_bind_parameter(5, encode("sandboxes", sandbox.id.0, sandbox)?)?;
    update.raw_bind_parameter(6, in_line(sandbox))?;
    if phase {
        update.raw_bind_parameter(7, row.phase)?;
    }
    if held {
        update.raw_bind_parameter(8, row.held.may_exist)?;
        update.raw_bind_parameter(9, int(row.held.usage.running))?;
        update.raw_bind_parameter(10, int(row.held.usage.cpu_millis))?;
        update.raw_bind_parameter(11, int(row.held.usage.memory_bytes))?;
        update.raw_bind_parameter(12, int(row.held.usage.disk_bytes))?;
        update.raw_bind_parameter(13, row.held.active)?;
    }
    if update.raw_execute()? == 0 {
        let now = get(tx.conn, sandbox.id)?.ok_or(StoreError::NotFound(sandbox.id))?;
        return Err(StoreError::Conflict {
            version: now.revision,
        });
    }
    let asleep = sandbox.retained.as_ref().map(|retained| retained.since);
    let frees = asleep.filter(|_| overwinter_lifecycle::mutant!(SleepFreesName));
    if let Some(at) = sandbox.tombstone_at.or(frees) {
        tx.conn
            .prepare_cached(
                "UPDATE sandboxes SET tombstone_at = ?2 WHERE id = ?1 AND tombstone_at IS NULL",
            )?
            .execute(params![blob(sandbox.id), at.0])?;
    }
    tx.records.wrote(sandbox);
    Ok(())
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

fn in_line(sandbox: &Sandbox) -> u32 {
    u32::from(sandbox.running.is_some()) + u32::from(sandbox.waiting.is_some())
}

/// The columns that are derived from a record and that an index has.
struct Indexed {
    phase: &'static str,
    held: Held,
}

/// Those of the index of what is active.
#[derive(PartialEq, Eq)]
struct Held {
    may_exist: bool,
    usage: Usage,
    active: bool,
}

impl Indexed {
    fn of(sandbox: &Sandbox) -> Self {
        let usage = Usage::of(sandbox);
        let may_exist = sandbox.compute.may_exist();
        Self {
            phase: sandbox.phase().as_str(),
            held: Held {
                may_exist,
                usage,
                active: may_exist || usage != Usage::default() || in_line(sandbox) > 0,
            },
        }
    }
}
