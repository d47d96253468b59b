//! The driver: who may do what when. The effects themselves are in [`crate::effects`].

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use overwinter_driver::attach::AttachPort;
use overwinter_driver::door::Door;
use overwinter_driver::turns::{self, Alone, Turns, carry_on};
use overwinter_driver::{
    Changed, ComputeSpec, Credentials, Debt, Depth, Description, Driver, DriverError,
    DriverReference, EffectContext, Effected, Found, ImageProgress, Ledger, Observation,
    PinnedImage, Watchers,
};
use overwinter_lifecycle::ids::{Incarnation, SandboxId};
use overwinter_lifecycle::steps::Observed;
use rustix::process::geteuid;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::config::DockerConfig;
use crate::engine::Engine;
use crate::error::{At, DockerError, OpenError};
use crate::home::Home;
use crate::look::Running;
use crate::watch::follow;
use crate::{describe, image, list};

/// Sandboxes as containers of a Docker daemon.
pub struct DockerDriver {
    shared: Arc<Shared>,
    following: JoinHandle<()>,
}

impl Drop for DockerDriver {
    fn drop(&mut self) {
        self.following.abort();
    }
}

/// What effects that outlive their caller hold on to.
pub(crate) struct Shared {
    pub(crate) config: DockerConfig,
    pub(crate) engine: Engine,
    pub(crate) home: Home,
    pub(crate) boot_id: String,
    pub(crate) port: Arc<dyn AttachPort>,
    pub(crate) watchers: Watchers,
    pub(crate) turns: Turns<Live>,
    /// Whether the daemon's events are heard, with none left out since the last look at all.
    pub(crate) following: AtomicBool,
}

pub(crate) type Entry = turns::Entry<Live>;

/// A run that is there, as far as this process knows.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) run: Run,
    /// As an effect has left it, while no event of the daemon's has told of anything else.
    pub(crate) seen: Option<Running>,
    /// Closed while it is frozen.
    pub(crate) door: Option<Door>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) held: Incarnation,
    pub(crate) paused: bool,
}

pub(crate) fn has_door(entry: &Entry) -> bool {
    entry
        .live()
        .as_ref()
        .is_some_and(|live| live.door.is_some())
}

/// The run as a look has found it; its door stays as it is.
pub(crate) fn set_seen(entry: &Entry, running: &Running) {
    let run = Run {
        held: running.receipt.held,
        paused: running.paused,
    };
    let seen = Some(running.clone());
    match &mut *entry.live() {
        Some(live) => (live.run, live.seen) = (run, seen),
        none => {
            *none = Some(Live {
                run,
                seen,
                door: None,
            });
        }
    }
}

/// The run stands still, or goes on, as the daemon has answered. What an event has told meanwhile counts.
pub(crate) fn set_paused(entry: &Entry, paused: bool) {
    if let Some(live) = &mut *entry.live() {
        live.run.paused = paused;
        if let Some(seen) = &mut live.seen {
            seen.paused = paused;
        }
        if paused {
            // A sleeping sandbox needs no socket, and a host has many.
            live.door = None;
        }
    }
}

/// The right to carry out one effect.
pub(crate) type Turn = Alone<Live>;

impl DockerDriver {
    /// Opens the driver. The daemon need not be there: it is waited for in the background. Within a
    /// tokio runtime.
    ///
    /// # Errors
    /// [`OpenError`], with what to do.
    pub fn open(
        config: DockerConfig,
        port: Arc<dyn AttachPort>,
        ledger: Arc<dyn Ledger>,
    ) -> Result<Arc<Self>, OpenError> {
        let uid = geteuid();
        if !uid.is_root() {
            return Err(OpenError::NotRoot { uid: uid.as_raw() });
        }
        if !config.supervisor.is_file() {
            return Err(OpenError::NoSupervisor {
                path: config.supervisor.clone(),
            });
        }
        let home = Home::open(&config.state_dir, &config.supervisor)?;
        let boot = Path::new("/proc/sys/kernel/random/boot_id");
        let boot_id = fs::read_to_string(boot).at("reading", boot)?;
        let shared = Arc::new(Shared {
            engine: Engine::new(config.flavor, config.socket.clone(), home.daemon()),
            boot_id: boot_id.trim().to_owned(),
            config,
            home,
            port,
            watchers: Watchers::default(),
            turns: Turns::new(ledger),
            following: AtomicBool::new(false),
        });
        Ok(Arc::new(Self {
            following: tokio::spawn(follow(Arc::downgrade(&shared))),
            shared,
        }))
    }
}

