//! What a runtime has written of a container, read without asking it.

use std::fs;
use std::io;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::Kind;
use crate::compute::write_aside;
use crate::error::{At, LocalError};
use crate::layout::{CONTAINER, Layout};
use crate::process::{self, Identity};

/// What the runtime says of it. Behind the truth when a call was cut short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// No code of the user's was let run by a call that has ended.
    Made,
    Started,
    /// gVisor alone: its tasks were halted.
    Paused,
}

/// One container.
#[derive(Debug)]
pub(crate) struct RuntimeState {
    pub(crate) status: Status,
    first: Option<Identity>,
    labels: Vec<(String, String)>,
}

#[derive(Deserialize)]
struct Runc {
    init_process_pid: i32,
    init_process_start: u64,
    #[serde(default)]
    config: RuncConfig,
}

#[derive(Default, Deserialize)]
struct RuncConfig {
    #[serde(default)]
    labels: Vec<String>,
}

#[derive(Deserialize)]
struct Gvisor {
    status: String,
    sandbox: Option<Sentry>,
    spec: Option<Spec>,
}

#[derive(Deserialize)]
struct Sentry {
    pid: i32,
}

#[derive(Deserialize)]
struct Spec {
    #[serde(default)]
    annotations: std::collections::BTreeMap<String, String>,
}

impl RuntimeState {
    /// None: not there, or not yet whole.
    pub(crate) fn read(layout: &Layout, native: &str) -> Result<Option<Self>, LocalError> {
        for kind in [Kind::Runc, Kind::Gvisor] {
            let path = file(layout, kind, native);
            let bytes = match fs::read(&path) {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error).at("reading", &path),
            };
            return match kind {
                Kind::Runc => Ok(Self::of_runc(&bytes, &path)),
                Kind::Gvisor => Self::of_gvisor(&bytes, native),
            };
        }
        Ok(None)
    }

    fn of_runc(bytes: &[u8], path: &Path) -> Option<Self> {
        let state: Runc = serde_json::from_slice(bytes).ok()?;
        // A container that was made and not yet started waits on this file.
        let waits = path.with_file_name("exec.fifo").exists();
        let labels = state.config.labels.iter();
        Some(Self {
            status: if waits { Status::Made } else { Status::Started },
            first: Some(Identity {
                pid: state.init_process_pid,
                start: state.init_process_start,
            }),
            labels: labels
                .filter_map(|label| label.split_once('='))
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
        })
    }

    fn of_gvisor(bytes: &[u8], native: &str) -> Result<Option<Self>, LocalError> {
        let Ok(state) = serde_json::from_slice::<Gvisor>(bytes) else {
            return Ok(None);
        };
        let sentry = state.sandbox.map(|it| process::identify(it.pid, native));
        Ok(Some(Self {
            status: match state.status.as_str() {
                "running" => Status::Started,
                "paused" => Status::Paused,
                // "creating", "created", "stopped"
                _ => Status::Made,
            },
            // It notes no start time; the control group tells whose the number is.
            first: sentry.transpose()?.flatten(),
            labels: state
                .spec
                .map(|spec| spec.annotations.into_iter().collect())
                .unwrap_or_default(),
        }))
    }

    /// PID 1, or the sentry that it runs on. None: it has ended.
    pub(crate) const fn identity(&self) -> Option<Identity> {
        self.first
    }

    pub(crate) fn label(&self, name: &str) -> Option<&str> {
        let mut labels = self.labels.iter();
        labels
            .find(|(label, _)| label == name)
            .map(|(_, value)| value.as_str())
    }

    /// Keeps a copy of gVisor's file: it is rewritten in place, and without it the runtime knows nothing
    /// of what lives.
    pub(crate) fn keep(layout: &Layout, native: &str) -> Result<(), LocalError> {
        let path = file(layout, Kind::Gvisor, native);
        let bytes = fs::read(&path).at("reading", &path)?;
        write_aside(&path.with_file_name(KEPT), &bytes)
    }

    /// Brings it back where the runtime was killed as it wrote.
    pub(crate) fn repair(layout: &Layout, native: &str) -> Result<(), LocalError> {
        let path = file(layout, Kind::Gvisor, native);
        match fs::read(&path) {
            Ok(bytes) if serde_json::from_slice::<Gvisor>(&bytes).is_ok() => return Ok(()),
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).at("reading", &path);
            }
            Ok(_) | Err(_) => {}
        }
        let kept = path.with_file_name(KEPT);
        let bytes = fs::read(&kept).at("reading", &kept)?;
        write_aside(&path, &bytes)
    }

    /// Makes gVisor's file say what is so. While no call of the runtime is under way.
    pub(crate) fn correct(layout: &Layout, native: &str, status: Status) -> Result<(), LocalError> {
        let path = file(layout, Kind::Gvisor, native);
        let bytes = fs::read(&path).at("reading", &path)?;
        let mut state: Value = serde_json::from_slice(&bytes).at("reading", &path)?;
        state["status"] = match status {
            Status::Made => "created",
            Status::Started => "running",
            Status::Paused => "paused",
        }
        .into();
        write_aside(&path, &serde_json::to_vec(&state).at("writing", &path)?)
    }
}

/// Beside gVisor's file.
const KEPT: &str = "kept.json";

fn file(layout: &Layout, kind: Kind, native: &str) -> std::path::PathBuf {
    let root = layout.runtime_root(kind, native);
    match kind {
        Kind::Runc => root.join(native).join("state.json"),
        Kind::Gvisor => root.join(format!("{CONTAINER}_sandbox:{CONTAINER}.state")),
    }
}
