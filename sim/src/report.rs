//! What a search has seen, in words.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, Table, presets};

use crate::model::{Invariant, Setup, State};
use crate::search::{Found, Run};

/// The figures of a run.
#[must_use]
pub fn figures(setup: &Setup, run: &Run) -> String {
    let budget = setup.budget;
    format!(
        "{:?} backend; {} verbs, {} crashes, {} lost, {} late, {} mishaps in one history\n\
         {} states ({}), {} transitions, {} moves deep, {:.1} s\n\
         {} states with everything spent; {} at rest; rest is {} calm moves away at most\n",
        setup.backend,
        budget.verbs,
        budget.crashes,
        budget.lost,
        budget.late,
        budget.mishaps,
        run.states,
        if run.whole {
            "all there are"
        } else {
            "the limit"
        },
        run.transitions,
        run.depth,
        run.took.as_secs_f64(),
        run.spent,
        run.at_rest,
        run.to_rest,
    )
}

/// How often each invariant's premise was met.
#[must_use]
pub fn table(runs: &[(Setup, Run)]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let mut header = vec!["invariant".to_owned(), "means".to_owned()];
    header.extend(runs.iter().map(|(setup, _)| format!("{:?}", setup.backend)));
    table.set_header(header);
    for invariant in Invariant::ALL {
        let mut row = vec![invariant.name().to_owned(), invariant.means().to_owned()];
        row.extend(
            runs.iter()
                .map(|(_, run)| run.tally.of(*invariant).to_string()),
        );
        table.add_row(row);
    }
    for at in 0..runs.len() {
        if let Some(column) = table.column_mut(2 + at) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.to_string()
}

/// The shortest history that leads to a violation.
#[must_use]
pub fn history(found: &Found) -> String {
    let mut text = format!("{}\nafter the shortest history:\n", found.violation);
    let last = found.history.len().saturating_sub(1);
    for (number, (mv, before)) in found.history.iter().enumerate() {
        let at = line(before);
        let _ = if number == last {
            let (sandbox, world) = (&before.sandbox, &before.world);
            writeln!(
                text,
                "      {at}\nat last {:?}, {:?}, {:?}, {:?}, {world:?}",
                sandbox.desired, sandbox.compute, sandbox.retained, sandbox.failure
            )
        } else {
            writeln!(text, "      {at}\n{:>4}. {mv}", number + 1)
        };
    }
    text
}

/// A state in a line: what is shown, what is there, what comes next.
fn line(state: &State) -> String {
    let sandbox = &state.sandbox;
    let verb = |op: &Option<overwinter_lifecycle::operation::Operation>| {
        op.as_ref().map_or("-".to_owned(), |op| {
            let stopping = op.stopping.map_or(String::new(), |why| format!(" {why:?}"));
            format!("{:?} at {}{stopping}", op.verb, op.step.as_str())
        })
    };
    let there = state
        .world
        .compute()
        .map_or("nothing".to_owned(), |native| {
            let run = if native.frozen { "frozen" } else { "live" };
            format!(
                "{run} (held {}, proves {})",
                native.held, native.credentials
            )
        });
    let next = state
        .next
        .as_ref()
        .map_or("-".to_owned(), |action| action.name().to_owned());
    let flying = state.world.flying.map_or(String::new(), |sent| {
        format!(", in flight {}", sent.effect.as_str())
    });
    format!(
        "[{} recorded {:?} issued {}; runs {}; waits {}; there is {there}{flying}; next {next}]",
        sandbox.phase(),
        sandbox.compute,
        sandbox.issued,
        verb(&sandbox.running),
        verb(&sandbox.waiting),
    )
}
