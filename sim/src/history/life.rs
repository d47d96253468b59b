//! One life of a gateway: from the opening of its records to its death, on one thread.
//!
//! A runtime of its own, which is dropped where it dies. The backend's tasks and the time outlive it.

use std::any::Any;
use std::cell::RefCell;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt as _;
use futures::future::{BoxFuture, join, select};
use futures::stream::FuturesUnordered;
use overwinter_driver::Driver;
use overwinter_driver::testkit::{Dice, SimDriver, Spawn};
use overwinter_gateway::api::Api;
use overwinter_gateway::ports::{self, Ids, Ports};
use overwinter_gateway::reconciler::Drivers;
use overwinter_gateway::run::{Gateway, StartError};
use overwinter_gateway::sessions::{CredentialKey, Hub};
use overwinter_lifecycle::ids::Millis;
use overwinter_store::{Identity, Location, Store, StoreError, StoreOptions, WriterKind};
use uuid::Uuid;

use super::checks;
use super::client::Client;
use super::crashes::{Crashed, Crashes};
use super::doors::Doors;
use super::finale::Finale;
use super::invariant::Invariant;
use super::mishaps;
use super::panics;
use super::points;
use super::profile::DEADLINES;
use super::stage::Stage;
use super::time::VirtualTime;
use super::watch;

/// Compute of another gateway.
pub(crate) const FOREIGN: &str = "not-ours";
/// Until whoever watches over a gateway has started it again.
const DOWN: Duration = Duration::from_secs(20);
/// Whether an outage is over.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Fewer than there are sandboxes, so that some wait for their turn.
const OWNERS_AT_ONCE: usize = 2;
/// A history that comes to no end.
const MOST_EVENTS: u64 = 20_000_000;

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Crashed,
    Done,
    Violated,
}

/// What a life is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Chaos,
    Finale,
}

/// The tasks of the backend, which outlive a gateway.
#[derive(Clone, Default)]
pub(crate) struct Nursery(Arc<Mutex<Vec<BoxFuture<'static, ()>>>>, Option<VirtualTime>);

impl Nursery {
    pub(crate) fn new(time: VirtualTime) -> Self {
        Self(Arc::default(), Some(time))
    }

    fn take(&self) -> Vec<BoxFuture<'static, ()>> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Spawn for Nursery {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(task);
        if let Some(time) = &self.1 {
            time.wake_root();
        }
    }
}

/// Ids of the clock's time and the seed.
#[derive(Clone)]
pub(crate) struct SeededIds {
    dice: Arc<Mutex<Dice>>,
    time: VirtualTime,
}

impl SeededIds {
    pub(crate) fn new(seed: u64, time: VirtualTime) -> Self {
        Self {
            dice: Arc::new(Mutex::new(Dice::new(&[seed, 5]))),
            time,
        }
    }
}

impl Ids for SeededIds {
    fn next(&self) -> Uuid {
        let mut dice = self.dice.lock().unwrap_or_else(PoisonError::into_inner);
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&dice.next().to_le_bytes());
        bytes[8..].copy_from_slice(&dice.next().to_le_bytes());
        let mut random = [0; 10];
        random.copy_from_slice(&bytes[..10]);
        let ms = self.time.wall_ms().unsigned_abs();
        uuid::Builder::from_unix_timestamp_millis(ms, &random).into_uuid()
    }
}

/// What all lives of a history share besides the stage.
pub(crate) struct Lives<'a> {
    pub stage: Rc<Stage>,
    pub folder: &'a Path,
    pub identity: Identity,
    pub ids: SeededIds,
    pub nursery: Nursery,
    pub tasks: FuturesUnordered<BoxFuture<'static, ()>>,
}

