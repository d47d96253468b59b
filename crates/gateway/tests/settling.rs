//! Outcomes that nobody knows, effects that fail for a while, and a gateway that takes over.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use overwinter_client::Phase;
use overwinter_driver::DriverError;
use overwinter_driver::testkit::{CallKind, CallSite, Fault, FaultPlan, Late, Script, SimConfig};
use overwinter_lifecycle::operation::Deadlines;
use support::{PATIENCE, Rig};
use tokio::sync::Semaphore;

fn unknown() -> Fault {
    Fault::Fail(DriverError::Unknown("no reply".to_owned()))
}

/// A backend of which nobody can tell anything: creates and starts are not answered, and looks see
/// it in transition. Each look is counted.
struct Dark {
    is: AtomicBool,
    looks: Semaphore,
}

impl Dark {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            is: AtomicBool::new(true),
            looks: Semaphore::new(0),
        })
    }

    async fn looked(&self, times: u32) {
        let looked = tokio::time::timeout(PATIENCE, self.looks.acquire_many(times)).await;
        looked.expect("it is not looked at").unwrap().forget();
    }

    fn lift(&self) {
        self.is.store(false, Ordering::SeqCst);
    }
}

impl FaultPlan for Dark {
    fn decide(&self, call: &CallSite) -> Option<Fault> {
        if !self.is.load(Ordering::SeqCst) {
            return None;
        }
        match call.kind {
            CallKind::Create | CallKind::Start => Some(unknown()),
            CallKind::Observe => {
                self.looks.add_permits(1);
                Some(Fault::InTransition)
            }
            _ => None,
        }
    }
}

