//! The gateway is killed with SIGKILL at every point of every verb, and nothing is lost.
//!
//! The matrix is generated: each scenario runs once to its end and tells the points that it comes
//! to, before and after each step, each durable write and each effect. Then each (scenario, point)
//! is a cell: real processes, real storage, the gateway ended right there. Effects are also cut
//! short from outside, while the runtime is at work, and around them the successor is killed too.
//! A [`Watcher`] looks at the host all the while.
//!
//! `OVERWINTER_MATRIX=TEXT` runs only the cells whose label holds the text; `OVERWINTER_MATRIX_ALL=1` also
//! those of gVisor that are no more than the gateway's own (`make matrix`).

mod cell;
mod eye;
mod scenario;
mod table;
mod trace;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use overwinter_client::raw;
use overwinter_tests::Gateway;
use overwinter_tests::watcher::Watcher;

use cell::{DIE_AT, Kill};
use scenario::{Runtime, Scenario};
use table::Table;

/// Gateways at once, each in folders of its own.
const WORKERS: usize = 4;
/// Everything of one cell; far more than it takes.
const CELL: Duration = Duration::from_secs(120);

/// A piece of work.
#[derive(Clone, Debug)]
enum Work {
    Learn(Scenario),
    Cell(Scenario, Kill),
}

impl Work {
    fn label(&self) -> String {
        match self {
            Self::Learn(scenario) => scenario.label(),
            Self::Cell(scenario, Kill::At(point)) => format!("{} / {point}", scenario.label()),
            Self::Cell(scenario, Kill::Twice(point)) => {
                format!("{} / {point}, twice", scenario.label())
            }
            Self::Cell(scenario, Kill::After(point, time)) => {
                format!("{} / {point} + {time:?}", scenario.label())
            }
        }
    }
}

#[derive(Default)]
struct Board {
    queue: VecDeque<Work>,
    learned: Vec<(Scenario, Vec<String>)>,
    met: Vec<(Scenario, Kill)>,
    failed: Vec<String>,
    names: u32,
}

type Shared = Arc<Mutex<Board>>;

fn lock(board: &Shared) -> MutexGuard<'_, Board> {
    board.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn sigkill_at_every_point_loses_nothing() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(matrix())
}

async fn matrix() -> anyhow::Result<()> {
    eye::sees()?;
    let began = Instant::now();
    let watcher = Watcher::start()?;
    let board = Shared::default();

    let only = std::env::var("OVERWINTER_MATRIX").ok();
    let all = std::env::var_os("OVERWINTER_MATRIX_ALL").is_some();
    let runtimes = runtimes().await?;
    let scenarios: Vec<_> = runtimes.iter().flat_map(|it| it.scenarios()).collect();
    lock(&board).queue = scenarios.iter().copied().map(Work::Learn).collect();
    work_off(&board, &watcher).await?;
    let learned = std::mem::take(&mut lock(&board).learned);
    let mut planned = Vec::new();
    for (scenario, points) in &learned {
        must_have(*scenario, points)?;
        planned.extend(cells(*scenario, points, all));
    }
    planned.retain(|(scenario, kill)| {
        let label = Work::Cell(*scenario, kill.clone()).label();
        only.as_ref()
            .is_none_or(|only| label.contains(only.as_str()))
    });
    lock(&board).queue = planned
        .iter()
        .map(|(scenario, kill)| Work::Cell(*scenario, kill.clone()))
        .collect();
    work_off(&board, &watcher).await?;

    let seen = watcher.finish()?;
    let board = lock(&board);
    for runtime in &runtimes {
        println!("{}", Table::new(*runtime, &planned, &board.met));
    }
    println!(
        "{} of {} cells met in {:.0} s; the watcher looked {} times (longest gap {:?}) at {} computes",
        board.met.len(),
        planned.len(),
        began.elapsed().as_secs_f64(),
        seen.samples,
        seen.longest_gap,
        seen.computes.len()
    );
    for failed in &board.failed {
        println!("\n{failed}");
    }
    anyhow::ensure!(
        seen.violations.is_empty(),
        "two live computes of one sandbox: {:#?}",
        seen.violations
    );
    let missing: Vec<_> = planned
        .iter()
        .filter(|cell| !board.met.contains(cell))
        .collect();
    anyhow::ensure!(
        missing.is_empty(),
        "{} cells are missing: {missing:#?}",
        missing.len()
    );
    anyhow::ensure!(
        board.failed.is_empty(),
        "{} failures, see above",
        board.failed.len()
    );
    anyhow::ensure!(
        only.is_some() || learned.len() == scenarios.len(),
        "only {} scenarios were learned",
        learned.len()
    );
    anyhow::ensure!(
        seen.computes.len() >= board.met.len(),
        "the watcher saw too little"
    );
    Ok(())
}

