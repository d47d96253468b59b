//! Whether a daemon can be used, and what to do where not. Changes nothing.

use std::fs;
use std::path::Path;
use std::time::Duration;

use bollard::{API_DEFAULT_VERSION, Docker};

use crate::error::DockerError;
use crate::flavor::Flavor;
use crate::host::{Host, Lack};

/// What was found of a daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// It answers; with its version and what it runs on, and what it cannot do.
    Usable { what: String, lacks: Vec<Lack> },
    /// Why it cannot be used, and what to do.
    Unusable { why: String, fix: String },
}

/// Asks the daemon at `socket`. `data`: the folder of the gateway's that it is to mount from.
pub async fn doctor(flavor: Flavor, socket: &Path, data: &Path) -> Finding {
    let asked = async {
        let path = socket.to_string_lossy();
        let client = Docker::connect_with_unix(&path, SECONDS, API_DEFAULT_VERSION)?;
        client.negotiate_version().await?.info().await
    };
    let asked = asked.await.map_err(|error| DockerError::of(error, socket));
    let met = async {
        let info = asked?;
        let met = Host::meet(flavor, socket, &info);
        let met = tokio::time::timeout(Duration::from_secs(SECONDS), met).await;
        let lost = || DockerError::Lost("it does not say what it may do".to_owned());
        Ok((info, met.unwrap_or_else(|_| Err(lost()))?))
    };
    match met.await {
        Ok((info, host)) => {
            let word = |value: Option<String>| value.unwrap_or_else(|| "unknown".to_owned());
            let cgroup = info.cgroup_version.map(|it| it.to_string());
            let features = host.features().into_iter();
            let features: String = features.map(|it| format!(", {it}")).collect();
            let what = format!(
                "{} {} at {} ({}, cgroup v{}, {}{features})",
                flavor.product(),
                word(info.server_version),
                socket.display(),
                word(info.driver),
                word(cgroup),
                word(info.default_runtime),
            );
            let mut lacks = host.lacks_what();
            lacks.extend(host.closed(data));
            Finding::Usable { what, lacks }
        }
        Err(error) => Finding::Unusable {
            fix: match &error {
                // It says itself what to do.
                DockerError::Unfit { .. } => String::new(),
                _ => how_to_start(flavor),
            },
            why: error.to_string(),
        },
    }
}

/// Also where there is one of a user's.
fn how_to_start(flavor: Flavor) -> String {
    let fix = flavor.how_to_start();
    let users = fs::read_dir("/run/user").into_iter().flatten().flatten();
    let mut sockets = users
        .filter(|_| flavor == Flavor::Podman)
        .map(|user| user.path().join("podman/podman.sock"))
        .filter(|socket| socket.exists());
    match sockets.next() {
        Some(socket) => format!("{fix} (a user's is at {})", socket.display()),
        None => fix.to_owned(),
    }
}

/// For an answer.
const SECONDS: u64 = 5;
