//! The network of what goes on running: it may have been lost meanwhile.

use std::path::Path;

use overwinter_lifecycle::ids::SandboxId;

use crate::compute::Running;
use crate::driver::{Shared, Turn};
use crate::error::{At, LocalError};
use crate::host::read_spec;
use crate::network::Network;

impl Shared {
    /// Has packets carried again where nothing carries them any more. What there is to tell of it; a
    /// sandbox without its network is a sandbox still. Blocks.
    pub(super) fn mend_network(
        &self,
        turn: &Turn,
        sandbox: SandboxId,
        running: &Running,
    ) -> Option<String> {
        match self.try_mend(turn, sandbox, running) {
            Ok(true) => Some("network=made anew: what carried its packets had ended".to_owned()),
            Ok(false) => None,
            Err(error) => {
                tracing::error!(%sandbox, %error, "the network of a sandbox is lost");
                Some(format!("network=lost: {error}"))
            }
        }
    }

    /// Whether it had been lost.
    fn try_mend(
        &self,
        turn: &Turn,
        sandbox: SandboxId,
        running: &Running,
    ) -> Result<bool, LocalError> {
        let (host, native) = (&self.host, &running.record.native);
        let spec = read_spec(&host.layout.sandbox(sandbox))?;
        match Network::parse(&spec.network) {
            Some(Network::Internet) => {}
            Some(Network::None | Network::Host) | None => return Ok(false),
        }
        let net = match host.networks.find_net(native) {
            Some(net) => net,
            // It could not be taken on when this gateway was started.
            None => {
                let first = running.record.find_first(&host.layout)?;
                let net = match first {
                    Some(first) => host.networks.adopt(&host.cgroups, native, first)?,
                    None => None,
                };
                match net {
                    Some(net) => net,
                    None => return Ok(false),
                }
            }
        };
        if net.carrier().is_some() {
            return Ok(false);
        }
        let cpus = spec.resources.cpu_millis;
        host.networks
            .carry_again(&host.cgroups, &net, cpus, turn.until)?;
        let first = running.pidfd.try_clone();
        let first = first.at("duplicating", Path::new(native))?;
        let mut live = turn.entry.live();
        if let Some(live) = &mut *live
            && live.native == *native
        {
            live.carried(&net, first);
        }
        Ok(true)
    }
}
