//! Each fault of the simulated backend shows itself as it is described, and nothing that never may
//! be so comes of it.

#![allow(clippy::unwrap_used)]

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use overwinter_driver::agent::AgentError;
use overwinter_driver::attach::AttachRefused;
use overwinter_driver::testkit::conformance::TestPort;
use overwinter_driver::testkit::{
    CallKind, CallSite, CrashPoint, Dials, Fault, FaultPlan as _, Late, Script, Seeded, SimConfig,
    SimDriver, SimWorld, Violation,
};
use overwinter_driver::{
    Agent, Compute, ComputeSpec, Credentials, Depth, Driver as _, DriverError, EffectContext,
    Effected, Observed, PinnedImage, Token,
};
use overwinter_lifecycle::config::Resources;
use overwinter_lifecycle::ids::{EffectKey, Fence, Incarnation, SandboxId, Serial};
use uuid::Uuid;

const MINUTE: Duration = Duration::from_secs(60);

/// A sandbox on a simulated backend, driven call by call.
struct Bed {
    world: Arc<SimWorld>,
    driver: SimDriver,
    port: Arc<TestPort>,
    script: Arc<Script>,
    crashes: Arc<Mutex<Vec<(CallSite, CrashPoint)>>>,
    id: SandboxId,
}

impl Bed {
    fn new() -> Self {
        let script = Arc::new(Script::new());
        let crashes = Arc::new(Mutex::new(Vec::new()));
        let seen = crashes.clone();
        let world = SimWorld::new(SimConfig {
            faults: script.clone(),
            on_crash: Arc::new(move |site, point| seen.lock().unwrap().push((site, point))),
            ..SimConfig::default().with_every_depth()
        });
        let port = TestPort::new();
        Self {
            driver: SimDriver::new(world.clone(), port.clone()),
            world,
            port,
            script,
            crashes,
            id: SandboxId(Uuid::from_u128(7)),
        }
    }

    fn ctx(&self, fence: u64, incarnation: u64) -> EffectContext {
        EffectContext {
            key: EffectKey {
                sandbox: self.id,
                fence: Fence(fence),
                serial: Serial(1),
            },
            incarnation: Incarnation(incarnation),
            deadline: MINUTE,
        }
    }

    fn spec() -> ComputeSpec {
        ComputeSpec {
            name: "it".into(),
            image: PinnedImage {
                image: "any".into(),
                digest: String::new(),
            },
            resources: Resources::default(),
            network: "none".into(),
        }
    }

    fn credentials(&self, incarnation: u64) -> Credentials {
        Credentials {
            sandbox: self.id,
            incarnation: Incarnation(incarnation),
            token: Token(format!("token-{incarnation}")),
        }
    }

    async fn create(&self) -> Result<Effected, DriverError> {
        let credentials = self.credentials(1);
        self.port.issue(&credentials, false);
        let ctx = self.ctx(1, 1);
        self.driver.create(&ctx, &Self::spec(), &credentials).await
    }

    async fn start(&self, fence: u64, incarnation: u64) -> Result<Effected, DriverError> {
        let credentials = self.credentials(incarnation);
        self.port.issue(&credentials, false);
        let ctx = self.ctx(fence, incarnation);
        self.driver.start(&ctx, &Self::spec(), &credentials).await
    }

    async fn stop(&self, fence: u64) -> Result<Effected, DriverError> {
        self.driver.suspend(&self.ctx(fence, 1), Depth::Stop).await
    }

    async fn observed(&self) -> Observed {
        self.driver.observe(self.id).await.unwrap().observed
    }

    async fn agent(&self, incarnation: u64) -> Arc<dyn Agent> {
        self.port.attached(self.id, Incarnation(incarnation)).await
    }

    /// Every fault that was asked for has happened, and nothing that never may.
    fn check(&self) {
        assert_eq!(self.script.unused(), 0);
        self.world.assert_sound();
    }
}

const LIVE: Observed = Observed::Live {
    held: Incarnation(1),
};

