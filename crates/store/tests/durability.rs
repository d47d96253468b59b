//! What the disk, another process and another release can do to a store.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use overwinter_lifecycle::Depth;
use overwinter_lifecycle::Phase;
use overwinter_lifecycle::ids::{EffectKey, Fence, SandboxId, Serial};
use overwinter_lifecycle::operation::{EffectKind, Step};
use overwinter_lifecycle::record::{Debt, DebtKind};
use overwinter_lifecycle::recording::{Ending, Recorded, Recording};
use overwinter_store::{
    AcceptError, CommitPoint, ListFilter, OperationFilter, Store, StoreError, StoreOptions,
    UpdateConfig, label,
};
use rustix::process::{Signal, getpid, kill_process};
use support::*;

fn sql(folder: &Path, statements: &str) {
    let conn = rusqlite::Connection::open(folder.join("state.db")).unwrap();
    conn.execute_batch(statements).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_share_commits_and_one_that_fails_spoils_none_of_its_neighbours() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let taken = create(&store, "taken").await;
    // An end of an operation that has ended: it is found to be late after its debt was written.
    let begun = accept(&store, &taken, STOP).await.sandbox;
    let late = Debt {
        key: EffectKey {
            sandbox: taken.id,
            fence: Fence(1),
            serial: Serial(1),
        },
        kind: DebtKind::Artifact,
        reference: "of nobody".to_owned(),
    };
    let late = asleep(Depth::Stop, begun.issued, vec![late]);
    record(&store, &begun, Recording::End(Ending::Aborted(fault()))).await;
    let before = store.stats();
    let callers: Vec<_> = (0..64)
        .map(|caller| {
            let (store, begun, late) = (store.clone(), begun.clone(), late.clone());
            tokio::spawn(async move {
                for turn in 0..8 {
                    let refused = store.accept_create(new_sandbox("taken")).await;
                    assert_eq!(refused, Err(AcceptError::NameTaken { id: begun.id }));
                    let refused = try_record(&store, &begun, late.clone()).await;
                    assert_eq!(refused, Err(StoreError::NotRunning));
                    let new = new_sandbox(&format!("sandbox-{caller}-{turn}"));
                    let created = store.accept_create(new).await.unwrap().sandbox;
                    // What was answered is what every later read sees.
                    assert_eq!(store.get(created.id).await.unwrap(), Some(created));
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.unwrap();
    }
    let stats = store.stats();
    let transactions = stats.transactions - before.transactions;
    let commits = stats.commits - before.commits;
    assert_eq!(transactions, 512, "those that wrote");
    assert!(
        commits * 4 < transactions,
        "{transactions} transactions took {commits} commits"
    );
    assert_eq!(store.debt_count(None).await.unwrap(), 0);
    let counted = store.count_by_phase(None).await.unwrap();
    assert_eq!(counted["creating"], 512);
    let changes = store.changes_since(0, 1000).await.unwrap();
    assert!(changes.changes.is_sorted_by(|a, b| a.0 < b.0));
    assert_eq!(changes.next, *store.subscribe().borrow());
}

/// Runs in a process of its own, which its hook ends at the commit of an intent.
#[tokio::test]
#[ignore = "the crash test runs it"]
async fn suspend_until_killed() {
    let folder = std::env::var("STORE_FOLDER").unwrap();
    let wanted = match std::env::var("STORE_KILLED").unwrap().as_str() {
        "before" => CommitPoint::Before,
        _ => CommitPoint::After,
    };
    let store = Store::open(StoreOptions {
        on_commit: Some(Arc::new(move |point, label, _| {
            if (point, label) == (wanted, label::INTENT) {
                kill_process(getpid(), Signal::KILL).unwrap();
                loop {
                    std::thread::park();
                }
            }
        })),
        ..StoreOptions::folder(folder, NOW)
    })
    .unwrap();
    let page = store.list(first_page()).await.unwrap();
    let begun = accept(&store, &page[0], STOP).await.sandbox;
    record(&store, &begun, intent(EffectKind::Suspend(Depth::Stop))).await;
    panic!("the hook ends this process");
}

fn first_page() -> ListFilter {
    ListFilter {
        limit: 10,
        ..ListFilter::default()
    }
}

#[tokio::test]
async fn a_commit_is_all_or_nothing_for_a_process_that_is_killed_beside_it() {
    for (killed, expected) in [("before", Step::Begun), ("after", Step::Intent)] {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path());
        let awake = create(&store, "web").await;
        drop(store);
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "suspend_until_killed", "--ignored"])
            .env("STORE_FOLDER", folder.path())
            .env("STORE_KILLED", killed)
            .output()
            .unwrap();
        let signal = std::os::unix::process::ExitStatusExt::signal(&child.status);
        assert_eq!(signal, Some(9), "{child:?}");

        let store = open(folder.path());
        let recovered = store.recover().await.unwrap();
        let op = recovered[0].running.as_ref().unwrap();
        assert_eq!(op.step, expected, "killed {killed} the commit");
        let receipts = store.receipts(awake.id).await.unwrap();
        let recorded = receipts.last().is_some_and(|row| row.outcome.is_none());
        assert_eq!(recorded, expected == Step::Intent);
    }
}

#[tokio::test]
async fn one_gateway_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let refused = Store::open(StoreOptions::folder(folder.path(), NOW)).unwrap_err();
    assert!(matches!(refused, StoreError::Locked { .. }), "{refused}");
    drop(store);
    open(folder.path());
}

