//! How a store is opened.

use std::fmt;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use overwinter_lifecycle::capacity::Limits;
use overwinter_lifecycle::ids::Millis;
use uuid::Uuid;

/// Where the records are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// A folder: made when missing (mode 0700), locked while the store is open.
    Folder(PathBuf),
    /// Gone with the store.
    Memory,
}

/// Who runs transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriterKind {
    /// A thread of the store's, which commits whatever has queued up together. While it has nothing to
    /// do, the calling task's own.
    Thread,
    /// The calling task, at once, one commit each: one seed gives one history.
    Inline,
}

/// When a commit has to be on the disk. A process that is killed loses neither.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Durability {
    /// Its caller goes on before it is, and asks for [`crate::Store::sync`] a moment later. For what is
    /// found out again where a power loss takes it. Its change cannot be watched before.
    Soon,
    /// Before its caller is answered.
    Before,
}

/// On which side of a COMMIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CommitPoint {
    Before,
    After,
}

/// Called by the writer around each COMMIT, once for each transaction that it carries, with the
/// label of that transaction (see [`crate::label`]) and when the commit is on the disk. For harnesses that
/// end the process there.
pub type CommitHook = Arc<dyn Fn(CommitPoint, &'static str, Durability) + Send + Sync>;

/// Awaited before each transaction of [`WriterKind::Inline`]: a disk that is slow. For harnesses.
pub type PaceHook =
    Arc<dyn Fn(&'static str) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// Asked before each transaction, and again before the COMMIT of one that has written: true is a full
/// disk. `reserve_given_up`: there is what the reserve
/// held. For harnesses.
pub type FullHook = Arc<dyn Fn(&'static str, bool) -> bool + Send + Sync>;

/// What a new store is; minted by chance unless given.
#[derive(Clone, Debug)]
pub struct Identity {
    pub gateway: Uuid,
    pub key: [u8; 32],
}

/// How to open.
#[derive(Clone)]
pub struct StoreOptions {
    pub location: Location,
    pub writer: WriterKind,
    /// Of the gateway; capacity is checked in the transaction that begins an operation.
    pub limits: Limits,
    pub now: Millis,
    /// For harnesses: one seed gives one history.
    pub identity: Option<Identity>,
    pub full: Option<FullHook>,
    pub pace: Option<PaceHook>,
    pub on_commit: Option<CommitHook>,
}

impl StoreOptions {
    /// A folder, a writer thread, no limits, no hook.
    #[must_use]
    pub fn folder(path: impl Into<PathBuf>, now: Millis) -> Self {
        Self {
            location: Location::Folder(path.into()),
            writer: WriterKind::Thread,
            limits: Limits::default(),
            now,
            identity: None,
            full: None,
            pace: None,
            on_commit: None,
        }
    }

    /// In memory, inline: for tests and simulation.
    #[must_use]
    pub fn memory(now: Millis) -> Self {
        Self {
            location: Location::Memory,
            writer: WriterKind::Inline,
            limits: Limits::default(),
            now,
            identity: None,
            full: None,
            pace: None,
            on_commit: None,
        }
    }
}

impl fmt::Debug for StoreOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreOptions")
            .field("location", &self.location)
            .field("writer", &self.writer)
            .field("limits", &self.limits)
            .field("now", &self.now)
            .finish_non_exhaustive()
    }
}
