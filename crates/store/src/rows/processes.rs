//! What became of processes.

use overwinter_lifecycle::ids::{Millis, SandboxId};
use rusqlite::{Connection, OptionalExtension, Row, params};
use uuid::Uuid;

use super::{blob, decode, encode, limit};
use crate::core::Tx;
use crate::{ProcessResult, StoreError};

/// The newest of a sandbox that are kept.
const KEPT: u32 = 1000;

/// Keeps results; the first of a process is the one that stays, so a repeated report is nothing.
pub(crate) fn save(
    tx: &Tx<'_>,
    sandbox: SandboxId,
    results: &[ProcessResult],
) -> Result<(), StoreError> {
    for result in results {
        tx.conn
            .prepare_cached(
                "INSERT INTO process_results (sandbox, process, exited_at, body)
                 VALUES (?1, ?2, ?3, ?4) ON CONFLICT (sandbox, process) DO NOTHING",
            )?
            .execute(params![
                blob(sandbox),
                result.process.into_bytes(),
                result.exited_at.0,
                encode("process_results", result.process, &result.body)?,
            ])?;
    }
    if !results.is_empty() {
        tx.conn
            .prepare_cached(
                "DELETE FROM process_results WHERE rowid IN
                     (SELECT rowid FROM process_results WHERE sandbox = ?1
                      ORDER BY exited_at DESC LIMIT -1 OFFSET ?2)",
            )?
            .execute(params![blob(sandbox), KEPT])?;
    }
    Ok(())
}

pub(crate) fn all(conn: &Connection, sandbox: SandboxId) -> Result<Vec<ProcessResult>, StoreError> {
    conn.prepare_cached(
        "SELECT process, exited_at, body FROM process_results
         WHERE sandbox = ?1 ORDER BY exited_at DESC",
    )?
    .query_map([blob(sandbox)], raw)?
    .map(|row| understand(row?))
    .collect()
}

pub(crate) fn get(
    conn: &Connection,
    sandbox: SandboxId,
    process: Uuid,
) -> Result<Option<ProcessResult>, StoreError> {
    conn.prepare_cached(
        "SELECT process, exited_at, body FROM process_results
         WHERE sandbox = ?1 AND process = ?2",
    )?
    .query_row(params![blob(sandbox), process.into_bytes()], raw)
    .optional()?
    .map(understand)
    .transpose()
}

/// Removes at most `most` of those that ended before a time.
pub(crate) fn expire(tx: &Tx<'_>, before: Millis, most: usize) -> Result<usize, StoreError> {
    Ok(tx
        .conn
        .prepare_cached(
            "DELETE FROM process_results WHERE rowid IN
                 (SELECT rowid FROM process_results WHERE exited_at < ?1 LIMIT ?2)",
        )?
        .execute(params![before.0, limit(most)])?)
}

type Raw = ([u8; 16], i64, String);

fn raw(row: &Row<'_>) -> rusqlite::Result<Raw> {
    Ok((row.get(0)?, row.get(1)?, row.get(2)?))
}

fn understand((process, exited_at, body): Raw) -> Result<ProcessResult, StoreError> {
    let process = Uuid::from_bytes(process);
    Ok(ProcessResult {
        process,
        exited_at: Millis(exited_at),
        body: decode("process_results", process, &body)?,
    })
}
