//! The verbs through the store, on a real folder: what each transaction leaves for the next
//! process to find.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod support;

use overwinter_lifecycle::admission::Request;
use overwinter_lifecycle::capacity::Limits;
use overwinter_lifecycle::ids::Millis;
use overwinter_lifecycle::operation::{EffectKind, Outcome, Step, Stopping};
use overwinter_lifecycle::record::{Compute, Desired};
use overwinter_lifecycle::recording::{Ending, Recorded, Recording};
use overwinter_lifecycle::{Depth, Phase, Reason};
use overwinter_store::{AcceptError, Disposition, OperationFilter, ProcessResult, StoreError};
use support::*;
use uuid::Uuid;

#[tokio::test]
async fn a_suspend_is_finished_by_the_process_that_comes_after_the_one_that_began_it() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let awake = create(&store, "web").await;
    assert_eq!(awake.phase(), Phase::Ready);
    let begun = accept(&store, &awake, STOP).await;
    assert!(begun.begun);
    let written = record(
        &store,
        &begun.sandbox,
        intent(EffectKind::Suspend(Depth::Stop)),
    )
    .await;
    let (first_epoch, gateway) = (store.meta().epoch, store.meta().gateway);
    drop(store);

    let store = open(folder.path());
    assert_eq!(store.meta().epoch, first_epoch + 1);
    assert_eq!(store.meta().gateway, gateway);
    let recovered = store.recover().await.unwrap();
    let [sandbox] = recovered.as_slice() else {
        panic!("one operation is under way: {recovered:?}")
    };
    let op = sandbox.running.as_ref().unwrap();
    assert_eq!((op.step, op.attempt, op.quiesced), (Step::Intent, 2, true));
    assert_eq!(Recorded::Done(op.intent_key()), written.recorded);
    assert_eq!(sandbox.phase(), Phase::Suspending(Depth::Stop));

    let exit = ProcessResult {
        process: Uuid::now_v7(),
        exited_at: Some(NOW),
        body: serde_json::json!({"signal": 15, "why": "suspension"}),
    };
    let terminated = store
        .record(
            sandbox.id,
            running(sandbox),
            Recording::Terminated,
            vec![("terminate".to_owned(), 40)],
            vec![exit.clone()],
            NOW,
        )
        .await
        .unwrap();
    assert_eq!(terminated.recorded, Recorded::Done(None));
    let end = asleep(Depth::Stop, sandbox.issued, Vec::new());
    let ended = record(&store, sandbox, end.clone()).await;
    assert_eq!(ended.recorded, Recorded::Ended { next: None });
    assert_eq!(ended.ended[0].timings.len(), 3, "of three recordings");
    drop(store);

    let store = open(folder.path());
    let asleep = store.get(awake.id).await.unwrap().unwrap();
    assert_eq!(asleep, ended.sandbox, "read back as it was written");
    assert_eq!(asleep.phase(), Phase::Suspended(Depth::Stop));
    assert_eq!(store.recover().await.unwrap(), []);
    assert_eq!(
        store.process_result(awake.id, exit.process).await.unwrap(),
        Some(exit)
    );
    let receipts = store.receipts(awake.id).await.unwrap();
    let ledger: Vec<_> = receipts
        .iter()
        .map(|row| (row.kind.as_str(), row.outcome.as_deref()))
        .collect();
    assert_eq!(
        ledger,
        [("create", Some("done")), ("suspend_stop", Some("done"))]
    );
    assert_eq!(receipts[1].native_ref, receipts[1].key.native_name());
    assert_eq!(
        store.newest_receipt(awake.id).await.unwrap().as_ref(),
        receipts.last()
    );

    // The intent of a resume is in the commit that accepts it; its owner writes only the end.
    let before = store.stats();
    let resuming = accept(&store, &asleep, RESUME).await.sandbox;
    assert_eq!(
        store.newest_receipt(awake.id).await.unwrap().unwrap().kind,
        "start"
    );
    record(&store, &resuming, ready(&resuming)).await;
    assert_eq!(store.stats().commits, before.commits + 2);
    // Whoever lost its place cannot write any more.
    let late = try_record(&store, &resuming, end).await;
    assert_eq!(late, Err(StoreError::NotRunning));
}

