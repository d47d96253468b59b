//! Every compute on this host that carries a gateway's label. Another gateway's are named by their
//! control groups and left alone.

use overwinter_driver::Found;
use overwinter_lifecycle::ids::{Incarnation, SandboxId};
use overwinter_lifecycle::steps::Observed;

use crate::bundle::{GATEWAY, INCARNATION, SANDBOX};
use crate::cgroup::Freezer;
use crate::error::LocalError;
use crate::host::Host;
use crate::process;
use crate::runtime::RuntimeState;

pub(crate) fn list(host: &Host) -> Result<Vec<Found>, LocalError> {
    let mut found = Vec::new();
    for native in host.natives()? {
        found.push(own(host, native)?);
    }
    for (gateway, native) in host.cgroups.foreign()? {
        found.push(Found {
            gateway: Some(gateway),
            sandbox: Host::sandbox_of(&native),
            birth: None,
            native_name: native,
            // Its state is in folders of its own.
            observed: Observed::Unknown,
        });
    }
    Ok(found)
}

fn own(host: &Host, native: String) -> Result<Found, LocalError> {
    let state = RuntimeState::read(&host.layout, &native)?;
    let label = |name| state.as_ref().and_then(|state| state.label(name));
    let sandbox = label(SANDBOX).map_or_else(
        || Host::sandbox_of(&native),
        |id| id.parse::<SandboxId>().ok(),
    );
    let birth = label(INCARNATION)
        .and_then(|number| number.parse().ok())
        .map(Incarnation);
    let gateway = label(GATEWAY).unwrap_or(&host.config.gateway_id).to_owned();
    let first = state.as_ref().and_then(RuntimeState::identity);
    let alive = first.map(process::open).transpose()?.flatten().is_some();
    let observed = match (alive, birth, host.cgroups.state(&native)?) {
        (true, Some(held), Some(Freezer::Thawed)) => Observed::Live { held },
        (true, Some(held), Some(Freezer::Frozen)) => Observed::Frozen { held },
        (true, _, Some(Freezer::Freezing)) => Observed::InTransition,
        (true, None, _) => Observed::Unknown,
        (true, Some(_), None) | (false, _, _) => Observed::Stopped,
    };
    Ok(Found {
        gateway: Some(gateway),
        sandbox,
        birth,
        native_name: native,
        observed,
    })
}
