//! How this driver fails, and what that is in the terms of the contract.

use std::io;
use std::path::{Path, PathBuf};

use bollard::errors::Error as Bollard;
use overwinter_driver::door::DoorError;
use overwinter_driver::{DriverError, is_full};

/// A step that did not work.
#[derive(Debug, thiserror::Error)]
pub enum DockerError {
    /// No connection: nothing was sent.
    #[error("no daemon answers at {}: {why}", socket.display())]
    Away { socket: PathBuf, why: String },
    /// Another daemon than the one that has the containers. Nothing was sent.
    #[error(
        "the daemon at {} is another one than before ({found}, not {known}): its containers are not this gateway's; point the socket back, or remove {} to begin anew with this one",
        socket.display(),
        file.display()
    )]
    AnotherDaemon {
        socket: PathBuf,
        file: PathBuf,
        known: String,
        found: String,
    },
    /// It answers, and no sandbox can be made with it. Nothing was sent.
    #[error("the daemon at {} cannot be used: {why}", socket.display())]
    Unfit { socket: PathBuf, why: String },
    /// It answered with an error: the request is over.
    #[error("the daemon says: {message}")]
    Answered { status: u16, message: String },
    /// It was sent and not answered: it may be carried out, now or later.
    #[error("the daemon did not answer: {0}")]
    Lost(String),
    /// It was carried out, and the answer could not be read.
    #[error("the daemon's answer cannot be read: {0}")]
    Unreadable(String),
    #[error("{doing} {}: {source}", path.display())]
    Io {
        doing: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// The container has the sandbox's name and another gateway's label.
    #[error("the container {name} belongs to the gateway {gateway}, not to this one")]
    NotOurs { name: String, gateway: String },
    #[error("PID 1 ended as soon as it was started, with {code}: {error}")]
    EndedAtOnce { code: i64, error: String },
    #[error("image {image}: {message}")]
    Image { image: String, message: String },
    #[error("image {image} is not there: {why}")]
    ImageMissing { image: String, why: String },
    #[error("registry credentials: {}: {why}", path.display())]
    Credentials { path: PathBuf, why: String },
    #[error("the work was broken off")]
    BrokenOff,
}

impl DockerError {
    /// For a call that has not begun to change anything, or has seen that nothing has changed.
    pub(crate) fn without_effect(self) -> DriverError {
        match self {
            Self::ImageMissing { .. } => DriverError::Missing(self.to_string()),
            Self::Lost(_) | Self::Unreadable(_) => self.unsettled(),
            Self::Io { ref source, .. } if is_full(source) => {
                DriverError::NoSpace(self.to_string())
            }
            Self::Away { .. }
            | Self::AnotherDaemon { .. }
            | Self::Unfit { .. }
            | Self::Answered { .. }
            | Self::Io { .. }
            | Self::NotOurs { .. }
            | Self::EndedAtOnce { .. }
            | Self::Image { .. }
            | Self::Credentials { .. }
            | Self::BrokenOff => DriverError::Rejected(self.to_string()),
        }
    }

    /// For a call that may have changed something.
    pub(crate) fn unsettled(self) -> DriverError {
        DriverError::Unknown(self.to_string())
    }

    /// The status that the daemon answered with.
    pub(crate) const fn status(&self) -> Option<u16> {
        match self {
            Self::Answered { status, .. } => Some(*status),
            Self::Away { .. }
            | Self::AnotherDaemon { .. }
            | Self::Unfit { .. }
            | Self::Lost(_)
            | Self::Unreadable(_)
            | Self::Io { .. }
            | Self::NotOurs { .. }
            | Self::EndedAtOnce { .. }
            | Self::Image { .. }
            | Self::Credentials { .. }
            | Self::ImageMissing { .. }
            | Self::BrokenOff => None,
        }
    }

    /// What a call's failure says of its request.
    pub(crate) fn of(error: Bollard, socket: &Path) -> Self {
        match error {
            Bollard::DockerResponseServerError {
                status_code,
                message,
            } => Self::Answered {
                status: status_code,
                message,
            },
            Bollard::HyperLegacyError { err } if err.is_connect() => Self::Away {
                socket: socket.to_owned(),
                why: deepest(&err),
            },
            Bollard::SocketNotFoundError(_) => Self::Away {
                socket: socket.to_owned(),
                why: "there is no such socket".to_owned(),
            },
            Bollard::DockerStreamError { error } => Self::Answered {
                status: FAILED_MIDWAY,
                message: error,
            },
            Bollard::JsonDataError { message, .. } => Self::Unreadable(message),
            Bollard::JsonSerdeError { err } => Self::Unreadable(err.to_string()),
            other => Self::Lost(deepest(&other)),
        }
    }
}

/// Of an answer that began well and ends by telling of a failure.
const FAILED_MIDWAY: u16 = 500;

/// The cause that says most.
fn deepest(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

impl From<DoorError> for DockerError {
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
    fn at(self, doing: &'static str, path: &Path) -> Result<T, DockerError>;
}

impl<T, E: Into<io::Error>> At<T> for Result<T, E> {
    fn at(self, doing: &'static str, path: &Path) -> Result<T, DockerError> {
        self.map_err(|source| DockerError::Io {
            doing,
            path: path.to_owned(),
            source: source.into(),
        })
    }
}

/// Why the driver cannot be opened here.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("the supervisor is not at {}", path.display())]
    NoSupervisor { path: PathBuf },
    #[error(
        "the driver needs root (effective user id 0, not {uid}): it gives files to the supervisor's user"
    )]
    NotRoot { uid: u32 },
    #[error(transparent)]
    Docker(#[from] DockerError),
}
