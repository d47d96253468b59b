//! The driver: who may do what when. The effects themselves are in [`crate::effects`].

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use overwinter_driver::attach::AttachPort;
use overwinter_driver::turns::{self, Alone, Turns, carry_on};
use overwinter_driver::{
    Changed, ComputeSpec, Credentials, Debt, Depth, Description, Driver, DriverError,
    DriverReference, EffectContext, Effected, Found, Ledger, Observation, PinnedImage, Watchers,
};
use overwinter_lifecycle::ids::SandboxId;
use tokio::sync::{RwLock, Semaphore};

use crate::config::LocalConfig;
use crate::error::{LocalError, OpenError};
use crate::host::Host;
use crate::live::Live;
use crate::lock::SandboxLock;
use crate::network::Watch;
use crate::{describe, image, list, recover};

/// Sandboxes on this host.
pub struct LocalDriver {
    shared: Arc<Shared>,
    _addresses: Watch,
}

/// What effects that outlive their caller hold on to.
pub(crate) struct Shared {
    pub(crate) host: Arc<Host>,
    pub(crate) port: Arc<dyn AttachPort>,
    pub(crate) turns: Turns<Live>,
    pub(crate) watchers: Arc<Watchers>,
    /// Read while the runtime starts something, written to remove folders that it would miss.
    pub(crate) starting: RwLock<()>,
    /// Many that end at once leave the CPUs to those who work.
    pub(crate) ending: Semaphore,
    /// The same of those that freeze: each wakes every process of its sandbox.
    pub(crate) freezing: Semaphore,
    /// And of those that give memory back, or bring it in: each keeps a CPU busy.
    pub(crate) paging: Semaphore,
}

pub(crate) type Entry = turns::Entry<Live>;

/// The right to carry out one effect.
pub(crate) struct Turn {
    pub(crate) entry: Arc<Entry>,
    /// None where the sandbox has no folder.
    pub(crate) lock: Option<SandboxLock>,
    pub(crate) until: Instant,
    _alone: Alone<Live>,
}

impl Turn {
    /// The deadline, or a little more where it is up: for what must not be left half-done.
    pub(crate) fn to_settle(&self) -> Instant {
        self.until.max(Instant::now() + SETTLE_WITHIN)
    }

    /// Not an effect's own: what a recovery has taken.
    pub(crate) fn to_recover(lock: Option<SandboxLock>, alone: Alone<Live>) -> Self {
        Self {
            entry: Arc::clone(alone.entry()),
            lock,
            until: Instant::now() + RECOVER_WITHIN,
            _alone: alone,
        }
    }
}

impl LocalDriver {
    /// Opens the driver on this host. Within a tokio runtime.
    ///
    /// # Errors
    /// [`OpenError`], with what to do: not root, no runtime, no supervisor, no freezer.
    pub fn open(
        config: LocalConfig,
        port: Arc<dyn AttachPort>,
        ledger: Arc<dyn Ledger>,
    ) -> Result<Arc<Self>, OpenError> {
        let at_once = config.runtime_concurrency.max(1);
        let host = Arc::new(Host::open(config)?);
        Ok(Arc::new(Self {
            _addresses: Watch::start(&host),
            shared: Arc::new(Shared {
                host,
                port,
                turns: Turns::new(ledger),
                watchers: Arc::default(),
                starting: RwLock::default(),
                ending: Semaphore::new(at_once),
                freezing: Semaphore::new(at_once),
                paging: Semaphore::new(at_once),
            }),
        }))
    }

    /// At an orderly end: takes away the empty folders and the mount that serve nobody. Sandboxes
    /// live on, and the next gateway finds them.
    pub fn close(&self) {
        if let Ok(_nothing_starts) = self.shared.starting.try_write() {
            self.shared.host.close();
        }
    }
}

/// What remains of a deadline that is up is too little to settle anything in.
const SETTLE_WITHIN: Duration = Duration::from_secs(5);
/// For an effect of before, or a gateway that takes over, to let go of a sandbox that is to be suspended.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);

