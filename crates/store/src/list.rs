//! Pages of sandboxes, counts, and what has changed.

use std::collections::{BTreeMap, BTreeSet};

use overwinter_lifecycle::ids::SandboxId;
use overwinter_lifecycle::record::Sandbox;
use rusqlite::{Connection, params};

use crate::rows::sandboxes::{self, Raw};
use crate::rows::{blob, int, limit, sandbox_id, uint};
use crate::{Changes, ListFilter, StoreError};

/// All but the tombstones.
const LIVING: [&str; 7] = [
    "creating",
    "ready",
    "suspending",
    "suspended",
    "resuming",
    "failed",
    "deleting",
];

/// A page, ascending by id. Ids are found in an index alone (one run for each tenant and phase,
/// merged), so a page costs the same whatever the filter leaves out; only then are records read.
pub(crate) fn list(conn: &Connection, filter: &ListFilter) -> Result<Vec<Sandbox>, StoreError> {
    let ids = if filter.labels.is_empty() {
        ids_by_phase(conn, filter)?
    } else {
        ids_by_label(conn, filter)?
    };
    let mut page = Vec::with_capacity(ids.len());
    for id in ids {
        page.extend(sandboxes::get(conn, id)?);
    }
    Ok(page)
}

fn phases(filter: &ListFilter) -> BTreeSet<&'static str> {
    if filter.phases.is_empty() {
        let tombstones = filter.tombstones.then_some("tombstone");
        LIVING.into_iter().chain(tombstones).collect()
    } else {
        filter.phases.iter().map(|phase| phase.as_str()).collect()
    }
}

fn after(filter: &ListFilter) -> [u8; 16] {
    filter.after.map_or([0; 16], blob)
}

fn ids_by_phase(conn: &Connection, filter: &ListFilter) -> Result<Vec<SandboxId>, StoreError> {
    let tenants = match &filter.tenant {
        Some(tenant) => vec![tenant.clone()],
        None => tenants(conn)?,
    };
    let mut ids = Vec::new();
    for tenant in tenants {
        for phase in phases(filter) {
            let mut run = conn.prepare_cached(
                "SELECT id FROM sandboxes INDEXED BY sandboxes_phase
                 WHERE tenant = ?1 AND phase = ?2 AND id > ?3 ORDER BY id LIMIT ?4",
            )?;
            let mut rows = run.query(params![tenant, phase, after(filter), limit(filter.limit)])?;
            while let Some(row) = rows.next()? {
                ids.push(sandbox_id(row.get(0)?));
            }
        }
    }
    ids.sort_unstable();
    ids.truncate(filter.limit);
    Ok(ids)
}

/// One step in the index for each.
fn tenants(conn: &Connection) -> Result<Vec<String>, StoreError> {
    let mut next = conn.prepare_cached("SELECT min(tenant) FROM sandboxes")?;
    let mut after = conn.prepare_cached("SELECT min(tenant) FROM sandboxes WHERE tenant > ?1")?;
    let mut tenants: Vec<String> = Vec::new();
    let mut found: Option<String> = next.query_row([], |row| row.get(0))?;
    while let Some(tenant) = found {
        found = after.query_row([&tenant], |row| row.get(0))?;
        tenants.push(tenant);
    }
    Ok(tenants)
}

/// Walks the sandboxes with the first label, and looks the rest up.
fn ids_by_label(conn: &Connection, filter: &ListFilter) -> Result<Vec<SandboxId>, StoreError> {
    let phases = phases(filter);
    let mut labels = filter.labels.iter();
    let Some((key, value)) = labels.next() else {
        return Ok(Vec::new());
    };
    let mut walk = conn.prepare_cached(
        "SELECT s.id, s.phase FROM labels l JOIN sandboxes s ON s.id = l.sandbox
         WHERE l.key = ?1 AND l.value = ?2 AND l.sandbox > ?3 AND (?4 IS NULL OR s.tenant = ?4)
         ORDER BY l.sandbox",
    )?;
    let mut rows = walk.query(params![key, value, after(filter), filter.tenant])?;
    let mut ids = Vec::new();
    'rows: while ids.len() < filter.limit
        && let Some(row) = rows.next()?
    {
        let id: [u8; 16] = row.get(0)?;
        if !phases.contains(row.get_ref(1)?.as_str().unwrap_or_default()) {
            continue;
        }
        for (key, value) in labels.clone() {
            let has = conn
                .prepare_cached(
                    "SELECT 1 FROM labels WHERE key = ?1 AND value = ?2 AND sandbox = ?3",
                )?
                .exists(params![key, value, id])?;
            if !has {
                continue 'rows;
            }
        }
        ids.push(sandbox_id(id));
    }
    Ok(ids)
}

