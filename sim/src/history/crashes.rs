//! The gateway's death: at any call of the backend or sleep, before and after any step of an owner, before
//! and after any commit. What is behind that point does not happen, and what was committed stays.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use overwinter_driver::testkit::Dice;
use overwinter_gateway::ports::CrashPoints;
use overwinter_store::{CommitPoint, Durability};

use super::coverage::Coverage;
use super::points::{self, Point};
use super::power::Power;
use super::time::VirtualTime;
use super::trace::Trace;

/// Of a thousand points, how many are the last of a gateway.
#[derive(Clone, Copy, Debug, Default)]
pub struct CrashDials {
    /// Steps of owners, both sides.
    pub step: u16,
    /// Commits, both sides.
    pub commit: u16,
    /// Await points: every call of the backend, every sleep.
    pub moment: u16,
    /// In one history at most, by chance.
    pub most: u32,
    /// Points of the list at which a gateway dies when it gets there first, whatever else happens.
    pub points: usize,
}

/// The points of one seed. Seeds that follow each other go through the list, so that none is left out
/// by chance.
fn draw(seed: u64, many: usize) -> BTreeSet<Point> {
    let all = points::all();
    let nth = usize::try_from(seed).unwrap_or(0).wrapping_mul(many);
    let from = nth % all.len();
    all.into_iter().cycle().skip(from).take(many).collect()
}

/// The payload of the unwinding that ends a task there.
pub(crate) struct Crashed;

#[derive(Clone)]
pub(crate) struct Crashes {
    inner: Arc<Mutex<Inner>>,
    time: VirtualTime,
    trace: Trace,
    coverage: Coverage,
    power: Power,
}

struct Inner {
    dials: CrashDials,
    dice: Dice,
    dead: bool,
    /// For now nobody dies.
    spared: bool,
    count: u32,
    /// Where it dies when it gets there next.
    drawn: BTreeSet<Point>,
}

impl Crashes {
    pub(crate) fn new(
        seed: u64,
        dials: CrashDials,
        time: VirtualTime,
        trace: Trace,
        coverage: Coverage,
        power: Power,
    ) -> Self {
        Self {
            inner: Arc::new(Mutex::new(Inner {
                dials,
                dice: Dice::new(&[seed, 3]),
                dead: false,
                spared: false,
                count: 0,
                drawn: draw(seed, dials.points),
            })),
            time,
            trace,
            coverage,
            power,
        }
    }

    fn is_spared(&self) -> bool {
        self.lock().spared
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.lock().dead
    }

    pub(crate) fn count(&self) -> u32 {
        self.lock().count
    }

    /// A new life begins.
    pub(crate) fn revive(&self) {
        self.lock().dead = false;
    }

    /// No more of them.
    pub(crate) fn end(&self) {
        let mut inner = self.lock();
        inner.dials = CrashDials::default();
        inner.drawn.clear();
    }

    /// Whether nobody dies from here on.
    pub(crate) fn spare(&self, spared: bool) {
        self.lock().spared = spared;
    }

    /// Dies at the next await point.
    pub(crate) fn die(&self, how: &dyn fmt::Display) {
        {
            let mut inner = self.lock();
            if std::mem::replace(&mut inner.dead, true) {
                return;
            }
            inner.count += 1;
        }
        self.trace.note(format_args!("crash {how}"));
        self.time.wake_root();
    }

    fn chosen(&self, dial: impl Fn(&CrashDials) -> u16) -> bool {
        let mut inner = self.lock();
        let chance = u64::from(dial(&inner.dials));
        chance > 0
            && inner.dice.next() % 1000 < chance
            && inner.count < inner.dials.most
            && !inner.spared
    }

    fn drawn(&self, what: &str, side: &'static str) -> bool {
        let mut inner = self.lock();
        !inner.spared && inner.drawn.remove(&(what.to_owned(), side))
    }

    /// An await point is ahead.
    pub(crate) fn moment(&self, what: &dyn fmt::Display) {
        if self.is_dead() {
            return;
        }
        if !self.is_spared() && self.power.goes() {
            return self.die(&format_args!("by a power loss at {what}"));
        }
        let dies = self.chosen(|dials| dials.moment);
        self.coverage.awaited(what.to_string(), dies);
        if dies {
            self.die(&format_args!("at {what}"));
        }
    }

    fn point(&self, what: &str, side: &'static str, dial: impl Fn(&CrashDials) -> u16) {
        self.coverage.reached(what, side);
        if !self.is_dead() {
            self.trace.note(format_args!("{side} {what}"));
            if !self.is_spared() && self.power.goes() {
                self.die(&format_args!("by a power loss {side} {what}"));
            } else if self.drawn(what, side) || self.chosen(dial) {
                self.coverage.crashed(what, side);
                self.die(&format_args!("{side} {what}"));
            } else {
                return;
            }
        }
        // Not a panic of anybody's: nothing is printed.
        std::panic::resume_unwind(Box::new(Crashed));
    }

    /// Before or after a COMMIT.
    pub(crate) fn commit(&self, point: CommitPoint, label: &'static str, durability: Durability) {
        let side = match point {
            CommitPoint::Before => "before",
            CommitPoint::After => "after",
        };
        self.power.around_commit(point, durability);
        self.point(&format!("commit {label}"), side, |dials| dials.commit);
        if side == "after" {
            // The checks look at what is durable now.
            self.time.wake_root();
        }
    }
}

impl CrashPoints for Crashes {
    fn reached(&self, what: &dyn fmt::Display, side: &'static str) {
        self.point(&what.to_string(), side, |dials| dials.step);
    }
}
