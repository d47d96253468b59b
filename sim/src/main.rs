//! `overwinter-model`: the model check, and the check of the check.

use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use overwinter_sim::model::{Backend, Budget, Flaw, Invariant, Setup};
use overwinter_sim::report;
use overwinter_sim::search::search;

/// Checks the lifecycle against everything that may happen to one sandbox.
#[derive(Parser)]
struct Cli {
    /// Against one backend only.
    #[arg(long, value_enum)]
    backend: Option<BackendArg>,
    #[arg(long, default_value_t = 4)]
    verbs: u8,
    #[arg(long, default_value_t = 2)]
    crashes: u8,
    #[arg(long, default_value_t = 2)]
    lost: u8,
    #[arg(long, default_value_t = 1)]
    late: u8,
    #[arg(long, default_value_t = 1)]
    mishaps: u8,
    /// Stop at so many states.
    #[arg(long, default_value_t = usize::MAX, hide_default_value = true)]
    limit: usize,
    /// With this defect, which must be found.
    #[arg(long, value_enum)]
    flaw: Option<Flaw>,
}

#[derive(Clone, Copy, ValueEnum)]
enum BackendArg {
    Locked,
    Fenced,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let backends = match cli.backend {
        Some(BackendArg::Locked) => vec![Backend::Locked],
        Some(BackendArg::Fenced) => vec![Backend::Fenced],
        None => vec![Backend::Locked, Backend::Fenced],
    };
    let mut runs = Vec::new();
    for backend in backends {
        let setup = Setup {
            backend,
            budget: Budget {
                verbs: cli.verbs,
                crashes: cli.crashes,
                lost: cli.lost,
                late: cli.late,
                mishaps: cli.mishaps,
            },
            flaw: cli.flaw,
        };
        let run = search(&setup, cli.limit);
        println!("{}", report::figures(&setup, &run));
        if let Some(found) = &run.found {
            println!("{}", report::history(found));
            return ExitCode::FAILURE;
        }
        runs.push((setup, run));
    }
    println!("{}", report::table(&runs));
    let unmet: Vec<&str> = (Invariant::ALL.iter())
        .filter(|invariant| runs.iter().all(|(_, run)| run.tally.of(**invariant) == 0))
        .map(|invariant| invariant.name())
        .collect();
    if unmet.is_empty() {
        ExitCode::SUCCESS
    } else {
        println!("never put to the test: {}", unmet.join(", "));
        ExitCode::FAILURE
    }
}