#[tokio::test]
async fn a_name_is_free_when_its_delete_has_ended_and_not_before() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let first = create(&store, "web").await;
    let taken = AcceptError::NameTaken { id: first.id };
    assert_eq!(
        store.accept_create(new_sandbox("web")).await,
        Err(taken.clone())
    );
    let deleting = accept(&store, &first, DELETE).await.sandbox;
    assert_eq!(store.accept_create(new_sandbox("web")).await, Err(taken));
    let receipt = store.newest_receipt(first.id).await.unwrap().unwrap();
    assert_eq!((receipt.kind.as_str(), receipt.outcome), ("delete", None));

    let gone = record(&store, &deleting, deleted()).await.sandbox;
    assert_eq!(gone.phase(), Phase::Tombstone);
    let second = create(&store, "web").await;
    let name = first.name.clone();
    let found = store.find(TENANT, &name).await.unwrap().unwrap();
    assert_eq!(found.id, second.id);
    assert_eq!(store.find("another", &name).await.unwrap(), None);
    assert!(store.get(first.id).await.unwrap().is_some(), "a tombstone");
}

#[tokio::test]
async fn a_create_that_left_nothing_frees_its_name_and_keeps_its_error() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let mut new = new_sandbox("web");
    new.idempotency = keyed("Create", "k", 1);
    let created = store.accept_create(new.clone()).await.unwrap();
    let end = Recording::End(Ending::NeverWas {
        fault: fault(),
        debts: Vec::new(),
    });
    record(&store, &created.sandbox, end).await;
    create(&store, "web").await;
    let replay = store.accept_create(new).await.unwrap();
    assert_eq!(replay.disposition, Disposition::Replay);
    let outcome = replay.operation.unwrap().outcome;
    assert_eq!(outcome, Some(Outcome::Failed(fault())));
}

#[tokio::test]
async fn a_key_gives_its_first_answer_again_until_its_life_ends() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let sandbox = create(&store, "web").await;
    let mut asked = ask(sandbox.id, FREEZE);
    asked.idempotency = keyed("Suspend", "k", 1);
    let first = store.accept(asked.clone()).await.unwrap();
    let op = first.operation.unwrap().id;

    let mut again = ask(sandbox.id, FREEZE);
    again.idempotency = keyed("Suspend", "k", 1);
    let commits = store.stats().commits;
    let replay = store.accept(again.clone()).await.unwrap();
    assert_eq!(replay.disposition, Disposition::Replay);
    assert_eq!(replay.operation.unwrap().id, op);
    assert_eq!(store.stats().commits, commits, "a replay writes nothing");

    again.idempotency = keyed("Suspend", "k", 2);
    assert_eq!(
        store.accept(again.clone()).await,
        Err(AcceptError::KeyReused)
    );
    // Another method has keys of its own. Having joined is an answer that is remembered too.
    again.idempotency = keyed("SuspendMany", "k", 2);
    let joined = store.accept(again.clone()).await.unwrap();
    assert_eq!(joined.disposition, Disposition::Joined);
    let replay = store.accept(again).await.unwrap();
    assert_eq!(replay.operation.unwrap().id, op);

    let mut late = ask(sandbox.id, STOP);
    late.idempotency = keyed("Suspend", "k", 2);
    late.now = Millis(NOW.0 + 60_000);
    let fresh = store.accept(late).await.unwrap();
    assert_eq!(fresh.disposition, Disposition::Queued);
}

#[tokio::test]
async fn the_newest_intent_takes_the_waiting_place() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let sandbox = create(&store, "web").await;
    let freeze = accept(&store, &sandbox, FREEZE).await.sandbox;
    record(&store, &freeze, intent(EffectKind::Suspend(Depth::Freeze))).await;
    let start = accept(&store, &sandbox, Request::Start).await;
    assert_eq!(start.disposition, Disposition::Queued);
    assert_eq!(start.sandbox.phase(), Phase::Suspending(Depth::Freeze));
    let start = start.operation.unwrap().id;
    let resume = accept(&store, &sandbox, RESUME).await;
    assert_eq!(resume.superseded, [start]);
    let resume = resume.operation.unwrap().id;
    assert_eq!(
        outcome(&store, start).await,
        Some(Outcome::SupersededBy(resume))
    );

    // The end of the one is the beginning of the other, with its intent, in one commit.
    let commits = store.stats().commits;
    let end = asleep(Depth::Freeze, freeze.issued, Vec::new());
    let ended = record(&store, &freeze, end).await;
    assert_eq!(ended.recorded, Recorded::Ended { next: Some(resume) });
    assert_eq!(store.stats().commits, commits + 1);
    let now = store.get(sandbox.id).await.unwrap().unwrap();
    assert_eq!((now.phase(), &now.waiting), (Phase::Resuming, &None));
    let receipt = store.newest_receipt(sandbox.id).await.unwrap().unwrap();
    assert_eq!(
        (receipt.kind.as_str(), receipt.key),
        ("resume_freeze", now.running.unwrap().intent_key().unwrap())
    );

    let newest_first: Vec<_> = store
        .operations(OperationFilter {
            sandbox: Some(sandbox.id),
            limit: 2,
            ..OperationFilter::default()
        })
        .await
        .unwrap()
        .into_iter()
        .map(|op| op.id)
        .collect();
    assert_eq!(newest_first, [resume, start]);
}

