//! What is written beside the verbs: debts, config, losses, and what a sweep forgets.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod support;

use overwinter_lifecycle::ids::{EffectKey, Fence, Incarnation, Millis, Serial};
use overwinter_lifecycle::operation::{EffectKind, Outcome, Verb};
use overwinter_lifecycle::record::{Compute, Debt, DebtKind, MainExit};
use overwinter_lifecycle::recording::Recorded;
use overwinter_lifecycle::{Depth, Reason};
use overwinter_store::{ListFilter, OperationFilter, ProcessResult, StoreError, UpdateConfig};
use support::*;
use uuid::Uuid;

#[tokio::test]
async fn a_debt_of_compute_blocks_a_start_until_it_is_settled() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let sandbox = create(&store, "web").await;
    let begun = accept(&store, &sandbox, STOP).await.sandbox;
    record(&store, &begun, intent(EffectKind::Suspend(Depth::Stop))).await;
    // The resume waits already, so it would begin in the very commit that makes the debt.
    let waiting = accept(&store, &sandbox, RESUME).await.operation.unwrap().id;
    let owed = Debt {
        key: EffectKey {
            sandbox: sandbox.id,
            fence: Fence(1),
            serial: Serial(1),
        },
        kind: DebtKind::Compute,
        reference: "container-of-an-earlier-life".to_owned(),
    };
    let end = asleep(Depth::Stop, Incarnation(1), vec![owed.clone()]);
    let ended = record(&store, &begun, end).await;
    assert_eq!(ended.recorded, Recorded::Ended { next: None });
    assert_eq!(ended.sandbox.compute_debts, 1);
    let Some(Outcome::Failed(blocked)) = outcome(&store, waiting).await else {
        panic!("blocked")
    };
    assert_eq!(blocked.reason, Reason::StartFailed);
    drop(store);

    let store = open(folder.path());
    assert_eq!(
        store.debts_due(NOW, 10).await.unwrap(),
        std::slice::from_ref(&owed)
    );
    let later = Millis(NOW.0 + 1000);
    store.defer_debt(owed.clone(), later).await.unwrap();
    assert_eq!(store.debts_due(NOW, 10).await.unwrap(), []);
    assert_eq!(store.debts_due(later, 10).await.unwrap().len(), 1);
    // It kept every start of its sandbox waiting for as long as the clock had been set back.
    let day_before = Millis(NOW.0 - 86_400_000);
    assert_eq!(store.debts_due(day_before, 10).await.unwrap().len(), 1);
    store.settle_debt(owed.clone()).await.unwrap();
    store.settle_debt(owed).await.unwrap();
    assert_eq!(store.debt_count(None).await.unwrap(), 0);
    assert!(accept(&store, &sandbox, RESUME).await.begun);
}

#[tokio::test]
async fn config_changes_by_compare_and_swap_and_every_change_is_watchable() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let mut watch = store.subscribe();
    let sandbox = create(&store, "web").await;
    assert!(watch.has_changed().unwrap());
    let seen = *watch.borrow_and_update();
    let label = |value: &str| [("team".to_owned(), value.to_owned())].into();
    let change = UpdateConfig {
        labels: Some(label("red")),
        owner: "ann".to_owned(),
        expected_version: Some(0),
        ..UpdateConfig::default()
    };
    let updated = store.update(sandbox.id, change.clone(), NOW).await.unwrap();
    assert_eq!(
        (updated.config.version, updated.config.owner.as_str()),
        (1, "ann")
    );
    let late = store.update(sandbox.id, change, NOW).await;
    assert_eq!(late, Err(StoreError::Conflict { version: 1 }));

    let exit = MainExit {
        code: 3,
        signal: 0,
        at: NOW,
    };
    store.record_main_exit(sandbox.id, exit).await.unwrap();
    let changes = store.changes_since(seen, 10).await.unwrap();
    let [(seq, changed)] = changes.changes.as_slice() else {
        panic!("one sandbox, as it is now: {changes:?}")
    };
    assert_eq!((changed.main_exit, changes.gap), (Some(exit), false));
    assert_eq!(*seq, *watch.borrow_and_update());

    let listed = |labels| {
        let filter = ListFilter {
            tenant: Some(TENANT.to_owned()),
            labels,
            limit: 10,
            ..ListFilter::default()
        };
        async { store.list(filter).await.unwrap().len() }
    };
    assert_eq!(listed(label("red")).await, 1);
    assert_eq!(listed(label("blue")).await, 0);
}

