//! The disk of the records: full or slow for a while, and full once for a commit of one sort, so that
//! each sort meets it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use overwinter_driver::testkit::Dice;
use overwinter_store::{FullHook, PaceHook};

use super::coverage::Coverage;
use super::crashes::Crashes;
use super::points;
use super::time::VirtualTime;

/// Microseconds that a commit takes on a slow disk, at most.
const SLOWEST: u64 = 1_500_000;

#[derive(Clone)]
pub(crate) struct Disk {
    /// For now.
    pub full: Arc<AtomicBool>,
    pub slow: Arc<AtomicBool>,
    /// The commit that is still to meet a full disk, once.
    once: Arc<Mutex<Option<&'static str>>>,
    coverage: Coverage,
}

impl Disk {
    /// Seeds that follow each other go through the list of commits.
    pub(crate) fn new(seed: u64, meets_full: bool, coverage: Coverage) -> Self {
        let labels = points::COMMITS;
        let nth = usize::try_from(seed % labels.len() as u64).unwrap_or(0);
        Self {
            full: Arc::default(),
            slow: Arc::default(),
            once: Arc::new(Mutex::new(meets_full.then_some(labels[nth]))),
            coverage,
        }
    }

    /// No more trouble.
    pub(crate) fn mend(&self) {
        self.full.store(false, Ordering::Relaxed);
        self.slow.store(false, Ordering::Relaxed);
        self.lock_once().take();
    }

    fn lock_once(&self) -> std::sync::MutexGuard<'_, Option<&'static str>> {
        self.once.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_full(&self, label: &'static str, reserve_given_up: bool, dice: &Mutex<Dice>) -> bool {
        let mut once = self.lock_once();
        if *once == Some(label) {
            *once = None;
            return true;
        }
        let sometimes = || {
            let mut dice = dice.lock().unwrap_or_else(PoisonError::into_inner);
            dice.next().is_multiple_of(4)
        };
        self.full.load(Ordering::Relaxed) && (!reserve_given_up || sometimes())
    }

    /// What the reserve held is taken by others now and then.
    pub(crate) fn fills(&self, roll: u64) -> FullHook {
        let (disk, dice) = (self.clone(), Mutex::new(Dice::new(&[roll])));
        Arc::new(move |label, reserve_given_up| {
            let full = disk.is_full(label, reserve_given_up, &dice);
            if full {
                disk.coverage.filled(label);
            }
            full
        })
    }

    /// A commit takes its time.
    pub(crate) fn pace(&self, roll: u64, time: VirtualTime, crashes: Crashes) -> PaceHook {
        let (slow, dice) = (self.slow.clone(), Mutex::new(Dice::new(&[roll])));
        Arc::new(move |_| {
            let sleep = slow.load(Ordering::Relaxed).then(|| {
                let mut dice = dice.lock().unwrap_or_else(PoisonError::into_inner);
                let micros = dice.next() % SLOWEST;
                crashes.moment(&points::SLOW_COMMIT);
                time.sleep(Duration::from_micros(micros))
            });
            Box::pin(async move {
                if let Some(sleep) = sleep {
                    sleep.await;
                }
            })
        })
    }
}
