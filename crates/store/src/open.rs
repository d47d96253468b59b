//! Opening: lock, migrate, refuse what cannot be finished, raise the epoch.

use std::cell::Cell;
use std::fs::{DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use overwinter_lifecycle::ids::OperationId;
use overwinter_lifecycle::operation::STEP_SCHEMA;
use rusqlite::{Connection, OptionalExtension, params};
use rustix::fs::{FlockOperation, flock};
use tokio::sync::watch;
use uuid::Uuid;

use crate::core::Core;
use crate::records::Pending;
use crate::reserve::Reserve;
use crate::{Location, Meta, StoreError, StoreOptions, WriterKind, schema};

/// What an open store consists of. `lock` is let go of last.
pub(crate) struct Opened {
    pub(crate) core: Core,
    pub(crate) meta: Meta,
    /// Of the database file; none in memory.
    pub(crate) path: Option<PathBuf>,
    pub(crate) lock: Option<File>,
}

pub(crate) fn open(options: &StoreOptions) -> Result<Opened, StoreError> {
    let (mut conn, path, lock, mut reserve) = match &options.location {
        Location::Memory => (Connection::open_in_memory()?, None, None, None),
        Location::Folder(folder) => {
            let lock = lock(folder)?;
            let path = folder.join("state.db");
            private_file(&path)?;
            let mut reserve = Reserve::open(folder);
            reserve.lend();
            let conn = Connection::open(&path)?;
            (conn, Some(path), Some(lock), Some(reserve))
        }
    };
    let meta = match prepare(&mut conn, options) {
        // Even the epoch needs room: a gateway on a full disk has to start, or nothing could be
        // deleted.
        Err(StoreError::Full) if reserve.as_mut().is_some_and(Reserve::release) => {
            prepare(&mut conn, options)
        }
        done => done,
    }?;
    // Whoever commits inline asks for histories, not for speed: a simulation opens a store for each
    // life of a gateway.
    if path.is_some() && options.writer == WriterKind::Thread {
        schema::stretch_log(&conn)?;
    }
    let seq = newest_seq(&conn)?;
    let log = match &path {
        // It is there since the epoch was raised, and is never replaced while the database is open.
        Some(path) => Some(log_of(path)?),
        None => None,
    };
    let core = Core {
        conn,
        limits: options.limits,
        reserve,
        hook: options.on_commit.clone(),
        full: options.full.clone(),
        counters: Arc::default(),
        newest: watch::Sender::new(seq),
        seq: Cell::new(seq),
        records: Arc::default(),
        pending: Pending::default(),
        log,
        synced: Arc::new(AtomicBool::new(true)),
        waits: Cell::new(true),
        for_disk: Cell::default(),
        broken: None,
    };
    Ok(Opened {
        core,
        meta,
        path,
        lock,
    })
}

fn prepare(conn: &mut Connection, options: &StoreOptions) -> Result<Meta, StoreError> {
    // Before anything is written: an older release leaves a newer database as it is.
    let found = schema::found(conn)?;
    if found > schema::KNOWN {
        return Err(StoreError::NewerSchema {
            found,
            known: schema::KNOWN,
        });
    }
    schema::configure_writer(conn)?;
    if found > 0 {
        refuse_unfinishable(conn)?;
    }
    schema::migrate(conn)?;
    raise_epoch(conn, options)
}

/// A gateway that was killed while it started a subprocess holds its lock until that one has come
/// to its own program: whoever comes next at once waits so long.
const LET_GO_WITHIN: Duration = Duration::from_secs(1);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// One gateway at a time. The kernel lets go of the lock when its process ends, however it ends.
fn lock(folder: &Path) -> Result<File, StoreError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .map_err(|error| StoreError::io(folder, &error))?;
    let path = folder.join("gateway.lock");
    let file = private_file(&path)?;
    let started = Instant::now();
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            // No event tells of it, and a lock that is waited for in the kernel has no deadline.
            Err(rustix::io::Errno::WOULDBLOCK) if started.elapsed() < LET_GO_WITHIN => {
                std::thread::sleep(LOOK_AGAIN);
            }
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(StoreError::Locked {
                    path: folder.display().to_string(),
                });
            }
            Err(error) => return Err(StoreError::io(&path, &error.into())),
        }
    }
}

/// The write-ahead log of a database, which SQLite names so (sqlite.org/wal.html). Its locks are on
/// other files, so that closing this one lets go of none.
fn log_of(database: &Path) -> Result<File, StoreError> {
    let mut path = database.as_os_str().to_owned();
    path.push("-wal");
    let path = PathBuf::from(path);
    File::open(&path).map_err(|error| StoreError::io(&path, &error))
}

/// The database holds a key, so it is its owner's alone from its first byte on.
fn private_file(path: &Path) -> Result<File, StoreError> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .map_err(|error| StoreError::io(path, &error))
}

fn refuse_unfinishable(conn: &Connection) -> Result<(), StoreError> {
    // Of the text: what a newer release wrote may not be understood.
    let unknown = conn
        .query_row(
            "SELECT json_extract(op.value, '$.id'), json_extract(op.value, '$.step_schema')
             FROM sandboxes INDEXED BY sandboxes_active, json_each(body) AS op
             WHERE active = 1 AND in_line > 0 AND op.key IN ('running', 'waiting')
               AND op.type = 'object'
               AND json_extract(op.value, '$.step_schema') NOT BETWEEN 1 AND ?1
             ORDER BY 1 LIMIT 1",
            [STEP_SCHEMA],
            |row| Ok((row.get::<_, String>(0)?, row.get(1)?)),
        )
        .optional()?;
    match unknown {
        None => Ok(()),
        Some((id, step_schema)) => Err(StoreError::UnfinishableOperation {
            id: OperationId(id.parse().unwrap_or_default()),
            step_schema,
        }),
    }
}

fn raise_epoch(conn: &Connection, options: &StoreOptions) -> Result<Meta, StoreError> {
    let (gateway, key) = match &options.identity {
        Some(identity) => (identity.gateway, identity.key),
        None => (Uuid::new_v4(), rand::random()),
    };
    conn.execute(
        "INSERT INTO meta (one, gateway, key, epoch, seq, swept_seq, trimmed_seq)
         VALUES (1, ?1, ?2, 1, 0, 0, 0)
         ON CONFLICT (one) DO UPDATE SET epoch = epoch + 1",
        params![gateway.into_bytes(), key],
    )?;
    let meta = conn.query_row("SELECT gateway, key, epoch FROM meta", [], |row| {
        Ok(Meta {
            gateway: Uuid::from_bytes(row.get(0)?),
            key: row.get(1)?,
            epoch: row.get::<_, i64>(2)?.cast_unsigned(),
            schema: schema::KNOWN,
        })
    })?;
    if overwinter_lifecycle::mutant!(KeyCutShort) {
        conn.execute("UPDATE meta SET key = substr(key, 1, 8)", [])?;
    }
    Ok(meta)
}

fn newest_seq(conn: &Connection) -> Result<u64, StoreError> {
    let seq: i64 = conn.query_row(
        "SELECT max(seq, coalesce((SELECT max(seq) FROM sandboxes), 0)) FROM meta",
        [],
        |row| row.get(0),
    )?;
    Ok(seq.cast_unsigned())
}
