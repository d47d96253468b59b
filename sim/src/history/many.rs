//! Many histories, on all cores. Each has its own thread, and depends on its seed alone.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::{io, thread};

use super::coverage::Coverage;
use super::profile::Profile;
use super::{Told, run};

/// What they were, all together.
#[derive(Default)]
pub struct Sum {
    pub histories: u64,
    pub events: u64,
    pub crashes: u64,
    pub sandboxes: usize,
    pub coverage: Coverage,
}

impl Sum {
    pub fn add(&mut self, told: &Told) {
        self.histories += 1;
        self.events += told.events;
        self.crashes += u64::from(told.crashes);
        self.sandboxes += told.sandboxes;
        self.coverage.add(&told.coverage);
    }
}

/// A seed whose history was violated.
pub struct Violated {
    pub profile: Profile,
    pub seed: u64,
    pub told: Told,
}

/// Runs them, `jobs` at a time (0: as many as there are cores), until one is violated for which
/// `counts` says so; of several, the first in line.
///
/// # Errors
/// When there is no place for their records.
pub fn run_all(
    line: &[(u64, Profile)],
    jobs: usize,
    counts: impl Fn(&Told) -> bool + Sync,
) -> io::Result<(Sum, Option<Violated>)> {
    let jobs = if jobs == 0 {
        thread::available_parallelism().map_or(1, usize::from)
    } else {
        jobs
    };
    let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (told, all) = mpsc::channel();
    let failed = Mutex::new(None);
    thread::scope(|scope| {
        for _ in 0..jobs.min(line.len()) {
            let told = told.clone();
            let (next, stop, counts, failed) = (&next, &stop, &counts, &failed);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some((seed, profile)) = line.get(at) else {
                        return;
                    };
                    match run(*seed, profile, false) {
                        Ok(history) => {
                            if history.violation.is_some() && counts(&history) {
                                stop.store(true, Ordering::Relaxed);
                            }
                            // Nobody hears it where the other end has gone.
                            drop(told.send((at, history)));
                        }
                        Err(error) => {
                            stop.store(true, Ordering::Relaxed);
                            *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                        }
                    }
                }
            });
        }
    });
    drop(told);
    if let Some(error) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(error);
    }
    let mut all: Vec<(usize, Told)> = all.into_iter().collect();
    all.sort_by_key(|(at, _)| *at);
    let mut sum = Sum::default();
    for (at, told) in all {
        sum.add(&told);
        if told.violation.is_some()
            && counts(&told)
            && let Some((seed, profile)) = line.get(at)
        {
            let (seed, profile) = (*seed, profile.clone());
            return Ok((
                sum,
                Some(Violated {
                    profile,
                    seed,
                    told,
                }),
            ));
        }
    }
    Ok((sum, None))
}
