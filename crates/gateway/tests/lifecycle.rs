//! The lifecycle through the API, against a backend that loses replies, refuses, delays and dies.

mod support;

use std::time::Duration;

use overwinter_client::{Achieved, Depth, Disposition, Phase};
use overwinter_driver::DriverError;
use overwinter_driver::testkit::{CallKind, Fault, Late};
use overwinter_lifecycle::ids::SandboxId;
use support::{PATIENCE, Rig};

fn sandbox_id(id: &str) -> SandboxId {
    id.parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pair_costs_five_commits_at_freeze_and_six_at_stop() {
    let rig = Rig::new().await;
    rig.create("a").await;
    for (depth, commits) in [(Depth::Freeze, 5), (Depth::Stop, 6)] {
        let before = rig.store.stats().commits;
        rig.client.suspend("a").depth(depth).wait().await.unwrap();
        rig.client.resume("a").wait().await.unwrap();
        assert_eq!(rig.store.stats().commits - before, commits, "at {depth:?}");
    }
    rig.sound();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_written_is_there_after_any_number_of_cycles() {
    let rig = Rig::new().await;
    let created = rig.create("a").await;
    rig.client
        .files("a")
        .write("/workspace/f")
        .bytes("kept")
        .await
        .unwrap();
    for depth in [
        Depth::Freeze,
        Depth::Stop,
        Depth::Freeze,
        Depth::Stop,
        Depth::Stop,
    ] {
        let asleep = rig
            .client
            .suspend("a")
            .depth(depth)
            .wait()
            .await
            .unwrap()
            .sandbox;
        assert_eq!(
            (asleep.phase(), asleep.depth()),
            (Phase::Suspended, Some(depth))
        );
        let woken = rig.client.resume("a").wait().await.unwrap();
        let expected = if depth == Depth::Freeze {
            Achieved::Memory
        } else {
            Achieved::Storage
        };
        assert_eq!(woken.achieved, expected);
        assert_eq!(woken.sandbox.id(), created.id());
        let mut found = Vec::new();
        rig.client
            .files("a")
            .read("/workspace/f")
            .await
            .unwrap()
            .copy_to(&mut found)
            .await
            .unwrap();
        assert_eq!(found, b"kept");
    }
    rig.client.delete("a").wait().await.unwrap();
    assert_eq!(rig.world.leftovers(), Vec::<String>::new());
    rig.sound();
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
    rig.fault(CallKind::Suspend, 2, Fault::LoseReply);
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
async fn a_resume_turns_back_a_suspend_and_succeeds_with_the_same_incarnation() {
    let rig = Rig::new().await;
    rig.create("a").await;
    rig.fault(
        CallKind::Quiesce,
        1,
        Fault::Delay(Duration::from_millis(300)),
    );
    let suspend = rig
        .client
        .suspend("a")
        .depth(Depth::Stop)
        .accept()
        .await
        .unwrap();
    let resume = rig.client.resume("a").accept().await.unwrap();
    assert_eq!(resume.disposition(), Disposition::TurnedBack);
    let ended = |id: String| async {
        rig.client
            .wait_operation(&{ id }, Some(PATIENCE))
            .await
            .unwrap()
    };
    let suspend = ended(suspend.operation().unwrap().id().to_owned()).await;
    let resume = ended(resume.operation().unwrap().id().to_owned()).await;
    assert!(
        matches!(suspend.outcome(), Some(overwinter_client::Outcome::TurnedBack { by }) if by == resume.id())
    );
    assert!(matches!(
        resume.outcome(),
        Some(overwinter_client::Outcome::Succeeded(_))
    ));
    let sandbox = rig.client.get("a").await.unwrap();
    assert_eq!(
        (sandbox.phase(), sandbox.raw().incarnation_issued),
        (Phase::Ready, 1)
    );
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
async fn a_delete_is_admitted_in_every_phase_and_dominates() {
    let rig = Rig::new().await;
    let slow = || Fault::Delay(Duration::from_millis(200));
    // While it is created.
    rig.fault(CallKind::Create, 1, slow());
    rig.client
        .create()
        .name("a")
        .image("image")
        .accept()
        .await
        .unwrap();
    rig.client.delete("a").limit(PATIENCE).wait().await.unwrap();
    // While it is suspended, with somebody waiting to resume.
    rig.create("a").await;
    rig.script.at_sandbox(
        sandbox_id(rig.client.get("a").await.unwrap().id()),
        CallKind::Suspend,
        1,
        slow(),
    );
    rig.client
        .suspend("a")
        .depth(Depth::Stop)
        .accept()
        .await
        .unwrap();
    let resume = rig.client.resume("a").accept().await.unwrap();
    let deleting = rig.client.delete("a").accept().await.unwrap();
    assert_eq!(deleting.sandbox().phase(), Phase::Deleting);
    let refused = rig.client.resume("a").accept().await.unwrap_err();
    assert_eq!(refused.reason(), "SANDBOX_DELETING");
    let id = deleting.operation().unwrap().id().to_owned();
    let deleted = rig
        .client
        .wait_operation(&id, Some(PATIENCE))
        .await
        .unwrap();
    assert!(matches!(
        deleted.outcome(),
        Some(overwinter_client::Outcome::Succeeded(_))
    ));
    let resume = rig
        .client
        .wait_operation(resume.operation().unwrap().id(), Some(PATIENCE))
        .await
        .unwrap();
    assert!(
        matches!(resume.outcome(), Some(overwinter_client::Outcome::Superseded { by }) if by == id)
    );
    // Asleep at either depth.
    for depth in [Depth::Freeze, Depth::Stop] {
        rig.create("a").await;
        rig.client.suspend("a").depth(depth).wait().await.unwrap();
        rig.client.delete("a").limit(PATIENCE).wait().await.unwrap();
    }
    assert_eq!(rig.world.leftovers(), Vec::<String>::new());
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
async fn deeper_from_freeze_needs_no_waking() {
    let rig = Rig::new().await;
    rig.create("a").await;
    rig.client
        .suspend("a")
        .depth(Depth::Freeze)
        .wait()
        .await
        .unwrap();
    let before = rig.client.get("a").await.unwrap().raw().incarnation_issued;
    let deeper = rig
        .client
        .suspend("a")
        .depth(Depth::Stop)
        .limit(PATIENCE)
        .wait()
        .await
        .unwrap();
    assert_eq!(deeper.sandbox.depth(), Some(Depth::Stop));
    assert_eq!(
        deeper.sandbox.raw().incarnation_issued,
        before,
        "it was woken"
    );
    let shallower = rig
        .client
        .suspend("a")
        .depth(Depth::Freeze)
        .wait()
        .await
        .unwrap_err();
    assert_eq!(shallower.reason(), "ALREADY_DEEPER");
    assert_eq!(
        rig.client.resume("a").wait().await.unwrap().achieved,
        Achieved::Storage
    );
    rig.sound();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_depth_that_the_driver_does_not_offer_is_refused_before_anything_is_written() {
    let rig = Rig::new().await;
    rig.create("a").await;
    let before = rig.store.stats().transactions;
    let error = rig
        .client
        .suspend("a")
        .depth(Depth::Checkpoint)
        .wait()
        .await
        .unwrap_err();
    assert_eq!(error.reason(), "UNSUPPORTED");
    assert_eq!(rig.store.stats().transactions, before);
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
async fn a_stop_tags_what_it_ended_and_keeps_the_results() {
    let rig = Rig::new().await;
    rig.create("a").await;
    let mut long = rig
        .client
        .command("a", ["sleep", "60000"])
        .exec()
        .await
        .unwrap();
    let own = rig.client.command("a", ["exit", "7"]).run().await.unwrap();
    assert_eq!(own.exit.code, 7);
    rig.client
        .suspend("a")
        .depth(Depth::Stop)
        .wait()
        .await
        .unwrap();
    let exit = long.wait().await.unwrap();
    assert_eq!(exit.cause, overwinter_client::ExitCause::Suspension);
    let kept = rig.client.process("a", long.process_id()).await.unwrap();
    assert!(!kept.running);
    rig.sound();
}

#[tokio::test(flavor = "multi_thread")]
async fn verbs_in_parallel_from_many_clients_all_end() {
    let rig = Rig::new().await;
    for name in ["a", "b", "c"] {
        rig.create(name).await;
    }
    let tasks: Vec<_> = (0..20_u64)
        .map(|client| {
            let sdk = rig.client.clone();
            tokio::spawn(async move {
                let mut dice = client.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
                for _ in 0..30 {
                    dice ^= dice << 13;
                    dice ^= dice >> 7;
                    dice ^= dice << 17;
                    let name = ["a", "b", "c"][(dice % 3) as usize];
                    // Refusals and replacements are answers; only silence is a fault.
                    let answer = async {
                        match (dice >> 8) % 5 {
                            0 => sdk
                                .suspend(name)
                                .depth(Depth::Freeze)
                                .wait()
                                .await
                                .map(|_| ()),
                            1 => sdk
                                .suspend(name)
                                .depth(Depth::Stop)
                                .wait()
                                .await
                                .map(|_| ()),
                            2 => sdk.start(name).wait().await.map(|_| ()),
                            3 => sdk.command(name, ["true"]).run().await.map(|_| ()),
                            _ => sdk.resume(name).wait().await.map(|_| ()),
                        }
                    };
                    let _answered = tokio::time::timeout(PATIENCE, answer)
                        .await
                        .expect("a verb was never answered");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    for name in ["a", "b", "c"] {
        rig.client
            .resume(name)
            .restart_if_restore_fails(true)
            .limit(PATIENCE)
            .wait()
            .await
            .unwrap();
        assert_eq!(
            rig.client
                .command(name, ["true"])
                .run()
                .await
                .unwrap()
                .exit
                .code,
            0
        );
        rig.client
            .delete(name)
            .limit(PATIENCE)
            .wait()
            .await
            .unwrap();
    }
    assert_eq!(rig.world.leftovers(), Vec::<String>::new());
    rig.sound();
}