async fn in_the_dark(dark: &Arc<Dark>) -> Rig {
    let config = SimConfig {
        faults: dark.clone(),
        ..SimConfig::default()
    };
    let deadlines = Deadlines {
        effect_ms: 100,
        operation_ms: 200,
        ..Deadlines::default()
    };
    Rig::with_deadlines(config, Arc::new(Script::new()), deadlines).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_create_of_which_nobody_can_tell_stays_creating_over_a_restart_and_ends_when_it_is_seen()
{
    let dark = Dark::new();
    let rig = in_the_dark(&dark).await;
    let create = rig.client.create().name("a").image("image");
    let create = create.accept().await.unwrap();
    // Well past its deadline.
    dark.looked(30).await;
    let rig = rig.restart().await;
    dark.looked(30).await;
    let sandbox = rig.client.get("a").await.unwrap();
    assert_eq!(sandbox.phase(), Phase::Creating);
    let taken = rig.client.create().name("a").image("image").accept().await;
    assert_eq!(taken.unwrap_err().reason(), "NAME_TAKEN");
    dark.lift();
    // It never was: nobody tries again past the deadline.
    let operation = create.operation().unwrap().id().to_owned();
    let ended = rig.client.wait_operation(&operation, Some(PATIENCE)).await;
    assert!(matches!(
        ended.unwrap().outcome(),
        Some(overwinter_client::Outcome::Failed {
            reason: "START_FAILED",
            ..
        })
    ));
    rig.create("a").await;
    rig.world.assert_sound();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delete_leads_out_of_a_create_of_which_nobody_can_tell() {
    let dark = Dark::new();
    let rig = in_the_dark(&dark).await;
    let create = rig.client.create().name("a").image("image");
    create.accept().await.unwrap();
    dark.looked(30).await;
    let delete = rig.client.delete("a").accept().await.unwrap();
    let operation = delete.operation().unwrap().id().to_owned();
    dark.lift();
    let ended = rig.client.wait_operation(&operation, Some(PATIENCE)).await;
    assert!(matches!(
        ended.unwrap().outcome(),
        Some(overwinter_client::Outcome::Succeeded(_))
    ));
    rig.create("a").await;
    rig.world.assert_sound();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delete_does_not_wait_for_tries_that_go_on() {
    let rig = Rig::new().await;
    rig.create("a").await;
    rig.client
        .suspend("a")
        .depth(overwinter_client::Depth::Stop)
        .wait()
        .await
        .unwrap();
    for nth in 1..=8 {
        rig.fault(CallKind::Start, nth, unknown());
    }
    let began = Instant::now();
    rig.client.resume("a").accept().await.unwrap();
    rig.client.delete("a").limit(PATIENCE).wait().await.unwrap();
    // Eight tries take longer than this.
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(rig.world.leftovers(), Vec::<String>::new());
    rig.world.assert_sound();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_effect_is_tried_again_until_it_works_however_often_that_is() {
    let rig = Rig::new().await;
    for nth in 1..=5 {
        rig.fault(CallKind::Create, nth, unknown());
        rig.fault(CallKind::Delete, nth, unknown());
    }
    rig.create("a").await;
    rig.client.delete("a").limit(PATIENCE).wait().await.unwrap();
    assert_eq!(rig.world.leftovers(), Vec::<String>::new());
    rig.sound();
}

#[tokio::test(flavor = "multi_thread")]
async fn absence_counts_only_when_a_lost_request_has_had_its_life() {
    let script = Arc::new(Script::new());
    let life = Duration::from_secs(2);
    let mut config = SimConfig {
        faults: script.clone(),
        ..SimConfig::default()
    };
    for mode in &mut config.modes {
        mode.lost_request_life = life;
    }
    let rig = Rig::with(config, script).await;
    let late = Fault::ActLate {
        after: Duration::from_millis(500),
        late: Late::Unfenced,
    };
    rig.fault(CallKind::Create, 1, late);
    let began = Instant::now();
    let created = rig.create("a").await;
    assert_eq!(created.raw().incarnation_issued, 1);
    // Seen as soon as it is there, not when its life is over.
    assert!(began.elapsed() < life, "{:?}", began.elapsed());
    rig.sound();
}

/// A create whose reply is lost, and which a backend carries out when its delete has been asked for.
struct LateCreate(Semaphore);

impl FaultPlan for LateCreate {
    fn decide(&self, call: &CallSite) -> Option<Fault> {
        (call.kind == CallKind::Create).then(|| {
            self.0.add_permits(1);
            Fault::ActLate {
                after: Duration::from_millis(500),
                late: Late::Unfenced,
            }
        })
    }
}

/// It was told done while the create was on its way, which then landed on a tombstone.
#[tokio::test(flavor = "multi_thread")]
async fn a_delete_waits_out_what_it_has_interrupted() {
    let plan = Arc::new(LateCreate(Semaphore::new(0)));
    let mut config = SimConfig {
        faults: plan.clone(),
        ..SimConfig::default()
    };
    for mode in &mut config.modes {
        mode.lost_request_life = Duration::from_secs(2);
    }
    let rig = Rig::with(config, Arc::new(Script::new())).await;
    let create = rig.client.create().name("a").image("image");
    create.accept().await.unwrap();
    let sent = tokio::time::timeout(PATIENCE, plan.0.acquire()).await;
    sent.expect("it is not created").unwrap().forget();
    rig.client.delete("a").limit(PATIENCE).wait().await.unwrap();
    // Twice what it takes to land.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(rig.world.leftovers(), Vec::<String>::new());
    rig.sound();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_right_after_a_restart_waits_for_the_supervisor() {
    let rig = Rig::new().await;
    let id = rig.create("a").await.id().to_owned();
    let slow = rig.client.command("a", ["sleep", "60000"]);
    let process = slow.exec().await.unwrap().process_id().to_owned();
    let recover = Fault::Delay(Duration::from_millis(300));
    rig.script
        .at_sandbox(id.parse().unwrap(), CallKind::Recover, 1, recover);
    let rig = rig.restart().await;
    let (exec, file, listed) = tokio::join!(
        rig.client.command("a", ["exit", "3"]).run(),
        rig.client.files("a").write("/workspace/f").bytes("x"),
        rig.client.process("a", &process),
    );
    assert_eq!(exec.unwrap().exit.code, 3);
    file.unwrap();
    assert!(listed.unwrap().running);
    rig.sound();
}