fn is_unknown(result: &Result<Effected, DriverError>) -> bool {
    matches!(result, Err(DriverError::Unknown(_)))
}

#[tokio::test(start_paused = true)]
async fn a_failure_has_no_effect_and_a_lost_reply_has_its_effect_once() {
    let bed = Bed::new();
    let refused = DriverError::Rejected("no".into());
    bed.script
        .at(CallKind::Create, 1, Fault::Fail(refused.clone()))
        .at(CallKind::Create, 2, Fault::LoseReply);
    assert_eq!(bed.create().await, Err(refused));
    assert_eq!(bed.observed().await, Observed::Absent);
    assert!(is_unknown(&bed.create().await));
    assert_eq!(bed.observed().await, LIVE);
    let agent = bed.agent(1).await;
    // The retry finds what the lost one has made.
    let again = bed.create().await.unwrap();
    assert_eq!(again.compute, LIVE.compute());
    agent.list_processes().await.unwrap();
    assert_eq!(bed.port.refusals(), []);
    bed.check();
}

#[tokio::test(start_paused = true)]
async fn delays_come_before_or_after_the_effect_and_hold_the_lock() {
    let bed = Bed::new();
    bed.script
        .at(CallKind::Create, 1, Fault::Delay(MINUTE / 2))
        .at(CallKind::Suspend, 1, Fault::DelayReply(MINUTE / 2));
    let (created, meanwhile) = tokio::join!(bed.create(), async {
        tokio::time::sleep(MINUTE / 4).await;
        bed.observed().await
    });
    created.unwrap();
    assert_eq!(meanwhile, Observed::InTransition);
    let (stopped, meanwhile) = tokio::join!(bed.stop(2), async {
        tokio::time::sleep(MINUTE / 4).await;
        bed.observed().await
    });
    stopped.unwrap();
    assert_eq!(meanwhile, Observed::Absent);
    bed.check();
}

#[tokio::test(start_paused = true)]
async fn a_late_effect_that_was_overtaken_does_not_happen() {
    let bed = Bed::new();
    let late = |late| Fault::ActLate {
        after: MINUTE,
        late,
    };
    bed.script.at(CallKind::Create, 1, late(Late::Fenced)).at(
        CallKind::Start,
        1,
        late(Late::Fenced),
    );
    assert!(is_unknown(&bed.create().await));
    assert_eq!(bed.observed().await, Observed::Absent);
    // The retry under the same key comes first; then there is nothing left to do.
    bed.create().await.unwrap();
    tokio::time::sleep(MINUTE * 2).await;
    assert_eq!(bed.observed().await, LIVE);
    bed.stop(2).await.unwrap();
    assert!(is_unknown(&bed.start(3, 2).await));
    bed.driver.delete(&bed.ctx(4, 2)).await.unwrap();
    tokio::time::sleep(MINUTE * 2).await;
    assert_eq!(bed.observed().await, Observed::Absent);
    assert_eq!(bed.world.leftovers(), Vec::<String>::new());
    bed.check();
}

#[tokio::test(start_paused = true)]
async fn a_late_effect_that_has_the_lock_is_waited_for_or_killed() {
    let bed = Bed::new();
    let late = Fault::ActLate {
        after: MINUTE / 2,
        late: Late::Locked,
    };
    bed.script
        .at(CallKind::Create, 1, late.clone())
        .at(CallKind::Suspend, 1, late);
    assert!(is_unknown(&bed.create().await));
    assert_eq!(bed.observed().await, Observed::InTransition);
    bed.driver.recover(bed.id, MINUTE).await.unwrap();
    assert_eq!(bed.observed().await, LIVE);
    assert!(is_unknown(&bed.stop(2).await));
    // Past its patience, recovery kills the holder: the stop never happens.
    let patience = Duration::from_secs(1);
    bed.driver.recover(bed.id, patience).await.unwrap();
    tokio::time::sleep(MINUTE).await;
    assert_eq!(bed.observed().await, LIVE);
    bed.check();
}