pub(crate) fn count_by_phase(
    conn: &Connection,
    tenant: Option<&str>,
) -> Result<BTreeMap<String, u64>, StoreError> {
    let sql = if tenant.is_some() {
        "SELECT phase, count(*) FROM sandboxes WHERE tenant = ?1 GROUP BY phase"
    } else {
        "SELECT phase, count(*) FROM sandboxes WHERE ?1 IS NULL GROUP BY phase"
    };
    let counts = conn
        .prepare_cached(sql)?
        .query_map([tenant], |row| {
            Ok((row.get(0)?, uint(row.get::<_, i64>(1)?)))
        })?
        .collect::<Result<_, _>>()?;
    Ok(counts)
}

/// Those with compute to look at and nobody at work on them.
pub(crate) fn awake(conn: &Connection) -> Result<Vec<SandboxId>, StoreError> {
    ids(
        conn,
        "SELECT id FROM sandboxes INDEXED BY sandboxes_active
         WHERE active = 1 AND may_exist = 1 AND in_line = 0 AND phase NOT IN ('deleting', 'tombstone') ORDER BY id",
    )
}

/// By jumps in the index, not by a walk over all records.
pub(crate) fn drivers_in_use(conn: &Connection) -> Result<Vec<String>, StoreError> {
    let names = conn
        .prepare_cached(
            "WITH RECURSIVE found (known) AS (
                 SELECT MIN(driver) FROM sandboxes WHERE tombstone_at IS NULL
                 UNION ALL
                 SELECT (SELECT MIN(driver) FROM sandboxes
                         WHERE tombstone_at IS NULL AND driver > found.known)
                 FROM found WHERE found.known IS NOT NULL
             ) SELECT known FROM found WHERE known IS NOT NULL",
        )?
        .query_map([], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    Ok(names)
}

/// Those that are to be deleted and nobody is at work on.
pub(crate) fn deleting_idle(conn: &Connection) -> Result<Vec<SandboxId>, StoreError> {
    ids(
        conn,
        "SELECT id FROM sandboxes INDEXED BY sandboxes_deleting
         WHERE phase = 'deleting' AND in_line = 0 ORDER BY id",
    )
}

fn ids(conn: &Connection, sql: &str) -> Result<Vec<SandboxId>, StoreError> {
    let ids = conn
        .prepare_cached(sql)?
        .query_map([], |row| Ok(sandbox_id(row.get(0)?)))?
        .collect::<Result<_, _>>()?;
    Ok(ids)
}

pub(crate) fn changes_since(
    conn: &Connection,
    (seq, newest): (u64, u64),
    most: usize,
) -> Result<Changes, StoreError> {
    let swept: i64 = conn
        .prepare_cached("SELECT swept_seq FROM meta")?
        .query_row([], |row| row.get(0))?;
    let sql = format!(
        "SELECT {} FROM sandboxes WHERE seq > ?1 AND seq <= ?2 ORDER BY seq LIMIT ?3",
        sandboxes::COLUMNS
    );
    let mut statement = conn.prepare_cached(&sql)?;
    let mut rows = statement.query(params![int(seq), int(newest), limit(most)])?;
    let mut changes = Vec::new();
    while let Some(row) = rows.next()? {
        let raw = Raw::of(row)?;
        changes.push((raw.seq, raw.understand()?));
    }
    Ok(Changes {
        next: changes.last().map_or(seq, |(newest, _)| *newest),
        changes,
        gap: seq < uint(swept),
    })
}
