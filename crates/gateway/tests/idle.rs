//! An idle suspend never cuts work.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::time::Duration;

use overwinter_client::{ExecEvent, Outcome, Phase};
use overwinter_driver::testkit::{CallKind, Fault};
use overwinter_lifecycle::Depth;
use overwinter_lifecycle::admission::Request;
use overwinter_lifecycle::ids::SandboxId;
use overwinter_store::{Accept, Durability};
use support::{PATIENCE, Rig};

async fn ended(rig: &Rig, operation: &str) -> overwinter_client::Operation {
    let ended = rig.client.wait_operation(operation, Some(PATIENCE)).await;
    ended.unwrap()
}

/// Sends a word through an open `cat` and back.
async fn echoes(
    exec: &mut overwinter_client::Exec,
    stdin: &overwinter_client::ExecStdin,
    word: &str,
) {
    assert!(stdin.send(word.to_owned()).await);
    let mut back = Vec::new();
    while back.len() < word.len() {
        match exec.next().await {
            Some(ExecEvent::Stdout(bytes)) => back.extend_from_slice(&bytes),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(back, word.as_bytes());
}

#[tokio::test(flavor = "multi_thread")]
async fn it_waits_for_open_calls_and_refuses_where_one_came_as_it_began() {
    let rig = Rig::new().await;
    let id: SandboxId = rig.create("a").await.id().parse().unwrap();
    let mut cat = rig
        .client
        .command("a", ["cat"])
        .stdin(true)
        .exec()
        .await
        .unwrap();
    let stdin = cat.take_stdin().unwrap();
    echoes(&mut cat, &stdin, "one").await;
    let reconciler = &rig.api.reconciler;
    assert_eq!(reconciler.suspend_idle(id, None).await.unwrap(), None);

    // As where the call had come between the predicate and the suspend that it let through.
    let accepted = rig
        .store
        .accept(Accept {
            sandbox: id,
            request: Request::Suspend {
                depth: Some(Depth::Freeze),
                idle: true,
                reclaim: false,
            },
            operation: reconciler.ports.ids.operation(),
            requester: "a test".to_owned(),
            deadlines: reconciler.deadlines,
            idempotency: None,
            durability: Durability::Before,
            now: reconciler.ports.clock.wall(),
        })
        .await
        .unwrap();
    let suspend = accepted.operation.unwrap().id.to_string();
    reconciler.own(accepted.sandbox);
    let refused = ended(&rig, &suspend).await;
    let Some(Outcome::Failed { reason, .. }) = refused.outcome() else {
        panic!("{refused:?}");
    };
    assert_eq!(reason, "NOT_IDLE");
    echoes(&mut cat, &stdin, "two").await;
    assert_eq!(rig.client.get("a").await.unwrap().phase(), Phase::Ready);

    drop(stdin);
    assert_eq!(cat.wait().await.unwrap().code, 0);
    let suspend = tokio::time::timeout(PATIENCE, async {
        loop {
            if let Some(suspend) = reconciler.suspend_idle(id, None).await.unwrap() {
                return suspend;
            }
            // The gateway's end of the call closes on its own.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    let suspend = suspend.await.unwrap();
    ended(&rig, &suspend.id.to_string())
        .await
        .achieved()
        .unwrap();
    assert_eq!(rig.client.get("a").await.unwrap().phase(), Phase::Suspended);
    rig.sound();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_comes_turns_it_back_and_is_carried_out() {
    let rig = Rig::new().await;
    let id: SandboxId = rig.create("a").await.id().parse().unwrap();
    let issued = rig.client.get("a").await.unwrap().raw().incarnation_issued;
    rig.fault(CallKind::Prepare, 1, Fault::Delay(Duration::from_secs(2)));
    let suspend = rig.api.reconciler.suspend_idle(id, None).await.unwrap();
    let suspend = suspend.unwrap().id.to_string();
    let ran = rig.client.command("a", ["exit", "3"]).run().await.unwrap();
    assert_eq!(ran.exit.code, 3);
    let ended = ended(&rig, &suspend).await;
    assert!(
        matches!(ended.outcome(), Some(Outcome::TurnedBack { .. })),
        "{ended:?}"
    );
    let now = rig.client.get("a").await.unwrap();
    assert_eq!(now.phase(), Phase::Ready);
    assert_eq!(now.raw().incarnation_issued, issued);
    rig.sound();
}
