//! Whether sandboxes can have a network here, and whether those that run still have theirs.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use overwinter_lifecycle::ids::SandboxId;

use super::{Check, Status, join};
use crate::cgroup::Cgroups;
use crate::compute::ComputeRecord;
use crate::config::{DEFAULT_UID_BASE, DEFAULT_UID_COUNT, NetworkConfig};
use crate::host::{names, read_spec};
use crate::layout::Layout;
use crate::network::{Network, NoNetwork, Programs};
use crate::{process, ranges};

/// Tried out, as id-mapped mounts are, in a namespace that nobody has.
pub(super) fn internet() -> Check {
    const NAME: &str = "network internet";
    let owner = ranges::owner(DEFAULT_UID_BASE, DEFAULT_UID_COUNT);
    match Programs::find(&NetworkConfig::default(), owner) {
        Ok(programs) => Check::ok(NAME, programs.describe()),
        Err(why @ (NoNetwork::NoPasta | NoNetwork::NoNft | NoNetwork::NoTun)) => Check::new(
            NAME,
            Status::Warn,
            why.to_string(),
            "sandboxes have no way out without it (Debian: apt-get install passt nftables)",
        ),
        Err(why @ NoNetwork::NotRoot) => {
            Check::new(NAME, Status::Warn, why.to_string(), "run doctor as root")
        }
        Err(why) => Check::new(
            NAME,
            Status::Warn,
            why.to_string(),
            "use a kernel with nf_tables, its nat and reject, and CONFIG_TUN",
        ),
    }
}

/// None: no sandbox runs that has a way out.
pub(super) fn carried(state_dir: &Path) -> Option<Check> {
    const NAME: &str = "networks of sandboxes";
    let state = fs::canonicalize(state_dir).ok()?;
    let layout = Layout::new(state, PathBuf::from("/"));
    let boot_id = super::read("/proc/sys/kernel/random/boot_id")?;
    let gateways: BTreeMap<_, _> = (Cgroups::find("doctor")?.foreign().ok()?.into_iter())
        .map(|(gateway, native)| (native, gateway))
        .collect();
    let ids = names(&layout.sandboxes()).ok()?;
    let ids = ids.iter().filter_map(|id| id.parse::<SandboxId>().ok());
    let running: Vec<_> = ids
        .filter_map(|id| {
            let (name, native) = running(&layout, &boot_id, id)?;
            // Named by a compute that runs: its group is one of a gateway's.
            let cgroups = Cgroups::find(gateways.get(&native)?)?;
            Some((name, cgroups.carrier(&native).ok()?.is_some()))
        })
        .collect();
    let lost = running.iter().filter(|(_, carried)| !carried);
    let lost: Vec<_> = lost.map(|(name, _)| name.as_str()).collect();
    match (running.len(), lost.is_empty()) {
        (0, _) => None,
        (all, true) => Some(Check::ok(NAME, format!("all {all} are there"))),
        (all, false) => Some(Check::new(
            NAME,
            Status::Warn,
            format!("lost by {} of {all}: {}", lost.len(), join(lost)),
            "the gateway's log says why; suspend and resume, or start, such a sandbox to make it anew",
        )),
    }
}

/// The name of a sandbox that has a way out, and that of its compute. None: it has none, or does not run.
fn running(layout: &Layout, boot_id: &str, sandbox: SandboxId) -> Option<(String, String)> {
    let dir = layout.sandbox(sandbox);
    let record = ComputeRecord::read(&dir).ok()??;
    let first = record.find_first(layout).ok()??;
    if record.boot_id != boot_id || process::open(first).ok()?.is_none() {
        return None;
    }
    let spec = read_spec(&dir).ok()?;
    let has_way_out = Network::parse(&spec.network) == Some(Network::Internet);
    has_way_out.then_some((spec.name, record.native))
}
