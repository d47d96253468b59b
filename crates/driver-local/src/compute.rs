//! What is there of a sandbox's compute, by files and descriptors alone: no runtime is spawned.
//!
//! `compute.json` is written before the runtime is called and says what to look for; the runtime's
//! own state then says which process it became. Either may be there without the other.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use overwinter_lifecycle::ids::{Incarnation, SandboxId};
use overwinter_lifecycle::steps::Observed;
use serde::{Deserialize, Serialize};

use crate::cgroup::{Cgroups, Freezer};
use crate::error::{At, LocalError};
use crate::layout::{Layout, SandboxDir};
use crate::process::{self, Identity};

/// The compute of the newest create or start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ComputeRecord {
    pub(crate) native: String,
    /// The incarnation that it was started with.
    pub(crate) birth: Incarnation,
    /// Of the host as it ran then: processes do not outlive it.
    pub(crate) boot_id: String,
    /// The folder of the supervisor that it runs.
    pub(crate) supervisor: PathBuf,
    /// PID 1, once the start has ended. None: the runtime's own state tells.
    pub(crate) first: Option<Identity>,
}

impl ComputeRecord {
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.native == other.native && self.birth == other.birth && self.boot_id == other.boot_id
    }

    /// PID 1 of a compute that the runtime has started. None: it never came to that.
    pub(crate) fn find_first(&self, runtime_root: &Path) -> Result<Option<Identity>, LocalError> {
        if self.first.is_some() {
            return Ok(self.first);
        }
        let state = RuntimeState::read(runtime_root, &self.native)?;
        Ok(state
            .filter(|_| is_started(runtime_root, &self.native))
            .map(|state| state.identity()))
    }

    /// None: no compute was made, or a power loss took the file, and the compute with it.
    pub(crate) fn read(dir: &SandboxDir) -> Result<Option<Self>, LocalError> {
        let path = dir.compute();
        match fs::read(&path) {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).at("reading", &path),
        }
    }

    pub(crate) fn write(&self, dir: &SandboxDir) -> Result<(), LocalError> {
        let path = dir.compute();
        write_aside(&path, &serde_json::to_vec(self).at("writing", &path)?)
    }
}

/// Replaces a file as a whole. Not synced: it speaks of what does not outlive a power loss either.
pub(crate) fn write_aside(path: &Path, bytes: &[u8]) -> Result<(), LocalError> {
    let aside = path.with_extension("new");
    let written = fs::write(&aside, bytes).and_then(|()| fs::rename(&aside, path));
    if written.is_err() {
        let _ = fs::remove_file(&aside);
    }
    written.at("writing", path)
}

/// What the runtime has written of a container.
#[derive(Debug, Deserialize)]
pub(crate) struct RuntimeState {
    init_process_pid: i32,
    init_process_start: u64,
    #[serde(default)]
    config: RuntimeConfig,
}

#[derive(Debug, Default, Deserialize)]
struct RuntimeConfig {
    #[serde(default)]
    labels: Vec<String>,
}

impl RuntimeState {
    /// None: not there, or not yet whole.
    pub(crate) fn read(root: &Path, native: &str) -> Result<Option<Self>, LocalError> {
        let path = root.join(native).join("state.json");
        match fs::read(&path) {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).at("reading", &path),
        }
    }

    pub(crate) const fn identity(&self) -> Identity {
        Identity {
            pid: self.init_process_pid,
            start: self.init_process_start,
        }
    }

    pub(crate) fn label(&self, name: &str) -> Option<&str> {
        self.config
            .labels
            .iter()
            .find_map(|label| label.strip_prefix(name)?.strip_prefix('='))
    }
}

/// A container that the runtime has made and not yet started waits on this file.
fn is_started(root: &Path, native: &str) -> bool {
    !root.join(native).join("exec.fifo").exists()
}

/// What was found.
#[derive(Debug)]
pub(crate) enum Look {
    /// No compute, and nothing of one.
    Nothing,
    /// No user's code runs, and something of a compute is there: it ended, or was never whole.
    Remains(ComputeRecord),
    /// PID 1 runs, or stands still.
    Running(Running),
}

#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) record: ComputeRecord,
    pub(crate) pidfd: OwnedFd,
    pub(crate) freezer: Freezer,
}

impl Look {
    pub(crate) fn at(
        layout: &Layout,
        cgroups: &Cgroups,
        boot_id: &str,
        sandbox: SandboxId,
    ) -> Result<Self, LocalError> {
        let Some(record) = ComputeRecord::read(&layout.sandbox(sandbox))? else {
            return Ok(Self::Nothing);
        };
        if record.boot_id != boot_id {
            return Ok(Self::Remains(record));
        }
        let first = record.find_first(&layout.runtime_root())?;
        let Some(pidfd) = first.and_then(process::open) else {
            return Ok(Self::Remains(record));
        };
        match cgroups.state(&record.native)? {
            Some(freezer) => Ok(Self::Running(Running {
                record,
                pidfd,
                freezer,
            })),
            // The group goes after the last process: it ended just now.
            None => Ok(Self::Remains(record)),
        }
    }

    pub(crate) const fn record(&self) -> Option<&ComputeRecord> {
        match self {
            Self::Nothing => None,
            Self::Remains(record) | Self::Running(Running { record, .. }) => Some(record),
        }
    }

    pub(crate) const fn observed(&self) -> Observed {
        match self {
            Self::Nothing => Observed::Absent,
            Self::Remains(_) => Observed::Stopped,
            Self::Running(running) => running.observed(),
        }
    }
}

impl Running {
    pub(crate) const fn observed(&self) -> Observed {
        let held = self.record.birth;
        match self.freezer {
            Freezer::Thawed => Observed::Live { held },
            Freezer::Freezing => Observed::InTransition,
            Freezer::Frozen => Observed::Frozen { held },
        }
    }
}
