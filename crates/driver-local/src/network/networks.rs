//! What this host offers, given to one compute after another.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::filter::{self, Filter};
use super::filtered::{Filtered, Net};
use super::joining::{Joined, Joining, Joint, Starting};
use super::offer::{Network, NoNetwork, Programs};
use super::pasta::{self, Pasta};
use super::{TRIED_WITHIN, addresses, inside};
use crate::cgroup::{Bounds, Cgroups};
use crate::config::LocalConfig;
use crate::error::{At, LocalError, OpenError};
use crate::process::{self, Identity};
use crate::ranges;
use crate::runtime::Kind;
use crate::userns::Network as Namespaces;

/// For what carries packets to be there, at most; it takes some 30 ms.
const READY_WITHIN: Duration = Duration::from_secs(10);

/// Its tables have a fixed size, some 30 MiB; the rest is what the kernel holds for its sockets.
const PASTA_MEMORY: u64 = 256 << 20;
/// It is one process, and another for the moment of its start.
const PASTA_PROCESSES: u32 = 16;

/// What this host offers.
#[derive(Debug)]
pub(crate) struct Networks {
    internet: Result<Programs, NoNetwork>,
    host: bool,
    owner: u32,
    filter: Filter,
    dns: Vec<std::net::IpAddr>,
    filtered: Filtered,
    /// Why this host's addresses cannot be followed. None: they are.
    unfollowed: Mutex<Option<Arc<LocalError>>>,
}

impl Networks {
    pub(crate) fn find(config: &LocalConfig) -> Result<Self, OpenError> {
        if let Some(closed) = filter::never_in(&config.network.allow) {
            return Err(OpenError::Closed(closed));
        }
        let owner = ranges::owner(config.uid_base, config.uid_count);
        Ok(Self {
            internet: Programs::find(&config.network, owner),
            host: config.network.host,
            owner,
            filter: Filter::new(&config.network.allow),
            dns: config.network.dns.clone(),
            filtered: Filtered::default(),
            unfollowed: Mutex::default(),
        })
    }

    /// Whether a sandbox may have it, on any runtime.
    pub(crate) fn offers(&self, network: Network) -> Result<(), NoNetwork> {
        match network {
            Network::None => Ok(()),
            Network::Internet => self.internet().map(|_| ()),
            Network::Host if self.host => Ok(()),
            Network::Host => Err(NoNetwork::Off),
        }
    }

    fn internet(&self) -> Result<&Programs, NoNetwork> {
        let programs = self.internet.as_ref().map_err(Clone::clone)?;
        match &*self.unfollowed() {
            None => Ok(programs),
            Some(why) => Err(NoNetwork::Unfollowed(Arc::clone(why))),
        }
    }

    fn unfollowed(&self) -> MutexGuard<'_, Option<Arc<LocalError>>> {
        self.unfollowed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a sandbox on this kind of runtime may have what it asks for.
    pub(crate) fn admit(&self, name: &str, runtime: Kind) -> Result<Network, NoNetwork> {
        let network = Network::parse(name).ok_or(NoNetwork::Unknown)?;
        self.offers(network)?;
        network.on(runtime)?;
        Ok(network)
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
        match network {
            Network::None => return Ok(Joining::done(Joined::Nothing, None)),
            Network::Host => {
                let sysfs = inside::sysfs()?;
                return Ok(Joining::done(Joined::Host, Some(sysfs)));
            }
            Network::Internet => {}
        }
        let programs = self.internet()?;
        let made = Namespaces::make(self.owner)?;
        let joins = cgroups.make_companion(native, bounds(cpu_millis))?;
        let pasta = Pasta::start(&programs.pasta, &made, self.owner, joins, &self.dns)?;
        let namespace = made.net.try_clone().at("duplicating", Path::new(native))?;
        let net = Net::new(native, namespace, None);
        self.filtered.add(native, &net);
        let own = addresses::own()?;
        let rules = self.filter.with_host(&own).rules();
        let sysfs = inside::prepare(&net.namespace, &programs.nft, &rules, until)?;
        net.loaded(own);
        net.close(&programs.nft, &addresses::own()?, until)?;
        Ok(Joining {
            joined: Joined::Internet(Joint(made)),
            sysfs: Some(sysfs),
            carrying: Some(Starting { net, pasta }),
            until,
        })
    }

