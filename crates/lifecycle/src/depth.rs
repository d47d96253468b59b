//! How deep a sandbox sleeps.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Ordered: deeper retains less and releases more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Depth {
    /// Processes halted, memory resident. Does not survive a power loss, and does not sync.
    Freeze,
    /// Memory on disk, compute released.
    Checkpoint,
    /// Storage alone, processes ended.
    Stop,
}

impl Depth {
    /// Shallow first.
    pub const ALL: [Self; 3] = [Self::Freeze, Self::Checkpoint, Self::Stop];

    /// Whether a resume promises the same processes with their memory.
    #[must_use]
    pub const fn keeps_memory(self) -> bool {
        match self {
            Self::Freeze | Self::Checkpoint => true,
            Self::Stop => false,
        }
    }

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Freeze => "freeze",
            Self::Checkpoint => "checkpoint",
            Self::Stop => "stop",
        }
    }
}

impl fmt::Display for Depth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A word that names no depth.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no depth; it is one of freeze, checkpoint, stop")]
pub struct NoSuchDepth(pub String);

impl std::str::FromStr for Depth {
    type Err = NoSuchDepth;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|depth| depth.as_str() == text)
            .ok_or_else(|| NoSuchDepth(text.to_owned()))
    }
}
