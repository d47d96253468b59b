//! The end of a history: faults stop, everything settles, everything can be woken with all that it
//! had, and after its delete nothing is left.

use std::rc::Rc;
use std::time::Duration;

use connectrpc::ConnectError;
use overwinter_driver::{Driver, Observed};
use overwinter_gateway::api::Api;
use overwinter_gateway::ports::Ids as _;
use overwinter_lifecycle::capacity::Usage;
use overwinter_lifecycle::ids::SandboxId;
use overwinter_lifecycle::operation::Outcome;
use overwinter_lifecycle::record::{Compute, Sandbox};
use overwinter_lifecycle::{Depth, Phase};
use overwinter_store::ListFilter;

use super::doors::{Ask, Doors, Target, Verb};
use super::invariant::Invariant;
use super::life::{FOREIGN, SeededIds};
use super::stage::Stage;

/// Whatever is under way has a deadline far below this.
const TO_SETTLE: Duration = Duration::from_secs(3 * 3_600);
/// Two rounds of the gateway's housekeeping, and more.
const TO_NOTICE: Duration = Duration::from_secs(90);
const LOOKS: Duration = Duration::from_secs(5);
/// What waits for a clock that was set back to catch up takes hours.
const LONGEST: Duration = Duration::from_secs(120);
const WAIT: Duration = Duration::from_secs(3_000);

/// A sandbox is deleted at the end, by the phase that it was in.
pub(crate) const DELETED: &str = "Deleted at last";

pub(crate) struct Finale {
    pub stage: Rc<Stage>,
    pub doors: Doors,
    pub api: Api,
    pub driver: std::sync::Arc<dyn Driver>,
    pub ids: SeededIds,
}

impl Finale {
    /// # Errors
    /// [`Over`] when an invariant does not hold: nothing that follows says anything.
    pub(crate) async fn run(self) {
        // What was violated is kept on the stage.
        let _ = self.all().await;
    }

    async fn all(&self) -> Result<(), Over> {
        self.settle().await?;
        self.no_intent_is_lost().await?;
        self.records_are_true().await?;
        self.loss_is_noticed().await?;
        let mut living = self.living().await?;
        // Those that hold any first: they make room.
        living.sort_by_key(|sandbox| (Usage::of(sandbox).running == 0, sandbox.id));
        for sandbox in living {
            super::checks::contents(&self.stage, &sandbox);
            self.lead_out(&sandbox).await?;
        }
        self.settle().await?;
        self.nothing_is_left().await
    }

    fn failed(&self, invariant: Invariant, how: String) -> Over {
        self.stage.violate(invariant, how);
        Over
    }

    async fn living(&self) -> Result<Vec<Sandbox>, Over> {
        let mut all: Vec<Sandbox> = Vec::new();
        loop {
            let filter = ListFilter {
                after: all.last().map(|sandbox| sandbox.id),
                limit: 100,
                ..ListFilter::default()
            };
            let page = self.api.reconciler.store.list(filter).await;
            let page = page.map_err(|error| {
                self.failed(Invariant::AlwaysStarts, format!("the records: {error}"))
            })?;
            if page.is_empty() {
                all.retain(|sandbox| sandbox.tombstone_at.is_none());
                return Ok(all);
            }
            all.extend(page);
        }
    }

    /// Until nothing is under way any more.
    async fn settle(&self) -> Result<(), Over> {
        let patience = TO_SETTLE + self.stage.model.borrow().jumped;
        let until = self.stage.time.now() + patience;
        let mut looks = LOOKS;
        loop {
            let living = self.living().await?;
            let debts = self
                .api
                .reconciler
                .store
                .debt_count(None)
                .await
                .unwrap_or(1);
            let busy: Vec<String> = living
                .iter()
                .filter(|sandbox| {
                    sandbox.running.is_some()
                        || sandbox.waiting.is_some()
                        || sandbox.phase() == Phase::Deleting
                })
                .map(|sandbox| {
                    let running = sandbox.running.as_ref();
                    let running = running.map(|op| format!("{:?} at {:?}", op.verb, op.step));
                    format!("{} {} {running:?}", sandbox.id, sandbox.phase())
                })
                .collect();
            if busy.is_empty() && debts == 0 {
                self.stage
                    .coverage
                    .tested(Invariant::EveryOperationEnds.name());
                return Ok(());
            }
            if self.stage.time.now() > until {
                let how = format!("after {patience:?} without faults: {busy:?}, {debts} debts");
                return Err(self.failed(Invariant::EveryOperationEnds, how));
            }
            self.stage.sleep(looks).await;
            looks = LONGEST.min(looks * 2);
        }
    }

