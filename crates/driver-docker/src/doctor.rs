//! Whether a daemon can be used, and what to do where not. Changes nothing.

use std::fs;
use std::path::Path;
use std::time::Duration;

use bollard::models::SystemInfo;
use bollard::{API_DEFAULT_VERSION, Docker};
use rustix::process::{Uid, geteuid};

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
            let uncontrolled = uncontrolled(&info).filter(|_| host.rootless.is_none());
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
            lacks.extend(uncontrolled);
            lacks.extend(unprivileged(flavor, geteuid()));
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

/// Limits that the daemon's host cannot keep.
fn uncontrolled(info: &SystemInfo) -> Option<Lack> {
    let all = [
        ("cpu", info.cpu_cfs_quota),
        ("memory", info.memory_limit),
        ("pids", info.pids_limit),
    ];
    let lacking = all.iter().filter(|(_, there)| *there == Some(false));
    let lacking: Vec<_> = lacking.map(|(name, _)| *name).collect();
    (!lacking.is_empty()).then(|| Lack {
        what: format!(
            "no limits of {}: the daemon's host has no control group for them",
            lacking.join(", ")
        ),
        fix: "mount those control groups; of memory, some kernels need cgroup_enable=memory"
            .to_owned(),
    })
}

/// Of a gateway that this user would start.
fn unprivileged(flavor: Flavor, uid: Uid) -> Option<Lack> {
    (!uid.is_root()).then(|| Lack {
        what: format!("a gateway of user {} cannot use it", uid.as_raw()),
        fix: match flavor {
            Flavor::Docker => "run the gateway as root",
            Flavor::Podman => {
                "run the gateway as root, or beside your own Podman by podman unshare overwinter gateway run"
            }
        }
        .to_owned(),
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_that_cannot_hold_are_named() {
        assert_eq!(uncontrolled(&SystemInfo::default()), None);
        let info = SystemInfo {
            memory_limit: Some(false),
            cpu_cfs_quota: Some(true),
            pids_limit: Some(false),
            ..SystemInfo::default()
        };
        let lack = uncontrolled(&info);
        assert!(lack.is_some_and(|it| it.what.starts_with("no limits of memory, pids: ")));
    }

    #[test]
    fn a_user_without_privilege_is_told_who_may() {
        assert_eq!(unprivileged(Flavor::Docker, Uid::ROOT), None);
        let user = Uid::from_raw(1000);
        let podman = unprivileged(Flavor::Podman, user).map(|it| it.fix);
        assert!(podman.is_some_and(|fix| fix.contains("podman unshare")));
        let docker = unprivileged(Flavor::Docker, user).map(|it| it.fix);
        assert!(docker.is_some_and(|fix| !fix.contains("podman")));
    }
}
