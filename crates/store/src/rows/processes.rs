//! What became of processes.

use overwinter_lifecycle::ids::{Millis, SandboxId};
use overwinter_lifecycle::recording::ProcessesEnded;
use rusqlite::{Connection, OptionalExtension, Row, params};
use uuid::Uuid;

use super::{blob, decode, encode, limit};
use crate::core::Tx;
use crate::{ProcessResult, StoreError};

/// The newest of a sandbox that are kept.
const KEPT: u32 = 1000;

/// Stands for "not ended": sorts before every end, and no sweep reaches it.
const RUNNING: i64 = i64::MAX;

/// Keeps what was learnt of processes. The first end of a process is the one that stays, so a
/// repeated report is nothing; an end completes what was known while it ran.
pub(crate) fn save<'a>(
    tx: &Tx<'_>,
    sandbox: SandboxId,
    results: impl IntoIterator<Item = &'a ProcessResult>,
) -> Result<(), StoreError> {
    let mut saved = false;
    for result in results {
        saved = true;
        tx.conn
            .prepare_cached(
                "INSERT INTO process_results (sandbox, process, exited_at, body)
                 VALUES (?1, ?2, ?3, ?4) ON CONFLICT (sandbox, process) DO UPDATE
                     SET exited_at = excluded.exited_at,
                         body = json_patch(process_results.body, excluded.body)
                     WHERE process_results.exited_at = ?5 AND excluded.exited_at <> ?5",
            )?
            .execute(params![
                blob(sandbox),
                result.process.into_bytes(),
                result.exited_at.map_or(RUNNING, |at| at.0),
                encode("process_results", result.process, &result.body)?,
                RUNNING,
            ])?;
    }
    if saved {
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

/// Whatever still counts as running has ended, now and so.
pub(crate) fn end_running(
    tx: &Tx<'_>,
    sandbox: SandboxId,
    how: ProcessesEnded,
    now: Millis,
) -> Result<(), StoreError> {
    let cause = match how {
        ProcessesEnded::Suspension => ProcessResult::SUSPENSION,
        ProcessesEnded::Lost => ProcessResult::LOST,
    };
    tx.conn
        .prepare_cached(
            "UPDATE process_results
             SET exited_at = ?2, body = json_set(body, '$.' || ?3, ?4)
             WHERE sandbox = ?1 AND exited_at = ?5",
        )?
        .execute(params![
            blob(sandbox),
            now.0,
            ProcessResult::CAUSE,
            cause,
            RUNNING
        ])?;
    Ok(())
}

/// Every process that is known, and whether it runs.
pub(crate) fn ids(conn: &Connection, sandbox: SandboxId) -> Result<Vec<(Uuid, bool)>, StoreError> {
    let ids = conn
        .prepare_cached("SELECT process, exited_at FROM process_results WHERE sandbox = ?1")?
        .query_map([blob(sandbox)], |row| {
            let running = row.get::<_, i64>(1)? == RUNNING;
            Ok((Uuid::from_bytes(row.get(0)?), running))
        })?
        .collect::<Result<_, _>>()?;
    Ok(ids)
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
        exited_at: (exited_at != RUNNING).then_some(Millis(exited_at)),
        body: decode("process_results", process, &body)?,
    })
}