#[tokio::test(start_paused = true)]
async fn a_late_effect_that_nothing_holds_back_is_caught_by_the_ledger() {
    let bed = Bed::new();
    bed.script.at(
        CallKind::Start,
        1,
        Fault::ActLate {
            after: MINUTE,
            late: Late::Unfenced,
        },
    );
    bed.create().await.unwrap();
    bed.stop(2).await.unwrap();
    assert!(is_unknown(&bed.start(3, 2).await));
    bed.start(4, 3).await.unwrap();
    tokio::time::sleep(MINUTE * 2).await;
    assert_eq!(bed.world.violations(), [Violation::TwoLive(bed.id)]);
    assert_eq!(bed.script.unused(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_somebody_holds_costs_at_most_the_deadline() {
    let bed = Bed::new();
    bed.script
        .at(CallKind::Create, 1, Fault::LockHeld(MINUTE * 2))
        .at(CallKind::Recover, 1, Fault::LockHeld(MINUTE * 2));
    assert!(is_unknown(&bed.create().await));
    assert_eq!(bed.observed().await, Observed::InTransition);
    tokio::time::sleep(MINUTE * 2).await;
    assert_eq!(bed.observed().await, Observed::Absent);
    let recovered = bed.driver.recover(bed.id, Duration::from_secs(1)).await;
    recovered.unwrap();
    bed.create().await.unwrap();
    bed.check();
}

#[tokio::test(start_paused = true)]
async fn a_crash_calls_the_hook_and_never_returns() {
    let bed = Bed::new();
    bed.script
        .at(CallKind::Create, 1, Fault::Crash(CrashPoint::BeforeEffect))
        .at(CallKind::Create, 2, Fault::Crash(CrashPoint::AfterEffect));
    for (point, observed) in [
        (CrashPoint::BeforeEffect, Observed::Absent),
        (CrashPoint::AfterEffect, LIVE),
    ] {
        let dead = tokio::time::timeout(MINUTE, bed.create()).await;
        dead.expect_err("the gateway is dead");
        assert_eq!(bed.crashes.lock().unwrap().last().unwrap().1, point);
        assert_eq!(bed.observed().await, observed);
    }
    // The next gateway: whoever was attached to the dead one comes back with the same secret.
    bed.port.restart();
    let driver = SimDriver::new(bed.world.clone(), bed.port.clone());
    driver.recover(bed.id, MINUTE).await.unwrap();
    bed.agent(1).await.list_processes().await.unwrap();
    assert_eq!(bed.port.refusals(), []);
    bed.check();
}

#[tokio::test(start_paused = true)]
async fn observations_are_stale_empty_unsure_or_fail() {
    let bed = Bed::new();
    let error = DriverError::Unknown("no answer".into());
    bed.script
        .at(CallKind::Observe, 1, Fault::Stale)
        .at(CallKind::Observe, 2, Fault::Empty)
        .at(CallKind::Observe, 3, Fault::InTransition)
        .at(CallKind::Observe, 4, Fault::Fail(error.clone()))
        .at(CallKind::List, 1, Fault::Empty)
        .at(CallKind::List, 2, Fault::Fail(error.clone()));
    bed.create().await.unwrap();
    assert_eq!(bed.observed().await, Observed::Absent);
    let empty = bed.driver.observe(bed.id).await.unwrap();
    assert_eq!((empty.observed, empty.storage), (Observed::Absent, false));
    assert_eq!(bed.observed().await, Observed::InTransition);
    assert_eq!(bed.driver.observe(bed.id).await, Err(error.clone()));
    assert_eq!(bed.observed().await, LIVE);
    assert_eq!(bed.driver.list().await.unwrap(), []);
    assert_eq!(bed.driver.list().await, Err(error));
    assert_eq!(bed.driver.list().await.unwrap().len(), 1);
    bed.check();
}

#[tokio::test(start_paused = true)]
async fn an_agent_stays_away_or_comes_late_or_with_what_it_had_before() {
    let bed = Bed::new();
    bed.script
        .at(CallKind::Attach, 1, Fault::NeverAttach)
        .at(CallKind::Attach, 2, Fault::AttachLate(MINUTE / 6))
        .at(CallKind::Attach, 3, Fault::OldCredentials);
    bed.create().await.unwrap();
    let before = tokio::time::Instant::now();
    bed.driver.recover(bed.id, MINUTE).await.unwrap();
    let agent = bed.agent(1).await;
    assert_eq!(before.elapsed(), MINUTE / 6);
    agent.detach().await.unwrap();
    bed.port.forget(bed.id);
    let credentials = bed.credentials(2);
    bed.port.issue(&credentials, true);
    let ctx = bed.ctx(2, 2);
    bed.driver.reattach(&ctx, &credentials).await.unwrap();
    bed.agent(2).await.list_processes().await.unwrap();
    assert_eq!(bed.port.refusals(), [(bed.id, AttachRefused::Revoked)]);
    bed.check();
}

#[tokio::test(start_paused = true)]
async fn an_agent_lies_hangs_and_dies() {
    let bed = Bed::new();
    bed.script
        .at(CallKind::Quiesce, 1, Fault::AgentLies)
        .at(CallKind::Terminate, 1, Fault::AgentLies)
        .at(CallKind::Terminate, 2, Fault::AgentHangs)
        .at(CallKind::Terminate, 3, Fault::AgentDies);
    bed.create().await.unwrap();
    let agent = bed.agent(1).await;
    let sleep = |id: &str| overwinter_api::supervisor::ExecStart {
        process_id: id.into(),
        process: overwinter_api::supervisor::ProcessSpec {
            command: vec!["sleep".into(), "1000000".into()],
            ..Default::default()
        }
        .into(),
    };
    agent.start_process(sleep("one")).await.unwrap();
    agent.quiesce(Vec::new(), MINUTE).await.unwrap();
    // It said that it would refuse this.
    agent.start_process(sleep("two")).await.unwrap();
    let results = agent.terminate(MINUTE).await.unwrap();
    assert!(results.iter().all(|it| it.process_id != "one"));
    assert!(agent.get_process("one".into()).await.unwrap().running);
    tokio::time::timeout(MINUTE, agent.terminate(MINUTE))
        .await
        .expect_err("it hangs");
    let gone = agent.terminate(MINUTE).await;
    assert_eq!(gone, Err(AgentError::Gone));
    agent.gone().await;
    assert_eq!(bed.observed().await, Observed::Absent);
    bed.check();
}

#[tokio::test(start_paused = true)]
async fn resident_memory_does_not_outlive_the_host_and_an_artifact_does_unless_it_is_lost() {
    let bed = Bed::new();
    bed.create().await.unwrap();
    let boot = bed.driver.observe(bed.id).await.unwrap().boot_id;
    bed.agent(1).await.detach().await.unwrap();
    let ctx = bed.ctx(2, 1);
    let kept = bed.driver.suspend(&ctx, Depth::Checkpoint).await.unwrap();
    bed.world.reboot();
    assert_ne!(bed.driver.observe(bed.id).await.unwrap().boot_id, boot);
    let credentials = bed.credentials(2);
    bed.port.issue(&credentials, true);
    let (ctx, depth) = (bed.ctx(3, 2), Depth::Checkpoint);
    let resume = bed
        .driver
        .resume(&ctx, depth, &kept.reference, &credentials);
    let restored = resume.await.unwrap();
    let held = Incarnation(2);
    assert_eq!(restored.compute, Compute::Live { held });
    bed.agent(2).await.detach().await.unwrap();
    let ctx = bed.ctx(4, 2);
    bed.driver.suspend(&ctx, Depth::Freeze).await.unwrap();
    bed.world.reboot();
    let (ctx, credentials) = (bed.ctx(5, 3), bed.credentials(3));
    let thaw = bed
        .driver
        .resume(&ctx, Depth::Freeze, &kept.reference, &credentials);
    let missing = thaw.await;
    assert!(
        matches!(missing, Err(DriverError::Missing(_))),
        "{missing:?}"
    );
    // The artifact was consumed: it is not restored a second time.
    let ctx = bed.ctx(6, 4);
    let restore = bed
        .driver
        .resume(&ctx, depth, &kept.reference, &credentials);
    let rejected = restore.await;
    assert!(
        matches!(rejected, Err(DriverError::Rejected(_))),
        "{rejected:?}"
    );
    bed.check();
}

#[tokio::test]
async fn one_seed_gives_one_history_and_every_dial_turns() {
    let dials = Dials {
        reject: 100,
        missing: 100,
        unknown: 100,
        delay: 100,
        delay_reply: 100,
        lose_reply: 100,
        act_late_fenced: 100,
        act_late_locked: 100,
        crash_before: 100,
        crash_after: 100,
        lock_held: 100,
        stale: 100,
        empty: 100,
        in_transition: 100,
        never_attach: 100,
        attach_late: 100,
        old_credentials: 100,
        agent_dies: 100,
        agent_hangs: 100,
        agent_lies: 100,
        longest: MINUTE,
    };
    let history = |seed| {
        let plan = Seeded {
            seed,
            dials: dials.clone(),
        };
        let mut faults = Vec::new();
        for kind in CallKind::ALL {
            for nth in 1..200 {
                faults.push(plan.decide(&CallSite {
                    kind,
                    sandbox: Some(SandboxId(Uuid::from_u128(9))),
                    nth,
                }));
            }
        }
        faults
    };
    assert_eq!(history(1), history(1));
    assert_ne!(history(1), history(2));
    let mut kinds: Vec<_> = history(1)
        .iter()
        .flatten()
        .map(|fault| match fault {
            // Each error and each lateness is a dial of its own.
            Fault::Fail(error) => format!("{error:?}"),
            Fault::ActLate { late, .. } => format!("{late:?}"),
            Fault::Crash(point) => format!("{point:?}"),
            other => format!("{:?}", std::mem::discriminant(other)),
        })
        .collect();
    kinds.sort();
    kinds.dedup();
    assert_eq!(kinds.len(), 20, "{kinds:#?}");
}

#[tokio::test]
async fn it_is_cheap_and_presumes_a_hundred_thousand_sandboxes_for_nothing() {
    let world = SimWorld::new(SimConfig {
        presume_storage: true,
        ..SimConfig::default()
    });
    let port = TestPort::new();
    let driver = SimDriver::new(world.clone(), port.clone());
    let before = Instant::now();
    for n in 0..2000u64 {
        let id = SandboxId(Uuid::from_u128(u128::from(n)));
        let ctx = |fence, incarnation| EffectContext {
            key: EffectKey {
                sandbox: id,
                fence: Fence(fence),
                serial: Serial(1),
            },
            incarnation: Incarnation(incarnation),
            deadline: MINUTE,
        };
        let credentials = |incarnation| Credentials {
            sandbox: id,
            incarnation: Incarnation(incarnation),
            token: Token(format!("{incarnation}")),
        };
        port.issue(&credentials(1), false);
        driver
            .start(&ctx(1, 1), &Bed::spec(), &credentials(1))
            .await
            .unwrap();
        let agent = port.attached(id, Incarnation(1)).await;
        agent.detach().await.unwrap();
        let frozen = driver.suspend(&ctx(2, 1), Depth::Freeze).await.unwrap();
        port.issue(&credentials(2), true);
        driver
            .resume(
                &ctx(3, 2),
                Depth::Freeze,
                &frozen.reference,
                &credentials(2),
            )
            .await
            .unwrap();
        driver.suspend(&ctx(4, 2), Depth::Stop).await.unwrap();
        // The port looks at all who are attached; that is not what is measured.
        port.forget(id);
    }
    // Two pairs each. A gateway is to do 1,000 pairs a second on two cores; this may cost it less
    // than half of that, even in a debug build on a busy machine.
    let pairs = before.elapsed() / 4000;
    assert!(pairs < Duration::from_micros(900), "{pairs:?} a pair");
    let untouched = SandboxId(Uuid::from_u128(u128::MAX));
    assert!(driver.observe(untouched).await.unwrap().storage);
    world.assert_sound();
}