#[tokio::test]
async fn a_resume_turns_a_suspend_back_and_then_has_nothing_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let sandbox = create(&store, "web").await;
    let suspending = accept(&store, &sandbox, FREEZE).await.sandbox;
    let resume = accept(&store, &sandbox, RESUME).await;
    assert_eq!(resume.disposition, Disposition::TurnedBack);
    let resume = resume.operation.unwrap().id;

    let intent = intent(EffectKind::Suspend(Depth::Freeze));
    let refused = record(&store, &suspending, intent).await;
    let turned_back = Stopping::TurnBack(Some(resume));
    assert_eq!(refused.recorded, Recorded::Stop(turned_back));
    assert_eq!(
        store.receipts(sandbox.id).await.unwrap().len(),
        1,
        "the create's alone"
    );
    let ended = record(&store, &suspending, Recording::End(Ending::TurnedBack)).await;
    assert_eq!(ended.recorded, Recorded::Ended { next: None });
    assert_eq!(ended.ended.len(), 2);
    assert_eq!(
        outcome(&store, running(&suspending).0).await,
        Some(Outcome::TurnedBack(Some(resume)))
    );
    assert!(matches!(
        outcome(&store, resume).await,
        Some(Outcome::Succeeded { .. })
    ));
    let now = store.get(sandbox.id).await.unwrap().unwrap();
    assert_eq!((now.phase(), now.issued), (Phase::Ready, sandbox.issued));
}

#[tokio::test]
async fn a_call_turns_back_only_an_idle_suspend_that_still_can() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let sandbox = create(&store, "web").await;
    let idle = accept(&store, &sandbox, IDLE).await.sandbox;
    let op = running(&idle).0;
    assert!(store.turn_back_for_call(sandbox.id, op).await.unwrap());
    record(&store, &idle, Recording::End(Ending::TurnedBack)).await;
    assert_eq!(
        outcome(&store, op).await,
        Some(Outcome::TurnedBack(None)),
        "by a call, which is no operation"
    );
    assert!(!store.turn_back_for_call(sandbox.id, op).await.unwrap());

    let idle = accept(&store, &sandbox, IDLE).await.sandbox;
    record(&store, &idle, intent(EffectKind::Suspend(Depth::Freeze))).await;
    let op = running(&idle).0;
    assert!(!store.turn_back_for_call(sandbox.id, op).await.unwrap());
}

#[tokio::test]
async fn a_delete_ends_what_runs_and_settles_what_that_left_open() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let sandbox = create(&store, "web").await;
    let suspending = accept(&store, &sandbox, STOP).await.sandbox;
    let intent = intent(EffectKind::Suspend(Depth::Stop));
    record(&store, &suspending, intent).await;
    accept(&store, &sandbox, RESUME).await;

    let delete = accept(&store, &sandbox, DELETE).await;
    assert_eq!(delete.disposition, Disposition::Queued);
    assert_eq!(delete.superseded.len(), 1, "the resume");
    assert_eq!(delete.sandbox.phase(), Phase::Deleting);
    let delete = delete.operation.unwrap().id;
    let denied = try_accept(&store, &sandbox, RESUME).await.unwrap_err();
    let AcceptError::Denied(fault) = denied else {
        panic!("{denied:?}")
    };
    assert_eq!(fault.reason, Reason::Deleting);
    let joined = accept(&store, &sandbox, DELETE).await;
    assert_eq!(joined.operation.unwrap().id, delete);

    let told = record(&store, &suspending, Recording::Terminated).await;
    assert_eq!(told.recorded, Recorded::Stop(Stopping::Delete(delete)));
    let ended = record(&store, &suspending, Recording::End(Ending::Interrupted)).await;
    assert_eq!(ended.recorded, Recorded::Ended { next: Some(delete) });
    assert_eq!(ended.sandbox.compute, Compute::Unknown);
    let gone = record(&store, &ended.sandbox, deleted()).await.sandbox;
    assert!(gone.tombstone_at.is_some());
    let outcomes: Vec<_> = store
        .receipts(sandbox.id)
        .await
        .unwrap()
        .into_iter()
        .map(|receipt| (receipt.kind, receipt.outcome.unwrap()))
        .collect();
    assert_eq!(
        outcomes,
        [
            ("create".to_owned(), "done".to_owned()),
            ("suspend_stop".to_owned(), "deleted".to_owned()),
            ("delete".to_owned(), "done".to_owned()),
        ]
    );
}

