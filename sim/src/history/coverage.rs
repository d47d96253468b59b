//! What was met: each phase with each fault, each step with a crash on either side of it, each commit
//! with a full disk.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use comfy_table::{CellAlignment, Table, presets};

use super::{client, finale, points};

/// Counts; can be added up over histories.
#[derive(Clone, Default)]
pub struct Coverage(Arc<Mutex<Counts>>);

#[derive(Default)]
struct Counts {
    /// (fault, phase)
    faults: BTreeMap<(String, &'static str), u64>,
    /// (step, side): times reached, times crashed at.
    steps: BTreeMap<(String, &'static str), (u64, u64)>,
    /// (await point): times reached, times died at.
    moments: BTreeMap<String, (u64, u64)>,
    /// How often a commit met a full disk.
    full: BTreeMap<&'static str, u64>,
    /// How often each invariant was put to the test.
    invariants: BTreeMap<&'static str, u64>,
}

const PHASES: [&str; 8] = [
    "creating",
    "ready",
    "suspending",
    "suspended",
    "resuming",
    "failed",
    "deleting",
    "tombstone",
];

/// Only while an operation runs is an effect under way.
const OF_EFFECTS: &[&str] = &["creating", "suspending", "resuming", "deleting"];
/// What is gone is looked at no more; that a look is still on its way when it goes is chance.
const OF_LOOKS: &[&str] = &[
    "creating",
    "ready",
    "suspending",
    "suspended",
    "resuming",
    "failed",
    "deleting",
];
/// A supervisor presents itself where it is expected, or where its connection has ended. What sleeps,
/// has failed or is being deleted expects nobody; that one comes all the same is chance.
const OF_ATTACHES: &[&str] = &["creating", "ready", "suspending", "resuming"];
/// It is spoken to when it is there. A create speaks to it only to start a main process, and these
/// sandboxes have none.
const OF_CALLS: &[&str] = &["ready", "suspending", "resuming"];
/// Quiesce, detach and terminate are a suspend's.
const OF_SUSPENDS: &[&str] = &["suspending"];

/// Where compute is there for longer than a moment.
const OF_COMPUTE: &[&str] = &["ready", "suspending", "suspended", "resuming", "failed"];
const OF_CONNECTIONS: &[&str] = &["ready"];
const OF_ARTIFACTS: &[&str] = &["suspended"];
/// What lasts for some time meets whatever there is.
const OF_LIFE: &[&str] = &["ready", "suspended", "failed"];

/// A verb may be asked for whatever it is at.
const OF_REQUESTS: &[&str] = &["ready", "suspending", "suspended", "resuming", "failed"];
/// Whoever goes away was waiting for something.
const OF_WAITS: &[&str] = &["creating", "ready", "suspending", "resuming", "deleting"];

/// The phases in which a fault has to be met. A kind that is not named here has to be met at all: when
/// a late effect arrives, the sandbox may be in any phase.
fn expected(fault: &str) -> &'static [&'static str] {
    match fault {
        "LoseReply" | "ActLate Locked" | "ActLate Fenced" | "ActLate Unfenced"
        | "Crash AfterEffect" | "LockHeld" => OF_EFFECTS,
        "Rejected" | "Missing" | "Unknown" | "Fenced" | "Unsupported" | "Unusable" | "Delay"
        | "DelayReply" | "InTransition" | "Stale" | "Empty" | "Crash BeforeEffect" => OF_LOOKS,
        "NeverAttach" | "AttachLate" | "OldCredentials" | "AgentDies" => OF_ATTACHES,
        "AgentHangs" => OF_CALLS,
        "AgentLies" => OF_SUSPENDS,
        "Mishap kill" => OF_COMPUTE,
        "Mishap reconnect" => OF_CONNECTIONS,
        "Mishap rot" => OF_ARTIFACTS,
        "Mishap full" | "Mishap slow" => OF_LIFE,
        client::TWICE | client::AGAIN => OF_REQUESTS,
        client::LEAVES => OF_WAITS,
        finale::DELETED => OF_LIFE,
        _ => &[],
    }
}

impl Coverage {
    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn fault(&self, fault: &str, phase: &'static str) {
        let mut counts = self.lock();
        *counts.faults.entry((fault.to_owned(), phase)).or_default() += 1;
    }

    pub(crate) fn reached(&self, step: &str, side: &'static str) {
        let mut counts = self.lock();
        counts.steps.entry((step.to_owned(), side)).or_default().0 += 1;
    }

    pub(crate) fn crashed(&self, step: &str, side: &'static str) {
        let mut counts = self.lock();
        counts.steps.entry((step.to_owned(), side)).or_default().1 += 1;
    }

    /// An await point was ahead, and perhaps the gateway died there.
    pub(crate) fn awaited(&self, what: String, died: bool) {
        let mut counts = self.lock();
        let (reached, deaths) = counts.moments.entry(what).or_default();
        *reached += 1;
        *deaths += u64::from(died);
    }

    /// A commit of this sort met a full disk.
    pub(crate) fn filled(&self, label: &'static str) {
        *self.lock().full.entry(label).or_default() += 1;
    }

    pub(crate) fn tested(&self, invariant: &'static str) {
        self.tested_times(invariant, 1);
    }

    pub(crate) fn tested_times(&self, invariant: &'static str, times: u64) {
        *self.lock().invariants.entry(invariant).or_default() += times;
    }

    /// How often `invariant` was put to the test.
    #[must_use]
    pub fn of(&self, invariant: &str) -> u64 {
        self.lock().invariants.get(invariant).copied().unwrap_or(0)
    }

