//! How many commits a cycle takes, and which of them wait for the disk.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod support;

use std::path::Path;
use std::sync::{Arc, Mutex};

use overwinter_lifecycle::admission::Request;
use overwinter_lifecycle::operation::EffectKind;
use overwinter_lifecycle::record::Sandbox;
use overwinter_lifecycle::{Depth, Phase};
use overwinter_store::{
    Accept, CommitPoint, Disposition, Durability, ProcessResult, Store, StoreOptions, label,
};
use support::*;
use uuid::Uuid;

/// When each commit was on the disk, by its label.
type Commits = Arc<Mutex<Vec<(&'static str, Durability)>>>;

fn watched(folder: &Path) -> (Store, Commits) {
    let commits = Commits::default();
    let seen = Arc::clone(&commits);
    let options = StoreOptions {
        on_commit: Some(Arc::new(move |point, label, durability| {
            if point == CommitPoint::After {
                seen.lock().unwrap().push((label, durability));
            }
        })),
        ..StoreOptions::folder(folder, NOW)
    };
    (Store::open(options).unwrap(), commits)
}

const SUSPEND: Request = Request::Suspend {
    depth: Some(Depth::Freeze),
    idle: false,
    reclaim: false,
};

fn told_later(of: &Sandbox, request: Request) -> Accept {
    Accept {
        durability: Durability::Soon,
        ..ask(of.id, request)
    }
}

#[tokio::test]
async fn a_cycle_waits_for_the_disk_three_times() {
    use Durability::{Before, Soon};
    let folder = tempfile::tempdir().unwrap();
    let (store, commits) = watched(folder.path());
    let awake = create(&store, "web").await;
    commits.lock().unwrap().clear();
    let begun = store.accept(told_later(&awake, SUSPEND)).await.unwrap();
    assert!(!store.is_synced());
    let (begun, freeze) = (begun.sandbox, EffectKind::Suspend(Depth::Freeze));
    record(&store, &begun, intent(freeze)).await;
    assert!(store.is_synced(), "with the intent it is there");
    let end = asleep(Depth::Freeze, begun.issued, Vec::new());
    let frozen = record(&store, &begun, end).await.sandbox;
    let resuming = accept(&store, &frozen, RESUME).await.sandbox;
    assert!(store.is_synced());

    let newest = *store.subscribe().borrow();
    let woken = record(&store, &resuming, ready(&resuming)).await.sandbox;
    assert_eq!(woken.phase(), Phase::Ready);
    // Whoever is told goes on with it; whoever watches is told of what stays.
    assert_eq!(store.get(woken.id).await.unwrap(), Some(woken.clone()));
    assert_eq!(*store.subscribe().borrow(), newest);
    let watched = store.changes_since(newest, 10).await.unwrap();
    assert_eq!(watched.changes, []);
    store.sync().await.unwrap();
    assert!(store.is_synced());
    let watched = store.changes_since(newest, 10).await.unwrap();
    assert_eq!(watched.changes.len(), 1);
    assert_eq!(*store.subscribe().borrow(), watched.next);
    let expected = [
        (label::ACCEPT, Soon),
        (label::INTENT, Before),
        (label::END, Before),
        (label::ACCEPT, Before),
        (label::END, Soon),
    ];
    assert_eq!(*commits.lock().unwrap(), expected);
}

#[tokio::test]
async fn what_somebody_else_goes_by_waits_for_the_disk_all_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let (store, _) = watched(folder.path());
    // A create that is refused when it is asked for again has never been.
    let awake = create(&store, "web").await;
    assert!(store.is_synced());
    // Whoever is superseded is told at once.
    accept(&store, &awake, STOP).await;
    let waiting = store.accept(told_later(&awake, SUSPEND)).await.unwrap();
    assert_eq!(waiting.disposition, Disposition::Queued);
    assert!(!store.is_synced());
    let deeper = Request::Suspend {
        depth: Some(Depth::Checkpoint),
        idle: false,
        reclaim: false,
    };
    let instead = store.accept(told_later(&awake, deeper)).await.unwrap();
    assert_eq!(instead.superseded.len(), 1);
    assert!(store.is_synced());

    // What begins behind a wake has an effect of its own, or is told that it will not begin.
    let other = create(&store, "other").await;
    let other = suspend(&store, &other, Depth::Freeze).await;
    let resuming = accept(&store, &other, RESUME).await.sandbox;
    accept(&store, &other, DELETE).await;
    let gone = record(&store, &resuming, ready(&resuming)).await.sandbox;
    assert_eq!(gone.phase(), Phase::Deleting);
    assert!(store.is_synced());

    // What a process ended with was told with its stream.
    let third = create(&store, "third").await;
    let third = suspend(&store, &third, Depth::Freeze).await;
    let resuming = accept(&store, &third, RESUME).await.sandbox;
    let writer = running(&resuming);
    let exits = vec![ProcessResult {
        process: Uuid::now_v7(),
        exited_at: Some(NOW),
        body: serde_json::json!({"code": 7}),
    }];
    let end = ready(&resuming);
    let written = store.record(third.id, writer, end, Vec::new(), exits, NOW);
    written.await.unwrap();
    assert!(store.is_synced());
}

#[tokio::test]
async fn a_cycle_takes_five_commits_at_freeze_and_six_at_stop() {
    let labels = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&labels);
    let store = Store::open(StoreOptions {
        on_commit: Some(Arc::new(move |point, label, _| {
            if point == CommitPoint::After {
                seen.lock().unwrap().push(label);
            }
        })),
        ..StoreOptions::memory(NOW)
    })
    .unwrap();
    let awake = create(&store, "web").await;
    for (depth, expected) in [
        (
            Depth::Freeze,
            &[
                label::ACCEPT,
                label::INTENT,
                label::END,
                label::ACCEPT,
                label::END,
            ][..],
        ),
        (
            Depth::Stop,
            &[
                label::ACCEPT,
                label::INTENT,
                label::TERMINATED,
                label::END,
                label::ACCEPT,
                label::END,
            ],
        ),
    ] {
        labels.lock().unwrap().clear();
        let before = store.stats().commits;
        let asleep = suspend(&store, &awake, depth).await;
        let resuming = accept(&store, &asleep, RESUME).await.sandbox;
        record(&store, &resuming, ready(&resuming)).await;
        assert_eq!(*labels.lock().unwrap(), expected, "{depth}");
        assert_eq!(store.stats().commits - before, expected.len() as u64);
    }
}
