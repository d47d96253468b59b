//! The driver: what a gateway sees of the simulated backend.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use overwinter_lifecycle::ids::SandboxId;
use tokio::sync::OwnedMutexGuard;

use super::effect::{Applied, Effect, apply, discard};
use super::world::{Cell, SimWorld};
use crate::attach::{AttachPort, Credentials};
use crate::driver::Driver;
use crate::error::DriverError;
use crate::testkit::fault::{CallKind, CrashPoint, Fault, Late};
use crate::testkit::spawn::spawn;
use crate::types::{
    Changed, ComputeSpec, Debt, DebtKind, Depth, Description, DriverReference, EffectContext,
    Effected, Found, NetworkOffer, Observation, Observed, PinnedImage,
};

/// One gateway's driver on a [`SimWorld`].
#[derive(Clone, Debug)]
pub struct SimDriver {
    world: Arc<SimWorld>,
}

impl SimDriver {
    /// A gateway comes up on this backend, and whoever was attached to the one before is not any
    /// more.
    #[must_use]
    pub fn new(world: Arc<SimWorld>, port: Arc<dyn AttachPort>) -> Self {
        world.set_port(port);
        Self { world }
    }

    #[must_use]
    pub const fn world(&self) -> &Arc<SimWorld> {
        &self.world
    }

    async fn effect(&self, ctx: &EffectContext, effect: Effect) -> Result<Effected, DriverError> {
        effect.check(&self.world)?;
        let cell = self.world.cell(ctx.sandbox());
        let clock = &self.world.config.clock;
        let decided = self.world.decide(effect.kind(), Some(ctx.sandbox()));
        let mut after = None;
        match decided {
            Some((_, Fault::Fail(error))) => return Err(error),
            Some((site, Fault::Crash(point @ CrashPoint::BeforeEffect))) => {
                self.world.crash(site, point).await
            }
            Some((_, Fault::LockHeld(time))) => self.hold(&cell, time),
            decided => after = decided,
        }
        let lock = self
            .lock(&cell, ctx.deadline)
            .await
            .ok_or_else(|| DriverError::Unknown("its lock is held".to_owned()))?;
        match &after {
            Some((_, Fault::Delay(time))) => clock.sleep(*time).await,
            Some((_, Fault::ActLate { after, late })) => {
                self.act_late(&cell, lock, ctx, effect, *after, *late);
                return Err(DriverError::Unknown("no reply".to_owned()));
            }
            Some(_) | None => {}
        }
        let result = self.carry_out(&cell, ctx, &effect, None);
        drop(lock);
        match after {
            Some((site, Fault::Crash(point))) => self.world.crash(site, point).await,
            Some((_, Fault::LoseReply)) => {
                Err(DriverError::Unknown("the reply is lost".to_owned()))
            }
            Some((_, Fault::DelayReply(time))) => {
                clock.sleep(time).await;
                result
            }
            Some(_) | None => result,
        }
    }

    fn carry_out(
        &self,
        cell: &Cell,
        ctx: &EffectContext,
        effect: &Effect,
        late: Option<Late>,
    ) -> Result<Effected, DriverError> {
        let Applied { effected, present } =
            apply(&self.world, &mut cell.state(), ctx, effect, late)?;
        if let Some(guest) = present {
            self.world.present(&guest);
        }
        Ok(effected)
    }

    /// None: not within the deadline.
    async fn lock(&self, cell: &Cell, deadline: Duration) -> Option<OwnedMutexGuard<()>> {
        if let Ok(lock) = cell.lock.clone().try_lock_owned() {
            return Some(lock);
        }
        tokio::select! {
            biased;
            lock = cell.lock.clone().lock_owned() => Some(lock),
            () = self.world.config.clock.sleep(deadline) => None,
        }
    }