    /// Goes on with the network of a compute that another gateway has started. None: the compute has
    /// ended.
    pub(crate) fn adopt(
        &self,
        cgroups: &Cgroups,
        native: &str,
        first: Identity,
    ) -> Result<Option<Arc<Net>>, LocalError> {
        let programs = self.internet()?;
        let path = PathBuf::from(format!("/proc/{}/ns/net", first.pid));
        let namespace = File::open(&path).at("opening", &path)?;
        // Opened before this is asked: it is the one of that process.
        if process::open(first)?.is_none() {
            return Ok(None);
        }
        let net = Net::new(native, namespace, Some(BTreeSet::new()));
        self.filtered.add(native, &net);
        let until = Instant::now() + TRIED_WITHIN;
        net.close(&programs.nft, &addresses::own()?, until)?;
        if let Some(carrier) = cgroups.carrier(native)? {
            net.carried_by(carrier);
        }
        Ok(Some(net))
    }

    /// Has packets carried again in a network that nothing carries packets of any more. In this order,
    /// so that whoever fails to close something meanwhile cuts what comes of it.
    pub(crate) fn carry_again(
        &self,
        cgroups: &Cgroups,
        net: &Arc<Net>,
        cpu_millis: u32,
        until: Instant,
    ) -> Result<(), LocalError> {
        let until = until.min(Instant::now() + READY_WITHIN);
        let programs = self.internet()?;
        net.mend();
        net.close(&programs.nft, &addresses::own()?, until)?;
        let (namespaces, owner) = Namespaces::around(&net.namespace)?;
        let joins = cgroups.make_companion(&net.native, bounds(cpu_millis))?;
        let pasta = Pasta::start(&programs.pasta, &namespaces, owner, joins, &self.dns)?;
        let net = Arc::clone(net);
        Starting { net, pasta }.ready(cgroups, until)
    }

    pub(crate) fn find_net(&self, native: &str) -> Option<Arc<Net>> {
        self.filtered.find(native)
    }

    /// Ends the network of a compute that has ended: that very one.
    pub(crate) fn end(&self, net: &Arc<Net>) {
        net.end_carrier();
        self.filtered.remove_this(net);
    }

    pub(crate) fn forget(&self, native: &str) {
        self.filtered.remove(native);
    }

    /// Closes this host's addresses, as they are now, in every network, several at a time; one to which
    /// they cannot be closed is cut. The rules of a network can be changed from within it alone, so
    /// that each has a transaction of its own.
    pub(super) fn renew(&self) -> Result<(), LocalError> {
        // Without the programs no network was taken on.
        let Ok(programs) = &self.internet else {
            return Ok(());
        };
        let own = addresses::own()?;
        let waiting = Mutex::new(self.filtered.all().into_iter());
        let next = || {
            waiting
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .next()
        };
        let work = || {
            while let Some(net) = next() {
                let closed = net.close(&programs.nft, &own, Instant::now() + TRIED_WITHIN);
                if let Err(error) = closed {
                    net.cut();
                    tracing::error!(
                        %error, native = net.native,
                        "a new address of this host cannot be closed to a sandbox: its network is cut"
                    );
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..RENEWED_AT_ONCE {
                // Where no more threads are to be had this one does it.
                let _ = std::thread::Builder::new().spawn_scoped(scope, work);
            }
            work();
        });
        Ok(())
    }

    /// Whether this host's addresses are followed.
    pub(super) fn set_unfollowed(&self, why: Option<Arc<LocalError>>) {
        *self.unfollowed() = why;
    }

    /// Ends every way out. Answers with how many there were.
    pub(super) fn cut_all(&self) -> usize {
        let all = self.filtered.all();
        all.iter().for_each(|net| net.cut());
        all.len()
    }
}

/// Of networks whose rules are changed: most of it is waiting for a program to start.
const RENEWED_AT_ONCE: usize = 4;

const fn bounds(cpu_millis: u32) -> Bounds {
    Bounds {
        memory_bytes: PASTA_MEMORY,
        pids: PASTA_PROCESSES,
        cpu_millis,
    }
}
