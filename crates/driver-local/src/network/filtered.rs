//! The networks that are filtered, and what is closed in each of them.
//!
//! ```text
//! join:   register ─ read ─ load the rules with what was read ─ read again ─ close what is new
//! event:  read ─ close what is new, in every network whose rules are loaded
//! ```
//!
//! An address that comes before the second reading is in it; one that comes later finds the rules.
//! What cannot be closed to a network is kept from it all the same: the network is cut, and carries
//! nothing until it is made anew.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ipnet::IpNet;

use super::{filter, inside};
use crate::error::LocalError;
use crate::process;

/// By the native names of their computes.
#[derive(Debug, Default)]
pub(super) struct Filtered(Mutex<BTreeMap<String, Arc<Net>>>);

impl Filtered {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Net>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, native: &str, net: &Arc<Net>) {
        self.lock().insert(native.to_owned(), Arc::clone(net));
    }

    pub(super) fn find(&self, native: &str) -> Option<Arc<Net>> {
        self.lock().get(native).cloned()
    }

    /// A namespace that nobody else has goes with this.
    pub(super) fn remove(&self, native: &str) {
        self.lock().remove(native);
    }

    /// The same, unless another compute of that name has come since.
    pub(super) fn remove_this(&self, net: &Arc<Net>) {
        let mut all = self.lock();
        if all.get(&net.native).is_some_and(|it| Arc::ptr_eq(it, net)) {
            all.remove(&net.native);
        }
    }

    pub(super) fn all(&self) -> Vec<Arc<Net>> {
        self.lock().values().cloned().collect()
    }
}

/// One network, for as long as its namespace lives.
#[derive(Debug)]
pub(crate) struct Net {
    pub(super) native: String,
    pub(super) namespace: File,
    /// What is closed, as far as this gateway knows; held while a program adds to it. None: the rules
    /// are not loaded yet, and whoever loads them reads again.
    closed: Mutex<Option<BTreeSet<IpNet>>>,
    carrying: Mutex<Carrying>,
}

#[derive(Debug, Default)]
struct Carrying {
    /// None: nothing has been there yet.
    carrier: Option<Arc<OwnedFd>>,
    /// Something could not be closed: nothing is to carry packets.
    is_cut: bool,
}

impl Net {
    /// `closed`: None where the rules are still to be loaded.
    pub(super) fn new(native: &str, namespace: File, closed: Option<BTreeSet<IpNet>>) -> Arc<Self> {
        Arc::new(Self {
            native: native.to_owned(),
            namespace,
            closed: Mutex::new(closed),
            carrying: Mutex::default(),
        })
    }

    /// The rules are loaded, with this closed.
    pub(super) fn loaded(&self, closed: BTreeSet<IpNet>) {
        *self.closed.lock().unwrap_or_else(PoisonError::into_inner) = Some(closed);
    }

    /// Closes what of `own` is not closed yet: no program is run where nothing is new. Tried again
    /// until then; blocks.
    pub(super) fn close(
        &self,
        nft: &Path,
        own: &BTreeSet<IpNet>,
        until: Instant,
    ) -> Result<(), LocalError> {
        let mut closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(closed) = &mut *closed else {
            return Ok(());
        };
        let new: BTreeSet<IpNet> = own.difference(closed).copied().collect();
        if new.is_empty() {
            return Ok(());
        }
        let more = filter::close(&new);
        let mut pause = FIRST_PAUSE;
        loop {
            match inside::add(&self.namespace, nft, &more, until) {
                Ok(()) => break,
                Err(error) if Instant::now() + pause >= until => return Err(error),
                // Nothing tells when it would work.
                Err(_) => std::thread::sleep(pause),
            }
            pause *= 2;
        }
        closed.extend(new);
        Ok(())
    }

    fn carrying(&self) -> MutexGuard<'_, Carrying> {
        self.carrying.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What carries its packets from now on. False: nothing is to, and it was ended.
    pub(super) fn carried_by(&self, carrier: OwnedFd) -> bool {
        let mut carrying = self.carrying();
        carrying.carrier = Some(Arc::new(carrier));
        if carrying.is_cut {
            carrying.end();
        }
        !carrying.is_cut
    }

    /// What carries its packets. None: it has ended, or there was none.
    pub(crate) fn carrier(&self) -> Option<Arc<OwnedFd>> {
        let carrier = self.carrying().carrier.clone()?;
        (!process::has_ended(&carrier)).then_some(carrier)
    }

    /// Nothing is to be reached from it any more.
    pub(super) fn cut(&self) {
        let mut carrying = self.carrying();
        carrying.is_cut = true;
        carrying.end();
    }

    /// Before it is tried again to close all there is.
    pub(super) fn mend(&self) {
        self.carrying().is_cut = false;
    }

    pub(super) fn end_carrier(&self) {
        self.carrying().end();
    }
}

impl Carrying {
    /// Exactly that process, whatever has the compute's name by now.
    fn end(&self) {
        if let Some(carrier) = &self.carrier {
            process::kill(carrier);
        }
    }
}

/// Before a program that has failed is tried again.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