    fn act_late(
        &self,
        cell: &Arc<Cell>,
        lock: OwnedMutexGuard<()>,
        ctx: &EffectContext,
        effect: Effect,
        after: Duration,
        late: Late,
    ) {
        // A runtime's process takes the lock with it; a remote backend has none.
        let lock = (late == Late::Locked).then_some(lock);
        let locked = lock.is_some();
        let (driver, here, ctx) = (self.clone(), cell.clone(), ctx.clone());
        let task = spawn(&*self.world.config.spawn, async move {
            driver.world.config.clock.sleep(after).await;
            // Nobody waits for the answer.
            let _ = driver.carry_out(&here, &ctx, &effect, Some(late));
            drop(lock);
        });
        if locked {
            cell.state().holder = Some(task);
        }
    }

    /// Somebody else has the lock.
    fn hold(&self, cell: &Arc<Cell>, time: Duration) {
        let Ok(lock) = cell.lock.clone().try_lock_owned() else {
            return;
        };
        let sleep = self.world.config.clock.sleep(time);
        let task = spawn(&*self.world.config.spawn, async move {
            sleep.await;
            drop(lock);
        });
        cell.state().holder = Some(task);
    }

    async fn question(
        &self,
        kind: CallKind,
        sandbox: Option<SandboxId>,
    ) -> Result<Option<Fault>, DriverError> {
        match self.world.decide(kind, sandbox) {
            Some((_, Fault::Fail(error))) => Err(error),
            Some((site, Fault::Crash(point))) => self.world.crash(site, point).await,
            Some((_, Fault::Delay(time))) => {
                self.world.config.clock.sleep(time).await;
                Ok(None)
            }
            Some((_, fault)) => Ok(Some(fault)),
            None => Ok(None),
        }
    }

    fn absent(&self, storage: bool) -> Observation {
        Observation {
            observed: Observed::Absent,
            boot_id: self.world.boot_id(),
            storage,
        }
    }
}

#[async_trait]
impl Driver for SimDriver {
    async fn describe(&self) -> Description {
        let config = &self.world.config;
        let offered = |depth| config.mode(depth).is_some();
        Description {
            name: config.name.clone(),
            version: format!("{} (simulated)", env!("CARGO_PKG_VERSION")),
            features: Vec::new(),
            networks: vec![NetworkOffer::of("none")],
            runtimes: Vec::new(),
            modes: config.modes.clone(),
            unavailable: Depth::ALL
                .into_iter()
                .filter(|depth| !offered(*depth))
                .map(|depth| (depth, "left out by configuration".to_owned()))
                .collect(),
            unenforced: config.unenforced.clone(),
        }
    }

    async fn pin(&self, image: &str) -> Result<PinnedImage, DriverError> {
        self.question(CallKind::Pin, None).await?;
        if !self.world.has_image(image) {
            return Err(DriverError::Missing(format!("no image {image}")));
        }
        Ok(PinnedImage {
            image: image.to_owned(),
            digest: format!("sim:{image}"),
            main: Vec::new(),
        })
    }

    async fn prepare(&self, sandbox: SandboxId, depth: Depth) -> Result<(), DriverError> {
        Effect::Suspend(depth).check(&self.world)?;
        self.question(CallKind::Prepare, Some(sandbox)).await?;
        let cell = self.world.known(sandbox);
        // What is on its way could still arrive when the agent has let go.
        if cell
            .as_ref()
            .is_some_and(|cell| cell.lock.try_lock().is_err())
        {
            return Err(DriverError::Rejected("its lock is held".to_owned()));
        }
        let there = cell.is_some_and(|cell| cell.state().compute.is_some());
        if depth.keeps_memory() && !there {
            return Err(DriverError::Rejected(
                "there is no compute whose memory could be kept".to_owned(),
            ));
        }
        Ok(())
    }

    async fn create(
        &self,
        ctx: &EffectContext,
        spec: &ComputeSpec,
        credentials: &Credentials,
    ) -> Result<Effected, DriverError> {
        let effect = Effect::Create(spec.clone(), credentials.clone());
        self.effect(ctx, effect).await
    }

    async fn start(
        &self,
        ctx: &EffectContext,
        spec: &ComputeSpec,
        credentials: &Credentials,
    ) -> Result<Effected, DriverError> {
        let effect = Effect::Start(spec.clone(), credentials.clone());
        self.effect(ctx, effect).await
    }

