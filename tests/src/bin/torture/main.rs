//! `make torture`: the real gateway under verbs of many clients, with SIGKILL of the gateway, of
//! supervisors, of compute and of the runtime at random moments.
//!
//! Every client keeps its own book of what it was promised ([`ledger`]); files are compared by
//! digest, processes that should have lived are asked, and at the end nothing may be left on the
//! host. An independent [`Watcher`] looks for two computes of one sandbox all the while. Ends with 1
//! as soon as something does not hold.

mod client;
mod contents;
mod finale;
mod killer;
mod ledger;
mod life;
mod report;
mod stage;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use clap::Parser;
use overwinter_api::v1;
use overwinter_tests::Gateway;
use overwinter_tests::orphans::{self, Orphans};
use overwinter_tests::watcher::Watcher;
use tokio_util::sync::CancellationToken;

use client::Actor;
use stage::{RUNSC, Stage};

/// Kills everything that takes part in a sandbox's life, and sees that nothing is lost.
#[derive(Parser)]
#[command(name = "overwinter-torture")]
struct Cli {
    /// How many kills.
    #[arg(long, default_value_t = 1000)]
    kills: u64,
    /// Clients at once.
    #[arg(long, default_value_t = 8)]
    clients: usize,
    /// Sandboxes at once.
    #[arg(long, default_value_t = 6)]
    sandboxes: usize,
    /// What clients and killers choose; when they get to it is the machine's own.
    #[arg(long)]
    seed: Option<u64>,
    /// What the sandboxes run on, in turn; without it whatever of runc and runsc is there.
    #[arg(long, value_delimiter = ',')]
    runtimes: Vec<RuntimeArg>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum RuntimeArg {
    Runc,
    Runsc,
}

/// How long one thing that a client does may take: many calls, each of which may wait.
const ACT: Duration = Duration::from_secs(400);

fn main() -> ExitCode {
    let cli = Cli::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("no runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(torture(&cli)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn torture(cli: &Cli) -> anyhow::Result<()> {
    let seed = cli.seed.unwrap_or_else(rand::random);
    println!(
        "{} kills, {} clients, {} sandboxes, --seed {seed}",
        cli.kills, cli.clients, cli.sandboxes
    );
    let watcher = Watcher::start()?;
    let mut gateway = Gateway::prepare()?;
    // From here on its only child of its own is the gateway, which is waited for by who started it.
    let _adopted = Orphans::adopt(|pid| orphans::name_of(pid).starts_with("overwinter-gat"))?;
    watcher.add(&gateway.data_dir());
    gateway.run().await?;
    let image = gateway.image.name();
    let stage = Arc::new(Stage::new(
        gateway.client(),
        image,
        runtimes(&cli.runtimes, &gateway).await?,
        cli.clients,
        cli.sandboxes,
    ));

    let stop = CancellationToken::new();
    let actors: Vec<_> = (0..cli.clients)
        .map(|index| {
            let actor = Actor::new(Arc::clone(&stage), index, seed ^ (index as u64 + 1));
            tokio::spawn(actor.act(cli.sandboxes, stop.clone()))
        })
        .collect();
    let killed = killer::kill(&stage, &mut gateway, cli.sandboxes, cli.kills, seed).await;
    stop.cancel();
    if killed.is_err() {
        stage.report.over.cancel();
    }
    for actor in actors {
        match tokio::time::timeout(ACT, actor).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => stage.report.broken(format!("a client ended: {error}")),
            Err(_) => stage.report.broken("a client is stuck"),
        }
    }
    let settled = match killed {
        Ok(()) if stage.report.is_sound() => finale::settle(&stage, &gateway).await,
        other => other,
    };
    if let Err(error) = &settled {
        stage.report.broken(format!("{error:#}"));
    }
    if stage.report.is_sound() {
        if let Err(error) = finale::host(gateway).await {
            stage.report.broken(format!("{error:#}"));
        }
    } else {
        eprintln!("the gateway's log ends with:\n{}", gateway.log_tail());
        keep(&gateway);
    }
    let seen = watcher.finish()?;
    print!("{}", stage.report);
    println!(
        "the watcher looked {} times (longest gap {:?}) at {} computes",
        seen.samples,
        seen.longest_gap,
        seen.computes.len()
    );
    ensure!(
        seen.violations.is_empty(),
        "two live computes of one sandbox: {:#?}",
        seen.violations
    );
    ensure!(stage.report.is_sound(), "it does not hold: see above");
    let unmet = stage.report.unmet();
    ensure!(unmet.is_empty(), "never met: {}", unmet.join(", "));
    Ok(())
}

/// Those that are asked for, or all that there are. On the reference machine gVisor has to be one.
async fn runtimes(asked: &[RuntimeArg], gateway: &Gateway) -> anyhow::Result<Vec<&'static str>> {
    let name = |runtime: &RuntimeArg| match runtime {
        RuntimeArg::Runc => "runc",
        RuntimeArg::Runsc => RUNSC,
    };
    if !asked.is_empty() {
        return Ok(asked.iter().map(name).collect());
    }
    let drivers = gateway.client().drivers().await?;
    let mut modes = drivers.iter().flat_map(|driver| &driver.modes);
    if modes.any(|mode| mode.depth == v1::Depth::DEPTH_CHECKPOINT) {
        return Ok(vec!["runc", RUNSC]);
    }
    ensure!(
        std::env::var_os("OVERWINTER_REQUIRE_LOCAL").is_none(),
        "no driver here writes memory to disk"
    );
    println!("runsc is not there: no memory is written to disk");
    Ok(vec!["runc"])
}

/// The log of a run that failed, for whoever looks for the cause.
fn keep(gateway: &Gateway) {
    let kept = std::env::temp_dir().join(format!("overwinter-torture-{}.log", std::process::id()));
    if std::fs::copy(gateway.log_path(), &kept).is_ok() {
        eprintln!("the whole log: {}", kept.display());
    }
}
