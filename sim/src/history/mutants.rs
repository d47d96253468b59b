//! Does the proof bite? Each seeded defect of the real code, until an invariant catches it.

use std::io;

use overwinter_lifecycle::mutant::{self, Mutant};

use super::invariant::Invariant;
use super::many::{Sum, run_all};
use super::profile::Profile;

/// What the clients of one history do, where it is to be many.
const STEPS: u32 = 400;

/// By which invariant, and where.
pub struct Caught {
    pub invariant: Invariant,
    pub profile: &'static str,
    pub seed: u64,
    pub how: String,
}

/// Every seed of the budget, of each profile.
#[must_use]
pub fn line(budget: u64) -> Vec<(u64, Profile)> {
    let of_seed = |seed| {
        Profile::all().map(|profile| {
            let steps = profile.steps.min(STEPS);
            (seed, Profile { steps, ..profile })
        })
    };
    (0..budget).flat_map(of_seed).collect()
}

/// None: it survives. A panic does not count: it is no invariant of ours that found it. One defect
/// at a time in a process.
///
/// # Errors
/// When there is no place for the records.
pub fn catch(mutant: Mutant, budget: u64) -> io::Result<(Sum, Option<Caught>)> {
    mutant::choose(Some(mutant));
    let caught = run_all(&line(budget), 0, |told| {
        told.violation
            .as_ref()
            .is_some_and(|violation| violation.invariant != Invariant::NoPanic)
    });
    mutant::choose(None);
    let (sum, violated) = caught?;
    let caught = violated.and_then(|violated| {
        let violation = violated.told.violation?;
        Some(Caught {
            invariant: violation.invariant,
            profile: violated.profile.name,
            seed: violated.seed,
            how: violation.how,
        })
    });
    Ok((sum, caught))
}