    pub fn add(&self, other: &Self) {
        let other = other.lock();
        let mut counts = self.lock();
        for (key, count) in &other.faults {
            *counts.faults.entry(key.clone()).or_default() += count;
        }
        for (key, (reached, crashed)) in &other.steps {
            let sum = counts.steps.entry(key.clone()).or_default();
            sum.0 += reached;
            sum.1 += crashed;
        }
        for (key, (reached, died)) in &other.moments {
            let sum = counts.moments.entry(key.clone()).or_default();
            sum.0 += reached;
            sum.1 += died;
        }
        for (label, count) in &other.full {
            *counts.full.entry(label).or_default() += count;
        }
        for (key, count) in &other.invariants {
            *counts.invariants.entry(key).or_default() += count;
        }
    }

    /// Points and await points that were never crashed at, and those that the list of them does not have;
    /// commits that met no full disk; and, of the faults that are dialled, those that never happened at
    /// all or in one of the phases in which they have to.
    #[must_use]
    pub fn zeros(&self, dialled: &[String]) -> Vec<String> {
        let counts = self.lock();
        let met: BTreeSet<&str> = counts
            .faults
            .keys()
            .map(|(fault, _)| fault.as_str())
            .collect();
        let dialled: BTreeSet<&String> = dialled.iter().collect();
        let faults = dialled.iter().filter(|fault| !met.contains(fault.as_str()));
        let cells = dialled.iter().flat_map(|fault| {
            let phases = expected(fault).iter();
            let met = |phase: &&&str| counts.faults.contains_key(&((*fault).clone(), **phase));
            phases
                .filter(move |phase| !met(phase))
                .map(move |phase| format!("fault {fault} while {phase}"))
        });
        let listed = points::all();
        let unlisted = counts.steps.keys().filter(|point| !listed.contains(point));
        let unlisted = unlisted.map(|(what, side)| format!("not in the list: {side} {what}"));
        let steps = listed.iter().filter_map(|point| {
            let (what, side) = point;
            match counts.steps.get(point) {
                None => Some(format!("crash {side} {what} (never reached)")),
                Some((reached, 0)) => {
                    Some(format!("crash {side} {what} (reached {reached} times)"))
                }
                Some(_) => None,
            }
        });
        let never_full = (points::COMMITS.iter())
            .filter(|label| !counts.full.contains_key(*label))
            .map(|label| format!("a full disk at commit {label}"));
        let moments = points::moments();
        let never_died = (moments.iter())
            .filter(|moment| {
                counts
                    .moments
                    .get(*moment)
                    .is_none_or(|(_, died)| *died == 0)
            })
            .map(|moment| format!("crash at {moment}"));
        let unlisted_moments = (counts.moments.keys())
            .filter(|moment| !moments.contains(*moment))
            .map(|moment| format!("not in the list: {moment}"));
        faults
            .map(|fault| format!("fault {fault}"))
            .chain(cells)
            .chain(unlisted)
            .chain(never_full)
            .chain(never_died)
            .chain(unlisted_moments)
            .chain(steps)
            .collect()
    }

    /// Phase by fault. `-`: does not have to be met.
    #[must_use]
    pub fn fault_table(&self) -> String {
        let counts = self.lock();
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        let mut header = vec!["fault".to_owned()];
        header.extend(PHASES.iter().map(|phase| (*phase).to_owned()));
        table.set_header(header);
        let faults: BTreeSet<&String> = counts.faults.keys().map(|(fault, _)| fault).collect();
        for fault in faults {
            let mut row = vec![fault.clone()];
            row.extend(PHASES.iter().map(|phase| {
                let count = counts.faults.get(&(fault.clone(), *phase));
                let none = if expected(fault).contains(phase) {
                    "0"
                } else {
                    "-"
                };
                count.map_or(none.to_owned(), u64::to_string)
            }));
            table.add_row(row);
        }
        right(&mut table, PHASES.len());
        table.to_string()
    }

    /// Step by crash.
    #[must_use]
    pub fn step_table(&self) -> String {
        let counts = self.lock();
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header([
            "step",
            "reached",
            "crashed before",
            "crashed after",
            "disk full",
        ]);
        let steps: BTreeSet<&String> = counts.steps.keys().map(|(step, _)| step).collect();
        for step in steps {
            let of = |side| counts.steps.get(&(step.clone(), side)).copied();
            let (before, after) = (
                of("before").unwrap_or_default(),
                of("after").unwrap_or_default(),
            );
            let numbers = [before.0.max(after.0), before.1, after.1];
            let mut row = vec![step.clone()];
            row.extend(numbers.iter().map(u64::to_string));
            let full = step.strip_prefix("commit ").map(|label| {
                let met = counts.full.get(label).copied().unwrap_or(0);
                met.to_string()
            });
            row.push(full.unwrap_or_else(|| "-".to_owned()));
            table.add_row(row);
        }
        right(&mut table, 4);
        table.to_string()
    }
}

impl Coverage {
    /// Await point by crash.
    #[must_use]
    pub fn await_table(&self) -> String {
        let counts = self.lock();
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header(["await point", "reached", "crashed at"]);
        for (what, (reached, died)) in &counts.moments {
            table.add_row([what.clone(), reached.to_string(), died.to_string()]);
        }
        right(&mut table, 2);
        table.to_string()
    }
}

fn right(table: &mut Table, columns: usize) {
    for at in 0..columns {
        if let Some(column) = table.column_mut(1 + at) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}
