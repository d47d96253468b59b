//! Reads beside the writer: a few read-only connections (WAL: a reader sees the last commit and
//! blocks nobody).

use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use rusqlite::{Connection, OpenFlags};

use crate::{StoreError, schema};

/// Reads run on the calling thread and are short, so more connections than threads are of no use.
const MOST: usize = 8;

pub(crate) struct Readers {
    path: PathBuf,
    pool: Mutex<Pool>,
    returned: Condvar,
}

struct Pool {
    idle: Vec<Connection>,
    open: usize,
}

impl Readers {
    pub(crate) fn new(path: &Path) -> Result<Self, StoreError> {
        let first = connect(path)?;
        Ok(Self {
            path: path.to_owned(),
            pool: Mutex::new(Pool {
                idle: vec![first],
                open: 1,
            }),
            returned: Condvar::new(),
        })
    }

    pub(crate) fn read<T>(
        &self,
        query: impl FnOnce(&Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let conn = self.take()?;
        let answer = snapshot(&conn, query);
        self.lock().idle.push(conn);
        self.returned.notify_one();
        answer
    }

    fn take(&self) -> Result<Connection, StoreError> {
        let mut pool = self.lock();
        loop {
            if let Some(conn) = pool.idle.pop() {
                return Ok(conn);
            }
            if pool.open < MOST {
                let conn = connect(&self.path)?;
                pool.open += 1;
                return Ok(conn);
            }
            pool = self
                .returned
                .wait(pool)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn connect(path: &Path) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags)?;
    schema::configure_reader(&conn)?;
    Ok(conn)
}

/// Runs the statements of one query on one state of the database.
pub(crate) fn snapshot<T>(
    conn: &Connection,
    query: impl FnOnce(&Connection) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    conn.prepare_cached("BEGIN")?.execute([])?;
    let answer = query(conn);
    conn.prepare_cached("COMMIT")?.execute([])?;
    answer
}
