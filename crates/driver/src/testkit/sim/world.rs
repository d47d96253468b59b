//! The backend itself, and what a test may do to it behind its driver's back.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::AbortHandle;
use overwinter_lifecycle::ids::{EffectKey, Incarnation, SandboxId};
use tokio::sync::mpsc;

use super::agent::SimAgent;
use super::config::SimConfig;
use super::guest::{Guest, Run};
use super::seen::{Landing, Looked, Violation};
use super::storage::{NodeKind, Storage, WORKSPACE, is_within};
use crate::attach::{AttachPort, AttachRefused};
use crate::testkit::fault::{CallKind, CallSite, CrashPoint, Fault};
use crate::types::{Changed, Found, Observation, Observed};

/// Everything that is there of one sandbox.
#[derive(Default)]
pub(super) struct Cell {
    /// One effect at a time.
    pub(super) lock: Arc<tokio::sync::Mutex<()>>,
    state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) newest: Option<Executed>,
    pub(super) storage: Option<Arc<Storage>>,
    pub(super) compute: Option<Native>,
    /// One that is in use, at most, and those that still have to be removed.
    pub(super) artifacts: Vec<Artifact>,
    /// Of before the last effect.
    pub(super) before: Option<Observation>,
    /// Who holds the lock besides a call of the driver's.
    pub(super) holder: Option<AbortHandle>,
    calls: BTreeMap<CallKind, u64>,
}

/// The newest effect.
#[derive(Clone, Copy)]
pub(super) struct Executed {
    pub(super) key: EffectKey,
    pub(super) kind: CallKind,
    pub(super) done: bool,
}

#[derive(Clone)]
pub(super) struct Native {
    pub(super) name: String,
    pub(super) held: Incarnation,
    pub(super) guest: Arc<Guest>,
}

/// Memory on disk.
#[derive(Clone)]
pub(super) struct Artifact {
    pub(super) name: String,
    pub(super) guest: Arc<Guest>,
    pub(super) generation: Incarnation,
    pub(super) consumed: bool,
    pub(super) damaged: bool,
}

impl Cell {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    pub(super) fn observed(&self) -> Observed {
        match &self.compute {
            None => Observed::Absent,
            Some(native) => match native.guest.state() {
                Run::Running => Observed::Live { held: native.held },
                Run::Frozen => Observed::Frozen { held: native.held },
                Run::Ended => Observed::Absent,
            },
        }
    }
}

/// Shared by every driver that a test makes on it.
pub struct SimWorld {
    pub(super) config: SimConfig,
    cells: Mutex<HashMap<SandboxId, Arc<Cell>>>,
    /// Of calls that are about no sandbox.
    calls: Mutex<BTreeMap<CallKind, u64>>,
    port: Mutex<Option<Arc<dyn AttachPort>>>,
    watchers: Mutex<Vec<mpsc::UnboundedSender<Changed>>>,
    names: Mutex<HashSet<EffectKey>>,
    removed_images: Mutex<HashSet<String>>,
    foreign: Mutex<Vec<Found>>,
    violations: Mutex<Vec<Violation>>,
    refusals: Mutex<Vec<(SandboxId, AttachRefused)>>,
    landings: Mutex<Vec<(SandboxId, Landing)>>,
    looked: Mutex<BTreeMap<Looked, u64>>,
    boots: AtomicU64,
    guests: AtomicU64,
}

