//! This host's addresses change, and those of a sandbox that runs are to stay closed.
//!
//! ```text
//! join:   register ─ read ─ load the rules with what was read ─ read again ─ add what is new
//! event:  read ─ add to every namespace that is registered
//! ```
//!
//! An address that comes before the second reading is in it; one that comes later finds the rules.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::JoinHandle;

use super::{TRIED_WITHIN, own};
use crate::host::Host;

/// The network namespaces that are filtered, by the native names of their computes.
#[derive(Debug, Default)]
pub(super) struct Filtered(Mutex<BTreeMap<String, Arc<File>>>);

impl Filtered {
    pub(super) fn add(&self, native: &str, net: Arc<File>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(native.to_owned(), net);
    }

    /// A namespace that nobody else has goes with this.
    pub(super) fn remove(&self, native: &str) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.remove(native);
    }

    fn all(&self) -> Vec<(String, Arc<File>)> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter()
            .map(|(native, net)| (native.clone(), Arc::clone(net)))
            .collect()
    }
}

/// Follows this host's addresses until it is dropped.
#[derive(Debug)]
pub(crate) struct Watch(JoinHandle<()>);

impl Watch {
    /// Within a tokio runtime. None: the kernel tells nothing of addresses here.
    pub(crate) fn start(host: &Arc<Host>) -> Option<Self> {
        let socket = match own::changes() {
            Ok(socket) => socket,
            Err(error) => {
                tracing::warn!(%error, "addresses that this host gets later are not closed to sandboxes");
                return None;
            }
        };
        // The driver outlives its watch, so that it is not held by it.
        let host = Arc::downgrade(host);
        Some(Self(tokio::spawn(async move {
            // SAFETY: an OwnedFd gives the same open descriptor for as long as it lives.
            let socket = unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE) };
            let Ok(socket) = socket else { return };
            while let Ok(mut ready) = socket.readable().await {
                let came = own::drain(socket.get_ref()).unwrap_or(true);
                ready.clear_ready();
                if !came {
                    continue;
                }
                let Some(host) = host.upgrade() else { return };
                // Fails only where the runtime goes down.
                let _ = tokio::task::spawn_blocking(move || close_own(&host)).await;
            }
        })))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn close_own(host: &Host) {
    for (native, net) in host.networks.filtered.all() {
        let until = Instant::now() + TRIED_WITHIN;
        // Of one that is being started the rules may not be there yet: then it reads for itself.
        if let Err(error) = host.networks.close_own(&net, until) {
            tracing::debug!(%error, native, "this host's addresses as they are now");
        }
    }
}
