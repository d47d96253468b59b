//! Live computes of this process's time: the socket of each and who is told of its end.

use overwinter_driver::door::Door;
use overwinter_driver::{Changed, Watchers};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::JoinHandle;

use crate::compute::ComputeRecord;
use crate::network::Net;
use crate::process;
use crate::runtime::Kind;

/// A compute that is watched. Dropped when it has ended or another takes its place.
pub(crate) struct Live {
    /// Its native name.
    pub(crate) native: String,
    pub(crate) runtime: Kind,
    /// Closed while it is frozen.
    pub(crate) door: Option<Door>,
    watching: JoinHandle<()>,
    /// Waits for the end of what carries its packets.
    carrying: Option<JoinHandle<()>>,
}

impl Live {
    /// Within a runtime: a task waits for the end of PID 1, and then has `at_its_end` done first.
    pub(crate) fn watch(
        record: &ComputeRecord,
        pidfd: OwnedFd,
        changed: Changed,
        watchers: Arc<Watchers>,
        at_its_end: impl FnOnce() + Send + 'static,
    ) -> Self {
        let watching = tokio::spawn(async move {
            // SAFETY: an OwnedFd gives the same open descriptor for as long as it lives.
            let pidfd = unsafe { AsyncFd::register_with_interest(pidfd, Interest::READABLE) };
            // The kernel refuses only what no pidfd is.
            if let Ok(pidfd) = pidfd
                && pidfd.readable().await.is_ok()
            {
                // Fails only where the runtime goes down, and then nobody listens either.
                let _ = tokio::task::spawn_blocking(at_its_end).await;
                watchers.tell(changed);
            }
        });
        Self {
            native: record.native.clone(),
            runtime: record.runtime,
            door: None,
            watching,
            carrying: None,
        }
    }

    /// Says so when what carries its packets ends, which should not be before PID 1, `first`, does.
    /// Within a runtime.
    pub(crate) fn carried(&mut self, net: &Net, first: OwnedFd) {
        let native = self.native.clone();
        let Some(carrier) = net.carrier() else {
            return tracing::error!(native, "{NO_NETWORK}");
        };
        // A descriptor of its own: one is registered once.
        let registered = carrier.try_clone().and_then(|carrier| {
            // SAFETY: as above.
            unsafe { AsyncFd::register_with_interest(carrier, Interest::READABLE) }
                .map_err(Into::into)
        });
        let carrier = match registered {
            Ok(carrier) => carrier,
            Err(error) => {
                return tracing::error!(%error, native, "the end of a sandbox's network would not be noticed");
            }
        };
        let carrying = tokio::spawn(async move {
            if carrier.readable().await.is_ok() && !process::has_ended(&first) {
                tracing::error!(native, "{NO_NETWORK}");
            }
        });
        if let Some(before) = self.carrying.replace(carrying) {
            before.abort();
        }
    }
}

const NO_NETWORK: &str = "nothing carries the packets of a sandbox any more: it is without its network until it is \
     resumed or started";

impl Drop for Live {
    fn drop(&mut self) {
        self.watching.abort();
        if let Some(carrying) = &self.carrying {
            carrying.abort();
        }
    }
}
