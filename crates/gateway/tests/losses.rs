//! Compute that is lost while somebody is at work on its sandbox, and supervisors that fall silent.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use overwinter_client::{Achieved, Depth};
use overwinter_driver::testkit::{
    CallKind, CallSite, CrashPoint, Fault, FaultPlan, Script, SimConfig,
};
use overwinter_lifecycle::ids::SandboxId;
use overwinter_lifecycle::operation::Deadlines;
use overwinter_lifecycle::{Phase, Reason};
use support::{PATIENCE, Rig};

#[tokio::test(flavor = "multi_thread")]
async fn what_was_lost_while_no_gateway_was_there_is_seen_after_an_operation_that_changed_nothing()
{
    let rig = Rig::new().await;
    let id: SandboxId = rig.create("a").await.id().parse().unwrap();
    // Where the gateway dies: this owner never goes on.
    rig.fault(CallKind::Prepare, 1, Fault::Crash(CrashPoint::BeforeEffect));
    let suspend = rig.client.suspend("a").depth(Depth::Freeze).accept().await;
    let suspend = suspend.unwrap().operation().unwrap().id().to_owned();
    assert!(rig.world.kill(id));
    let rig = rig.restart().await;
    let ended = rig.client.wait_operation(&suspend, Some(PATIENCE)).await;
    assert!(matches!(
        ended.unwrap().outcome(),
        Some(overwinter_client::Outcome::Failed {
            reason: "DRIVER_REJECTED",
            ..
        })
    ));
    let mut changes = rig.store.subscribe();
    let lost = tokio::time::timeout(PATIENCE, async {
        loop {
            let sandbox = rig.store.get(id).await.unwrap().unwrap();
            if sandbox.phase() == Phase::Failed {
                return sandbox.failure.unwrap().fault.reason;
            }
            changes.changed().await.unwrap();
        }
    });
    assert_eq!(lost.await, Ok(Reason::ComputeLost));
    rig.sound();
}

/// The next supervisor that is to let work in again says nothing.
#[derive(Default)]
struct Silent(AtomicBool);

impl FaultPlan for Silent {
    fn decide(&self, call: &CallSite) -> Option<Fault> {
        let asked = call.kind == CallKind::Unquiesce;
        (asked && self.0.swap(false, Ordering::Relaxed)).then_some(Fault::AgentHangs)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_supervisor_that_is_silent_when_it_wakes_is_told_again_to_let_work_in() {
    let silent = Arc::new(Silent::default());
    let config = SimConfig {
        faults: silent.clone(),
        ..SimConfig::default()
    };
    let deadlines = Deadlines {
        agent_ms: 200,
        ..Deadlines::default()
    };
    let rig = Rig::with_deadlines(config, Arc::new(Script::new()), deadlines).await;
    rig.create("a").await;
    let asleep = rig.client.suspend("a").depth(Depth::Freeze);
    asleep.limit(PATIENCE).wait().await.unwrap();
    silent.0.store(true, Ordering::Relaxed);
    let woken = rig.client.resume("a").limit(PATIENCE).wait().await.unwrap();
    assert_eq!(woken.achieved, Achieved::Memory);
    assert!(!silent.0.load(Ordering::Relaxed), "nobody was asked");
    let ran = rig.client.command("a", ["true"]).run();
    let ran = tokio::time::timeout(Duration::from_secs(5), ran).await;
    assert_eq!(ran.unwrap().unwrap().exit.code, 0);
    rig.sound();
}
