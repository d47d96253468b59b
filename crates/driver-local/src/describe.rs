//! What this driver can do here.

use overwinter_driver::{
    Depth, Description, DriverError, Limit, NetworkOffer, Reclaim, RuntimeOffer, SuspensionMode,
};

use crate::compute::Look;
use crate::effects::DRIVER;
use crate::host::Host;
use crate::network::Network;
use crate::reclaim::Swaps;
use crate::runtime::{Kind, Runtime};

const NO_QUOTAS: &str = "the filesystem of the gateway's data folder has no project quotas; on ext4: \
     tune2fs -O project,quota, then mount with prjquota";
const NO_CHECKPOINT: &str = "no runtime that writes memory to disk is installed: install gVisor's runsc (with runc, CRIU is \
     not used: what it has restored it could not write again, as PID 1 cannot be traced)";

const NOT_ON_RUNC: &str = "its runtime does not write memory to disk, as gVisor's runsc does (create one with \
     --runtime runsc)";

pub(crate) fn describe(host: &Host) -> Description {
    let disk = if host.quota.is_some() {
        "disk limits (project quotas)"
    } else {
        "no disk limits (the filesystem has no project quotas)"
    };
    let writes = host.runtimes.of(Kind::Gvisor).is_some();
    Description {
        name: DRIVER.to_owned(),
        version: format!(
            "{} ({})",
            env!("CARGO_PKG_VERSION"),
            host.runtimes.default().version
        ),
        features: vec![
            format!("cgroup {}", host.cgroups.version()),
            "user namespaces".to_owned(),
            "seccomp".to_owned(),
            disk.to_owned(),
        ],
        networks: Network::ALL.map(|network| offered(host, network)).to_vec(),
        runtimes: host.runtimes.all().map(on_runtime).collect(),
        modes: modes(writes),
        unavailable: if writes {
            Vec::new()
        } else {
            vec![(Depth::Checkpoint, NO_CHECKPOINT.to_owned())]
        },
        unenforced: if host.quota.is_some() {
            Vec::new()
        } else {
            vec![(Limit::Disk, NO_QUOTAS.to_owned())]
        },
    }
}

fn offered(host: &Host, network: Network) -> NetworkOffer {
    let missing = host.networks.offers(network).err();
    NetworkOffer {
        name: network.as_str().to_owned(),
        missing: missing.map(|why| why.to_string()),
    }
}

/// What a sandbox on it has to do without, whatever this host offers.
fn on_runtime(runtime: &Runtime) -> RuntimeOffer {
    let without = |network: Network| {
        let missing = network.on(runtime.kind).err()?;
        Some((network.as_str().to_owned(), missing.to_string()))
    };
    RuntimeOffer {
        name: runtime.name.clone(),
        without: Network::ALL.into_iter().filter_map(without).collect(),
        lacks: match runtime.kind {
            Kind::Runc => vec![(Depth::Checkpoint, NOT_ON_RUNC.to_owned())],
            Kind::Gvisor => Vec::new(),
        },
    }
}

/// `checkpoint` is offered where a runtime can do it; whether one sandbox can, depends on its own.
fn modes(writes: bool) -> Vec<SuspensionMode> {
    let offered = |depth: &Depth| match depth {
        Depth::Checkpoint => writes,
        Depth::Freeze | Depth::Stop => true,
    };
    let depths = Depth::ALL.into_iter().filter(offered);
    let reclaim = |depth| match depth {
        Depth::Freeze => match Swaps::find() {
            Ok(_) => Reclaim::Offered,
            Err(why) => Reclaim::Missing(why.to_string()),
        },
        Depth::Checkpoint | Depth::Stop => Reclaim::No,
    };
    depths
        .map(|depth| SuspensionMode {
            reclaim: reclaim(depth),
            ..SuspensionMode::of_this_host(depth)
        })
        .collect()
}

/// Whether the memory of compute that this kind of runtime runs can be written to disk.
pub(crate) fn can_checkpoint(host: &Host, kind: Kind) -> Result<(), DriverError> {
    if host.runtimes.of(Kind::Gvisor).is_none() {
        return Err(DriverError::Unsupported(NO_CHECKPOINT.to_owned()));
    }
    match kind {
        Kind::Gvisor => Ok(()),
        Kind::Runc => Err(DriverError::Rejected(format!(
            "no checkpoint of this sandbox: {NOT_ON_RUNC}"
        ))),
    }
}

/// Whether a suspend at `depth` could be carried out on what is there.
pub(crate) fn admits(host: &Host, depth: Depth, look: &Look) -> Result<(), DriverError> {
    match (depth, look) {
        (Depth::Checkpoint, Look::Running(running)) => can_checkpoint(host, running.record.runtime),
        (Depth::Checkpoint, Look::Nothing | Look::Remains(_)) => {
            can_checkpoint(host, Kind::Gvisor)?;
            Err(DriverError::Rejected(
                "no compute is there whose memory could be written".to_owned(),
            ))
        }
        (Depth::Stop, _) | (Depth::Freeze, Look::Running(_)) => Ok(()),
        (Depth::Freeze, Look::Nothing | Look::Remains(_)) => Err(DriverError::Rejected(
            "no compute is there to freeze".to_owned(),
        )),
    }
}