    /// What was noticed late, was noticed by now; of a backend that lies only what is there counts,
    /// and only where a new gateway has looked again.
    async fn records_are_true(&self) -> Result<(), Over> {
        self.stage.sleep(TO_NOTICE).await;
        for sandbox in self.living().await? {
            let lies = self.stage.plan.lied_of(sandbox.id);
            if lies && self.stage.ends_in_this_life {
                continue;
            }
            let truth = self.stage.world.truth(sandbox.id);
            let so = match (sandbox.phase(), truth) {
                (Phase::Ready, Observed::Live { .. })
                | (Phase::Suspended(Depth::Freeze), Observed::Frozen { .. })
                | (
                    Phase::Suspended(Depth::Checkpoint | Depth::Stop),
                    Observed::Absent | Observed::Stopped,
                ) => true,
                // A resume attaches to it; its memory is what it was.
                (Phase::Suspended(Depth::Freeze), Observed::Live { .. }) => lies,
                (Phase::Ready | Phase::Suspended(Depth::Freeze), _) => false,
                (Phase::Suspended(_), _) => lies,
                _ => true,
            };
            self.stage.expect(Invariant::RecordsAreTrue, so, || {
                format!("{} is {} and {truth:?}", sandbox.id, sandbox.phase())
            });
            let kept = (sandbox.retained.as_ref()).and_then(|retained| retained.artifact);
            let kept = kept.map(|key| key.native_name());
            let artifacts = self.stage.world.artifacts(sandbox.id);
            let stray = artifacts.iter().find(|it| Some(&it.name) != kept.as_ref());
            self.stage
                .expect(Invariant::NothingLeft, stray.is_none(), || {
                    format!("{} keeps {kept:?}, and there is {stray:?}", sandbox.id)
                });
        }
        self.so_far()
    }

    /// One that runs and one that is frozen are killed, and nobody asks.
    async fn loss_is_noticed(&self) -> Result<(), Over> {
        for phase in [Phase::Ready, Phase::Suspended(Depth::Freeze)] {
            let living = self.living().await?;
            let mut fit = living.iter().filter(|sandbox| sandbox.phase() == phase);
            let Some(id) = fit.next().map(|sandbox| sandbox.id) else {
                continue;
            };
            self.stage.trace.note(format_args!("kill {id}, {phase}"));
            if !self.stage.world.kill(id) {
                continue;
            }
            self.stage.sleep(TO_NOTICE).await;
            let now = self.api.reconciler.store.get(id).await.ok().flatten();
            let now = now.map(|sandbox| (sandbox.phase(), sandbox.compute));
            let noticed = match now {
                Some((Phase::Failed, Compute::Absent)) => phase == Phase::Ready,
                Some((Phase::Suspended(Depth::Stop), Compute::Absent)) => phase != Phase::Ready,
                _ => false,
            };
            self.stage.expect(Invariant::LossIsNoticed, noticed, || {
                format!("{id} was {phase} and was killed: {now:?}")
            });
        }
        self.so_far()
    }

    fn so_far(&self) -> Result<(), Over> {
        if self.stage.violation.borrow().is_some() {
            Err(Over)
        } else {
            Ok(())
        }
    }

    async fn no_intent_is_lost(&self) -> Result<(), Over> {
        let accepted = self.stage.model.borrow().accepted.clone();
        let store = &self.api.reconciler.store;
        for (id, sandbox) in accepted {
            let Ok(found) = store.operation(id).await else {
                continue;
            };
            let Some(operation) = found else {
                // Of a sandbox that was used very much, or is gone for a week, they are forgotten.
                let many = store.operations(overwinter_store::OperationFilter {
                    sandbox: Some(sandbox),
                    limit: 200,
                    ..Default::default()
                });
                let many = many.await.map_or(0, |many| many.len());
                let gone = many == 0 && self.stage.receipts_may_be_gone();
                let forgotten = many >= 100 || gone;
                self.stage.expect(Invariant::NoIntentIsLost, forgotten, || {
                    format!("{id} of {sandbox} is not known any more")
                });
                continue;
            };
            let successor = match &operation.outcome {
                Some(Outcome::SupersededBy(by)) => store.operation(*by).await.ok().flatten(),
                Some(_) => Some(operation.clone()),
                None => None,
            };
            self.stage
                .expect(Invariant::NoIntentIsLost, successor.is_some(), || {
                    format!("{id} of {sandbox}: {:?}", operation.outcome)
                });
        }
        self.so_far()
    }

    async fn verb(&self, verb: Verb) -> Result<(), NotDone> {
        let ask = Ask {
            requester: "client-finale".to_owned(),
            key: String::new(),
            wait: WAIT,
        };
        let answer = self.doors.verb(&verb, &ask).await?;
        let operation = answer.operation.into_option();
        let outcome = operation.and_then(|operation| operation.outcome.into_option());
        use overwinter_api::v1::__buffa::oneof::outcome::Result as Ended;
        match outcome.and_then(|outcome| outcome.result) {
            Some(Ended::Succeeded(_)) => Ok(()),
            other => Err(NotDone::Ended {
                verb,
                how: format!("{other:?} {:?}", answer.disposition),
            }),
        }
    }

