//! Rows, as a table for people and as JSON for programs.

use std::fmt;

use serde::Serialize;

use crate::stats::Samples;

/// What a row is held against.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    P50AtMost(f64),
    P50AtLeast(f64),
    P99AtMost(f64),
    RatioAtMost(f64),
    RatioAtLeast(f64),
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::P50AtMost(most) => write!(f, "≤ {most}"),
            Self::P50AtLeast(least) => write!(f, "≥ {least}"),
            Self::P99AtMost(most) => write!(f, "p99 ≤ {most}"),
            Self::RatioAtMost(most) => write!(f, "≤ {most} ×"),
            Self::RatioAtLeast(least) => write!(f, "≥ {least} ×"),
        }
    }
}

/// One figure.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub what: String,
    /// `ms`, `MiB`, `MB/s`, `/s`, or nothing for a count.
    pub unit: &'static str,
    /// The median, or the one value that there is.
    pub p50: f64,
    pub p99: Option<f64>,
    pub samples: usize,
    /// What was measured beside it, in the same unit and the same run.
    pub beside: Option<Beside>,
    /// Of the medians.
    pub ratio: Option<f64>,
    pub bound: Option<Bound>,
    pub holds: Option<bool>,
    /// Steps, sizes: what explains it.
    pub note: String,
}

#[derive(Clone, Debug, Serialize)]
pub struct Beside {
    pub what: String,
    pub p50: f64,
    pub p99: Option<f64>,
}

impl Row {
    /// Of durations, in milliseconds.
    #[must_use]
    pub fn timed(what: impl Into<String>, samples: &Samples) -> Self {
        let mut row = Self::value(what, "ms", samples.p50());
        row.p99 = Some(samples.p99());
        row.samples = samples.len();
        row
    }

    /// Of one value.
    #[must_use]
    pub fn value(what: impl Into<String>, unit: &'static str, value: f64) -> Self {
        Self {
            what: what.into(),
            unit,
            p50: value,
            p99: None,
            samples: 1,
            beside: None,
            ratio: None,
            bound: None,
            holds: None,
            note: String::new(),
        }
    }

    #[must_use]
    pub fn beside(mut self, what: impl Into<String>, samples: &Samples) -> Self {
        self.beside = Some(Beside {
            what: what.into(),
            p50: samples.p50(),
            p99: Some(samples.p99()),
        });
        self.ratio = Some(self.p50 / samples.p50());
        self
    }

    #[must_use]
    pub fn beside_value(mut self, what: impl Into<String>, value: f64) -> Self {
        self.beside = Some(Beside {
            what: what.into(),
            p50: value,
            p99: None,
        });
        self.ratio = Some(self.p50 / value);
        self
    }

    /// Asked after everything that the bound speaks of is there.
    #[must_use]
    pub fn bound(mut self, bound: Bound) -> Self {
        let missing = f64::NAN;
        // A comparison with what is not a number does not hold.
        self.holds = Some(match bound {
            Bound::P50AtMost(most) => self.p50 <= most,
            Bound::P50AtLeast(least) => self.p50 >= least,
            Bound::P99AtMost(most) => self.p99.unwrap_or(missing) <= most,
            Bound::RatioAtMost(most) => self.ratio.unwrap_or(missing) <= most,
            Bound::RatioAtLeast(least) => self.ratio.unwrap_or(missing) >= least,
        });
        self.bound = Some(bound);
        self
    }

    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }
}

/// All rows of a run.
#[derive(Debug, Default)]
pub struct Report {
    rows: Vec<Row>,
}

impl Report {
    pub fn add(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// # Errors
    /// When a figure cannot be written as JSON.
    pub fn json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(&serde_json::json!({
            "version": env!("CARGO_PKG_VERSION"),
            "processors": std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
            "rows": self.rows,
        }))
    }

    pub fn print(&self) {
        let heads = ["what", "p50", "p99", "beside", "ratio", "at most", "holds"];
        let mut lines = vec![heads.map(str::to_owned)];
        lines.extend(self.rows.iter().map(cells));
        let widths: Vec<usize> = (0..heads.len())
            .map(|at| {
                lines
                    .iter()
                    .map(|cells| width(&cells[at]))
                    .max()
                    .unwrap_or(0)
            })
            .collect();
        for (line, row) in lines
            .iter()
            .zip(std::iter::once(None).chain(self.rows.iter().map(Some)))
        {
            let padded: Vec<String> = line
                .iter()
                .zip(&widths)
                .map(|(cell, wide)| format!("{cell}{}", " ".repeat(wide - width(cell))))
                .collect();
            println!("{}", padded.join("  ").trim_end());
            if let Some(row) = row
                && !row.note.is_empty()
            {
                println!("    {}", row.note);
            }
        }
    }
}

fn width(text: &str) -> usize {
    text.chars().count()
}

fn cells(row: &Row) -> [String; 7] {
    let unit = row.unit;
    let number = |value: f64| {
        if value >= 100.0 || value.fract() == 0.0 {
            format!("{value:.0}")
        } else {
            format!("{value:.2}")
        }
    };
    let holds = match row.holds {
        Some(true) => "yes",
        Some(false) => "NO",
        None => "",
    };
    let beside = row.beside.as_ref().map(|beside| {
        let tail = beside
            .p99
            .map_or_else(String::new, |p99| format!(" / {}", number(p99)));
        format!("{}: {}{tail}", beside.what, number(beside.p50))
    });
    [
        row.what.clone(),
        format!("{} {unit}", number(row.p50)).trim_end().to_owned(),
        row.p99.map_or_else(String::new, number),
        beside.unwrap_or_default(),
        row.ratio
            .map_or_else(String::new, |ratio| format!("{ratio:.2}")),
        row.bound
            .map_or_else(String::new, |bound| bound.to_string()),
        holds.to_owned(),
    ]
}
