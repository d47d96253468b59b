//! The reconciler: one owner task for each sandbox with an unfinished operation, none for the others.
//!
//! A task of the gateway completes each operation, never a client's connection: whoever waits only
//! listens. An owner ends when nothing runs on its sandbox any more; accepting a verb that begins
//! calls [`Reconciler::own`], which starts one if there is none.
//!
//! | module | its one idea |
//! |---|---|
//! | [`owner`] | the loop: action, event, next action |
//! | [`perform`] | carrying out one action |
//! | `expect` | what a supervisor must prove, as the record says |
//! | [`recovery`] | after a restart: observe, and go on from the recorded step |
//! | [`housekeeping`] | lost compute, debts, deletes that failed, old rows |
//! | `image` | the image that a create waits for |
//! | `inside` | what a supervisor is asked, as an event |
//! | `idle` | the suspend that idleness asks for |
//! | [`processes`] | what is learnt of processes, and its way into the store |
//! | `settle` | looking until what is unknown is settled, and the time between tries |
//! | `turns` | how many owners are at work at once |
//! | [`stock`] | what is on the backends, held against the records |
//! | [`waiters`] | who waits for an operation |

mod expect;
mod fault;
pub mod housekeeping;
mod idle;
pub(crate) mod image;
mod inside;
#[cfg(feature = "mutants")]
mod mutate;
pub mod owner;
mod perform;
pub mod processes;
pub mod recovery;
mod settle;
pub mod stock;
mod turns;
pub mod waiters;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use overwinter_driver::{Description, Driver};
use overwinter_lifecycle::ids::SandboxId;
use overwinter_lifecycle::operation::Deadlines;
use overwinter_lifecycle::record::Sandbox;
use overwinter_store::Store;
use tokio_util::task::TaskTracker;

use crate::ports::Ports;
use crate::sessions::Hub;
use crate::telemetry::Telemetry;
use turns::Turns;
use waiters::Waiters;

/// The drivers of this gateway, by name, chosen by configuration in one place.
#[derive(Clone, Default)]
pub struct Drivers {
    by_name: BTreeMap<String, Registered>,
    default: Option<String>,
}

/// One driver with what it last said of itself.
#[derive(Clone)]
pub struct Registered {
    pub driver: Arc<dyn Driver>,
    said: Arc<Mutex<Arc<Description>>>,
}

impl Registered {
    /// What it last said.
    #[must_use]
    pub fn description(&self) -> Arc<Description> {
        self.said().clone()
    }

    /// What it says now: a backend that was away may be there, and of another version.
    pub async fn describe(&self) -> Arc<Description> {
        let description = Arc::new(self.driver.describe().await);
        *self.said() = description.clone();
        description
    }

    fn said(&self) -> MutexGuard<'_, Arc<Description>> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drivers {
    /// The first that is added is the default.
    pub async fn add(&mut self, driver: Arc<dyn Driver>) {
        let description = driver.describe().await;
        let name = description.name.clone();
        self.default.get_or_insert_with(|| name.clone());
        self.by_name.insert(
            name,
            Registered {
                driver,
                said: Arc::new(Mutex::new(Arc::new(description))),
            },
        );
    }

    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Registered> {
        self.by_name.get(name)
    }

    #[must_use]
    pub fn default_name(&self) -> Option<&str> {
        self.default.as_deref()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Registered> {
        self.by_name.values()
    }
}

/// How long an earlier owner of a sandbox's lock is waited for before it is killed.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);

/// For the next commit to come along that waits for the disk, and to take those before it there.
const SYNC_WITHIN: Duration = Duration::from_millis(2);

/// How long a store that cannot be read is given.
const READ_PAUSE: Duration = Duration::from_millis(500);

/// See the module. Cheap to clone.
#[derive(Clone)]
pub struct Reconciler {
    pub store: Store,
    pub hub: Hub,
    pub drivers: Arc<Drivers>,
    pub ports: Ports,
    pub telemetry: Telemetry,
    pub waiters: Waiters,
    pub tasks: TaskTracker,
    /// Of operations that are accepted from now on.
    pub deadlines: Deadlines,
    turns: Turns,
    sync_is_due: Arc<AtomicBool>,
    /// Of processes, and not written yet.
    learnt: Arc<processes::Learnt>,
    lost: Arc<settle::Lost>,
    pub(crate) fetching: image::Fetching,
    owners: Arc<Mutex<Owners>>,
    /// Sandboxes of before this start whose driver has not recovered them yet.
    unrecovered: Arc<tokio::sync::Mutex<HashMap<SandboxId, Unrecovered>>>,
}

#[derive(Default)]
struct Unrecovered {
    /// Its supervisor is awaited.
    met: bool,
    /// Its driver is asked by one at a time.
    turn: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Default)]
struct Owners {
    at_work: HashMap<SandboxId, Missed>,
    /// Their compute has changed between an operation's commit and its owner's start.
    early: HashSet<SandboxId>,
    /// Their driver could not tell what is there, or it could not be recorded; looked at again in the
    /// next round.
    unseen: BTreeSet<SandboxId>,
}

