//! `overwinter-sim`: histories of the whole gateway, by seed.

use std::num::ParseIntError;
use std::ops::Range;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Instant;

use clap::Parser;
use overwinter_sim::history::invariant::Invariant;
use overwinter_sim::history::many::{Sum, Violated, run_all};
use overwinter_sim::history::profile::{NoSuchProfile, Profile};
use overwinter_sim::history::{self, Told};

/// Runs the real gateway on virtual time against a backend that fails.
#[derive(Parser)]
struct Cli {
    /// One history.
    #[arg(long, conflicts_with = "seeds")]
    seed: Option<u64>,
    /// Many: FROM..TO.
    #[arg(long, default_value = "0..100")]
    seeds: Seeds,
    /// `crashes` (one sandbox, and a gateway that dies), `crowd` (a hundred), `tight` (room for two of
    /// six), `remote` (what was sent can arrive late), `unfenced` (it is done then, whatever has happened
    /// since), or `all` of these.
    #[arg(long, default_value = "crashes")]
    profile: Profiles,
    /// What the clients do in all.
    #[arg(long)]
    steps: Option<u32>,
    /// At a time; 0: as many as there are cores.
    #[arg(long, default_value_t = 0)]
    jobs: usize,
    /// With each of the seeded defects in the code, until it is caught: so many seeds of each profile
    /// at most.
    #[cfg(feature = "mutants")]
    #[arg(long, value_name = "SEEDS")]
    mutants: Option<u64>,
    /// One of them alone; without `--mutants`, in the histories that are asked for.
    #[cfg(feature = "mutants")]
    #[arg(long, value_name = "NAME")]
    mutant: Option<Chosen>,
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

#[derive(Clone, Debug)]
struct Seeds(Range<u64>);

#[derive(Debug, thiserror::Error)]
enum BadSeeds {
    #[error("two numbers: FROM..TO")]
    NoRange,
    #[error(transparent)]
    Number(#[from] ParseIntError),
}

impl FromStr for Seeds {
    type Err = BadSeeds;

    fn from_str(text: &str) -> Result<Self, BadSeeds> {
        let (from, to) = text.split_once("..").ok_or(BadSeeds::NoRange)?;
        Ok(Self(from.parse()?..to.parse()?))
    }
}

#[cfg(feature = "mutants")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Chosen(overwinter_lifecycle::mutant::Mutant);

#[cfg(feature = "mutants")]
#[derive(Debug, thiserror::Error)]
#[error("no defect is called so; see crates/lifecycle/src/mutant.rs")]
struct NoSuchMutant;

#[cfg(feature = "mutants")]
impl FromStr for Chosen {
    type Err = NoSuchMutant;

    fn from_str(name: &str) -> Result<Self, NoSuchMutant> {
        let mut all = overwinter_lifecycle::mutant::Mutant::ALL.iter();
        let found = all.find(|mutant| mutant.name() == name);
        found.copied().map(Self).ok_or(NoSuchMutant)
    }
}

#[derive(Clone, Debug)]
struct Profiles(Vec<Profile>);

impl FromStr for Profiles {
    type Err = NoSuchProfile;

