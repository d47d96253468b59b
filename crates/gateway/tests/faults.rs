//! The lifecycle through the API, on a simulated backend that loses replies, refuses, delays and dies.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use overwinter_client::raw::ExitCause::{EXIT_CAUSE_LOST, EXIT_CAUSE_OWN};
use overwinter_client::{Achieved, Depth, Phase};
use overwinter_driver::testkit::{CallKind, Fault, Late, Script, SimConfig};
use overwinter_driver::{DriverError, Limit};
use overwinter_lifecycle::ids::SandboxId;
use support::{PATIENCE, Rig};

fn sandbox_id(id: &str) -> SandboxId {
    id.parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_reply_is_settled_by_observing() {
    let rig = Rig::new().await;
    rig.fault(CallKind::Create, 1, Fault::LoseReply);
    rig.create("a").await;
    rig.fault(CallKind::Suspend, 1, Fault::LoseReply);
    let asleep = rig
        .client
        .suspend("a")
        .depth(Depth::Freeze)
        .limit(PATIENCE)
        .wait()
        .await
        .unwrap();
    assert_eq!(asleep.sandbox.depth(), Some(Depth::Freeze));
    rig.fault(CallKind::Resume, 1, Fault::LoseReply);
    let woken = rig.client.resume("a").limit(PATIENCE).wait().await.unwrap();
    assert_eq!(woken.achieved, Achieved::Memory);
    // The freeze was asked for twice: the second time for what to keep.
    rig.fault(CallKind::Suspend, 3, Fault::LoseReply);
    let asleep = rig
        .client
        .suspend("a")
        .depth(Depth::Stop)
        .limit(PATIENCE)
        .wait()
        .await
        .unwrap();
    assert_eq!(asleep.sandbox.depth(), Some(Depth::Stop));
    rig.fault(CallKind::Start, 1, Fault::LoseReply);
    let woken = rig.client.resume("a").limit(PATIENCE).wait().await.unwrap();
    assert_eq!(woken.achieved, Achieved::Storage);
    rig.fault(CallKind::Delete, 1, Fault::LoseReply);
    rig.client.delete("a").limit(PATIENCE).wait().await.unwrap();
    assert_eq!(rig.world.leftovers(), Vec::<String>::new());
    rig.sound();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rejected_suspend_leaves_the_sandbox_as_it_was() {
    let rig = Rig::new().await;
    rig.create("a").await;
    let mut counter = rig
        .client
        .command("a", ["cat"])
        .stdin(true)
        .exec()
        .await
        .unwrap();
    let refused = || Fault::Fail(DriverError::Rejected("not now".to_owned()));
    // Once before anything was asked of the supervisor, once after it had let go.
    rig.fault(CallKind::Prepare, 1, refused());
    rig.fault(CallKind::Suspend, 1, refused());
    for _ in 0..2 {
        let error = rig
            .client
            .suspend("a")
            .depth(Depth::Freeze)
            .limit(PATIENCE)
            .wait()
            .await
            .unwrap_err();
        assert_eq!(error.reason(), "DRIVER_REJECTED");
        let sandbox = rig.client.get("a").await.unwrap();
        assert_eq!((sandbox.phase(), sandbox.depth()), (Phase::Ready, None));
        assert_eq!(sandbox.raw().incarnation_issued, 1);
    }
    // The exec stream went on over the reattachment.
    let input = counter.take_stdin().unwrap();
    assert!(input.send("still here").await);
    drop(input);
    assert_eq!(counter.wait().await.unwrap().code, 0);
    assert_eq!(
        rig.client
            .command("a", ["true"])
            .run()
            .await
            .unwrap()
            .exit
            .code,
        0
    );
    rig.sound();
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_that_is_gone_fails_a_strict_resume_and_the_fallback_says_storage() {
    let rig = Rig::new().await;
    let id = sandbox_id(rig.create("a").await.id());
    rig.client
        .files("a")
        .write("/workspace/f")
        .bytes("kept")
        .await
        .unwrap();
    rig.client
        .suspend("a")
        .depth(Depth::Freeze)
        .wait()
        .await
        .unwrap();
    assert!(rig.world.kill(id));
    let error = rig
        .client
        .resume("a")
        .limit(PATIENCE)
        .wait()
        .await
        .unwrap_err();
    assert_eq!(error.reason(), "RETAINED_LOST");
    let sandbox = rig.client.get("a").await.unwrap();
    assert_eq!(
        (sandbox.depth(), sandbox.lost()),
        (Some(Depth::Stop), Some(Depth::Freeze))
    );
    let woken = rig
        .client
        .resume("a")
        .restart_if_restore_fails(true)
        .limit(PATIENCE)
        .wait()
        .await
        .unwrap();
    assert_eq!(woken.achieved, Achieved::Storage);
    assert_eq!(
        rig.client
            .files("a")
            .stat("/workspace/f")
            .await
            .unwrap()
            .size,
        4
    );
    rig.sound();
}

#[tokio::test(flavor = "multi_thread")]
async fn running_compute_that_is_gone_is_a_failure_and_a_resume_brings_the_storage_back() {
    let rig = Rig::new().await;
    let id = sandbox_id(rig.create("a").await.id());
    rig.client
        .files("a")
        .write("/workspace/f")
        .bytes("kept")
        .await
        .unwrap();
    let mut watch = rig.client.watch(Some("a".into()), 0).await.unwrap();
    assert!(rig.world.kill(id));
    let failed = watch.until(|sandbox| sandbox.phase() == Phase::Failed);
    let failed = tokio::time::timeout(PATIENCE, failed)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(failed.unwrap().failure(), Some("COMPUTE_LOST"));
    let refused = rig.client.command("a", ["true"]).run().await.unwrap_err();
    assert_eq!(refused.reason(), "SANDBOX_FAILED");
    let woken = rig.client.resume("a").limit(PATIENCE).wait().await.unwrap();
    assert_eq!(woken.achieved, Achieved::Storage);
    assert_eq!(
        rig.client
            .files("a")
            .stat("/workspace/f")
            .await
            .unwrap()
            .size,
        4
    );
    rig.sound();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_ran_in_compute_that_is_gone_is_lost_and_what_had_ended_keeps_its_result() {
    let rig = Rig::new().await;
    let id = sandbox_id(rig.create("a").await.id());
    let start = |command: [&'static str; 2]| {
        let command = rig.client.command("a", command);
        async move { command.exec().await.unwrap() }
    };
    let mut ended = start(["exit", "7"]).await;
    assert_eq!(ended.wait().await.unwrap().code, 7);
    let frozen = start(["sleep", "60000"]).await;
    rig.client
        .suspend("a")
        .depth(Depth::Freeze)
        .wait()
        .await
        .unwrap();
    rig.client.resume("a").wait().await.unwrap();
    let awake = start(["sleep", "60000"]).await;
    let mut watch = rig.client.watch(Some("a".into()), 0).await.unwrap();
    assert!(rig.world.kill(id));
    let failed = watch.until(|sandbox| sandbox.phase() == Phase::Failed);
    let failed = tokio::time::timeout(PATIENCE, failed).await.unwrap();
    failed.unwrap().unwrap();
    for (process, cause, code) in [
        (ended.process_id(), EXIT_CAUSE_OWN, 7),
        (frozen.process_id(), EXIT_CAUSE_LOST, -1),
        (awake.process_id(), EXIT_CAUSE_LOST, -1),
    ] {
        let kept = rig.client.process("a", process).await.unwrap();
        assert!(!kept.running);
        assert_eq!(
            (kept.exit.cause, kept.exit.code),
            (cause.into(), code),
            "{kept:?}"
        );
    }
    // A cold start does not bring them back, and does not change what is known.
    rig.client.resume("a").limit(PATIENCE).wait().await.unwrap();
    let kept = rig.client.process("a", frozen.process_id()).await.unwrap();
    assert_eq!(kept.exit.cause, EXIT_CAUSE_LOST);
    rig.sound();
}

/// Calls that tried again without waiting kept the hub from being told why.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn open_execs_leave_room_when_their_compute_dies() {
    let rig = Rig::new().await;
    let id = sandbox_id(rig.create("a").await.id());
    let mut open = Vec::new();
    for _ in 0..8 {
        open.push(rig.client.command("a", ["sleep", "60000"]).exec().await);
    }
    assert!(open.iter().all(Result::is_ok));
    assert!(rig.world.kill(id));
    let mut watch = rig.client.watch(Some("a".into()), 0).await.unwrap();
    let failed = watch.until(|sandbox| sandbox.phase() == Phase::Failed);
    let failed = tokio::time::timeout(PATIENCE, failed).await.unwrap();
    failed.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_effect_that_lands_late_makes_no_second_compute() {
    let rig = Rig::new().await;
    rig.create("a").await;
    rig.client
        .suspend("a")
        .depth(Depth::Stop)
        .wait()
        .await
        .unwrap();
    let late = Fault::ActLate {
        after: Duration::from_millis(300),
        late: Late::Locked,
    };
    rig.fault(CallKind::Start, 1, late);
    let woken = rig.client.resume("a").limit(PATIENCE).wait().await;
    let sandbox = rig.client.get("a").await.unwrap();
    match woken {
        Ok(_) => assert_eq!(sandbox.phase(), Phase::Ready),
        Err(_) => assert_eq!(sandbox.phase(), Phase::Suspended),
    }
    rig.client.delete("a").limit(PATIENCE).wait().await.unwrap();
    assert_eq!(rig.world.leftovers(), Vec::<String>::new());
    rig.sound();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_create_whose_image_is_not_there_leaves_its_name_free() {
    let rig = Rig::new().await;
    let missing = Fault::Fail(DriverError::Missing("no such image".to_owned()));
    rig.fault(CallKind::Pin, 1, missing);
    let error = rig
        .client
        .create()
        .name("a")
        .image("gone")
        .wait()
        .await
        .unwrap_err();
    assert_eq!(error.reason(), "IMAGE_UNUSABLE");
    rig.create("a").await;
    let taken = rig
        .client
        .create()
        .name("a")
        .image("image")
        .wait()
        .await
        .unwrap_err();
    assert_eq!(taken.reason(), "NAME_TAKEN");
    rig.sound();
}

#[tokio::test(flavor = "multi_thread")]
async fn compute_that_ends_before_it_attaches_leaves_no_storage() {
    let rig = Rig::new().await;
    rig.fault(CallKind::Attach, 1, Fault::NeverAttach);
    let create = rig
        .client
        .create()
        .name("a")
        .image("image")
        .accept()
        .await
        .unwrap();
    let id = sandbox_id(create.sandbox().id());
    while !rig.world.kill(id) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let operation = create.operation().unwrap();
    let ended = rig
        .client
        .wait_operation(operation.id(), Some(PATIENCE))
        .await
        .unwrap();
    assert!(matches!(
        ended.outcome(),
        Some(overwinter_client::Outcome::Failed {
            reason: "START_FAILED",
            ..
        })
    ));
    tokio::time::timeout(PATIENCE, async {
        while !rig.world.leftovers().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("its storage is still there");
    rig.create("a").await;
    rig.sound();
}

#[tokio::test(flavor = "multi_thread")]
async fn compute_that_ends_as_its_operation_ends_is_missed() {
    let rig = Rig::new().await;
    rig.fault(CallKind::Attach, 1, Fault::AgentDies);
    let created = rig
        .client
        .create()
        .name("a")
        .image("image")
        .limit(PATIENCE)
        .wait()
        .await;
    if created.is_ok() {
        let mut watch = rig.client.watch(Some("a".into()), 0).await.unwrap();
        let failed = watch.until(|sandbox| sandbox.phase() == Phase::Failed);
        let failed = tokio::time::timeout(PATIENCE, failed)
            .await
            .unwrap()
            .unwrap();
        assert_eq!(failed.unwrap().failure(), Some("COMPUTE_LOST"));
    }
    rig.sound();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_with_old_credentials_is_refused_and_the_new_one_let_in() {
    let rig = Rig::new().await;
    rig.create("a").await;
    rig.client
        .suspend("a")
        .depth(Depth::Freeze)
        .wait()
        .await
        .unwrap();
    rig.fault(CallKind::Attach, 2, Fault::OldCredentials);
    let woken = rig.client.resume("a").limit(PATIENCE).wait().await.unwrap();
    assert_eq!(woken.achieved, Achieved::Memory);
    assert_eq!(rig.world.refusals().len(), 1);
    rig.sound();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_that_is_not_there_is_refused_before_anything_is_written() {
    let rig = Rig::with(SimConfig::default(), Arc::new(Script::new())).await;
    let before = rig.store.stats().transactions;
    let create = || rig.client.create().name("a").image("image");
    let error = create().network("internet").wait().await.unwrap_err();
    assert_eq!(error.reason(), "UNSUPPORTED");
    assert!(error.message().contains("its networks: none"), "{error:?}");
    assert_eq!(rig.store.stats().transactions, before);
    create().network("none").wait().await.unwrap();
    rig.sound();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_that_would_not_hold_is_refused_before_anything_is_written() {
    let why = "no quotas here";
    let config = SimConfig {
        unenforced: vec![(Limit::Disk, why.to_owned())],
        ..SimConfig::default()
    };
    let rig = Rig::with(config, Arc::new(Script::new())).await;
    let before = rig.store.stats().transactions;
    let create = || rig.client.create().name("a").image("image");
    let error = create().disk_bytes(1 << 30).wait().await.unwrap_err();
    assert_eq!(error.reason(), "UNSUPPORTED");
    assert!(error.message().contains(why), "{error:?}");
    assert_eq!(rig.store.stats().transactions, before);
    // Whatever does hold may be asked for.
    create().memory_bytes(1 << 30).wait().await.unwrap();
    rig.sound();
}

#[tokio::test(flavor = "multi_thread")]
async fn backends_that_hang_hold_nobody_else_up() {
    let rig = Rig::new().await;
    // More than are at work at once.
    let hung = 2 * rig.api.reconciler.ports.owners_at_once;
    for number in 0..hung {
        let sandbox = rig.create(&format!("hung-{number}")).await;
        let hangs = Fault::Delay(10 * PATIENCE);
        rig.script
            .at_sandbox(sandbox_id(sandbox.id()), CallKind::Suspend, 1, hangs);
    }
    rig.create("other").await;
    for number in 0..hung {
        let suspend = rig.client.suspend(format!("hung-{number}"));
        suspend.depth(Depth::Freeze).accept().await.unwrap();
    }
    let suspend = rig.client.suspend("other").depth(Depth::Freeze);
    let asleep = suspend.limit(PATIENCE).wait().await.unwrap();
    assert_eq!(asleep.sandbox.depth(), Some(Depth::Freeze));
    for number in 0..hung {
        let sandbox = rig.client.get(format!("hung-{number}")).await.unwrap();
        assert_eq!(sandbox.phase(), Phase::Suspending);
    }
    rig.sound();
}
