//! What everyone in a history shares, and what they know that the gateway has promised.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use connectrpc::ConnectError;
use overwinter_driver::testkit::{Dice, SimWorld};
use overwinter_lifecycle::Phase;
use overwinter_lifecycle::ids::{OperationId, SandboxId};

use super::checks::Seen;
use super::client::Asked;
use super::coverage::Coverage;
use super::crashes::Crashes;
use super::disk::Disk;
use super::faults::{Plan, Records};
use super::invariant::{Invariant, Violation};
use super::power::{self, Power};
use super::profile::Profile;
use super::time::{Sleep, VirtualTime};
use super::trace::Trace;

/// Receipts and tombstones are kept for so long, by the wall clock (see `overwinter_store`).
const RECEIPTS_STAY: Duration = Duration::from_secs(7 * 86_400);

pub(crate) struct Stage {
    pub profile: Profile,
    pub time: VirtualTime,
    pub trace: Trace,
    pub coverage: Coverage,
    pub crashes: Crashes,
    pub plan: Arc<Plan>,
    pub records: Records,
    pub world: Arc<SimWorld>,
    pub disk: Disk,
    pub power: Power,
    /// Whether the gateway that the clients have left sees the end, or one that is started anew.
    pub ends_in_this_life: bool,
    /// It was full or slow for so long in all.
    pub disk_trouble: Cell<Duration>,
    /// Of gateways, from 1.
    pub life: Cell<u32>,
    /// When the newest of them was up.
    pub up_since: Cell<Duration>,
    pub dice: RefCell<Dice>,
    pub model: RefCell<Model>,
    pub violation: RefCell<Option<Violation>>,
    pub steps_left: Cell<u32>,
}

/// What the records have said.
#[derive(Clone, Default)]
pub(crate) struct Told {
    pub seen: BTreeMap<SandboxId, Seen>,
    /// Up to which change the records were looked at.
    pub seq: u64,
    /// Operations that were seen to end, and when.
    pub ended: BTreeMap<OperationId, Duration>,
    /// Whether the newest operation of a sandbox is a suspend that idleness asked for, past its point
    /// of no turning back.
    pub idle: BTreeMap<SandboxId, bool>,
    /// Since when the records have left room for one more, whatever was committed.
    pub room_since: Option<Duration>,
    /// Since when what a record claims is not there.
    pub missing: BTreeMap<SandboxId, Duration>,
    /// Who holds a name.
    pub names: BTreeMap<String, SandboxId>,
}

/// What was promised, and what the records have said.
#[derive(Default)]
pub(crate) struct Model {
    pub told: Told,
    /// The same as it is on the disk, while something may be lost that is not.
    pub on_disk: Option<Told>,
    /// Acknowledged writes.
    pub files: BTreeMap<SandboxId, BTreeMap<String, String>>,
    pub accepted: BTreeMap<OperationId, SandboxId>,
    pub keys: BTreeMap<String, OperationId>,
    /// Calls of the data plane that are on their way.
    pub calls: BTreeMap<u64, Call>,
    pub call: u64,
    pub written: u64,
    /// Artifacts that were damaged or removed behind everybody's back.
    pub rotten: BTreeSet<String>,
    /// How often the connection of a sandbox was broken.
    pub broken: BTreeMap<SandboxId, u32>,
    /// What each client has asked for last.
    pub last: BTreeMap<usize, (Asked, String)>,
    /// The clock was set by so much in all, either way.
    pub jumped: Duration,
    /// And forward alone.
    pub skipped: Duration,
}

/// A call of the data plane.
pub(crate) struct Call {
    pub sandbox: SandboxId,
    /// Whether the sandbox was Ready during it.
    pub ready: bool,
    /// It was let in, as far as its client has seen.
    pub open: Arc<AtomicBool>,
    /// While it was open, a suspend that idleness asked for came past its point of no turning back.
    pub put_to_sleep: bool,
}

impl Stage {
    /// From here on nothing goes wrong.
    pub(crate) fn faults_end(&self) {
        self.trace.note(format_args!("no more faults"));
        self.plan.end();
        self.crashes.end();
        self.disk.mend();
        self.power.end();
    }

