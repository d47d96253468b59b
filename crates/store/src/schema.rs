//! The connection's settings and the numbered migrations.

use std::time::Duration;

use rusqlite::{Connection, TransactionBehavior};

use crate::StoreError;

/// In order, from an empty database; the number of those that were applied is the database's
/// `user_version`. One that was released is never changed.
const MIGRATIONS: &[&str] = &[include_str!("migrations/0001_records.sql")];

/// What this release writes.
#[allow(clippy::cast_possible_truncation, reason = "a handful")]
pub(crate) const KNOWN: u32 = MIGRATIONS.len() as u32;

/// Pages of the write-ahead log before it is copied to the database and begun anew.
const LOG_PAGES: u32 = 4096;
const PAGE_BYTES: u32 = 4096;

/// For a connection that writes.
pub(crate) fn configure_writer(conn: &Connection) -> Result<(), StoreError> {
    configure(conn)?;
    conn.pragma_update(None, "journal_mode", "WAL")?;
    // A commit that was answered survives a power loss.
    conn.pragma_update(None, "synchronous", "FULL")?;
    // 16 MiB of log: pages that change often are copied to the database less often, and each time
    // costs two syncs that callers wait for.
    conn.pragma_update(None, "wal_autocheckpoint", LOG_PAGES)?;
    conn.pragma_update(None, "foreign_keys", true)?;
    conn.pragma_update(None, "cache_size", -4096)?;
    Ok(())
}

/// For a connection that only reads.
pub(crate) fn configure_reader(conn: &Connection) -> Result<(), StoreError> {
    configure(conn)?;
    conn.pragma_update(None, "query_only", true)?;
    conn.pragma_update(None, "cache_size", -1024)?;
    Ok(())
}

fn configure(conn: &Connection) -> Result<(), StoreError> {
    conn.busy_timeout(Duration::from_secs(5))?;
    // Nothing is spilled beside the database: a full disk elsewhere is no business of ours.
    conn.pragma_update(None, "temp_store", "MEMORY")?;
    conn.set_prepared_statement_cache_capacity(128);
    Ok(())
}

/// Gives the log its full length at once. A commit that makes a file longer waits for the
/// filesystem's own journal as well, one that overwrites what is there only for its data: a third
/// of the time on ext4. The log is overwritten from its start after each checkpoint, so it stays
/// that long.
///
/// It is done by a transaction too large for the cache, which is rolled back: what it spilled into
/// the log is no part of any commit. Where there is no room, the log grows as it is needed.
pub(crate) fn stretch_log(conn: &Connection) -> Result<(), StoreError> {
    conn.execute_batch("BEGIN IMMEDIATE")?;
    let filled = conn
        .execute_batch("CREATE TABLE stretch (filler BLOB)")
        .and_then(|()| {
            conn.execute(
                "INSERT INTO stretch VALUES (zeroblob(?1))",
                [LOG_PAGES * PAGE_BYTES],
            )
        });
    // A full disk has rolled it back by itself.
    if !conn.is_autocommit() {
        conn.execute_batch("ROLLBACK")?;
    }
    match filled.map_err(StoreError::from) {
        Ok(_) | Err(StoreError::Full) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Which schema the database has.
pub(crate) fn found(conn: &Connection) -> Result<u32, StoreError> {
    Ok(conn.pragma_query_value(None, "user_version", |row| row.get(0))?)
}

/// Brings the database to the schema of this release, one transaction each.
pub(crate) fn migrate(conn: &mut Connection) -> Result<(), StoreError> {
    let found = found(conn)?;
    if found > KNOWN {
        return Err(StoreError::NewerSchema {
            found,
            known: KNOWN,
        });
    }
    for (number, sql) in (1..=KNOWN).zip(MIGRATIONS) {
        if number > found {
            let transaction = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
            transaction.execute_batch(sql)?;
            transaction.pragma_update(None, "user_version", number)?;
            transaction.commit()?;
        }
    }
    Ok(())
}