/// What has happened to a sandbox while its owner was at work.
#[derive(Clone, Copy, Default)]
struct Missed {
    /// An operation has begun since the owner last looked.
    begun: bool,
    /// Its compute has changed: what the owner saw may not be so any more.
    changed: bool,
}

impl Reconciler {
    #[must_use]
    pub fn new(
        store: Store,
        hub: Hub,
        drivers: Arc<Drivers>,
        ports: Ports,
        telemetry: Telemetry,
    ) -> Self {
        let now = ports.clock.monotonic();
        let turns = Turns::new(ports.owners_at_once);
        Self {
            store,
            hub,
            drivers,
            ports,
            telemetry,
            waiters: Waiters::default(),
            tasks: TaskTracker::new(),
            deadlines: Deadlines::default(),
            turns,
            sync_is_due: Arc::default(),
            learnt: Arc::default(),
            lost: Arc::new(settle::Lost::new(now)),
            fetching: image::Fetching::default(),
            owners: Arc::default(),
            unrecovered: Arc::default(),
        }
    }

    fn owners(&self) -> MutexGuard<'_, Owners> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An operation of `sandbox` has begun: it gets an owner, now.
    pub fn own(&self, sandbox: Sandbox) {
        let id = sandbox.id;
        {
            let mut owners = self.owners();
            if let Some(missed) = owners.at_work.get_mut(&id) {
                missed.begun = true;
                return;
            }
            let changed = owners.early.remove(&id);
            let missed = Missed {
                changed,
                ..Missed::default()
            };
            owners.at_work.insert(id, missed);
        }
        self.shut_gate(id);
        let this = self.clone();
        self.tasks.spawn(async move {
            let work = this.turns.take(&this.ports, this.drive(sandbox));
            let work = std::panic::AssertUnwindSafe(work);
            if work.catch_unwind().await.is_err() {
                tracing::error!(sandbox = %id, "its owner panicked; the next start goes on from the record");
                this.owners().at_work.remove(&id);
            }
        });
    }

    /// Sandboxes whose operation is being carried out.
    #[must_use]
    pub fn at_work(&self) -> usize {
        self.owners().at_work.len()
    }

    /// What was just committed is on the disk in a moment, by the next commit that waits for it or by
    /// this.
    pub(crate) fn sync_soon(&self) {
        if self.store.is_synced() || self.sync_is_due.swap(true, Ordering::AcqRel) {
            return;
        }
        let this = self.clone();
        self.tasks.spawn(async move {
            this.ports.clock.sleep(SYNC_WITHIN).await;
            this.sync_is_due.store(false, Ordering::Release);
            if let Err(error) = this.store.sync().await {
                tracing::error!(%error, "the records cannot be had on the disk");
            }
        });
    }

    /// From the beginning of an operation on no call is let in; its end opens the gate again.
    pub(super) fn shut_gate(&self, id: SandboxId) {
        if let Some(slot) = self.hub.find(id) {
            slot.shut_gate();
        }
    }

    /// Whether an owner is at work. If so it is told that the compute has changed, and looks again
    /// when it is done.
    fn leave_to_owner(&self, id: SandboxId) -> bool {
        match self.owners().at_work.get_mut(&id) {
            Some(missed) => {
                missed.changed = true;
                true
            }
            None => false,
        }
    }

    /// The same where the record says that an operation runs: its owner may be about to start.
    fn leave_to_coming_owner(&self, id: SandboxId) {
        let mut owners = self.owners();
        match owners.at_work.get_mut(&id) {
            Some(missed) => missed.changed = true,
            None => {
                owners.early.insert(id);
            }
        }
    }

    /// Runs owners until nothing runs on the sandbox.
    async fn drive(&self, sandbox: Sandbox) {
        let id = sandbox.id;
        let mut next = Some(sandbox);
        loop {
            if let Some(sandbox) = next.take() {
                owner::run(self, sandbox).await;
            }
            let missed = {
                let mut owners = self.owners();
                match owners.at_work.get_mut(&id) {
                    Some(missed) if missed.begun => {
                        missed.begun = false;
                        None
                    }
                    Some(_) | None => owners.at_work.remove(&id),
                }
            };
            if let Some(missed) = missed {
                if missed.changed {
                    self.check_for_loss(id).await;
                }
                return;
            }
            // What has begun must have an owner, so this goes on until the record can be read.
            next = loop {
                match self.store.get(id).await {
                    Ok(found) => break found.filter(|sandbox| sandbox.running.is_some()),
                    Err(error) => {
                        tracing::error!(sandbox = %id, %error, "the record cannot be read");
                        self.ports.clock.sleep(READ_PAUSE).await;
                    }
                }
            };
        }
    }

    pub(crate) fn driver_of(&self, sandbox: &Sandbox) -> Option<&Arc<dyn Driver>> {
        self.drivers
            .get(&sandbox.spec.driver)
            .map(|registered| &registered.driver)
    }
}
