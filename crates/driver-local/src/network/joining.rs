//! A network that is being set up.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Instant;

use super::pasta::Pasta;
use crate::error::LocalError;
use crate::userns::Network as Namespaces;

/// A network that is being set up.
pub(crate) struct Joining {
    pub(super) joined: Joined,
    pub(super) sysfs: Option<OwnedFd>,
    pub(super) pasta: Option<Pasta>,
    pub(super) until: Instant,
}

impl Joining {
    pub(super) fn done(joined: Joined, sysfs: Option<OwnedFd>) -> Self {
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
pub(crate) struct Joint(pub(super) Namespaces);

impl Joint {
    /// For other processes, as long as this lives.
    pub(crate) fn path(&self) -> String {
        let net = self.0.net.as_raw_fd();
        format!("/proc/{}/fd/{net}", std::process::id())
    }
}