impl Shared {
    /// Waits for earlier effects on this sandbox, refuses smaller keys and takes the lock.
    pub(crate) async fn turn(self: &Arc<Self>, ctx: &EffectContext) -> Result<Turn, DriverError> {
        let until = Instant::now() + ctx.deadline;
        let sandbox = ctx.sandbox();
        let alone = self.turns.next(ctx).await?;
        let dir = self.host.layout.sandbox(sandbox);
        let lock = if dir.kept.is_dir() {
            // Free at once, unless a subprocess of an earlier gateway has it.
            match SandboxLock::try_take(&dir.lock()).map_err(LocalError::without_effect)? {
                Some(lock) => Some(lock),
                None => Some(
                    blocking(move || SandboxLock::take(&dir.lock(), left(until)))
                        .await
                        .map_err(LocalError::unsettled)?,
                ),
            }
        } else {
            None
        };
        Ok(Turn {
            entry: Arc::clone(alone.entry()),
            lock,
            until,
            _alone: alone,
        })
    }
}

pub(crate) fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}

/// Off the threads that serve connections.
pub(crate) async fn blocking<T, F>(work: F) -> Result<T, LocalError>
where
    T: Send + 'static,
    F: FnOnce() -> Result<T, LocalError> + Send + 'static,
{
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        // The runtime goes down, or `work` has panicked, which is a bug: nothing is known.
        Err(_) => Err(LocalError::BrokenOff),
    }
}

/// [`blocking`] for what ends as an effect does.
pub(crate) async fn blocking_effect<F>(work: F) -> Result<Effected, DriverError>
where
    F: FnOnce() -> Result<Effected, DriverError> + Send + 'static,
{
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(_) => Err(LocalError::BrokenOff.unsettled()),
    }
}

#[async_trait]
impl Driver for LocalDriver {
    async fn describe(&self) -> Description {
        describe::describe(&self.shared.host)
    }

    async fn pin(&self, image: &str) -> Result<PinnedImage, DriverError> {
        let host = Arc::clone(&self.shared.host);
        let image = image.to_owned();
        blocking(move || image::pin(&host.layout, &image))
            .await
            .map_err(LocalError::without_effect)
    }

    async fn prepare(&self, sandbox: SandboxId, depth: Depth) -> Result<(), DriverError> {
        let host = Arc::clone(&self.shared.host);
        let looked = Arc::clone(&host);
        let look = blocking(move || {
            SandboxLock::until_free(&looked.layout.sandbox(sandbox).lock(), LOCK_PATIENCE)?;
            looked.look(sandbox)
        });
        let look = look.await.map_err(LocalError::without_effect)?;
        describe::admits(&host, depth, &look)?;
        match depth {
            Depth::Checkpoint => self.shared.can_come_back(sandbox).await,
            Depth::Freeze | Depth::Stop => Ok(()),
        }
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
            shared.start(&ctx, spec, credentials).await
        })
        .await
    }

    async fn suspend(&self, ctx: &EffectContext, depth: Depth) -> Result<Effected, DriverError> {
        let (shared, ctx) = (Arc::clone(&self.shared), ctx.clone());
        carry_on(ctx.deadline, async move {
            match depth {
                Depth::Freeze => shared.freeze(&ctx).await,
                Depth::Checkpoint => shared.checkpoint(&ctx).await,
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
                Depth::Checkpoint => shared.restore(&ctx, reference, credentials).await,
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
        let busy = self.shared.turns.is_busy(sandbox);
        let host = Arc::clone(&self.shared.host);
        blocking(move || recover::observe(&host, sandbox, busy))
            .await
            .map_err(LocalError::unsettled)
    }

    async fn list(&self) -> Result<Vec<Found>, DriverError> {
        let host = Arc::clone(&self.shared.host);
        blocking(move || list::list(&host))
            .await
            .map_err(LocalError::unsettled)
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

    async fn usage(&self, sandbox: SandboxId) -> Result<u64, DriverError> {
        let host = Arc::clone(&self.shared.host);
        let Some(base) = host.quota.as_ref().and(host.ranges.of(sandbox)) else {
            return Err(DriverError::Unsupported(
                "the size of a sandbox's storage without project quotas".to_owned(),
            ));
        };
        blocking(move || match &host.quota {
            Some(quota) => quota.used(&host.layout.sandbox(sandbox).kept, base),
            None => Ok(0),
        })
        .await
        .map_err(LocalError::unsettled)
    }
}

/// A debt has no deadline of its own.
const DISCARD_WITHIN: Duration = Duration::from_secs(600);
/// Beyond the patience: to end what holds the lock and clear up after it.
const RECOVER_WITHIN: Duration = Duration::from_secs(30);
