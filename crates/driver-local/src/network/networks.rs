//! What this host offers, given to one compute after another.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::filter::{self, Filter};
use super::joining::{Joined, Joining, Joint};
use super::offer::{Network, NoNetwork, Programs};
use super::pasta::{self, Pasta};
use super::watch::Filtered;
use super::{TRIED_WITHIN, addresses, inside};
use crate::cgroup::{Bounds, Cgroups};
use crate::config::LocalConfig;
use crate::error::{At, LocalError, OpenError};
use crate::process::{self, Identity};
use crate::runtime::Kind;
use crate::userns::Network as Namespaces;

/// For what carries packets to be there, at most; it takes some 30 ms.
const READY_WITHIN: Duration = Duration::from_secs(10);

/// Its tables have a fixed size, some 30 MiB; the rest is what the kernel holds for its sockets.
const PASTA_MEMORY: u64 = 256 << 20;
/// It is one process, and another for the moment of its start.
const PASTA_PROCESSES: u32 = 16;

/// The host's user that owns networks: below all that sandboxes have.
pub(crate) const fn owner(uid_base: u32) -> u32 {
    uid_base.saturating_sub(1)
}

/// What this host offers.
#[derive(Debug)]
pub(crate) struct Networks {
    internet: Result<Programs, NoNetwork>,
    host: bool,
    owner: u32,
    filter: Filter,
    dns: Vec<std::net::IpAddr>,
    pub(super) filtered: Filtered,
}

impl Networks {
    pub(crate) fn find(config: &LocalConfig) -> Result<Self, OpenError> {
        if let Some(closed) = filter::never_in(&config.network.allow) {
            return Err(OpenError::Closed(closed));
        }
        let owner = owner(config.uid_base);
        Ok(Self {
            internet: Programs::find(&config.network, owner),
            host: config.network.host,
            owner,
            filter: Filter::new(&config.network.allow),
            dns: config.network.dns.clone(),
            filtered: Filtered::default(),
        })
    }

    /// Whether a sandbox may have it, on any runtime.
    pub(crate) fn offers(&self, network: Network) -> Result<(), &NoNetwork> {
        match network {
            Network::None => Ok(()),
            Network::Internet => self.internet.as_ref().map(|_| ()),
            Network::Host if self.host => Ok(()),
            Network::Host => Err(&NoNetwork::Off),
        }
    }

    /// Whether a sandbox on this kind of runtime may have what it asks for.
    pub(crate) fn admit(&self, name: &str, runtime: Kind) -> Result<Network, &NoNetwork> {
        let network = Network::parse(name).ok_or(&NoNetwork::Unknown)?;
        self.offers(network)?;
        match (network, runtime) {
            (Network::None, _) | (Network::Internet | Network::Host, Kind::Runc) => Ok(network),
            (Network::Internet | Network::Host, Kind::Gvisor) => Err(&NoNetwork::Gvisor),
        }
    }

    /// What a sandbox's `/etc/resolv.conf` begins with.
    pub(crate) fn resolv_conf(&self, network: Network) -> String {
        match network {
            Network::None => String::new(),
            Network::Internet => pasta::resolv_conf(&self.name_servers()),
            Network::Host => addresses::resolv_conf(),
        }
    }

    fn name_servers(&self) -> Vec<std::net::IpAddr> {
        if self.dns.is_empty() {
            addresses::name_servers(&addresses::resolv_conf())
        } else {
            self.dns.clone()
        }
    }

    /// Prepares the network of one compute. It is complete when [`Joining::ready`] has returned.
    pub(crate) fn join(
        &self,
        cgroups: &Cgroups,
        native: &str,
        network: Network,
        cpu_millis: u32,
    ) -> Result<Joining, LocalError> {
        let until = Instant::now() + READY_WITHIN;
        let programs = match (network, &self.internet) {
            (Network::None, _) => return Ok(Joining::done(Joined::Nothing, None)),
            (Network::Host, _) => {
                let sysfs = inside::sysfs()?;
                return Ok(Joining::done(Joined::Host, Some(sysfs)));
            }
            (Network::Internet, Ok(programs)) => programs,
            (Network::Internet, Err(why)) => return Err(why.clone().into()),
        };
        let made = Namespaces::make(self.owner)?;
        let bounds = Bounds {
            memory_bytes: PASTA_MEMORY,
            pids: PASTA_PROCESSES,
            cpu_millis,
        };
        let joins = cgroups.make_companion(native, bounds)?;
        let pasta = Pasta::start(&programs.pasta, &made, self.owner, joins, &self.dns)?;
        let net = Arc::new(made.net.try_clone().at("duplicating", Path::new(native))?);
        self.filtered.add(native, Arc::clone(&net));
        let own = addresses::own()?;
        let rules = self.filter.with_host(&own).rules();
        let sysfs = inside::prepare(&net, &programs.nft, &rules, until)?;
        if addresses::own()? != own {
            self.close_own(&net, until)?;
        }
        Ok(Joining {
            joined: Joined::Internet(Joint(made)),
            sysfs: Some(sysfs),
            pasta: Some(pasta),
            until,
        })
    }
}

impl Networks {
    /// Closes this host's addresses, as they are now, to who is in the namespace.
    pub(super) fn close_own(&self, net: &File, until: Instant) -> Result<(), LocalError> {
        match &self.internet {
            Ok(programs) => {
                let more = filter::close(&addresses::own()?);
                inside::add(net, &programs.nft, &more, until)
            }
            // Set up by a gateway that had what this one lacks.
            Err(why) => Err(why.clone().into()),
        }
    }

    /// Goes on with the network of a compute that another gateway has started; none where it has none.
    pub(crate) fn adopt(&self, native: &str, first: Identity) -> Result<(), LocalError> {
        let path = PathBuf::from(format!("/proc/{}/ns/net", first.pid));
        let net = Arc::new(File::open(&path).at("opening", &path)?);
        // Opened before this is asked: it is the one of that process.
        if process::open(first).is_none() {
            return Ok(());
        }
        self.filtered.add(native, Arc::clone(&net));
        self.close_own(&net, Instant::now() + TRIED_WITHIN)
    }

    pub(crate) fn forget(&self, native: &str) {
        self.filtered.remove(native);
    }
}
