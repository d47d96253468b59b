//! What a sandbox reaches, and what keeps it from the rest.
//!
//! ```text
//! none       a network namespace with loopback alone
//! internet   user ─ kernel of a prepared namespace ─ filter ─ tap ─ pasta ─ sockets of this host
//! host       this host's own namespace
//! ```
//!
//! The namespace of `internet` is in a user namespace that is not the sandbox's. So whatever right a
//! program gets inside, it has none over addresses, routes and the filter. It is made, filtered and
//! connected before the runtime is called: nothing inside ever ran without.
//!
//! | module | its one idea |
//! |---|---|
//! | `filter` | the rules: what is closed, what is let through |
//! | `addresses` | this host's own addresses and name servers |
//! | `pasta` | the process that carries packets, in a group of its own beside the compute's |
//! | `inside` | what is done in the prepared namespace |
//! | `watch` | addresses that this host gets later |
//! | `command` | a program that ends before a deadline |

mod addresses;
mod command;
mod filter;
mod inside;
mod pasta;
mod watch;

use std::fmt;
use std::fs::{self, File};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cgroup::{Bounds, Cgroups};
use crate::config::{LocalConfig, NetworkConfig};
use crate::error::{At, LocalError, OpenError};
use crate::process::{self, Identity};
use crate::runtime::{Kind, which};
use crate::userns::Network as Namespaces;
use filter::Filter;
use pasta::Pasta;
use watch::Filtered;
pub(crate) use watch::Watch;

/// What a sandbox can ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Network {
    None,
    Internet,
    Host,
}

impl Network {
    pub(crate) const ALL: [Self; 3] = [Self::None, Self::Internet, Self::Host];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Internet => "internet",
            Self::Host => "host",
        }
    }

    /// Empty: none. None: no network of this driver's has that name.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        match name {
            "" => Some(Self::None),
            name => Self::ALL.into_iter().find(|it| it.as_str() == name),
        }
    }
}

/// Why a sandbox cannot have a network here.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoNetwork {
    #[error("this driver has {}", Names(&Network::ALL))]
    Unknown,
    #[error("`pasta` is not installed (Debian: the package passt)")]
    NoPasta,
    #[error("`nft` is not installed (Debian: the package nftables)")]
    NoNft,
    #[error("the kernel has no /dev/net/tun (modprobe tun)")]
    NoTun,
    #[error("the filter cannot be set up here: {0}")]
    NoFilter(String),
    #[error("not tried: needs root")]
    NotRoot,
    #[error(
        "gVisor has a network stack of its own, which this driver does not connect: use the runtime runc"
    )]
    Gvisor,
    #[error("it is switched off (local.network.host in the gateway's configuration)")]
    Off,
}

struct Names<'a>(&'a [Network]);

impl fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.0.iter().map(|it| it.as_str()).collect();
        f.write_str(&names.join(", "))
    }
}

/// The programs that `internet` needs.
#[derive(Debug)]
pub(crate) struct Programs {
    pasta: PathBuf,
    nft: PathBuf,
}

impl Programs {
    /// Tried out on a namespace that nobody has: whether the kernel knows every rule is not written
    /// anywhere.
    pub(crate) fn find(config: &NetworkConfig, owner: u32) -> Result<Self, NoNetwork> {
        let pasta = which(&config.pasta).ok_or(NoNetwork::NoPasta)?;
        let nft = which(&config.nft).ok_or(NoNetwork::NoNft)?;
        let tun = fs::metadata("/dev/net/tun").map(|found| found.file_type().is_char_device());
        if !tun.unwrap_or(false) {
            return Err(NoNetwork::NoTun);
        }
        if !rustix::process::geteuid().is_root() {
            return Err(NoNetwork::NotRoot);
        }
        let tried = Namespaces::make(owner).and_then(|made| {
            let rules = Filter::default().rules();
            inside::prepare(&made.net, &nft, &rules, Instant::now() + TRIED_WITHIN)
        });
        match tried {
            Ok(_) => Ok(Self { pasta, nft }),
            Err(error) => Err(NoNetwork::NoFilter(error.to_string())),
        }
    }

    /// For people: what carries packets, and where it is.
    pub(crate) fn describe(&self) -> String {
        format!("{}, {}", self.pasta.display(), self.nft.display())
    }
}

const TRIED_WITHIN: Duration = Duration::from_secs(5);
/// For what carries packets to be there, at most; it takes some 30 ms.
const READY_WITHIN: Duration = Duration::from_secs(10);

/// What this host offers.
#[derive(Debug)]
pub(crate) struct Networks {
    internet: Result<Programs, NoNetwork>,
    host: bool,
    owner: u32,
    filter: Filter,
    dns: Vec<std::net::IpAddr>,
    filtered: Filtered,
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
            (Network::Internet, Err(why)) => {
                return Err(LocalError::Network {
                    program: "internet",
                    message: why.to_string(),
                });
            }
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
    fn close_own(&self, net: &File, until: Instant) -> Result<(), LocalError> {
        match &self.internet {
            Ok(programs) => {
                let more = filter::close(&addresses::own()?);
                inside::add(net, &programs.nft, &more, until)
            }
            // Set up by a gateway that had what this one lacks.
            Err(why) => Err(LocalError::Network {
                program: "nft",
                message: why.to_string(),
            }),
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

/// Its tables have a fixed size, some 30 MiB; the rest is what the kernel holds for its sockets.
const PASTA_MEMORY: u64 = 256 << 20;
/// It is one process, and another for the moment of its start.
const PASTA_PROCESSES: u32 = 16;

/// The host's user that owns networks: below all that sandboxes have.
pub(crate) const fn owner(uid_base: u32) -> u32 {
    uid_base.saturating_sub(1)
}

/// A network that is being set up.
pub(crate) struct Joining {
    joined: Joined,
    sysfs: Option<OwnedFd>,
    pasta: Option<Pasta>,
    until: Instant,
}

impl Joining {
    fn done(joined: Joined, sysfs: Option<OwnedFd>) -> Self {
        Self {
            joined,
            sysfs,
            pasta: None,
            until: Instant::now(),
        }
    }

    pub(crate) const fn joined(&self) -> &Joined {
        &self.joined
    }

    /// A mount that is nowhere yet, where the runtime cannot make it itself.
    pub(crate) const fn sysfs(&self) -> Option<&OwnedFd> {
        self.sysfs.as_ref()
    }

    /// Waits until packets are carried.
    pub(crate) fn ready(self) -> Result<Joined, LocalError> {
        if let Some(pasta) = self.pasta {
            pasta.ready(self.until)?;
        }
        Ok(self.joined)
    }
}

/// Where a compute's network is. For as long as the runtime starts it.
pub(crate) enum Joined {
    /// The runtime makes a namespace.
    Nothing,
    Internet(Joint),
    Host,
}

/// A prepared namespace.
pub(crate) struct Joint(Namespaces);

impl Joint {
    /// For other processes, as long as this lives.
    pub(crate) fn path(&self) -> String {
        let net = self.0.net.as_raw_fd();
        format!("/proc/{}/fd/{net}", std::process::id())
    }
}
