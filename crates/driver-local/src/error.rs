//! How this driver fails, and what that is in the terms of the contract.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use overwinter_driver::door::DoorError;
use overwinter_driver::{DriverError, is_full};

use crate::network::NoNetwork;

/// A step on this host that did not work.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// A system call on a path. A full filesystem says so in plain words.
    #[error("{}", io_text(doing, path, source))]
    Io {
        doing: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// A file of ours that cannot be read.
    #[error("{} is damaged: {source}", path.display())]
    Damaged {
        path: PathBuf,
        source: serde_json::Error,
    },
    #[error("{runtime} failed: {message}")]
    Runtime { runtime: String, message: String },
    #[error("the runtime `{runtime}` is not here any more; there are {there}")]
    NoRuntime { runtime: String, there: String },
    #[error("{runtime} was killed after {} ms by somebody else", after.as_millis())]
    RuntimeKilled { runtime: String, after: Duration },
    #[error("{runtime} did not end within {} ms and was killed", after.as_millis())]
    RuntimeHung { runtime: String, after: Duration },
    #[error(
        "no user id range is free: {in_use} sandboxes hold one each; delete some or widen uid_count"
    )]
    NoRange { in_use: usize },
    #[error("the layers of the root cannot be mounted: {0}")]
    Layers(&'static str),
    #[error("the memory on disk: {0}")]
    Cipher(&'static str),
    #[error("the runtime says that it has written the memory, and has written none")]
    NothingWritten,
    #[error("the runtime went back in what it had written of the memory")]
    Rewritten,
    #[error("its lock was not free within {} ms", after.as_millis())]
    Locked { after: Duration },
    #[error("{left} processes did not end within the deadline")]
    StillThere { left: usize },
    #[error("the kernel was asked where memory is to lie: {source}")]
    Advice { source: io::Error },
    #[error("the work was broken off")]
    BrokenOff,
    #[error("the network: {0}")]
    NoNetwork(#[from] NoNetwork),
    #[error("the network: {program} failed: {message}")]
    Network {
        program: &'static str,
        message: String,
    },
    #[error("the network: {program} was not ready in time and was killed")]
    NetworkHung { program: &'static str },
    #[error(
        "the network: what carries packets ended as soon as it was ready, or was ended because an address of this host could not be closed"
    )]
    NetworkCut,
    #[error("image {image}: {message}")]
    Image { image: String, message: String },
    #[error("image {image}: {message}")]
    ImageMissing { image: String, message: String },
}

fn io_text(doing: &str, path: &Path, source: &io::Error) -> String {
    if is_full(source) {
        return format!(
            "no space left on the filesystem of {} ({doing})",
            path.display()
        );
    }
    format!("{doing} {}: {source}", path.display())
}

impl LocalError {
    /// For a call that has not begun to make compute, or has seen that none is left.
    #[must_use]
    pub fn without_effect(self) -> DriverError {
        match self {
            Self::ImageMissing { .. } => DriverError::Missing(self.to_string()),
            Self::Io { ref source, .. } if is_full(source) => {
                DriverError::NoSpace(self.to_string())
            }
            Self::Io { .. }
            | Self::Damaged { .. }
            | Self::Runtime { .. }
            | Self::RuntimeHung { .. }
            | Self::RuntimeKilled { .. }
            | Self::NoRuntime { .. }
            | Self::NoRange { .. }
            | Self::Layers(_)
            | Self::Cipher(_)
            | Self::NothingWritten
            | Self::Rewritten
            | Self::NoNetwork(_)
            | Self::Network { .. }
            | Self::NetworkHung { .. }
            | Self::NetworkCut
            | Self::Locked { .. }
            | Self::StillThere { .. }
            | Self::Advice { .. }
            | Self::BrokenOff
            | Self::Image { .. } => DriverError::Rejected(self.to_string()),
        }
    }

    /// For a call that may have changed something.
    #[must_use]
    pub fn unsettled(self) -> DriverError {
        DriverError::Unknown(self.to_string())
    }
}

impl From<DoorError> for LocalError {
    fn from(error: DoorError) -> Self {
        Self::Io {
            doing: error.doing,
            path: error.path,
            source: error.source,
        }
    }
}

/// Names what was done and where, beside an I/O error.
pub(crate) trait At<T> {
    fn at(self, doing: &'static str, path: &Path) -> Result<T, LocalError>;
}

impl<T, E: Into<io::Error>> At<T> for Result<T, E> {
    fn at(self, doing: &'static str, path: &Path) -> Result<T, LocalError> {
        self.map_err(|source| LocalError::Io {
            doing,
            path: path.to_owned(),
            source: source.into(),
        })
    }
}

/// A removal of what may not be there.
pub(crate) fn ignore_missing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Why the driver cannot be opened here.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(
        "the local driver needs root (effective user id 0, not {uid}): it mounts, and it maps user ids"
    )]
    NotRoot { uid: u32 },
    #[error(
        "the container runtime `{runtime}` was not found; install it (Debian: apt-get install runc) or name another"
    )]
    NoRuntime { runtime: String },
    #[error("the supervisor is not at {}", path.display())]
    NoSupervisor { path: PathBuf },
    #[error(
        "no cgroup freezer was found under /sys/fs/cgroup (neither cgroup v2 nor the v1 controller `freezer`)"
    )]
    NoFreezer,
    #[error(
        "local.network.allow names {0}, which no sandbox reaches through this host: loopback, multicast and reserved addresses stay closed"
    )]
    Closed(ipnet::IpNet),
    #[error("the gateway id `{0}` cannot name a cgroup: letters, digits, `-`, `_` and `.` only")]
    GatewayId(String),
    #[error(transparent)]
    Local(#[from] LocalError),
}
