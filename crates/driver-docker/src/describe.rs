//! What this driver can do with the daemon that is there.

use std::time::Duration;

use bollard::models::SystemInfo;
use overwinter_driver::{
    Depth, Description, Limit, NetworkOffer, RuntimeOffer, Survives, SuspensionMode,
};

use crate::driver::Shared;
use crate::error::DockerError;
use crate::flavor::Flavor;

/// How long after it was sent a request whose reply was lost may still be carried out, beyond what
/// orders it anyway. The daemon takes connections in the order in which they were made, and holds a lock
/// over a container from the beginning of a change to its end, for which a look waits. So a look that is
/// answered, on a connection of its own, comes after every request that was sent before it, however long
/// the daemon stood still; what is left is the moment between taking a connection and taking the lock.
const LOST_REQUEST_LIFE: Duration = Duration::from_secs(2);

const NO_CHECKPOINT: &str = "this driver does not write memory to disk";
const NO_QUOTAS: &str =
    "daemons limit the size of a container on few storage drivers, and this driver asks for none";
const NOT_INTERNET: &str =
    "the daemon's own networks do not keep a sandbox from this host and its neighbours";

pub(crate) async fn describe(shared: &Shared) -> Description {
    match shared.engine.info().await {
        Ok(info) => {
            let flavor = shared.config.flavor;
            let own = shared.engine.has_network(flavor.network()).await;
            here(flavor, &info, own)
        }
        Err(error) => away(shared, &error),
    }
}

fn here(flavor: Flavor, info: &SystemInfo, own: Result<bool, DockerError>) -> Description {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let cgroup = info.cgroup_version.map(|it| it.to_string());
    Description {
        name: flavor.name().to_owned(),
        version: version(flavor, &text(&info.server_version)),
        features: vec![
            format!("cgroup v{}", cgroup.unwrap_or_default()),
            format!("storage {}", text(&info.driver)),
            format!("runtime {}", text(&info.default_runtime)),
        ],
        networks: networks(flavor, own),
        runtimes: runtime(&info.default_runtime),
        modes: modes(),
        unavailable: vec![(Depth::Checkpoint, NO_CHECKPOINT.to_owned())],
        unenforced: unenforced(info),
    }
}

/// Any daemon that this driver works with can stop and pause, and may carry out late what it was asked for:
/// that is so of one that has not answered yet. What differs is told as it was last, or not at all.
fn away(shared: &Shared, error: &DockerError) -> Description {
    let known = shared.engine.identity().ok().flatten();
    let flavor = shared.config.flavor;
    let version_then = known.map_or_else(|| "not seen yet".to_owned(), |it| it.version);
    Description {
        name: flavor.name().to_owned(),
        version: version(flavor, &version_then),
        features: vec![format!("away: {error}")],
        networks: networks(flavor, Ok(true)),
        runtimes: runtime(&None),
        modes: modes(),
        unavailable: vec![(Depth::Checkpoint, NO_CHECKPOINT.to_owned())],
        unenforced: vec![(Limit::Disk, NO_QUOTAS.to_owned())],
    }
}

fn version(flavor: Flavor, daemon: &str) -> String {
    let (own, product) = (env!("CARGO_PKG_VERSION"), flavor.product());
    format!("{own} ({product} {daemon})")
}

fn runtime(name: &Option<String>) -> Vec<RuntimeOffer> {
    vec![RuntimeOffer {
        name: name.clone().unwrap_or_else(|| "runc".to_owned()),
        without: Vec::new(),
        lacks: Vec::new(),
    }]
}

fn networks(flavor: Flavor, own: Result<bool, DockerError>) -> Vec<NetworkOffer> {
    let name = flavor.network();
    let missing = |name: &str, why: String| NetworkOffer {
        name: name.to_owned(),
        missing: Some(why),
    };
    vec![
        NetworkOffer::of("none"),
        match own {
            Ok(true) => NetworkOffer::of(name),
            Ok(false) => missing(name, "the daemon has none".to_owned()),
            Err(error) => missing(name, error.to_string()),
        },
        missing("internet", NOT_INTERNET.to_owned()),
    ]
}

/// A daemon may end what runs when it ends itself, and a pause with it: memory is sure to survive the
/// gateway alone.
fn modes() -> Vec<SuspensionMode> {
    let stop = SuspensionMode {
        // The very container, with a new address where it has one.
        same_compute: true,
        survives: Survives {
            gateway_restart: true,
            host_reboot: true,
            power_loss: true,
        },
        ..SuspensionMode::of_this_host(Depth::Stop)
    };
    [SuspensionMode::of_this_host(Depth::Freeze), stop]
        .map(|mode| SuspensionMode {
            lost_request_life: LOST_REQUEST_LIFE,
            ..mode
        })
        .to_vec()
}

fn unenforced(info: &SystemInfo) -> Vec<(Limit, String)> {
    let lacking = [
        (Limit::Cpu, info.cpu_cfs_quota),
        (Limit::Memory, info.memory_limit),
        (Limit::Pids, info.pids_limit),
    ];
    let lacking = lacking
        .into_iter()
        .filter(|(_, there)| *there == Some(false));
    let why = |(limit, _): (Limit, Option<bool>)| {
        let why = format!("the daemon's host has no control of {}", limit.as_str());
        (limit, why)
    };
    let mut unenforced: Vec<_> = lacking.map(why).collect();
    unenforced.push((Limit::Disk, NO_QUOTAS.to_owned()));
    unenforced
}
