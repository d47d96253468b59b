//! Which effect started what runs. Labels of a container say who made it and never change; what does,
//! with each start, is here, and belongs to the run that the container's id and start time name.

use std::fs;
use std::io;

use overwinter_lifecycle::ids::Incarnation;
use serde::{Deserialize, Serialize};

use crate::error::{At, DockerError};
use crate::home::{SandboxDir, write_aside};
use crate::look::Container;

/// Written before a start is asked for, and again once it was seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Receipt {
    /// The effect, by its native name.
    pub(crate) effect: String,
    /// The incarnation that the run was started with.
    pub(crate) held: Incarnation,
    /// The container's id.
    pub(crate) container: String,
    /// When the container had been started before, in the daemon's words.
    pub(crate) before: String,
    /// When this run was started, once that was seen.
    pub(crate) started: Option<String>,
    /// Of the host as it ran then: processes do not outlive it.
    pub(crate) boot_id: String,
}

impl Receipt {
    /// None: nothing was started yet, or a power loss took the file, and what ran with it.
    pub(crate) fn read(dir: &SandboxDir) -> Result<Option<Self>, DockerError> {
        let path = dir.receipt();
        match fs::read(&path) {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).at("reading", &path),
        }
    }

    pub(crate) fn write(&self, dir: &SandboxDir) -> Result<(), DockerError> {
        let path = dir.receipt();
        write_aside(&path, &serde_json::to_vec(self).at("writing", &path)?)
    }

    /// Whether what runs in `container` is what this effect started, and not somebody else's start of
    /// the same container.
    pub(crate) fn is_of(&self, container: &Container, boot_id: &str) -> bool {
        self.container == container.id
            && self.boot_id == boot_id
            && match &self.started {
                Some(started) => *started == container.started,
                None => self.before != container.started,
            }
    }
}
