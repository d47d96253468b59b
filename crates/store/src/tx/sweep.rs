//! Forgetting what has had its time. What is due is found by reads beside the writer; what is
//! removed, is removed in small transactions, so that no caller waits for a sweep.

use overwinter_lifecycle::ids::{Fence, Millis, OperationId, SandboxId};
use rusqlite::{Connection, params};

use crate::StoreError;
use crate::core::Tx;
use crate::rows::{blob, effects, int, limit, operations, sandbox_id, sandboxes, uint};

const DAY: i64 = 24 * 60 * 60 * 1000;
/// Tombstones and receipts stay longer than any driver's lost request can live.
const RECEIPTS_STAY: i64 = 7 * DAY;
const RESULTS_STAY: i64 = DAY;
/// Ended operations that a sandbox keeps.
pub(crate) const OPERATIONS_KEPT: usize = 100;
/// Changes that a restart may have to look through again.
const UNRECORDED: i64 = 10_000;
/// Rows of one transaction.
pub(crate) const CHUNK: usize = 200;

pub(crate) const fn results_before(now: Millis) -> Millis {
    Millis(now.0.saturating_sub(RESULTS_STAY))
}

fn receipts_before(now: Millis) -> Millis {
    let stay = RECEIPTS_STAY * i64::from(!overwinter_lifecycle::mutant!(SweepTooSoon));
    Millis(now.0.saturating_sub(stay))
}

/// Tombstones that are due; one with debts stays until they are paid.
pub(crate) fn due_tombstones(conn: &Connection, now: Millis) -> Result<Vec<SandboxId>, StoreError> {
    let due = conn
        .prepare_cached(
            "SELECT id FROM sandboxes WHERE tombstone_at < ?1
               AND NOT EXISTS (SELECT 1 FROM debts WHERE debts.sandbox = sandboxes.id)
             ORDER BY tombstone_at LIMIT ?2",
        )?
        .query_map(params![receipts_before(now).0, limit(CHUNK)], |row| {
            Ok(sandbox_id(row.get(0)?))
        })?
        .collect::<Result<_, _>>()?;
    Ok(due)
}

/// Removes tombstones with all that hangs on them; returns how many there were.
pub(crate) fn bury(tx: &Tx<'_>, due: &[SandboxId]) -> Result<u64, StoreError> {
    let mut buried = 0;
    for id in due {
        // Watchers that have not come so far must list anew, and no number is given twice.
        tx.conn
            .prepare_cached(
                "UPDATE meta SET seq = max(seq, ?2), swept_seq = max(swept_seq,
                     coalesce((SELECT seq FROM sandboxes WHERE id = ?1), 0))",
            )?
            .execute(params![blob(*id), int(tx.seq())])?;
        buried += tx
            .conn
            .prepare_cached("DELETE FROM sandboxes WHERE id = ?1 AND tombstone_at IS NOT NULL")?
            .execute([blob(*id)])?;
        tx.records.removed(*id);
    }
    Ok(buried as u64)
}

/// Sandboxes that changed since the last sweep and have more operations than are kept.
pub(crate) struct Surplus {
    /// Each with its newest operation that is not kept.
    pub(crate) found: Vec<(SandboxId, OperationId)>,
    /// Up to which change this looked.
    pub(crate) up_to: u64,
    pub(crate) more: bool,
}

pub(crate) fn find_surplus(conn: &Connection, after: Option<u64>) -> Result<Surplus, StoreError> {
    let after = match after {
        Some(seq) => seq,
        None => uint(conn.query_row("SELECT trimmed_seq FROM meta", [], |row| row.get(0))?),
    };
    let changed: Vec<(SandboxId, u64)> = conn
        .prepare_cached("SELECT id, seq FROM sandboxes WHERE seq > ?1 ORDER BY seq LIMIT ?2")?
        .query_map(params![int(after), limit(CHUNK)], |row| {
            Ok((sandbox_id(row.get(0)?), uint(row.get(1)?)))
        })?
        .collect::<Result<_, _>>()?;
    let mut found = Vec::new();
    for (sandbox, _) in &changed {
        let keep = OPERATIONS_KEPT
            >> (4 * u32::from(overwinter_lifecycle::mutant!(OperationsForgottenSoon)));
        if let Some(op) = operations::surplus(conn, *sandbox, keep)? {
            found.push((*sandbox, op));
        }
    }
    Ok(Surplus {
        found,
        up_to: changed.last().map_or(after, |(_, seq)| *seq),
        more: changed.len() == CHUNK,
    })
}

/// Forgets surplus operations, and receipts that are old as well; returns how many operations.
pub(crate) fn trim(tx: &Tx<'_>, surplus: &Surplus, now: Millis) -> Result<u64, StoreError> {
    let mut forgotten = 0;
    for (id, up_to) in &surplus.found {
        forgotten += operations::forget(tx, *id, *up_to)? as u64;
        if let Some(sandbox) = sandboxes::find(tx, *id)? {
            let below = Fence(sandbox.fence.0.saturating_sub(OPERATIONS_KEPT as u64));
            effects::forget(tx, *id, below, receipts_before(now))?;
        }
    }
    // A sweep that found nothing writes nothing, save now and then, so that a restart does not
    // look through everything.
    let slack = if forgotten > 0 { 0 } else { UNRECORDED };
    tx.conn
        .prepare_cached("UPDATE meta SET trimmed_seq = ?1 WHERE trimmed_seq + ?2 < ?1")?
        .execute([int(surplus.up_to), slack])?;
    Ok(forgotten)
}