    pub(crate) fn roll(&self, below: u64) -> u64 {
        self.dice.borrow_mut().next() % below.max(1)
    }

    pub(crate) fn chance(&self, of_a_thousand: u64) -> bool {
        self.roll(1000) < of_a_thousand
    }

    pub(crate) fn sleep(&self, time: Duration) -> Sleep {
        self.time.sleep(time)
    }

    /// At most this long.
    pub(crate) fn a_while(&self, most: Duration) -> Sleep {
        let micros = self.roll(u64::try_from(most.as_micros()).unwrap_or(u64::MAX));
        self.time.sleep(Duration::from_micros(micros))
    }

    /// It has met this; none where nothing was there to be met.
    pub(crate) fn met(&self, what: &str, sandbox: Option<SandboxId>) {
        if let Some(phase) = sandbox.and_then(|id| self.records.phase(id)) {
            self.coverage.fault(what, phase);
        }
    }

    /// What was committed and not on the disk has never been; and whatever ran has ended.
    pub(crate) fn power_was_lost(&self) {
        let mut model = self.model.borrow_mut();
        if let Some(on_disk) = model.on_disk.take() {
            model.told = on_disk;
        }
        for seen in model.told.seen.values() {
            let phase = seen.record.phase().as_str();
            self.coverage.fault(power::LOST, phase);
        }
        drop(model);
        self.world.reboot();
    }

    /// It was put to the test.
    pub(crate) fn expect(&self, invariant: Invariant, holds: bool, how: impl FnOnce() -> String) {
        self.coverage.tested(invariant.name());
        if !holds {
            self.violate(invariant, how());
        }
    }

    /// The first counts.
    pub(crate) fn violate(&self, invariant: Invariant, how: String) {
        self.trace.note(format_args!("violated {invariant}: {how}"));
        let mut violation = self.violation.borrow_mut();
        if violation.is_none() {
            *violation = Some(Violation { invariant, how });
        }
        drop(violation);
        self.time.wake_root();
    }

    /// A call of the data plane begins.
    pub(crate) fn call_begins(&self, sandbox: SandboxId) -> (u64, Arc<AtomicBool>) {
        let mut model = self.model.borrow_mut();
        model.call += 1;
        let number = model.call;
        let seen = model.told.seen.get(&sandbox);
        let ready = seen.is_some_and(|seen| seen.record.phase() == Phase::Ready);
        let open = Arc::new(AtomicBool::new(false));
        let call = Call {
            sandbox,
            ready,
            open: open.clone(),
            put_to_sleep: false,
        };
        model.calls.insert(number, call);
        (number, open)
    }

    /// It has succeeded.
    pub(crate) fn call_succeeded(&self, number: u64, what: &str) {
        let call = self.model.borrow_mut().calls.remove(&number);
        if let Some(Call { sandbox, ready, .. }) = call {
            self.expect(Invariant::CallsOnlyWhenReady, ready, || {
                format!("{what} succeeded in {sandbox}, which was never Ready meanwhile")
            });
        }
    }

    /// It has failed; where it had been let in, not because nobody seemed to use the sandbox.
    pub(crate) fn call_failed(&self, number: u64, why: &ConnectError) {
        let call = self.model.borrow_mut().calls.remove(&number);
        let open = call.filter(|call| call.open.load(Ordering::Relaxed));
        if let Some(call) = open {
            self.expect(Invariant::IdleCutsNothing, !call.put_to_sleep, || {
                format!("{}: a call that was open ended with {why}", call.sandbox)
            });
        }
    }

    /// Whether what is kept for as long as receipts may be gone by now.
    pub(crate) fn receipts_may_be_gone(&self) -> bool {
        self.time.now() + self.model.borrow().skipped >= RECEIPTS_STAY
    }

    /// Whether it is there and nobody has asked for its end.
    pub(crate) fn is_kept(&self, sandbox: SandboxId) -> bool {
        let model = self.model.borrow();
        let seen = model.told.seen.get(&sandbox);
        seen.is_some_and(|seen| !matches!(seen.record.phase(), Phase::Deleting | Phase::Tombstone))
    }
}
