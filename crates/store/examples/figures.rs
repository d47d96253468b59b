//! Prints what a store does on this machine: `cargo run --release -p overwinter-store --example
//! figures [FOLDER [SANDBOXES]]`. The folder decides which disk is measured.
#![allow(clippy::unwrap_used, reason = "a measurement that cannot go on ends")]

use std::path::Path;
use std::time::{Duration, Instant};

use overwinter_lifecycle::admission::Request;
use overwinter_lifecycle::config::{Config, Spec};
use overwinter_lifecycle::ids::{Millis, OperationId, SandboxId};
use overwinter_lifecycle::operation::{Achieved, Deadlines, EffectKind, Operation, Verb};
use overwinter_lifecycle::record::{Compute, DriverReference, Sandbox};
use overwinter_lifecycle::recording::{Asleep, Ending, Recording};
use overwinter_lifecycle::{Depth, Name, Phase};
use overwinter_store::{Accept, Durability, ListFilter, NewSandbox, Store, StoreOptions};
use uuid::Uuid;

const NOW: Millis = Millis(1_790_000_000_000);
const CALLERS: usize = 64;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let parent = std::env::args().nth(1).unwrap_or_else(|| ".".to_owned());
    let folder = tempfile::tempdir_in(parent).unwrap();
    the_disk_alone(&folder.path().join("disk"));
    one_caller(&folder.path().join("one")).await;
    many_callers(&folder.path().join("many")).await;
    let sandboxes = std::env::args().nth(2);
    let sandboxes = sandboxes.map_or(100_000, |number| number.parse().unwrap());
    many_sandboxes(&folder.path().join("sleeping"), sandboxes).await;
}

fn open(folder: &Path) -> Store {
    Store::open(StoreOptions::folder(folder, NOW)).unwrap()
}

fn percentiles(what: &str, mut took: Vec<Duration>) {
    took.sort_unstable();
    let (p50, p99) = (took[took.len() / 2], took[took.len() * 99 / 100]);
    println!("{what:<44} p50 {p50:>10.1?}  p99 {p99:>10.1?}");
}

/// What a commit costs at least: as many bytes written over and synced.
fn the_disk_alone(file: &Path) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::create(file).unwrap();
    file.write_all_at(&vec![1; 4 << 20], 0).unwrap();
    file.sync_all().unwrap();
    let mut took = Vec::new();
    for turn in 0..500 {
        let at = Instant::now();
        file.write_all_at(&[2; 32 << 10], (turn % 100) * (32 << 10))
            .unwrap();
        file.sync_all().unwrap();
        took.push(at.elapsed());
    }
    percentiles("32 KiB written over and synced", took);
}

async fn one_caller(folder: &Path) {
    let store = open(folder);
    let sandbox = create(&store, "web").await;
    let mut took = Vec::new();
    for _ in 0..300 {
        let at = Instant::now();
        cycle(&store, &sandbox).await;
        took.push(at.elapsed() / 5);
    }
    percentiles("a commit, one caller", took);
    let mut took = Vec::new();
    for _ in 0..10_000 {
        let at = Instant::now();
        store.get(sandbox.id).await.unwrap();
        took.push(at.elapsed());
    }
    percentiles("a read of one sandbox", took);
}

