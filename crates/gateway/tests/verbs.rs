//! The verbs through the API, on a simulated backend that does as it is told.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::time::Duration;

use overwinter_client::raw::ExitCause::EXIT_CAUSE_SUSPENSION;
use overwinter_client::{Achieved, Depth, Disposition, ExecEvent, Phase};
use overwinter_driver::testkit::{CallKind, Fault};
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
    // While it is suspended, with somebody waiting to start it.
    rig.create("a").await;
    let id = sandbox_id(rig.client.get("a").await.unwrap().id());
    rig.script.at_sandbox(id, CallKind::Quiesce, 1, slow());
    rig.script.at_sandbox(id, CallKind::Delete, 1, slow());
    rig.client
        .suspend("a")
        .depth(Depth::Stop)
        .accept()
        .await
        .unwrap();
    let start = rig.client.start("a").accept().await.unwrap();
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
    let start = rig
        .client
        .wait_operation(start.operation().unwrap().id(), Some(PATIENCE))
        .await
        .unwrap();
    assert!(
        matches!(start.outcome(), Some(overwinter_client::Outcome::Superseded { by }) if by == id)
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
    assert_eq!(kept.command, ["sleep", "60000"]);
    rig.sound();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_freeze_halts_is_known_while_it_sleeps_and_ends_when_that_is_deepened() {
    let rig = Rig::new().await;
    rig.create("a").await;
    let long = rig.client.command("a", ["sleep", "60000"]);
    let long = long.exec().await.unwrap().process_id().to_owned();
    let process = || async { rig.client.process("a", &long).await.unwrap() };
    rig.client
        .suspend("a")
        .depth(Depth::Freeze)
        .wait()
        .await
        .unwrap();
    let halted = process().await;
    assert!(halted.running && halted.exit.as_option().is_none());
    rig.client
        .suspend("a")
        .depth(Depth::Stop)
        .limit(PATIENCE)
        .wait()
        .await
        .unwrap();
    let ended = process().await;
    assert!(!ended.running);
    assert_eq!(ended.exit.cause, EXIT_CAUSE_SUSPENSION);
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

#[tokio::test(flavor = "multi_thread")]
async fn an_exec_that_is_open_over_a_freeze_goes_on_after_it() {
    let rig = Rig::new().await;
    rig.create("a").await;
    let mut cat = rig
        .client
        .command("a", ["cat"])
        .stdin(true)
        .exec()
        .await
        .unwrap();
    let input = cat.take_stdin().unwrap();
    assert!(input.send("before ").await);
    rig.client
        .suspend("a")
        .depth(Depth::Freeze)
        .wait()
        .await
        .unwrap();
    rig.client.resume("a").wait().await.unwrap();
    assert!(input.send("after").await);
    drop(input);
    let mut printed = Vec::new();
    while let Some(event) = tokio::time::timeout(PATIENCE, cat.next()).await.unwrap() {
        if let ExecEvent::Stdout(data) = event {
            printed.extend_from_slice(&data);
        }
    }
    let exit = cat.wait().await.unwrap();
    assert_eq!(
        (exit.code, String::from_utf8(printed).unwrap().as_str()),
        (0, "before after")
    );
    rig.sound();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_key_with_the_same_request_is_the_same_call() {
    let rig = Rig::new().await;
    let create = |label: &str| {
        let mut create = rig
            .client
            .create()
            .name("a")
            .image("image")
            .idempotency_key("once");
        for number in 0..8 {
            create = create.label(format!("l{number}"), label);
        }
        create
    };
    let first = create("x").wait().await.unwrap().sandbox;
    let again = create("x").wait().await.unwrap().sandbox;
    assert_eq!(first.id(), again.id());
    let other = create("y").wait().await.unwrap_err();
    assert_eq!(other.reason(), "IDEMPOTENCY_KEY_REUSED");
    rig.sound();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delete_that_is_repeated_by_name_gives_its_answer_again_and_deletes_nobody_else() {
    let rig = Rig::new().await;
    rig.create("a").await;
    let delete = || {
        let delete = rig.client.delete("a").idempotency_key("once");
        async move { delete.limit(PATIENCE).wait().await.unwrap() }
    };
    let ended = |done: overwinter_client::Done| done.operation.unwrap().id().to_owned();
    let first = ended(delete().await);
    assert_eq!(ended(delete().await), first);
    // By now the name is another's.
    rig.create("a").await;
    assert_eq!(ended(delete().await), first);
    assert_eq!(rig.client.get("a").await.unwrap().phase(), Phase::Ready);
    let other = rig.client.delete("a").accept().await.unwrap();
    assert_ne!(other.operation().unwrap().id(), first);
    rig.sound();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_exit_of_the_main_process_is_recorded_and_changes_no_phase() {
    let rig = Rig::new().await;
    // One that ends at once, and one that is followed to its end.
    for (name, main, code) in [("a", ["exit", "7"], 7), ("b", ["sleep", "300"], 0)] {
        let create = rig.client.create().name(name).image("image").main(main);
        create.wait().await.unwrap();
        let mut watch = rig.client.watch(Some(name.into()), 0).await.unwrap();
        let ended = watch.until(|sandbox| sandbox.raw().main_exit.as_option().is_some());
        let ended = tokio::time::timeout(PATIENCE, ended)
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        let exit = ended.raw().main_exit.as_option().map(|exit| exit.code);
        assert_eq!((exit, ended.phase()), (Some(code), Phase::Ready));
    }
    rig.sound();
}