impl Shared {
    async fn observe(&self, sandbox: SandboxId) -> Result<Observation, DockerError> {
        let observed = if self.turns.is_busy(sandbox) {
            Observed::InTransition
        } else {
            let seen = self.look_for_own(sandbox).await?.observed();
            // What was seen while an effect began may be of before it.
            if self.turns.is_busy(sandbox) {
                Observed::InTransition
            } else {
                seen
            }
        };
        Ok(Observation {
            observed,
            boot_id: self.boot_id.clone(),
            storage: self.home.has_storage(sandbox),
        })
    }

    async fn prepare(&self, sandbox: SandboxId, depth: Depth) -> Result<(), DriverError> {
        match depth {
            Depth::Freeze => self.offers_freeze()?,
            Depth::Stop => {}
            Depth::Checkpoint => return Err(no_checkpoint()),
        }
        if self.turns.is_busy(sandbox) {
            return Err(DriverError::Rejected(
                "another effect on this sandbox is under way".to_owned(),
            ));
        }
        // Of a stop: whether the daemon is there, and the container this gateway's.
        let seen = match depth {
            Depth::Freeze => self.seen(&self.turns.entry(sandbox), false),
            Depth::Stop | Depth::Checkpoint => None,
        };
        let found = match seen {
            Some(seen) => Ok(Some(seen)),
            None => self.running(sandbox).await,
        };
        match (depth, found.map_err(DockerError::without_effect)?) {
            (Depth::Freeze, None) => Err(DriverError::Rejected(
                "no compute is there to freeze".to_owned(),
            )),
            (Depth::Freeze, Some(_)) | (Depth::Stop | Depth::Checkpoint, _) => Ok(()),
        }
    }
}

impl Shared {
    fn offers_freeze(&self) -> Result<(), DriverError> {
        let host = self.engine.met().map_err(DockerError::without_effect)?;
        match host.no_freeze() {
            Some(why) => Err(DriverError::Unsupported(why.clone())),
            None => Ok(()),
        }
    }
}

fn no_checkpoint() -> DriverError {
    DriverError::Unsupported("this driver does not write memory to disk".to_owned())
}

/// Off the threads that serve connections.
pub(crate) async fn blocking<T, F>(work: F) -> Result<T, DockerError>
where
    T: Send + 'static,
    F: FnOnce() -> Result<T, DockerError> + Send + 'static,
{
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        // The runtime goes down, or `work` has panicked, which is a bug: nothing is known.
        Err(_) => Err(DockerError::BrokenOff),
    }
}

#[async_trait]
impl Driver for DockerDriver {
    async fn describe(&self) -> Description {
        describe::describe(&self.shared).await
    }

    async fn pin(&self, image: &str) -> Result<PinnedImage, DriverError> {
        self.pin_telling(image, &watch::Sender::default()).await
    }

    async fn pin_telling(
        &self,
        image: &str,
        progress: &watch::Sender<ImageProgress>,
    ) -> Result<PinnedImage, DriverError> {
        image::pin(&self.shared.engine, &self.shared.config, image, progress)
            .await
            .map_err(DockerError::without_effect)
    }

    async fn prepare(&self, sandbox: SandboxId, depth: Depth) -> Result<(), DriverError> {
        self.shared.prepare(sandbox, depth).await
    }