async fn many_callers(folder: &Path) {
    let store = open(folder);
    let mut callers = Vec::new();
    for caller in 0..CALLERS {
        let sandbox = create(&store, &format!("caller-{caller}")).await;
        callers.push((store.clone(), sandbox));
    }
    let before = store.stats();
    let at = Instant::now();
    let tasks: Vec<_> = callers
        .into_iter()
        .map(|(store, sandbox)| {
            tokio::spawn(async move {
                for _ in 0..100 {
                    cycle(&store, &sandbox).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let took = at.elapsed().as_secs_f64();
    let after = store.stats();
    let transactions = after.transactions - before.transactions;
    println!(
        "{CALLERS} callers: {:.0} transactions a second, {:.1} to a commit, {:.0} cycles a second",
        transactions as f64 / took,
        transactions as f64 / (after.commits - before.commits) as f64,
        (CALLERS * 100) as f64 / took,
    );
}

async fn many_sandboxes(folder: &Path, sleeping: usize) {
    let store = open(folder);
    let tasks: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let store = store.clone();
            tokio::spawn(async move {
                for number in (caller..sleeping).step_by(CALLERS) {
                    let sandbox = create(&store, &format!("sandbox-{number}")).await;
                    suspend(&store, &sandbox).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    drop(store);
    let before = resident();
    let at = Instant::now();
    let store = open(folder);
    let opened = at.elapsed();
    assert!(store.recover().await.unwrap().is_empty());
    println!(
        "{sleeping} sleeping: open {opened:.1?}, with recovery {:.1?}",
        at.elapsed()
    );
    for (what, phases) in [
        ("a page of 100", vec![]),
        (
            "a page of 100, by phase",
            vec![Phase::Suspended(Depth::Stop)],
        ),
        ("an empty page, by phase", vec![Phase::Failed]),
    ] {
        let mut took = Vec::new();
        let mut after = None;
        for _ in 0..500 {
            let filter = ListFilter {
                tenant: Some("default".to_owned()),
                phases: phases.clone(),
                after,
                limit: 100,
                ..ListFilter::default()
            };
            let at = Instant::now();
            let page = store.list(filter).await.unwrap();
            took.push(at.elapsed());
            after = page.last().map(|last| last.id);
        }
        percentiles(what, took);
    }
    let at = Instant::now();
    store.count_by_phase(None).await.unwrap();
    println!("counts by phase: {:.1?}", at.elapsed());
    println!("resident: {} KiB more", resident().saturating_sub(before));
}

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS"));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    number.unwrap().parse().unwrap()
}

async fn create(store: &Store, name: &str) -> Sandbox {
    let id = SandboxId(Uuid::now_v7());
    let spec = Spec {
        driver: "local".to_owned(),
        image: "/images/busybox".to_owned(),
        network: "none".to_owned(),
        ..Spec::default()
    };
    let name = Name::parse(name).unwrap();
    let op = OperationId(Uuid::now_v7());
    let new = NewSandbox {
        sandbox: Sandbox::new(id, "default", name, spec, Config::default(), NOW),
        operation: Operation::new(op, id, Verb::Create, "uid:0", NOW),
        idempotency: None,
        now: NOW,
    };
    let sandbox = store.accept_create(new).await.unwrap().sandbox;
    record(store, &sandbox, intent(EffectKind::Create)).await;
    record(store, &sandbox, ready(&sandbox)).await
}

/// Five transactions.
async fn cycle(store: &Store, sandbox: &Sandbox) {
    suspend(store, sandbox).await;
    let resuming = accept(
        store,
        sandbox.id,
        Request::Resume {
            fallback: false,
            prefetch: false,
        },
    )
    .await;
    record(store, &resuming, ready(&resuming)).await;
}

async fn suspend(store: &Store, sandbox: &Sandbox) {
    let depth = Depth::Stop;
    let request = Request::Suspend {
        depth: Some(depth),
        idle: false,
        reclaim: false,
    };
    let suspending = accept(store, sandbox.id, request).await;
    record(store, &suspending, intent(EffectKind::Suspend(depth))).await;
    let asleep = Asleep {
        depth,
        compute: Compute::Absent,
        reference: DriverReference::default(),
        size_bytes: 0,
        lost: None,
        debts: Vec::new(),
        remarks: Vec::new(),
        reclaimed: None,
    };
    record(
        store,
        &suspending,
        Recording::End(Ending::Suspended(asleep)),
    )
    .await;
}

async fn accept(store: &Store, sandbox: SandboxId, request: Request) -> Sandbox {
    let accept = Accept {
        sandbox,
        request,
        operation: OperationId(Uuid::now_v7()),
        requester: "uid:0".to_owned(),
        deadlines: Deadlines::default(),
        idempotency: None,
        durability: Durability::Before,
        now: NOW,
    };
    store.accept(accept).await.unwrap().sandbox
}

async fn record(store: &Store, of: &Sandbox, recording: Recording) -> Sandbox {
    let op = of.running.as_ref().unwrap();
    let timings = vec![("step".to_owned(), 250)];
    let written = store.record(
        of.id,
        (op.id, op.fence),
        recording,
        timings,
        Vec::new(),
        NOW,
    );
    written.await.unwrap().sandbox
}

fn intent(effect: EffectKind) -> Recording {
    Recording::Intent {
        effect,
        pinned: None,
        quiesced: true,
    }
}

fn ready(sandbox: &Sandbox) -> Recording {
    Recording::End(Ending::Ready {
        compute: Compute::Live {
            held: sandbox.issued,
        },
        achieved: Achieved::Done,
        remarks: Vec::new(),
        secret: None,
    })
}
