//! The cells of one runtime as a table: points down, scenarios across.

use std::fmt;

use super::cell::Kill;
use super::scenario::{Runtime, Scenario};

type Cell = (Scenario, Kill);

/// See the module.
pub(crate) struct Table {
    runtime: Runtime,
    scenarios: Vec<Scenario>,
    /// Each with what it has in each column.
    rows: Vec<(String, Vec<String>)>,
}

impl Table {
    pub(crate) fn new(runtime: Runtime, planned: &[Cell], met: &[Cell]) -> Self {
        let scenarios = runtime.scenarios();
        let mut rows: Vec<(String, Vec<String>)> = Vec::new();
        for cell in planned.iter().filter(|cell| cell.0.runtime == runtime) {
            let (row, mark) = place(&cell.1);
            let at = rows
                .iter()
                .position(|(name, _)| *name == row)
                .unwrap_or_else(|| {
                    rows.push((row, vec![String::new(); scenarios.len()]));
                    rows.len() - 1
                });
            let column = scenarios
                .iter()
                .position(|it| *it == cell.0)
                .unwrap_or_default();
            let held = &mut rows[at].1[column];
            if !held.is_empty() {
                held.push(' ');
            }
            held.push_str(if met.contains(cell) { mark } else { "MISSING" });
        }
        Self {
            runtime,
            scenarios,
            rows,
        }
    }
}

/// The row of a point, and its mark there.
fn place(kill: &Kill) -> (String, &'static str) {
    let side = |point: &str| {
        if point.ends_with(":before") { "b" } else { "a" }
    };
    match kill {
        Kill::At(point) => (step(point).to_owned(), side(point)),
        Kill::Twice(point) => (format!("{}, twice", step(point)), side(point)),
        Kill::After(point, time) => (
            format!("within {}, {} ms", step(point), time.as_millis()),
            "k",
        ),
    }
}

/// Without the verb, its depth and the side.
fn step(point: &str) -> &str {
    let what = point.split_once(':').map_or(point, |(what, _)| what);
    if what.starts_with("commit.") {
        return what;
    }
    what.rsplit_once('.').map_or(what, |(_, step)| step)
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let titles: Vec<String> = self.scenarios.iter().map(|it| it.title()).collect();
        let first = self
            .rows
            .iter()
            .map(|(name, _)| name.len())
            .max()
            .unwrap_or(0);
        write!(f, "\n{:first$}", self.runtime.name())?;
        for title in &titles {
            write!(f, "  {title}")?;
        }
        for (name, cells) in &self.rows {
            write!(f, "\n{name:first$}")?;
            for (title, cell) in titles.iter().zip(cells) {
                let shown = if cell.is_empty() { "·" } else { cell };
                write!(f, "  {shown:width$}", width = title.len())?;
            }
        }
        write!(
            f,
            "\n(b: killed before, a: after, k: from outside, so long after it began; twice: and its successor)"
        )
    }
}
