//! A network that is being set up.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use super::filtered::Net;
use super::pasta::Pasta;
use crate::cgroup::Cgroups;
use crate::error::LocalError;
use crate::userns::Network as Namespaces;

/// A network that is being set up.
pub(crate) struct Joining {
    pub(super) joined: Joined,
    pub(super) sysfs: Option<OwnedFd>,
    pub(super) carrying: Option<Starting>,
    pub(super) until: Instant,
}

impl Joining {
    pub(super) fn done(joined: Joined, sysfs: Option<OwnedFd>) -> Self {
        Self {
            joined,
            sysfs,
            carrying: None,
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
    pub(crate) fn ready(self, cgroups: &Cgroups) -> Result<Joined, LocalError> {
        if let Some(carrying) = self.carrying {
            carrying.ready(cgroups, self.until)?;
        }
        Ok(self.joined)
    }
}

/// What is to carry the packets of a network.
pub(super) struct Starting {
    pub(super) net: Arc<Net>,
    pub(super) pasta: Pasta,
}

impl Starting {
    pub(super) fn ready(self, cgroups: &Cgroups, until: Instant) -> Result<(), LocalError> {
        self.pasta.ready(until)?;
        let carrier = cgroups.carrier(&self.net.native)?;
        let carried = carrier.is_some_and(|carrier| self.net.carried_by(carrier));
        if carried {
            Ok(())
        } else {
            Err(LocalError::NetworkCut)
        }
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
pub(crate) struct Joint(pub(super) Namespaces);

impl Joint {
    /// For other processes, as long as this lives.
    pub(crate) fn path(&self) -> String {
        let net = self.0.net.as_raw_fd();
        format!("/proc/{}/fd/{net}", std::process::id())
    }
}
