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
//! | [`recovery`] | after a restart: observe, and go on from the recorded step |
//! | [`housekeeping`] | lost compute, debts, deletes that failed, old rows |
//! | [`waiters`] | who waits for an operation |

pub mod housekeeping;
pub mod owner;
mod perform;
pub mod recovery;
pub mod waiters;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use overwinter_driver::{Description, Driver};
use overwinter_lifecycle::ids::SandboxId;
use overwinter_lifecycle::record::Sandbox;
use overwinter_store::Store;
use tokio_util::task::TaskTracker;

use crate::ports::Ports;
use crate::sessions::Hub;
use crate::telemetry::Telemetry;
use waiters::Waiters;

/// The drivers of this gateway, by name, chosen by configuration in one place.
#[derive(Clone, Default)]
pub struct Drivers {
    by_name: HashMap<String, Registered>,
    default: Option<String>,
}

/// One driver with what it said of itself at start.
#[derive(Clone)]
pub struct Registered {
    pub driver: Arc<dyn Driver>,
    pub description: Description,
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
                description,
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
    owners: Arc<Mutex<Owners>>,
    /// Sandboxes of before this start whose driver has not been asked to recover them yet.
    unrecovered: Arc<tokio::sync::Mutex<HashSet<SandboxId>>>,
}

/// True: somebody has begun an operation since the owner last looked.
#[derive(Default)]
struct Owners {
    poked: HashMap<SandboxId, bool>,
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
        Self {
            store,
            hub,
            drivers,
            ports,
            telemetry,
            waiters: Waiters::default(),
            tasks: TaskTracker::new(),
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
            if let Some(poked) = owners.poked.get_mut(&id) {
                *poked = true;
                return;
            }
            owners.poked.insert(id, false);
        }
        let this = self.clone();
        self.tasks.spawn(async move { this.drive(sandbox).await });
    }

    /// Whether an owner is at work.
    #[must_use]
    pub fn is_owned(&self, id: SandboxId) -> bool {
        self.owners().poked.contains_key(&id)
    }

    /// Runs owners until nothing runs on the sandbox.
    async fn drive(&self, sandbox: Sandbox) {
        let id = sandbox.id;
        let mut next = Some(sandbox);
        loop {
            if let Some(sandbox) = next.take() {
                owner::run(self, sandbox).await;
            }
            {
                let mut owners = self.owners();
                match owners.poked.get_mut(&id) {
                    Some(poked) if *poked => *poked = false,
                    Some(_) | None => {
                        owners.poked.remove(&id);
                        return;
                    }
                }
            }
            match self.store.get(id).await {
                Ok(found) => next = found.filter(|sandbox| sandbox.running.is_some()),
                Err(error) => {
                    tracing::error!(sandbox = %id, %error, "the record cannot be read");
                }
            }
        }
    }

    pub(crate) fn driver_of(&self, sandbox: &Sandbox) -> Option<&Arc<dyn Driver>> {
        self.drivers
            .get(&sandbox.spec.driver)
            .map(|registered| &registered.driver)
    }
}
