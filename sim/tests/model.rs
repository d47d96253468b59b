//! The small form of the model check, and the check of the check.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use clap::ValueEnum;
use overwinter_sim::model::{Backend, Budget, Flaw, Invariant, Setup};
use overwinter_sim::report;
use overwinter_sim::search::{Run, search};

const BACKENDS: [Backend; 2] = [Backend::Locked, Backend::Fenced];

fn run(backend: Backend, budget: Budget, flaw: Option<Flaw>) -> (Setup, Run) {
    let setup = Setup {
        backend,
        budget,
        flaw,
    };
    (setup, search(&setup, usize::MAX))
}

/// Every state of a small world, and nothing in it that is never put to the test.
#[test]
fn the_lifecycle_keeps_its_promises() {
    let budget = Budget {
        verbs: 2,
        crashes: 1,
        lost: 1,
        late: 1,
        mishaps: 1,
    };
    let runs = BACKENDS.map(|backend| run(backend, budget, None));
    for (setup, run) in &runs {
        println!("{}", report::figures(setup, run));
        assert!(
            run.found.is_none(),
            "{}",
            report::history(run.found.as_ref().unwrap())
        );
        assert!(run.whole);
        assert!(run.spent > 0, "no history in which all of it happens");
        assert!(run.to_rest > 0);
    }
    println!("{}", report::table(&runs));
    for invariant in Invariant::ALL {
        let met = runs.iter().any(|(_, run)| run.tally.of(*invariant) > 0);
        assert!(met, "{invariant} was never put to the test");
    }
}

/// Each flaw is found, by an invariant that speaks of it, with a history to show.
#[test]
fn every_flaw_is_found() {
    // From few mishaps to more: the first world in which it can show.
    let worlds = [
        (2, 0, 0, 0, 1),
        (2, 1, 0, 1, 0),
        (2, 0, 1, 1, 0),
        (3, 1, 0, 0, 1),
        (2, 1, 1, 1, 1),
    ]
    .map(|(verbs, crashes, lost, late, mishaps)| Budget {
        verbs,
        crashes,
        lost,
        late,
        mishaps,
    });
    let mut escaped = Vec::new();
    for flaw in Flaw::value_variants() {
        let found = (worlds.iter().copied())
            .flat_map(|budget| BACKENDS.map(|backend| (backend, budget)))
            .find_map(|(backend, budget)| run(backend, budget, Some(*flaw)).1.found);
        let Some(found) = found else {
            escaped.push(format!("{flaw:?} is not found"));
            continue;
        };
        let by = found.violation.invariant;
        let moves = found.history.len() - 1;
        println!("{flaw:?}: {by}, after {moves} moves");
        if !flaw.found_by().contains(&by) {
            escaped.push(format!(
                "{flaw:?} is found by chance: {}",
                report::history(&found)
            ));
        }
    }
    assert!(escaped.is_empty(), "{}", escaped.join("\n"));
}