    fn from_str(name: &str) -> Result<Self, NoSuchProfile> {
        if name == "all" {
            return Ok(Self(Profile::all().into()));
        }
        Ok(Self(vec![Profile::by_name(name)?]))
    }
}

fn main() -> ExitCode {
    let mut cli = Cli::parse();
    for profile in &mut cli.profile.0 {
        profile.steps = cli.steps.unwrap_or(profile.steps);
    }
    #[cfg(feature = "mutants")]
    if let (Some(Chosen(mutant)), None) = (cli.mutant, cli.mutants) {
        overwinter_lifecycle::mutant::choose(Some(mutant));
    }
    let done = match () {
        #[cfg(feature = "mutants")]
        () if cli.mutants.is_some() => mutants(&cli),
        () if cli.seed.is_some() => one(&cli),
        () => many(&cli),
    };
    done.unwrap_or_else(|error| {
        eprintln!("no place for the records: {error}");
        ExitCode::FAILURE
    })
}

fn one(cli: &Cli) -> std::io::Result<ExitCode> {
    let seed = cli.seed.unwrap_or_default();
    let mut sum = Sum::default();
    for profile in &cli.profile.0 {
        let told = history::run(seed, profile, cli.trace)?;
        sum.add(&told);
        println!(
            "{}: {} events, {:?}, hash {}",
            profile.name, told.events, told.took, told.hash
        );
        if told.violation.is_some() {
            return Ok(violated(profile, seed, &told));
        }
    }
    Ok(met(cli, &sum))
}

fn many(cli: &Cli) -> std::io::Result<ExitCode> {
    let all = Sum::default();
    for profile in &cli.profile.0 {
        let began = Instant::now();
        let line: Vec<_> = cli
            .seeds
            .0
            .clone()
            .map(|seed| (seed, profile.clone()))
            .collect();
        let (sum, found) = run_all(&line, cli.jobs, |_| true)?;
        if let Some(Violated { seed, told, .. }) = found {
            return Ok(violated(profile, seed, &told));
        }
        println!(
            "{}: {} histories, {} sandboxes, {} crashes, {} events in {:.1} s",
            profile.name,
            sum.histories,
            sum.sandboxes,
            sum.crashes,
            sum.events,
            began.elapsed().as_secs_f64()
        );
        all.coverage.add(&sum.coverage);
    }
    Ok(met(cli, &all))
}

fn violated(profile: &Profile, seed: u64, told: &Told) -> ExitCode {
    if let Some(violation) = &told.violation {
        println!("{}seed {seed}: {violation}", told.last);
    }
    println!(
        "again: overwinter-sim --profile {} --steps {} --seed {seed} --trace",
        profile.name, profile.steps
    );
    ExitCode::FAILURE
}

fn met(cli: &Cli, sum: &Sum) -> ExitCode {
    let all = &sum.coverage;
    if cli.coverage {
        println!(
            "\n{}\n\n{}\n\n{}\n",
            all.fault_table(),
            all.step_table(),
            all.await_table()
        );
        for invariant in Invariant::ALL {
            println!("{:>9}  {invariant}", all.of(invariant.name()));
        }
    }
    let mut zeros = all.zeros(&history::dialled(&cli.profile.0));
    let tests = |invariant| cli.profile.0.iter().any(|profile| profile.tests(invariant));
    let unmet = Invariant::ALL
        .iter()
        .filter(|invariant| tests(**invariant) && all.of(invariant.name()) == 0);
    zeros.extend(unmet.map(|invariant| format!("invariant {invariant}")));
    if cli.no_zeros && !zeros.is_empty() {
        println!("never met:\n  {}", zeros.join("\n  "));
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Whether the proof bites.
#[cfg(feature = "mutants")]
fn mutants(cli: &Cli) -> std::io::Result<ExitCode> {
    use overwinter_lifecycle::mutant::Mutant;
    use overwinter_sim::history::mutants;

    let budget = cli.mutants.unwrap_or_default();
    let chosen = |mutant: &&Mutant| cli.mutant.is_none_or(|it| it.0 == **mutant);
    let began = Instant::now();
    // What is found below is found of the defect alone.
    let (sum, found) = run_all(&mutants::line(budget), cli.jobs, |_| true)?;
    if let Some(Violated {
        profile,
        seed,
        told,
    }) = found
    {
        return Ok(violated(&profile, seed, &told));
    }
    println!(
        "sound without: {} histories, {} events",
        sum.histories, sum.events
    );
    let (mut tried, mut right) = (0, 0);
    for mutant in Mutant::ALL.iter().filter(chosen) {
        tried += 1;
        let (sum, caught) = mutants::catch(*mutant, budget)?;
        let Some(caught) = caught else {
            println!("{:<24} SURVIVES {} histories", mutant.name(), sum.histories);
            continue;
        };
        right += u32::from(caught.right);
        let wrong = if caught.right { "" } else { "WRONG " };
        println!(
            "{:<24} {wrong}{:<24} {} {}",
            mutant.name(),
            caught.invariant,
            caught.profile,
            caught.seed
        );
        if !caught.right {
            println!("  {}", caught.how);
        }
    }
    println!(
        "{right} of {tried} caught by what they break within {budget} seeds of each profile, in {:.0} s",
        began.elapsed().as_secs_f64()
    );
    Ok(if right == tried && tried > 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