/// Those that are here. On the reference machine gVisor has to be one.
async fn runtimes() -> anyhow::Result<Vec<Runtime>> {
    let gateway = Gateway::start().await?;
    let drivers = gateway.client().drivers().await?;
    gateway.end().await?;
    let mut modes = drivers.iter().flat_map(|driver| &driver.modes);
    if modes.any(|mode| mode.depth == raw::Depth::DEPTH_CHECKPOINT) {
        return Ok(vec![Runtime::Runc, Runtime::Gvisor]);
    }
    anyhow::ensure!(
        std::env::var_os("OVERWINTER_REQUIRE_LOCAL").is_none(),
        "no driver here writes memory to disk"
    );
    println!("runsc is not there: no memory is written to disk");
    Ok(vec![Runtime::Runc])
}

/// What a trace must hold, or the matrix would be thinner than it says.
fn must_have(scenario: Scenario, points: &[String]) -> anyhow::Result<()> {
    for what in scenario.effects().iter().chain(scenario.commits()) {
        for side in ["before", "after"] {
            let point = format!("{what}:{side}");
            anyhow::ensure!(
                points.contains(&point),
                "{} has no {point}",
                scenario.label()
            );
        }
    }
    Ok(())
}

/// What the gateway does between two effects is the same on every runtime, and it is killed there on runc.
/// A cell of gVisor takes some ten times as long: unless all are asked for, these are around its effects
/// and in them.
fn cells(scenario: Scenario, points: &[String], all: bool) -> Vec<(Scenario, Kill)> {
    let whole = all || scenario.runtime == Runtime::Runc;
    let effects = scenario.effects();
    let around_an_effect = |point: &str| {
        let what = point.split_once(':').map(|(what, _)| what);
        what.is_some_and(|what| effects.contains(&what))
    };
    let at = (points.iter())
        .filter(|point| whole || around_an_effect(point))
        .cloned()
        .map(Kill::At);
    let sides: &[&str] = if whole {
        &["before", "after"]
    } else {
        &["after"]
    };
    let twice = effects.iter().flat_map(|effect| {
        sides
            .iter()
            .map(move |side| Kill::Twice(format!("{effect}:{side}")))
    });
    let into = scenario.runtime.into_an_effect();
    let times = if whole { &into[..] } else { &into[1..2] };
    let after = effects.iter().flat_map(|effect| {
        let at = |ms: &u64| Kill::After(format!("{effect}:before"), Duration::from_millis(*ms));
        times.iter().map(at).collect::<Vec<_>>()
    });
    at.chain(twice)
        .chain(after)
        .map(|kill| (scenario, kill))
        .collect()
}

/// Until the queue is empty.
async fn work_off(board: &Shared, watcher: &Watcher) -> anyhow::Result<()> {
    let workers = (0..WORKERS).map(|_| {
        let board = Arc::clone(board);
        let gateway = Gateway::prepare().inspect(|gateway| watcher.add(&gateway.data_dir()));
        tokio::spawn(async move { work(&board, gateway?).await })
    });
    for worker in workers.collect::<Vec<_>>() {
        worker.await.context("a worker has panicked")??;
    }
    Ok(())
}

async fn work(board: &Shared, mut gateway: Gateway) -> anyhow::Result<()> {
    let die_at = gateway.folder().join(DIE_AT);
    gateway.set_env("OVERWINTER_CRASH_FILE", die_at.display().to_string());
    gateway.run().await?;
    loop {
        let (work, name) = {
            let mut board = lock(board);
            let Some(work) = board.queue.pop_front() else {
                break;
            };
            board.names += 1;
            (work, format!("cell-{}", board.names))
        };
        let began = Instant::now();
        let done = tokio::time::timeout(CELL, one(board, &mut gateway, &work, &name)).await;
        let done = done.unwrap_or_else(|_| Err(anyhow::anyhow!("it takes too long")));
        if std::env::var_os("OVERWINTER_MATRIX_TIMES").is_some() {
            println!(
                "{:6.2} s  {}  {name}",
                began.elapsed().as_secs_f64(),
                work.label()
            );
        }
        if let Err(error) = done {
            let told = format!(
                "{} ({name}): {error:?}\n{}",
                work.label(),
                gateway.log_tail()
            );
            lock(board).failed.push(told);
            // Whatever is left of it must not spoil the next cell.
            let _ = gateway.kill().await;
            let _ = std::fs::remove_file(&die_at);
            gateway.unset_env("OVERWINTER_CRASH_TRACE");
            gateway.run().await?;
        }
    }
    gateway.end().await
}

async fn one(board: &Shared, gateway: &mut Gateway, work: &Work, name: &str) -> anyhow::Result<()> {
    match work {
        Work::Learn(scenario) => {
            let points = cell::learn(gateway, *scenario, name).await?;
            lock(board).learned.push((*scenario, points));
        }
        Work::Cell(scenario, kill) => {
            cell::run(gateway, *scenario, kill, name).await?;
            lock(board).met.push((*scenario, kill.clone()));
        }
    }
    Ok(())
}