impl fmt::Debug for SimWorld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimWorld")
            .field("config", &self.config)
            .field("sandboxes", &lock(&self.cells).len())
            .field("violations", &*lock(&self.violations))
            .finish_non_exhaustive()
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SimWorld {
    #[must_use]
    pub fn new(config: SimConfig) -> Arc<Self> {
        Arc::new(Self {
            config,
            cells: Mutex::default(),
            calls: Mutex::default(),
            port: Mutex::default(),
            watchers: Mutex::default(),
            names: Mutex::default(),
            removed_images: Mutex::default(),
            foreign: Mutex::default(),
            violations: Mutex::default(),
            refusals: Mutex::default(),
            landings: Mutex::default(),
            looked: Mutex::default(),
            boots: AtomicU64::new(1),
            guests: AtomicU64::default(),
        })
    }

    pub(super) fn cell(&self, sandbox: SandboxId) -> Arc<Cell> {
        lock(&self.cells).entry(sandbox).or_default().clone()
    }

    pub(super) fn known(&self, sandbox: SandboxId) -> Option<Arc<Cell>> {
        lock(&self.cells).get(&sandbox).cloned()
    }

    pub(super) fn every_cell(&self) -> Vec<(SandboxId, Arc<Cell>)> {
        let cells = lock(&self.cells);
        let mut all: Vec<_> = cells.iter().map(|(id, it)| (*id, it.clone())).collect();
        all.sort_by_key(|(id, _)| *id);
        all
    }

    // Faults.

    /// Counts the call and asks the plan.
    pub(super) fn decide(
        &self,
        kind: CallKind,
        sandbox: Option<SandboxId>,
    ) -> Option<(CallSite, Fault)> {
        let faults = &self.config.faults;
        if !faults.is_active() {
            return None;
        }
        let count = |calls: &mut BTreeMap<CallKind, u64>| {
            let nth = calls.entry(kind).or_default();
            *nth += 1;
            *nth
        };
        let nth = match sandbox {
            Some(sandbox) => count(&mut self.cell(sandbox).state().calls),
            None => count(&mut lock(&self.calls)),
        };
        let site = CallSite { kind, sandbox, nth };
        let fault = faults.decide(&site)?;
        fault.fits(kind).then_some((site, fault))
    }

    /// The gateway dies here.
    pub(super) async fn crash(&self, site: CallSite, point: CrashPoint) -> ! {
        (self.config.on_crash)(site, point);
        std::future::pending().await
    }

    pub(super) fn violate(&self, violation: Violation) {
        lock(&self.violations).push(violation);
    }

    pub(super) fn tested(&self, looked: Looked) {
        *lock(&self.looked).entry(looked).or_default() += 1;
    }

    /// How often it came to pass.
    #[must_use]
    pub fn times(&self, looked: Looked) -> u64 {
        lock(&self.looked).get(&looked).copied().unwrap_or(0)
    }

    pub(super) fn name_given(&self, key: EffectKey) {
        if !lock(&self.names).insert(key) {
            self.violate(Violation::NameReused(key));
        }
    }

    pub(super) fn landed(&self, sandbox: SandboxId, landing: Landing) {
        lock(&self.landings).push((sandbox, landing));
    }

    /// The late effects that have arrived since this was asked last.
    #[must_use]
    pub fn take_landings(&self) -> Vec<(SandboxId, Landing)> {
        std::mem::take(&mut lock(&self.landings))
    }

    // What is there.

    pub(super) fn next_guest(&self) -> u64 {
        self.guests.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(super) fn boot_id(&self) -> String {
        format!("boot-{}", self.boots.load(Ordering::Relaxed))
    }

    pub(super) fn has_image(&self, image: &str) -> bool {
        let here = self.config.images.as_ref();
        here.is_none_or(|images| images.contains(image))
            && !lock(&self.removed_images).contains(image)
    }

    pub(super) fn observation(&self, state: &State) -> Observation {
        Observation {
            observed: state.observed(),
            boot_id: self.boot_id(),
            storage: state.storage.is_some()
                || (state.newest.is_none() && self.config.presume_storage),
        }
    }

    pub(super) fn found(&self) -> Vec<Found> {
        let mut found = lock(&self.foreign).clone();
        for (sandbox, cell) in self.every_cell() {
            let state = cell.state();
            if let Some(native) = &state.compute {
                found.push(Found {
                    gateway: Some(self.config.gateway.clone()),
                    sandbox: Some(sandbox),
                    birth: Some(native.held),
                    native_name: native.name.clone(),
                    observed: state.observed(),
                });
            }
        }
        found
    }

    // The way to the gateway.

    /// A gateway takes over. The connections of the one before have ended with it.
    pub(super) fn set_port(&self, port: Arc<dyn AttachPort>) {
        self.gateway_gone();
        *lock(&self.port) = Some(port);
    }

    /// The gateway has died: whoever was attached is not any more, and nobody is let in.
    pub fn gateway_gone(&self) {
        if lock(&self.port).take().is_none() {
            return;
        }
        lock(&self.watchers).clear();
        for (_, cell) in self.every_cell() {
            if let Some(native) = &cell.state().compute {
                native.guest.disconnect();
            }
        }
    }

    pub(super) fn watch(&self) -> mpsc::UnboundedReceiver<Changed> {
        let (watcher, changes) = mpsc::unbounded_channel();
        lock(&self.watchers).push(watcher);
        changes
    }

    pub(super) fn changed(&self, changed: Changed) {
        lock(&self.watchers).retain(|watcher| watcher.send(changed).is_ok());
    }

    /// The agent inside reads its credentials and presents itself.
    pub(super) fn present(self: &Arc<Self>, guest: &Arc<Guest>) {
        match self.decide(CallKind::Attach, Some(guest.sandbox)) {
            Some((_, Fault::NeverAttach)) => {}
            Some((_, Fault::AttachLate(time))) => {
                let (world, guest) = (self.clone(), guest.clone());
                let late = async move {
                    world.config.clock.sleep(time).await;
                    // One that new credentials have brought in meanwhile dials no more.
                    if guest.connection().is_none_or(|it| it.is_closed()) {
                        world.attach(&guest);
                    }
                };
                self.config.spawn.spawn(Box::pin(late));
            }
            Some((_, Fault::OldCredentials)) => {
                self.attach_with_old(guest);
                self.attach(guest);
            }
            Some((_, Fault::AgentDies)) => {
                self.attach(guest);
                self.kill(guest.sandbox);
            }
            Some(_) | None => self.attach(guest),
        }
    }

    fn attach(self: &Arc<Self>, guest: &Arc<Guest>) {
        let port = lock(&self.port).clone();
        let (Some(port), Some(proof)) = (port, guest.proof()) else {
            return;
        };
        if !guest.is_running() {
            return;
        }
        let connection = guest.connect();
        let agent = SimAgent::new(self.clone(), guest.clone(), connection);
        match port.agent(guest.sandbox, &proof, Arc::new(agent)) {
            Ok(()) => guest.accept(&proof),
            Err(why) => {
                guest.disconnect();
                lock(&self.refusals).push((guest.sandbox, why));
            }
        }
    }

    fn attach_with_old(self: &Arc<Self>, guest: &Arc<Guest>) {
        let port = lock(&self.port).clone();
        let (Some(port), Some(proof)) = (port, guest.stale_proof()) else {
            return;
        };
        let connection = guest.connect();
        let agent = SimAgent::new(self.clone(), guest.clone(), connection);
        self.tested(Looked::OldCredentials);
        match port.agent(guest.sandbox, &proof, Arc::new(agent)) {
            Ok(()) => self.violate(Violation::OldCredentialsAccepted(guest.sandbox)),
            Err(why) => lock(&self.refusals).push((guest.sandbox, why)),
        }
        guest.disconnect();
    }

    // Behind the driver's back.

    /// Its compute is killed from outside. False: there was none.
    pub fn kill(&self, sandbox: SandboxId) -> bool {
        let Some(cell) = self.known(sandbox) else {
            return false;
        };
        let Some(native) = cell.state().compute.take() else {
            return false;
        };
        native.guest.end();
        self.changed(Changed {
            sandbox,
            held: native.held,
        });
        true
    }

    /// The connection of its agent breaks, and the agent dials again with what it has. False: there
    /// was none.
    pub fn reconnect(self: &Arc<Self>, sandbox: SandboxId) -> bool {
        let Some(guest) = self.guest(sandbox) else {
            return false;
        };
        let attached = guest.connection().is_some_and(|it| !it.is_closed());
        if attached {
            guest.disconnect();
            self.present(&guest);
        }
        attached
    }

    /// The host goes down and comes up: no compute is left, frozen or not.
    pub fn reboot(&self) {
        self.boots.fetch_add(1, Ordering::Relaxed);
        for (sandbox, _) in self.every_cell() {
            self.kill(sandbox);
        }
    }

    pub fn remove_image(&self, image: &str) {
        lock(&self.removed_images).insert(image.to_owned());
    }

    /// The artifact that could be restored is damaged. Its name; none where there was none.
    pub fn damage_artifact(&self, sandbox: SandboxId) -> Option<String> {
        let cell = self.known(sandbox)?;
        let mut state = cell.state();
        let mut artifacts = state.artifacts.iter_mut();
        let usable = artifacts.find(|it| !it.consumed && !it.damaged)?;
        usable.damaged = true;
        Some(usable.name.clone())
    }

    /// The artifact that could be restored is removed behind everybody's back. Its name; none where
    /// there was none.
    pub fn lose_artifact(&self, sandbox: SandboxId) -> Option<String> {
        let cell = self.known(sandbox)?;
        let mut state = cell.state();
        let at = state.artifacts.iter().position(|it| !it.consumed)?;
        Some(state.artifacts.remove(at).name)
    }

    /// Compute that is not this gateway's.
    pub fn add_foreign(&self, found: Found) {
        lock(&self.foreign).push(found);
    }

    /// Whoever has the name of compute can remove it, whosever it is.
    pub(super) fn discard_foreign(&self, native_name: &str) {
        lock(&self.foreign).retain(|found| found.native_name != native_name);
    }

    /// The files of its workspace by path. None: it has no storage.
    #[must_use]
    pub fn workspace(&self, sandbox: SandboxId) -> Option<BTreeMap<Vec<u8>, bytes::Bytes>> {
        let storage = self.known(sandbox)?.state().storage.clone()?;
        let tree = storage.tree();
        let files = tree
            .nodes
            .iter()
            .filter(|(path, _)| is_within(path, WORKSPACE));
        let files = files.filter_map(|(path, node)| match &node.kind {
            NodeKind::File(data) => Some((path.clone(), data.clone())),
            NodeKind::Folder => None,
        });
        Some(files.collect())
    }

    pub(super) fn guest(&self, sandbox: SandboxId) -> Option<Arc<Guest>> {
        let cell = self.known(sandbox)?;
        let state = cell.state();
        state.compute.as_ref().map(|native| native.guest.clone())
    }

    /// What is left of any sandbox: computes, artifacts, storage. Empty after every delete.
    #[must_use]
    pub fn leftovers(&self) -> Vec<String> {
        let mut left = Vec::new();
        for (sandbox, cell) in self.every_cell() {
            let state = cell.state();
            if let Some(native) = &state.compute {
                left.push(format!("compute {}", native.name));
            }
            let names = state.artifacts.iter().map(|it| &it.name);
            left.extend(names.map(|name| format!("artifact {name}")));
            if state.storage.is_some() {
                left.push(format!("storage {sandbox}"));
            }
        }
        left
    }

    // What has happened.

    /// Attaches that the gateway refused.
    #[must_use]
    pub fn refusals(&self) -> Vec<(SandboxId, AttachRefused)> {
        lock(&self.refusals).clone()
    }

    #[must_use]
    pub fn violations(&self) -> Vec<Violation> {
        lock(&self.violations).clone()
    }

    /// # Panics
    /// When anything has happened that never may.
    pub fn assert_sound(&self) {
        let violations = self.violations();
        assert!(violations.is_empty(), "{violations:#?}");
    }
}