#[tokio::test]
async fn abandoning_ends_a_delete_that_runs_and_a_failed_delete_is_found_again() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let sandbox = create(&store, "web").await;
    let plain = accept(&store, &sandbox, DELETE).await.sandbox;
    let abandon = Request::Delete { abandon: true };
    let queued = accept(&store, &sandbox, abandon).await;
    assert_eq!(queued.disposition, Disposition::Queued);
    let abandon = queued.operation.unwrap().id;
    assert_eq!(
        queued.sandbox.running.unwrap().stopping,
        Some(Stopping::Delete(abandon))
    );
    let next = record(&store, &plain, Recording::End(Ending::Interrupted)).await;
    assert_eq!(
        next.recorded,
        Recorded::Ended {
            next: Some(abandon)
        }
    );
    assert!(store.deleting_idle().await.unwrap().is_empty());

    let failed = Recording::End(Ending::NotDeleted(fault()));
    let failed = record(&store, &next.sandbox, failed).await.sandbox;
    assert_eq!(failed.desired, Desired::Deleted);
    assert_eq!(store.deleting_idle().await.unwrap(), [sandbox.id]);
    assert_eq!(
        store.awake().await.unwrap(),
        [],
        "what is to be deleted is not for observing"
    );
    let again = accept(&store, &sandbox, DELETE).await;
    assert!(again.begun);
}

#[tokio::test]
async fn capacity_is_what_the_records_hold() {
    let folder = tempfile::tempdir().unwrap();
    let limits = Limits {
        running: Some(2),
        memory_bytes: Some(3 * (64 << 20)),
        ..Limits::default()
    };
    let store = open_with(folder.path(), limits);
    let first = create(&store, "one").await;
    let second = create(&store, "two").await;
    let denied = store.accept_create(new_sandbox("three")).await.unwrap_err();
    let AcceptError::Denied(fault) = denied else {
        panic!("{denied:?}")
    };
    assert_eq!(fault.reason, Reason::CapacityExceeded);
    let all = store.count_by_phase(None).await.unwrap();
    assert_eq!(all.values().sum::<u64>(), 2, "nothing of it was written");

    // A freeze gives its place back and keeps its memory; a stop gives back both.
    let first = suspend(&store, &first, Depth::Freeze).await;
    let third = create(&store, "three").await;
    let third = suspend(&store, &third, Depth::Freeze).await;
    let denied = store.accept_create(new_sandbox("four")).await.unwrap_err();
    assert!(matches!(denied, AcceptError::Denied(_)), "memory");
    suspend(&store, &first, Depth::Stop).await;
    drop(store);

    let store = open_with(folder.path(), limits);
    create(&store, "four").await;
    // A resume asks again; refused, it has ended with the sandbox asleep as before.
    let refused = accept(&store, &third, RESUME).await;
    assert!(!refused.begun);
    assert_eq!(refused.sandbox.phase(), Phase::Suspended(Depth::Freeze));
    let id = refused.operation.unwrap().id;
    let Some(Outcome::Failed(fault)) = outcome(&store, id).await else {
        panic!("refused")
    };
    assert_eq!(fault.reason, Reason::CapacityExceeded);
    assert_eq!(
        store.awake().await.unwrap().len(),
        3,
        "two run, one is frozen"
    );
    delete(&store, &second).await;
    assert!(accept(&store, &third, RESUME).await.begun);
}
