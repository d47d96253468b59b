//! What this driver can do with the daemon that is there.

use std::path::Path;
use std::time::Duration;

use bollard::models::SystemInfo;
use overwinter_driver::{
    Depth, Description, Limit, NetworkOffer, RuntimeOffer, Survives, SuspensionMode,
};

use crate::driver::Shared;
use crate::error::DockerError;
use crate::flavor::Flavor;
use crate::host::Host;

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
            match shared.engine.met() {
                Ok(host) => here(flavor, &info, own, &host),
                Err(error) => away(shared, &error),
            }
        }
        Err(error) => away(shared, &error),
    }
}

fn here(
    flavor: Flavor,
    info: &SystemInfo,
    own: Result<bool, DockerError>,
    host: &Host,
) -> Description {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let cgroup = info.cgroup_version.map(|it| it.to_string());
    let mut features = vec![
        format!("cgroup v{}", cgroup.unwrap_or_default()),
        format!("storage {}", text(&info.driver)),
        format!("runtime {}", text(&info.default_runtime)),
    ];
    features.extend(host.features());
    Description {
        name: flavor.name().to_owned(),
        version: version(flavor, &text(&info.server_version)),
        features,
        networks: networks(flavor, own, host),
        runtimes: runtime(&info.default_runtime),
        modes: modes(host, sees(info.docker_root_dir.as_deref().map(Path::new))),
        unavailable: unavailable(host),
        unenforced: unenforced(info, host),
    }
}

/// Any daemon that this driver works with can stop and pause, and may carry out late what it was asked for:
/// that is so of one that has not answered yet. What differs is told as it was last, or not at all.
fn away(shared: &Shared, error: &DockerError) -> Description {
    let known = shared.engine.identity().ok().flatten();
    let flavor = shared.config.flavor;
    let sees = sees(known.as_ref().map(|it| it.root.as_path()));
    let (version_then, host) = known.map_or_else(
        || ("not seen yet".to_owned(), Host::default()),
        |it| (it.version, it.host),
    );
    Description {
        name: flavor.name().to_owned(),
        version: version(flavor, &version_then),
        features: vec![format!("away: {error}")],
        networks: networks(flavor, Ok(true), &host),
        runtimes: runtime(&None),
        modes: modes(&host, sees),
        unavailable: unavailable(&host),
        unenforced: unenforced(&SystemInfo::default(), &host),
    }
}

/// Whether the daemon's folder is there for this process: one in a container has it where it is mounted.
fn sees(root: Option<&Path>) -> bool {
    root.is_none_or(Path::is_dir)
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

fn networks(flavor: Flavor, own: Result<bool, DockerError>, host: &Host) -> Vec<NetworkOffer> {
    let name = flavor.network();
    let missing = |name: &str, why: String| NetworkOffer {
        name: name.to_owned(),
        missing: Some(why),
    };
    vec![
        NetworkOffer::of("none"),
        match (own, host.no_network()) {
            (Ok(true), None) => NetworkOffer::of(name),
            (Ok(true), Some(why)) => missing(name, why.clone()),
            (Ok(false), _) => missing(name, "the daemon has none".to_owned()),
            (Err(error), _) => missing(name, error.to_string()),
        },
        missing("internet", NOT_INTERNET.to_owned()),
    ]
}

/// A daemon may end what runs when it ends itself, and a pause with it: memory is sure to survive the
/// gateway alone.
fn modes(host: &Host, sees: bool) -> Vec<SuspensionMode> {
    let stop = SuspensionMode {
        // The very container, with a new address where it has one.
        same_compute: true,
        survives: Survives {
            gateway_restart: true,
            host_reboot: true,
            // What a stop cannot sync, nobody has.
            power_loss: sees,
        },
        ..SuspensionMode::of_this_host(Depth::Stop)
    };
    let freeze = SuspensionMode::of_this_host(Depth::Freeze);
    let freeze = host.no_freeze().is_none().then_some(freeze);
    let modes = freeze.into_iter().chain([stop]);
    modes
        .map(|mode| SuspensionMode {
            lost_request_life: LOST_REQUEST_LIFE,
            ..mode
        })
        .collect()
}

fn unavailable(host: &Host) -> Vec<(Depth, String)> {
    let freeze = host.no_freeze().map(|why| (Depth::Freeze, why.clone()));
    let checkpoint = (Depth::Checkpoint, NO_CHECKPOINT.to_owned());
    freeze.into_iter().chain([checkpoint]).collect()
}

fn unenforced(info: &SystemInfo, host: &Host) -> Vec<(Limit, String)> {
    let lacking = [
        (Limit::Cpu, info.cpu_cfs_quota),
        (Limit::Memory, info.memory_limit),
        (Limit::Pids, info.pids_limit),
    ];
    let lacking = lacking
        .into_iter()
        .filter(|(limit, there)| *there == Some(false) || host.lacks(*limit));
    let why = |(limit, _): (Limit, Option<bool>)| {
        let whose = if host.rootless.is_some() {
            "the daemon's user"
        } else {
            "the daemon's host"
        };
        let why = format!("{whose} has no control of {}", limit.as_str());
        (limit, why)
    };
    let mut unenforced: Vec<_> = lacking.map(why).collect();
    unenforced.push((Limit::Disk, NO_QUOTAS.to_owned()));
    unenforced
}
