//! Whether a daemon can be used, and what to do where not. Changes nothing.

use std::path::Path;

use bollard::{API_DEFAULT_VERSION, Docker};

use crate::error::DockerError;
use crate::flavor::Flavor;

/// What was found of a daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// It answers; with its version and what it runs on.
    Usable(String),
    /// Why it cannot be used, and what to do.
    Unusable { why: String, fix: String },
}

/// Asks the daemon at `socket`.
pub async fn doctor(flavor: Flavor, socket: &Path) -> Finding {
    let asked = async {
        let path = socket.to_string_lossy();
        let client = Docker::connect_with_unix(&path, SECONDS, API_DEFAULT_VERSION)?;
        client.negotiate_version().await?.info().await
    };
    match asked.await {
        Ok(info) => {
            let word = |value: Option<String>| value.unwrap_or_else(|| "unknown".to_owned());
            let cgroup = info.cgroup_version.map(|it| it.to_string());
            Finding::Usable(format!(
                "{} {} at {} ({}, cgroup v{}, {})",
                flavor.product(),
                word(info.server_version),
                socket.display(),
                word(info.driver),
                word(cgroup),
                word(info.default_runtime),
            ))
        }
        Err(error) => Finding::Unusable {
            why: DockerError::of(error, socket).to_string(),
            fix: flavor.how_to_start().to_owned(),
        },
    }
}

/// For an answer.
const SECONDS: u64 = 5;