    /// Awake, with all that it had, and then gone; one in four is deleted as it is.
    async fn lead_out(&self, sandbox: &Sandbox) -> Result<(), Over> {
        let (id, phase) = (sandbox.id, sandbox.phase());
        let target = Target::Id(id);
        if self.stage.chance(250) {
            return self.delete(id, target).await;
        }
        if phase != Phase::Ready {
            let way = match self.verb(Verb::Resume(target.clone(), true)).await {
                Ok(()) => Ok(()),
                Err(resume) => {
                    let start = self.verb(Verb::Start(target.clone())).await;
                    start.map_err(|start| resume.then(start))
                }
            };
            self.stage.coverage.tested(Invariant::AlwaysAWayOut.name());
            way.map_err(|how| {
                let failure = &sandbox.failure;
                let how = format!("{id} ({phase}, {failure:?}): {how}");
                self.failed(Invariant::AlwaysAWayOut, how)
            })?;
        }
        let ran = self.use_it(&target, id).await;
        ran.map_err(|how| {
            self.failed(
                Invariant::AlwaysAWayOut,
                format!("{id}, was {phase}: {how}"),
            )
        })?;
        self.read_all(id, &target).await?;
        self.delete(id, target).await
    }

    async fn delete(&self, id: SandboxId, target: Target) -> Result<(), Over> {
        self.stage.met(DELETED, Some(id));
        self.stage.coverage.tested(Invariant::DeleteLeadsOut.name());
        let gone = self.verb(Verb::Delete(target)).await;
        gone.map_err(|how| self.failed(Invariant::DeleteLeadsOut, format!("{id}: {how}")))
    }

    /// What is Ready can be used at once where its supervisor is there; where it is not, and has not
    /// come back, a stop and a resume bring one.
    async fn use_it(&self, target: &Target, id: SandboxId) -> Result<(), NotDone> {
        let attached = self.stage.world.connection_of(id).is_some();
        let Err(first) = self.run_true(target).await else {
            if attached {
                let usable = Invariant::ReadyIsUsable.name();
                self.stage.coverage.tested(usable);
            }
            return Ok(());
        };
        self.stage.expect(Invariant::ReadyIsUsable, !attached, || {
            format!("{id}: {first}")
        });
        let depth = overwinter_api::v1::Depth::DEPTH_STOP;
        let asleep = self.verb(Verb::Suspend(target.clone(), depth)).await;
        asleep.map_err(|asleep| first.then(asleep))?;
        self.verb(Verb::Resume(target.clone(), true)).await?;
        self.run_true(target).await
    }

    async fn run_true(&self, target: &Target) -> Result<(), NotDone> {
        let process = self.ids.next().to_string();
        match self.doors.run(target, process, &["true"]).await?.code {
            0 => Ok(()),
            code => Err(NotDone::EndsWith(code)),
        }
    }

    async fn read_all(&self, id: SandboxId, target: &Target) -> Result<(), Over> {
        let files = self.stage.model.borrow().files.get(&id).cloned();
        for (path, data) in files.unwrap_or_default() {
            let read = self.doors.read(target, &path, async {}).await;
            self.stage.coverage.tested(Invariant::ContentsStay.name());
            if read.as_ref().ok() != Some(&data) {
                let how = format!("{id} {path}: {read:?}, written was {data:?}");
                return Err(self.failed(Invariant::ContentsStay, how));
            }
        }
        Ok(())
    }

    async fn nothing_is_left(&self) -> Result<(), Over> {
        let left = self.stage.world.leftovers();
        // What arrives after a backend has told of "nothing here" is found at the next start.
        let later = self.stage.profile.backend_lies() && self.stage.ends_in_this_life;
        self.stage
            .expect(Invariant::NothingLeft, left.is_empty() || later, || {
                format!("{left:?}")
            });
        let found = self.driver.list().await.unwrap_or_default();
        let foreign = found.iter().any(|found| found.native_name == FOREIGN);
        self.stage.expect(Invariant::ForeignLeftAlone, foreign, || {
            "compute of another gateway is gone".to_owned()
        });
        let known: Vec<SandboxId> = self
            .stage
            .model
            .borrow()
            .told
            .seen
            .keys()
            .copied()
            .collect();
        for id in known {
            let record = self.api.reconciler.store.get(id).await;
            let there = matches!(&record, Ok(Some(record)) if record.tombstone_at.is_some());
            // A clock that was set forward by a week in all sweeps tombstones.
            let swept = matches!(record, Ok(None)) && self.stage.receipts_may_be_gone();
            self.stage
                .expect(Invariant::RecordsStay, there || swept, || {
                    format!("{id}: {record:?}")
                });
        }
        Ok(())
    }
}

/// An invariant does not hold.
struct Over;

/// What was asked for at the end did not come to be.
#[derive(Debug, thiserror::Error)]
enum NotDone {
    #[error(transparent)]
    Refused(#[from] ConnectError),
    #[error("{verb:?}: {how}")]
    Ended { verb: Verb, how: String },
    #[error("`true` ends with {0}")]
    EndsWith(i32),
    #[error("{0}; then {1}")]
    Twice(Box<Self>, Box<Self>),
}

impl NotDone {
    fn then(self, next: Self) -> Self {
        Self::Twice(Box::new(self), Box::new(next))
    }
}