    async fn create(
        &self,
        ctx: &EffectContext,
        spec: &ComputeSpec,
        credentials: &Credentials,
    ) -> Result<Effected, DriverError> {
        let (shared, ctx) = (Arc::clone(&self.shared), ctx.clone());
        let (spec, credentials) = (spec.clone(), credentials.clone());
        carry_on(ctx.deadline, async move {
            shared.create(&ctx, spec, credentials).await
        })
        .await
    }

    async fn start(
        &self,
        ctx: &EffectContext,
        spec: &ComputeSpec,
        credentials: &Credentials,
    ) -> Result<Effected, DriverError> {
        let (shared, ctx) = (Arc::clone(&self.shared), ctx.clone());
        let (spec, credentials) = (spec.clone(), credentials.clone());
        carry_on(ctx.deadline, async move {
            shared.begin_again(&ctx, spec, credentials).await
        })
        .await
    }

    async fn suspend(&self, ctx: &EffectContext, depth: Depth) -> Result<Effected, DriverError> {
        let (shared, ctx) = (Arc::clone(&self.shared), ctx.clone());
        carry_on(ctx.deadline, async move {
            match depth {
                Depth::Freeze => {
                    shared.offers_freeze()?;
                    shared.freeze(&ctx).await
                }
                Depth::Checkpoint => Err(no_checkpoint()),
                Depth::Stop => shared.stop(&ctx).await,
            }
        })
        .await
    }

    async fn resume(
        &self,
        ctx: &EffectContext,
        depth: Depth,
        reference: &DriverReference,
        credentials: &Credentials,
    ) -> Result<Effected, DriverError> {
        let (shared, ctx) = (Arc::clone(&self.shared), ctx.clone());
        let (reference, credentials) = (reference.clone(), credentials.clone());
        carry_on(ctx.deadline, async move {
            match depth {
                Depth::Freeze => shared.thaw(&ctx, reference, credentials).await,
                Depth::Checkpoint => Err(no_checkpoint()),
                Depth::Stop => Err(DriverError::Unsupported(
                    "a stop keeps no memory to resume: start it".to_owned(),
                )),
            }
        })
        .await
    }

    async fn reattach(
        &self,
        ctx: &EffectContext,
        credentials: &Credentials,
    ) -> Result<Effected, DriverError> {
        let (shared, ctx) = (Arc::clone(&self.shared), ctx.clone());
        let credentials = credentials.clone();
        carry_on(ctx.deadline, async move {
            shared.reattach(&ctx, credentials).await
        })
        .await
    }

    async fn delete(&self, ctx: &EffectContext) -> Result<Effected, DriverError> {
        let (shared, ctx) = (Arc::clone(&self.shared), ctx.clone());
        carry_on(ctx.deadline, async move { shared.delete(&ctx).await }).await
    }

    async fn discard(&self, debt: &Debt) -> Result<(), DriverError> {
        let (shared, debt) = (Arc::clone(&self.shared), debt.clone());
        carry_on(DISCARD_WITHIN, async move { shared.discard(&debt).await }).await
    }

    async fn observe(&self, sandbox: SandboxId) -> Result<Observation, DriverError> {
        let seen = self.shared.observe(sandbox).await;
        seen.map_err(DockerError::unsettled)
    }

    async fn list(&self) -> Result<Vec<Found>, DriverError> {
        let found = list::list(&self.shared).await;
        found.map_err(DockerError::unsettled)
    }

    fn watch(&self) -> BoxStream<'static, Changed> {
        self.shared.watchers.add().boxed()
    }

    async fn recover(&self, sandbox: SandboxId, patience: Duration) -> Result<(), DriverError> {
        let shared = Arc::clone(&self.shared);
        carry_on(patience + RECOVER_WITHIN, async move {
            shared.recover(sandbox, patience).await
        })
        .await
    }
}

/// A debt has no deadline of its own.
const DISCARD_WITHIN: Duration = Duration::from_secs(600);
/// Beyond the patience: to ask the daemon, and open a socket.
const RECOVER_WITHIN: Duration = Duration::from_secs(30);