impl Lives<'_> {
    pub(crate) fn live(&mut self, purpose: Purpose) -> End {
        let stage = self.stage.clone();
        stage.crashes.revive();
        stage.life.set(stage.life.get() + 1);
        let time = stage.time.clone();
        let runtime = tokio::runtime::Builder::new_current_thread()
            // A crash is seen after each task, before any other runs.
            .event_interval(1)
            .enable_time()
            .start_paused(true)
            .on_thread_park(move || time.advance())
            .build();
        let runtime = match runtime {
            Ok(runtime) => runtime,
            Err(error) => {
                stage.violate(Invariant::AlwaysStarts, format!("no runtime: {error}"));
                return End::Violated;
            }
        };
        let api = Rc::new(RefCell::new(None));
        let script = script(
            stage.clone(),
            purpose,
            self.folder.to_owned(),
            (self.identity.clone(), self.ids.clone()),
            api.clone(),
        );
        let end = {
            let mut script = pin!(script);
            let (nursery, tasks) = (&self.nursery, &mut self.tasks);
            runtime.block_on(poll_fn(|cx| {
                root(&stage, nursery, tasks, script.as_mut(), &api, cx)
            }))
        };
        // It is dead: nothing of it may outlive this.
        *api.borrow_mut() = None;
        stage.records.set(None);
        drop(runtime);
        stage.world.gateway_gone();
        stage.model.borrow_mut().calls.clear();
        end
    }
}

fn root(
    stage: &Stage,
    nursery: &Nursery,
    tasks: &mut FuturesUnordered<BoxFuture<'static, ()>>,
    script: Pin<&mut impl Future<Output = ()>>,
    api: &RefCell<Option<Api>>,
    cx: &mut Context<'_>,
) -> Poll<End> {
    stage.time.set_root(cx.waker());
    if stage.crashes.is_dead() {
        return Poll::Ready(End::Crashed);
    }
    let polled = guarded(stage, || {
        loop {
            tasks.extend(nursery.take());
            match tasks.poll_next_unpin(cx) {
                Poll::Ready(Some(())) if !stage.crashes.is_dead() => {}
                Poll::Ready(_) | Poll::Pending => break,
            }
        }
        if stage.crashes.is_dead() {
            return Poll::Pending;
        }
        script.poll(cx)
    });
    if stage.crashes.is_dead() {
        return Poll::Ready(End::Crashed);
    }
    if let Some(panic) = panics::take() {
        stage.violate(Invariant::NoPanic, panic);
    }
    if let Some(api) = &*api.borrow() {
        checks::after_commits(stage, api);
    }
    checks::of_the_world(stage);
    landings(stage);
    if stage.time.is_stuck() {
        let how = "nothing can run and no timer is set";
        stage.violate(Invariant::EveryOperationEnds, how.to_owned());
    }
    if stage.trace.events() > MOST_EVENTS {
        let how = format!("no end after {MOST_EVENTS} events");
        stage.violate(Invariant::EveryOperationEnds, how);
    }
    if stage.violation.borrow().is_some() {
        return Poll::Ready(End::Violated);
    }
    // Tasks that were spawned meanwhile are polled in the next round.
    if nursery.0.lock().is_ok_and(|tasks| !tasks.is_empty()) {
        cx.waker().wake_by_ref();
    }
    polled.map(|()| End::Done)
}

/// Effects that have come late.
fn landings(stage: &Stage) {
    for (sandbox, landing) in stage.world.take_landings() {
        stage.trace.note(format_args!("late {landing:?} {sandbox}"));
        if let Some(phase) = stage.records.phase(sandbox) {
            stage.coverage.fault(&format!("Late {landing:?}"), phase);
        }
    }
}

/// A crash inside a call unwinds to here.
fn guarded(stage: &Stage, poll: impl FnOnce() -> Poll<()>) -> Poll<()> {
    match catch_unwind(AssertUnwindSafe(poll)) {
        Ok(polled) => polled,
        Err(payload) if payload.is::<Crashed>() => Poll::Pending,
        Err(payload) => {
            stage.violate(Invariant::NoPanic, text_of(&*payload));
            Poll::Pending
        }
    }
}

fn text_of(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().cloned();
    text.or_else(|| {
        payload
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
    })
    .unwrap_or_else(|| "a panic without words".to_owned())
}

