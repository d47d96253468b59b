//! The seven ways in which a driver fails. Nothing is matched by message text.

use std::io;

/// What a driver's call may end with, besides success.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DriverError {
    /// Refused, and surely without any effect.
    #[error("{0}")]
    Rejected(String),
    /// The disk that it needs room on is full. Without any effect.
    #[error("{0}")]
    NoSpace(String),
    /// This driver, or this configuration of it, never does this.
    #[error("not supported: {0}")]
    Unsupported(String),
    /// What the call is about is not there (an image, a compute). Without any effect.
    #[error("{0}")]
    Missing(String),
    /// What was retained cannot be restored, for this reason. Nothing of it ran.
    #[error("{message}")]
    Unusable { why: Unusable, message: String },
    /// A higher (fence, serial) was carried out. Without any effect.
    #[error("fenced: an effect with a higher fence was carried out")]
    Fenced,
    /// It may or may not have happened, or may still happen: observe.
    #[error("outcome unknown: {0}")]
    Unknown(String),
}

/// Whether a failure of the operating system's is [`DriverError::NoSpace`]: no room on the disk, or in
/// what one may have of it.
#[must_use]
pub fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

impl DriverError {
    /// Whether the call surely changed nothing.
    #[must_use]
    pub const fn surely_no_effect(&self) -> bool {
        match self {
            Self::Rejected(_)
            | Self::NoSpace(_)
            | Self::Unsupported(_)
            | Self::Missing(_)
            | Self::Unusable { .. }
            | Self::Fenced => true,
            Self::Unknown(_) => false,
        }
    }
}

/// What is wrong with what was retained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// It does not hold what was written, or is not whole.
    Damaged,
    /// Another sandbox, gateway or driver wrote it.
    Foreign,
    /// It belongs to another state of the disk.
    Stale,
    /// Only another build can restore it. It may be there again: the artifact is kept.
    OtherBuild,
    /// It was taken over an image that is not there as it was. It may be again: the artifact is kept.
    OtherImage,
    /// The root layer of a stop is gone, and the workspace is there. A start with
    /// [`EffectOptions::new_root`](crate::EffectOptions::new_root) goes on without it.
    RootLost,
}