#[tokio::test]
async fn a_newer_database_and_an_operation_that_cannot_be_finished_are_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let sandbox = create(&store, "web").await;
    let op = accept(&store, &sandbox, STOP).await.operation.unwrap();
    let epoch = store.meta().epoch;
    drop(store);
    let reopen = || Store::open(StoreOptions::folder(folder.path(), NOW));

    sql(
        folder.path(),
        "UPDATE sandboxes SET body = json_set(body, '$.running.step_schema', 99)",
    );
    let unfinishable = StoreError::UnfinishableOperation {
        id: op.id,
        step_schema: 99,
    };
    assert_eq!(reopen().unwrap_err(), unfinishable);
    sql(
        folder.path(),
        "UPDATE sandboxes SET body = json_set(body, '$.running.step_schema', 1);
         PRAGMA user_version = 99",
    );
    let newer = reopen().unwrap_err();
    assert_eq!(
        newer,
        StoreError::NewerSchema {
            found: 99,
            known: 1
        }
    );
    sql(folder.path(), "PRAGMA user_version = 1");
    let store = reopen().unwrap();
    assert_eq!(store.meta().epoch, epoch + 1, "a refusal changes nothing");
}

/// A database as the first release wrote it, stopped in the middle of its work.
#[tokio::test]
async fn operations_of_schema_1_are_finished_by_this_release() {
    let folder = tempfile::tempdir().unwrap();
    sql(folder.path(), include_str!("fixtures/schema-1.sql"));
    let store = open(folder.path());
    let recovered = store.recover().await.unwrap();
    let phases: Vec<_> = recovered
        .iter()
        .map(|sandbox| (sandbox.name.as_str(), sandbox.phase()))
        .collect();
    assert_eq!(
        phases,
        [
            ("creating", Phase::Creating),
            ("suspending", Phase::Suspending(Depth::Stop)),
            ("resuming", Phase::Resuming),
            ("deleting", Phase::Deleting),
        ]
    );
    let [creating, suspending, resuming, deleting] = recovered.as_slice() else {
        panic!("four: {phases:?}")
    };
    record(&store, creating, ready(creating)).await;
    record(&store, suspending, Recording::Terminated).await;
    let end = asleep(Depth::Stop, suspending.issued, Vec::new());
    record(&store, suspending, end).await;
    record(&store, resuming, ready(resuming)).await;
    let ended = record(&store, deleting, Recording::End(Ending::Interrupted)).await;
    let delete = deleting.waiting.as_ref().unwrap().id;
    assert_eq!(ended.recorded, Recorded::Ended { next: Some(delete) });
    record(&store, &ended.sandbox, deleted()).await;

    let living = store.list(first_page()).await.unwrap();
    let phases: Vec<_> = living.iter().map(|sandbox| sandbox.phase()).collect();
    let asleep = Phase::Suspended;
    assert_eq!(
        phases,
        [
            Phase::Ready,
            asleep(Depth::Stop),
            Phase::Ready,
            asleep(Depth::Freeze)
        ]
    );
    let debts = store.debts_due(NOW, 10).await.unwrap();
    assert_eq!(debts.len(), 1);
    let all = OperationFilter {
        limit: 100,
        ..OperationFilter::default()
    };
    assert!(
        store
            .operations(all)
            .await
            .unwrap()
            .iter()
            .all(|op| op.outcome.is_some())
    );
}

