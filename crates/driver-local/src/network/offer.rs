//! What there is, and why the rest is not.

use std::fmt;
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use super::filter::Filter;
use super::{TRIED_WITHIN, inside};
use crate::config::NetworkConfig;
use crate::error::LocalError;
use crate::runtime::{Kind, which};
use crate::userns::Network as Namespaces;

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

    /// Whether this kind of runtime can be connected to it.
    pub(crate) const fn on(self, runtime: Kind) -> Result<(), NoNetwork> {
        match (self, runtime) {
            (Self::None, Kind::Runc | Kind::Gvisor) | (Self::Internet | Self::Host, Kind::Runc) => {
                Ok(())
            }
            (Self::Internet | Self::Host, Kind::Gvisor) => Err(NoNetwork::Gvisor),
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
#[derive(Clone, Debug, thiserror::Error)]
pub enum NoNetwork {
    #[error("this driver has {}", Names(&Network::ALL))]
    Unknown,
    #[error("`pasta` is not installed (Debian: the package passt)")]
    NoPasta,
    #[error("`nft` is not installed (Debian: the package nftables)")]
    NoNft,
    #[error("the kernel has no /dev/net/tun (modprobe tun)")]
    NoTun,
    #[error("the filter cannot be set up here: {0}")]
    NoFilter(#[source] Arc<LocalError>),
    #[error("this host's addresses cannot be followed, and so not be closed: {0}")]
    Unfollowed(#[source] Arc<LocalError>),
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
    pub(super) pasta: PathBuf,
    pub(super) nft: PathBuf,
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
            Err(error) => Err(NoNetwork::NoFilter(Arc::new(error))),
        }
    }

    /// For people: what carries packets, and where it is.
    pub(crate) fn describe(&self) -> String {
        format!("{}, {}", self.pasta.display(), self.nft.display())
    }
}
