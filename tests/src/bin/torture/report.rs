//! What was done, and what did not hold.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use crate::killer::Victim;

/// Of a sandbox whose memory was on disk.
pub(crate) const FROM_DISK: &str = "resumes from memory on disk";

const PROOFS: [&str; 5] = [
    "files as acknowledged",
    "main processes that lived on",
    "processes left that lived on",
    "resumes with their memory",
    "streams that broke, and are whole",
];

/// Shared by everybody who takes part.
pub(crate) struct Report {
    began: Instant,
    counts: Mutex<Counts>,
    /// The first thing that does not hold ends the run.
    pub(crate) over: CancellationToken,
}

#[derive(Default)]
struct Counts {
    kills: BTreeMap<&'static str, u64>,
    /// What was done, by what came of it.
    deeds: BTreeMap<&'static str, BTreeMap<String, u64>>,
    proofs: BTreeMap<&'static str, u64>,
    broken: Vec<String>,
}

impl Report {
    pub(crate) fn new() -> Self {
        Self {
            began: Instant::now(),
            counts: Mutex::default(),
            over: CancellationToken::new(),
        }
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn killed(&self, what: &'static str) {
        *self.counts().kills.entry(what).or_default() += 1;
    }

    pub(crate) fn kills(&self) -> u64 {
        self.counts().kills.values().sum()
    }

    pub(crate) fn did(&self, deed: &'static str, outcome: impl Into<String>) {
        let mut counts = self.counts();
        let outcomes = counts.deeds.entry(deed).or_default();
        *outcomes.entry(outcome.into()).or_default() += 1;
    }

    /// Something that had to be so was looked at, and was so.
    pub(crate) fn proved(&self, what: &'static str) {
        *self.counts().proofs.entry(what).or_default() += 1;
    }

    pub(crate) fn has_proved(&self, what: &'static str) -> bool {
        self.counts().proofs.contains_key(what)
    }

    /// Something does not hold.
    pub(crate) fn broken(&self, what: impl Into<String>) {
        let what = what.into();
        eprintln!(
            "[{:8.3} s] DOES NOT HOLD: {what}",
            self.elapsed().as_secs_f64()
        );
        self.counts().broken.push(what);
        self.over.cancel();
    }

    /// Of what a run must have met to say anything: each kind of kill, and that something was there
    /// afterwards.
    pub(crate) fn unmet(&self) -> Vec<&'static str> {
        let counts = self.counts();
        let proofs = PROOFS.into_iter();
        let kills = Victim::ALL.into_iter().map(Victim::name);
        proofs
            .filter(|what| !counts.proofs.contains_key(what))
            .chain(kills.filter(|kind| !counts.kills.contains_key(kind)))
            .collect()
    }

    pub(crate) fn is_sound(&self) -> bool {
        self.counts().broken.is_empty()
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = self.counts();
        for (deed, outcomes) in &counts.deeds {
            let outcomes: Vec<String> = outcomes
                .iter()
                .map(|(outcome, times)| format!("{outcome} {times}"))
                .collect();
            writeln!(f, "{deed:>16}  {}", outcomes.join(", "))?;
        }
        for (what, times) in &counts.proofs {
            writeln!(f, "{what:>32} {times}")?;
        }
        let kills: u64 = counts.kills.values().sum();
        let kinds: Vec<String> = counts
            .kills
            .iter()
            .map(|(kind, times)| format!("{kind} {times}"))
            .collect();
        writeln!(
            f,
            "{kills} kills ({}) in {:.0} s",
            kinds.join(", "),
            self.began.elapsed().as_secs_f64()
        )?;
        for broken in &counts.broken {
            writeln!(f, "does not hold: {broken}")?;
        }
        Ok(())
    }
}