    async fn suspend(&self, ctx: &EffectContext, depth: Depth) -> Result<Effected, DriverError> {
        self.effect(ctx, Effect::Suspend(depth)).await
    }

    async fn resume(
        &self,
        ctx: &EffectContext,
        depth: Depth,
        reference: &DriverReference,
        credentials: &Credentials,
    ) -> Result<Effected, DriverError> {
        let effect = Effect::Resume(depth, reference.clone(), credentials.clone());
        self.effect(ctx, effect).await
    }

    async fn reattach(
        &self,
        ctx: &EffectContext,
        credentials: &Credentials,
    ) -> Result<Effected, DriverError> {
        self.effect(ctx, Effect::Reattach(credentials.clone()))
            .await
    }

    async fn delete(&self, ctx: &EffectContext) -> Result<Effected, DriverError> {
        self.effect(ctx, Effect::Delete).await
    }

    async fn discard(&self, debt: &Debt) -> Result<(), DriverError> {
        let sandbox = debt.key.sandbox;
        self.question(CallKind::Discard, Some(sandbox)).await?;
        if let Some(cell) = self.world.known(sandbox) {
            discard(&self.world, &mut cell.state(), debt);
        }
        if debt.kind == DebtKind::Compute {
            self.world.discard_foreign(&debt.reference);
        }
        Ok(())
    }

    async fn observe(&self, sandbox: SandboxId) -> Result<Observation, DriverError> {
        let fault = self.question(CallKind::Observe, Some(sandbox)).await?;
        let Some(cell) = self.world.known(sandbox) else {
            return Ok(self.absent(self.world.config.presume_storage));
        };
        let (mut now, before) = {
            let state = cell.state();
            (self.world.observation(&state), state.before.clone())
        };
        // Who holds the lock is changing it.
        if cell.lock.try_lock().is_err() {
            now.observed = Observed::InTransition;
        }
        match fault {
            Some(Fault::Stale) => return Ok(before.unwrap_or(now)),
            Some(Fault::Empty) => return Ok(self.absent(false)),
            Some(Fault::InTransition) => now.observed = Observed::InTransition,
            // What it tells of is the moment before.
            Some(Fault::DelayReply(time)) => self.world.config.clock.sleep(time).await,
            Some(_) | None => {}
        }
        Ok(now)
    }

    async fn list(&self) -> Result<Vec<Found>, DriverError> {
        match self.question(CallKind::List, None).await? {
            Some(Fault::Empty) => Ok(Vec::new()),
            Some(_) | None => Ok(self.world.found()),
        }
    }

    fn watch(&self) -> BoxStream<'static, Changed> {
        let changes = self.world.watch();
        futures::stream::unfold(changes, |mut changes| async move {
            Some((changes.recv().await?, changes))
        })
        .boxed()
    }

    async fn recover(&self, sandbox: SandboxId, patience: Duration) -> Result<(), DriverError> {
        let fault = self.question(CallKind::Recover, Some(sandbox)).await?;
        let Some(cell) = self.world.known(sandbox) else {
            return Ok(());
        };
        if let Some(Fault::LockHeld(time)) = fault {
            self.hold(&cell, time);
        }
        let lock = match self.lock(&cell, patience).await {
            Some(lock) => lock,
            None => {
                // Killing the holder is what frees the lock.
                let holder = cell.state().holder.take();
                let Some(holder) = holder else {
                    return Err(DriverError::Unknown("its lock is held".to_owned()));
                };
                holder.abort();
                cell.lock.clone().lock_owned().await
            }
        };
        let live = cell.state().compute.as_ref().map(|it| it.guest.clone());
        drop(lock);
        if let Some(guest) = live
            && guest.connection().is_none_or(|it| it.is_closed())
        {
            self.world.present(&guest);
        }
        Ok(())
    }

    async fn usage(&self, sandbox: SandboxId) -> Result<u64, DriverError> {
        let storage = self
            .world
            .known(sandbox)
            .and_then(|cell| cell.state().storage.clone());
        Ok(storage.map_or(0, |storage| storage.bytes()))
    }
}