/// What happens in it.
async fn script(
    stage: Rc<Stage>,
    purpose: Purpose,
    folder: std::path::PathBuf,
    (identity, ids): (Identity, SeededIds),
    shown: Rc<RefCell<Option<Api>>>,
) {
    stage.a_while(DOWN).await;
    // Where not even the reserve has room a gateway does not start; whoever watches over it starts it
    // again when there is.
    stage.disk.full.store(false, Ordering::Relaxed);
    stage.disk.slow.store(false, Ordering::Relaxed);
    stage.plan.outage(false);
    let (api, driver) = match start(&stage, &folder, identity, &ids).await {
        Ok(started) => started,
        Err(why) => return stage.violate(Invariant::AlwaysStarts, why.to_string()),
    };
    stage.coverage.tested(Invariant::AlwaysStarts.name());
    stage.up_since.set(stage.time.now());
    stage.trace.note(format_args!("gateway up, {purpose:?}"));
    *shown.borrow_mut() = Some(api.clone());
    let doors = match Doors::open(&api) {
        Ok(doors) => doors,
        Err(error) => return stage.violate(Invariant::AlwaysStarts, error.to_string()),
    };
    match purpose {
        Purpose::Chaos => {
            let clients: FuturesUnordered<_> = (0..stage.profile.clients)
                .map(|number| {
                    let (stage, doors, ids) = (stage.clone(), doors.clone(), ids.clone());
                    Client {
                        stage,
                        doors,
                        ids,
                        number,
                    }
                    .run()
                })
                .collect();
            let clients = async {
                clients.collect::<Vec<()>>().await;
                // An outage is sat out: what it leaves undone has deadlines.
                while stage.plan.is_out() {
                    stage.sleep(LOOK_AGAIN).await;
                }
            };
            let meanwhile = join(mishaps::run(stage.clone()), watch::run(&stage));
            select(pin!(clients), pin!(meanwhile)).await;
            if !stage.ends_in_this_life {
                return;
            }
        }
        Purpose::Finale => {}
    }
    stage.faults_end();
    let finale = Finale {
        stage: stage.clone(),
        doors,
        api,
        driver,
        ids,
    };
    select(pin!(finale.run()), pin!(watch::run(&stage))).await;
}

/// The gateway's clock: whoever sleeps may not wake up again.
struct MortalClock {
    time: VirtualTime,
    crashes: Crashes,
}

#[async_trait]
impl ports::Clock for MortalClock {
    fn wall(&self) -> Millis {
        Millis(self.time.wall_ms())
    }

    fn monotonic(&self) -> Duration {
        self.time.now()
    }

    async fn sleep(&self, time: Duration) {
        self.crashes.moment(&points::SLEEP);
        self.time.sleep(time).await;
        self.crashes.moment(&points::SLEPT);
    }
}

#[derive(Debug, thiserror::Error)]
enum NotStarted {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Gateway(#[from] StartError),
}

async fn start(
    stage: &Stage,
    folder: &Path,
    identity: Identity,
    ids: &SeededIds,
) -> Result<(Api, Arc<dyn Driver>), NotStarted> {
    let crashes = stage.crashes.clone();
    // In this order: the seed decides.
    let full = stage.disk.fills(stage.roll(u64::MAX));
    let pace = stage.disk.pace(
        stage.roll(u64::MAX),
        stage.time.clone(),
        stage.crashes.clone(),
    );
    let options = StoreOptions {
        location: Location::Folder(folder.to_owned()),
        writer: WriterKind::Inline,
        limits: stage.profile.limits,
        now: Millis(stage.time.wall_ms()),
        identity: Some(identity),
        pace: Some(pace),
        full: Some(full),
        on_commit: Some(Arc::new(move |point, label, durability| {
            crashes.commit(point, label, durability);
        })),
    };
    let store = Store::open(options)?;
    stage.records.set(Some(store.clone()));
    let hub = Hub::new(CredentialKey::new(store.meta().key));
    let driver: Arc<dyn Driver> =
        Arc::new(SimDriver::new(stage.world.clone(), Arc::new(hub.clone())));
    let mut drivers = Drivers::default();
    drivers.add(driver.clone()).await;
    let ports = Ports {
        clock: Arc::new(MortalClock {
            time: stage.time.clone(),
            crashes: stage.crashes.clone(),
        }),
        ids: Arc::new(ids.clone()),
        crash: Some(Arc::new(stage.crashes.clone())),
        owners_at_once: OWNERS_AT_ONCE,
    };
    let gateway = Gateway::assemble(store, hub, drivers, ports).await;
    let api = gateway?.with_deadlines(DEADLINES).begin().await?;
    Ok((api, driver))
}