#[tokio::test]
async fn memory_that_is_lost_in_sleep_is_remembered_and_a_stranger_is_not_believed() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let sandbox = create(&store, "web").await;
    suspend(&store, &sandbox, Depth::Freeze).await;
    assert_eq!(store.awake().await.unwrap(), [sandbox.id]);
    // Looked at before the newest incarnation was issued: that is no news.
    let stale = Incarnation(sandbox.issued.0 + 7);
    let stale = store
        .record_loss(sandbox.id, Compute::Absent, stale, NOW)
        .await;
    assert_eq!(stale, Ok(None));
    let lost = store
        .record_loss(sandbox.id, Compute::Absent, sandbox.issued, NOW)
        .await;
    let lost = lost.unwrap().unwrap();
    assert_eq!(lost.retained.unwrap().lost, Some(Depth::Freeze));
    let again = store
        .record_loss(sandbox.id, Compute::Absent, sandbox.issued, NOW)
        .await;
    assert_eq!(again, Ok(None));
    assert_eq!(store.awake().await.unwrap(), []);
    let refused = accept(&store, &sandbox, RESUME).await.operation.unwrap();
    assert_eq!(
        refused.verb,
        Verb::Resume {
            fallback: false,
            prefetch: false
        }
    );
    let Some(Outcome::Failed(fault)) = refused.outcome else {
        panic!("strict")
    };
    assert_eq!(fault.reason, Reason::RetainedLost);
}

#[tokio::test]
async fn the_drivers_of_living_records_are_known() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    assert_eq!(store.drivers_in_use().await, Ok(Vec::new()));
    let sandbox = create(&store, "web").await;
    create(&store, "zoo").await;
    assert_eq!(store.drivers_in_use().await, Ok(vec![sandbox.spec.driver]));
}

#[tokio::test]
async fn a_sweep_forgets_what_has_had_its_time_and_nothing_else() {
    const DAY: i64 = 24 * 60 * 60 * 1000;
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let living = create(&store, "living").await;
    let dead = create(&store, "dead").await;
    let dead = delete(&store, &dead).await;
    let indebted = create(&store, "indebted").await;
    let begun = accept(&store, &indebted, STOP).await.sandbox;
    let owed = Debt {
        key: EffectKey {
            sandbox: indebted.id,
            fence: Fence(1),
            serial: Serial(1),
        },
        kind: DebtKind::Artifact,
        reference: "artifact".to_owned(),
    };
    let end = asleep(Depth::Stop, Incarnation(1), vec![owed.clone()]);
    record(&store, &begun, end).await;
    delete(&store, &indebted).await;
    let results = (0..1005)
        .map(|age| ProcessResult {
            process: Uuid::now_v7(),
            exited_at: Some(Millis(NOW.0 - age)),
            body: serde_json::json!(age),
        })
        .collect();
    store
        .save_processes(vec![(living.id, results)], NOW)
        .await
        .unwrap();
    let kept = store.process_results(living.id).await.unwrap();
    assert_eq!(
        (kept.len(), &kept[999].body),
        (1000, &serde_json::json!(999))
    );
    for _ in 0..60 {
        let asleep = suspend(&store, &living, Depth::Freeze).await;
        let resuming = accept(&store, &asleep, RESUME).await.sandbox;
        record(&store, &resuming, ready(&resuming)).await;
    }
    let history = OperationFilter {
        sandbox: Some(living.id),
        limit: 1000,
        ..OperationFilter::default()
    };

    let swept = store.sweep(NOW).await.unwrap();
    assert_eq!((swept.operations, swept.tombstones), (21, 0));
    assert_eq!(store.operations(history).await.unwrap().len(), 100);
    assert!(store.get(dead.id).await.unwrap().is_some());
    assert_eq!(store.sweep(NOW).await.unwrap(), Default::default());

    let before = *store.subscribe().borrow();
    let later = Millis(NOW.0 + 8 * DAY);
    let swept = store.sweep(later).await.unwrap();
    assert_eq!((swept.tombstones, swept.process_results), (1, 1000));
    assert_eq!(store.get(dead.id).await.unwrap(), None);
    assert_eq!(store.receipts(dead.id).await.unwrap(), []);
    assert!(
        store.get(indebted.id).await.unwrap().is_some(),
        "its debt is not paid yet"
    );
    assert!(store.changes_since(0, 10).await.unwrap().gap);
    assert!(!store.changes_since(before, 10).await.unwrap().gap);
    store.settle_debt(owed).await.unwrap();
    assert_eq!(store.sweep(later).await.unwrap().tombstones, 1);
    drop(store);
    let store = open(folder.path());
    assert!(
        *store.subscribe().borrow() >= before,
        "no number of a change is given twice"
    );
}