/// A small file system of this test's own, in a mount namespace of its thread: nothing of it is
/// left, whatever becomes of the test. None where that takes privilege that is not there.
fn small_disk(at: &Path, bytes: u64) -> Option<()> {
    use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
    use rustix::thread::{UnshareFlags, unshare_unsafe};
    // SAFETY: only the view of mounts changes, and only that of this thread and those it starts;
    // no file descriptor is shared anew or closed.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.ok()?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).ok()?;
    let options = std::ffi::CString::new(format!("size={bytes}")).unwrap();
    mount(
        "tmpfs",
        at,
        "tmpfs",
        MountFlags::empty(),
        Some(options.as_c_str()),
    )
    .ok()
}

fn fill(folder: &Path) {
    use std::io::Write;
    let mut ballast = fs::File::create(folder.join("ballast")).unwrap();
    let block = vec![0; 1 << 16];
    while ballast.write_all(&block).is_ok() {}
    while ballast.write_all(&[0]).is_ok() {}
}

#[test]
fn on_a_full_disk_deletes_still_work() {
    let folder = tempfile::tempdir().unwrap();
    if small_disk(folder.path(), 24 << 20).is_none() {
        eprintln!("SKIPPED: a small file system takes privilege to mount a tmpfs");
        return;
    }
    // On this thread, so that the file system is seen.
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime
        .unwrap()
        .block_on(delete_on_a_full_disk(folder.path()));
}

async fn delete_on_a_full_disk(folder: &Path) {
    let store = open(folder);
    let doomed = create(&store, "doomed").await;
    let busy = create(&store, "busy").await;
    let begun = accept(&store, &busy, STOP).await.sandbox;
    fill(folder);

    // Until what the log and the database had is used up: then all that is not essential is refused.
    let mut refused = Ok(());
    for number in 0..64 {
        let mut filler = new_sandbox(&format!("filler-{number}"));
        let big = ("BIG".to_owned(), "x".repeat(1 << 20));
        filler.sandbox.config.env = [big].into();
        match store.accept_create(filler).await {
            Ok(made) => drop(record(&store, &made.sandbox, ready(&made.sandbox)).await),
            Err(error) => {
                refused = Err(error);
                break;
            }
        }
    }
    let full = Err(StoreError::Full.into());
    assert_eq!(refused, full);
    let update_refused = store.update(doomed.id, UpdateConfig::default(), NOW).await;
    assert_eq!(update_refused.map(drop), Err(StoreError::Full));
    let create_refused = store.accept_create(new_sandbox("late")).await;
    assert_eq!(create_refused.map(drop), full);

    let gone = delete(&store, &doomed).await;
    assert_eq!(gone.phase(), Phase::Tombstone);
    // What is under way is recorded too.
    record(&store, &begun, intent(EffectKind::Suspend(Depth::Stop))).await;
    drop(store);

    // A gateway that starts on the full disk finds it all, and goes on deleting.
    fs::remove_file(folder.join("ballast")).unwrap();
    let store = open(folder);
    drop(store);
    fill(folder);
    let store = open(folder);
    let recovered: Vec<SandboxId> = ids(&store.recover().await.unwrap());
    assert_eq!(recovered, [busy.id]);
    let deleting = accept(&store, &busy, DELETE).await;
    assert_eq!(deleting.sandbox.phase(), Phase::Deleting);

    fs::remove_file(folder.join("ballast")).unwrap();
    create(&store, "late").await;
    assert!(folder.join("reserve").exists(), "made anew");
}

fn ids(sandboxes: &[overwinter_lifecycle::record::Sandbox]) -> Vec<SandboxId> {
    sandboxes.iter().map(|sandbox| sandbox.id).collect()
}
