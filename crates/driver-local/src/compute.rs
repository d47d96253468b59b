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
use crate::runtime::{Kind, RuntimeState, Status};

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
    /// PID 1, or the sentry that it runs on, once the start has ended. None: the runtime's own state
    /// tells.
    pub(crate) first: Option<Identity>,
    /// What runs it.
    #[serde(default)]
    pub(crate) runtime: Kind,
    /// gVisor: a call that halts or wakes its tasks has begun, and nobody has seen it end.
    #[serde(default)]
    pub(crate) turning: bool,
    /// gVisor: it is to stay halted, also where the group is thawed for a while.
    #[serde(default)]
    pub(crate) asleep: bool,
    /// gVisor: its memory is being written to disk, and that was not seen to end.
    #[serde(default)]
    pub(crate) saving: Option<Saving>,
}

/// What is different about a compute while its memory is written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Saving {
    /// The limit of memory that was lifted, in the words of the control group.
    pub(crate) limit: Option<String>,
}

impl ComputeRecord {
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.native == other.native && self.birth == other.birth && self.boot_id == other.boot_id
    }

    /// PID 1 of a compute that the runtime has started. None: it never came to that.
    pub(crate) fn find_first(&self, layout: &Layout) -> Result<Option<Identity>, LocalError> {
        if self.first.is_some() {
            return Ok(self.first);
        }
        Ok(match RuntimeState::read(layout, &self.native)? {
            Some(state) => match state.status {
                Status::Made => None,
                Status::Started | Status::Paused => state.identity(),
            },
            None => None,
        })
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
        let first = record.find_first(layout)?;
        let Some(pidfd) = first.map(process::open).transpose()?.flatten() else {
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
