//! `overwinter-sim`: histories of the whole gateway, by seed.

use std::ops::Range;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use overwinter_sim::history::coverage::Coverage;
use overwinter_sim::history::invariant::Invariant;
use overwinter_sim::history::profile::Profile;
use overwinter_sim::history::{self, Told};

/// Runs the real gateway on virtual time against a backend that fails.
#[derive(Parser)]
struct Cli {
    /// One history.
    #[arg(long, conflicts_with = "seeds")]
    seed: Option<u64>,
    /// Many: FROM..TO.
    #[arg(long, value_parser = seeds, default_value = "0..100")]
    seeds: Range<u64>,
    /// `crowd` (a hundred sandboxes) or `crashes` (one, and a gateway that dies).
    #[arg(long, value_parser = profile, default_value = "crashes")]
    profile: Profile,
    /// What the clients do in all.
    #[arg(long)]
    steps: Option<u32>,
    /// With each of the seeded defects in the code, until it is caught: so many seeds of each profile
    /// at most.
    #[cfg(feature = "mutants")]
    #[arg(long, value_name = "SEEDS")]
    mutants: Option<u64>,
    /// Print every event.
    #[arg(long)]
    trace: bool,
    /// Print what was met, phase by fault and step by crash.
    #[arg(long)]
    coverage: bool,
    /// Fail when a fault, a crash or an invariant was never met.
    #[arg(long)]
    no_zeros: bool,
}

fn seeds(text: &str) -> Result<Range<u64>, String> {
    let (from, to) = text.split_once("..").ok_or("FROM..TO")?;
    let number = |text: &str| text.parse::<u64>().map_err(|error| error.to_string());
    Ok(number(from)?..number(to)?)
}

fn profile(name: &str) -> Result<Profile, String> {
    Profile::by_name(name).ok_or_else(|| "crowd or crashes".to_owned())
}

fn main() -> ExitCode {
    let mut cli = Cli::parse();
    if let Some(steps) = cli.steps {
        cli.profile.steps = steps;
    }
    #[cfg(feature = "mutants")]
    if let Some(budget) = cli.mutants {
        return mutants(budget);
    }
    let seeds = match cli.seed {
        Some(seed) => seed..seed.saturating_add(1),
        None => cli.seeds.clone(),
    };
    let began = Instant::now();
    let all = Coverage::default();
    let (mut histories, mut events, mut crashes, mut sandboxes) = (0_u64, 0_u64, 0_u64, 0);
    for seed in seeds {
        let told = match history::run(seed, &cli.profile, cli.trace) {
            Ok(told) => told,
            Err(error) => {
                eprintln!("no place for the records: {error}");
                return ExitCode::FAILURE;
            }
        };
        all.add(&told.coverage);
        histories += 1;
        events += told.events;
        crashes += u64::from(told.crashes);
        sandboxes += told.sandboxes;
        if cli.seed.is_some() {
            println!("{} events, hash {}", told.events, told.hash);
        }
        if told.violation.is_some() {
            return violated(&cli, seed, &told);
        }
    }
    println!(
        "{}: {histories} histories, {sandboxes} sandboxes, {crashes} crashes, {events} events in {:.1} s",
        cli.profile.name,
        began.elapsed().as_secs_f64()
    );
    met(&cli, &all)
}

fn violated(cli: &Cli, seed: u64, told: &Told) -> ExitCode {
    if let Some(violation) = &told.violation {
        println!("{}seed {seed}: {violation}", told.last);
    }
    println!(
        "again: overwinter-sim --profile {} --steps {} --seed {seed} --trace",
        cli.profile.name, cli.profile.steps
    );
    ExitCode::FAILURE
}

fn met(cli: &Cli, all: &Coverage) -> ExitCode {
    if cli.coverage {
        println!("\n{}\n\n{}\n", all.fault_table(), all.step_table());
        for invariant in Invariant::ALL {
            println!("{:>9}  {invariant}", all.of(invariant.name()));
        }
    }
    let mut zeros = all.zeros(&history::dialled(&cli.profile));
    let unmet = Invariant::ALL.iter().filter(|invariant| {
        // What the world or a panic would tell is looked at all the time.
        let watched = matches!(
            invariant,
            Invariant::NeverTwo
                | Invariant::NoStaleWrite
                | Invariant::DetachedBeforeFrozen
                | Invariant::OldCredentialsRefused
                | Invariant::NoPanic
        );
        !watched && all.of(invariant.name()) == 0
    });
    zeros.extend(unmet.map(|invariant| format!("invariant {invariant}")));
    if cli.no_zeros && !zeros.is_empty() {
        println!("never met:\n  {}", zeros.join("\n  "));
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Whether the proof bites. A panic does not count: it is no invariant of ours that found it.
#[cfg(feature = "mutants")]
fn mutants(budget: u64) -> ExitCode {
    use overwinter_lifecycle::mutant::{self, Mutant};

    let mut survivors = Vec::new();
    for mutant in Mutant::ALL {
        mutant::choose(Some(*mutant));
        let mut histories =
            (0..budget).flat_map(|seed| [(seed, Profile::crashes()), (seed, Profile::crowd())]);
        let caught = histories.find_map(|(seed, profile)| {
            let profile = Profile {
                steps: profile.steps.min(600),
                ..profile
            };
            let violation = history::run(seed, &profile, false).ok()?.violation?;
            let counts = violation.invariant != Invariant::NoPanic;
            counts.then_some((seed, profile.name, violation.invariant))
        });
        match caught {
            Some((seed, profile, invariant)) => {
                println!("{:<18} {invariant:<24} {profile} {seed}", mutant.name());
            }
            None => {
                println!("{:<18} SURVIVES", mutant.name());
                survivors.push(mutant.name());
            }
        }
    }
    mutant::choose(None);
    println!(
        "{} of {} caught within {budget} seeds of each profile",
        Mutant::ALL.len() - survivors.len(),
        Mutant::ALL.len()
    );
    if survivors.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
