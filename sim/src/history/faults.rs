//! What goes wrong on the backend: the testkit's faults by chance, which can be ended, and the
//! errors that its dials leave out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt as _;
use overwinter_driver::testkit::{
    CallKind, CallSite, CrashPoint, Dice, Fault, FaultPlan, Late, Seeded,
};
use overwinter_driver::{DriverError, Unusable};
use overwinter_lifecycle::ids::SandboxId;
use overwinter_store::Store;

use super::coverage::Coverage;
use super::crashes::Crashes;
use super::profile::{Errors, Habits, Profile};
use super::trace::Trace;
use super::{client, finale, mishaps};

/// What the record says, for whoever stands outside of the gateway.
#[derive(Clone, Default)]
pub(crate) struct Records(Arc<Mutex<Option<Store>>>);

impl Records {
    pub(crate) fn set(&self, store: Option<Store>) {
        let before = std::mem::replace(
            &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner),
            store,
        );
        drop(before);
    }

    /// Whether all that was committed is on the disk.
    pub(crate) fn are_synced(&self) -> bool {
        let store = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        store.as_ref().is_none_or(Store::is_synced)
    }

    pub(crate) fn phase(&self, sandbox: SandboxId) -> Option<&'static str> {
        let store = self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()?;
        // Reads are done at once.
        let record = store.get(sandbox).now_or_never()?.ok()??;
        Some(record.phase().as_str())
    }
}

/// Of a call on which nothing goes wrong, in microseconds.
const LONGEST_LATENCY: u64 = 20_000;

pub(crate) struct Plan {
    seeded: Seeded,
    errors: Errors,
    discards: u16,
    thaws: u16,
    on: AtomicBool,
    /// No effect is answered.
    out: AtomicBool,
    /// Of which the backend has said what is not so, and of all of them.
    lied: Mutex<BTreeSet<SandboxId>>,
    lied_of_all: AtomicBool,
    /// A suspend of these was refused.
    refused: Mutex<BTreeSet<SandboxId>>,
    /// How often a supervisor has hung: its connection is given up, so that it dials again.
    hung: Mutex<BTreeMap<SandboxId, u32>>,
    trace: Trace,
    coverage: Coverage,
    crashes: Crashes,
    records: Records,
}

impl Plan {
    pub(crate) fn new(
        seed: u64,
        profile: &Profile,
        trace: Trace,
        coverage: Coverage,
        crashes: Crashes,
        records: Records,
    ) -> Self {
        Self {
            seeded: Seeded {
                seed,
                dials: profile.dials.clone(),
            },
            errors: profile.errors,
            discards: profile.discards,
            thaws: profile.thaws,
            on: AtomicBool::new(true),
            out: AtomicBool::new(false),
            lied: Mutex::default(),
            lied_of_all: AtomicBool::new(false),
            refused: Mutex::default(),
            hung: Mutex::default(),
            trace,
            coverage,
            crashes,
            records,
        }
    }

    /// No more faults.
    pub(crate) fn end(&self) {
        self.on.store(false, Ordering::Relaxed);
        self.outage(false);
    }

    /// Whether the backend has said of it, so far, what is not so.
    pub(crate) fn lied_of(&self, sandbox: SandboxId) -> bool {
        let lied = self.lied.lock().unwrap_or_else(PoisonError::into_inner);
        self.lied_of_all.load(Ordering::Relaxed) || lied.contains(&sandbox)
    }

    /// Whether a suspend of it was ever refused, be it for a reason that passes.
    pub(crate) fn refused(&self, sandbox: SandboxId) -> bool {
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        refused.contains(&sandbox)
    }

    fn note_lie(&self, call: &CallSite, fault: &Fault) {
        let is_lie = match fault {
            Fault::Stale | Fault::Empty => true,
            Fault::Fail(error) => match error {
                DriverError::Missing(_)
                | DriverError::Unsupported(_)
                | DriverError::Unusable { .. }
                | DriverError::Fenced => true,
                DriverError::Rejected(_) | DriverError::NoSpace(_) | DriverError::Unknown(_) => {
                    false
                }
            },
            _ => false,
        };
        if call.kind == CallKind::Suspend
            && let (Some(sandbox), Fault::Fail(DriverError::Rejected(_))) = (call.sandbox, fault)
        {
            let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
            refused.insert(sandbox);
        }
        match call.sandbox {
            Some(sandbox) if is_lie => {
                let mut lied = self.lied.lock().unwrap_or_else(PoisonError::into_inner);
                lied.insert(sandbox);
            }
            None if is_lie => self.lied_of_all.store(true, Ordering::Relaxed),
            Some(_) | None => {}
        }
    }

    pub(crate) fn hung(&self, sandbox: SandboxId) -> u32 {
        let hung = self.hung.lock().unwrap_or_else(PoisonError::into_inner);
        hung.get(&sandbox).copied().unwrap_or(0)
    }

    pub(crate) fn is_out(&self) -> bool {
        self.out.load(Ordering::Relaxed)
    }

    /// A gateway that dies grants the next one all its time anew: none dies meanwhile.
    pub(crate) fn outage(&self, out: bool) {
        self.out.store(out, Ordering::Relaxed);
        self.crashes.spare(out);
    }

    /// Nothing that is asked for happens, and nobody says so.
    fn unanswered(&self, call: &CallSite) -> Option<Fault> {
        if !self.out.load(Ordering::Relaxed) || !Fault::LoseReply.fits(call.kind) {
            return None;
        }
        // Far away, one in four arrives after all.
        let mut dice = self.dice(17, call);
        let dials = &self.seeded.dials;
        let far_away = dials.act_late_fenced > 0 || dials.act_late_unfenced > 0;
        if far_away && dice.next().is_multiple_of(4) {
            let longest = dials.longest.as_micros() as u64;
            let after = Duration::from_micros(dice.next() % longest.max(1));
            let late = if dials.act_late_unfenced > 0 {
                Late::Unfenced
            } else {
                Late::Fenced
            };
            return Some(Fault::ActLate { after, late });
        }
        Some(Fault::Fail(DriverError::Unknown("no answer".to_owned())))
    }

    /// One call, one chance.
    fn dice(&self, which: u64, call: &CallSite) -> Dice {
        let sandbox = call.sandbox.map_or(0, |id| id.0.as_u128());
        Dice::new(&[
            self.seeded.seed,
            which,
            sandbox as u64,
            call.kind as u64,
            call.nth,
        ])
    }

    /// Nothing is done in no time: others act in between.
    fn latency(&self, call: &CallSite) -> Option<Fault> {
        let micros = 1 + self.dice(11, call).next() % LONGEST_LATENCY;
        let delay = Fault::Delay(Duration::from_micros(micros));
        delay.fits(call.kind).then_some(delay)
    }

    fn other(&self, call: &CallSite) -> Option<Fault> {
        call.sandbox?;
        let mut dice = self.dice(9, call);
        if call.kind == CallKind::Discard && dice.next() % 1000 < u64::from(self.discards) {
            return Some(Fault::Fail(DriverError::Unknown("injected".to_owned())));
        }
        if call.kind == CallKind::Resume && dice.next() % 1000 < u64::from(self.thaws) {
            return Some(Fault::Fail(DriverError::Rejected("injected".to_owned())));
        }
        let chosen = error(self.errors, dice.next() % 1000)?;
        Some(Fault::Fail(match chosen {
            DriverError::Unusable { message, .. } => DriverError::Unusable {
                why: of_any_sort(dice.next()),
                message,
            },
            other => other,
        }))
    }
}

/// Of a thousand.
fn error(errors: Errors, roll: u64) -> Option<DriverError> {
    let injected = || "injected".to_owned();
    let fenced = u64::from(errors.fenced);
    let unsupported = fenced + u64::from(errors.unsupported);
    if roll < fenced {
        Some(DriverError::Fenced)
    } else if roll < unsupported {
        Some(DriverError::Unsupported(injected()))
    } else if roll < u64::from(errors.sum()) {
        Some(DriverError::Unusable {
            why: Unusable::Damaged,
            message: injected(),
        })
    } else {
        None
    }
}

const fn of_any_sort(roll: u64) -> Unusable {
    match roll % 5 {
        0 => Unusable::Damaged,
        1 => Unusable::Foreign,
        2 => Unusable::Stale,
        3 => Unusable::OtherBuild,
        _ => Unusable::OtherImage,
    }
}

/// As the coverage table has it: the kind alone.
const fn name(fault: &Fault) -> &'static str {
    match fault {
        Fault::Fail(error) => match error {
            // It means the same to the core.
            DriverError::Rejected(_) | DriverError::NoSpace(_) => "Rejected",
            DriverError::Unsupported(_) => "Unsupported",
            DriverError::Missing(_) => "Missing",
            DriverError::Unusable { .. } => "Unusable",
            DriverError::Fenced => "Fenced",
            DriverError::Unknown(_) => "Unknown",
        },
        Fault::Delay(_) => "Delay",
        Fault::DelayReply(_) => "DelayReply",
        Fault::LoseReply => "LoseReply",
        Fault::ActLate { late, .. } => match late {
            Late::Fenced => "ActLate Fenced",
            Late::Locked => "ActLate Locked",
            Late::Unfenced => "ActLate Unfenced",
        },
        Fault::Crash(point) => match point {
            CrashPoint::BeforeEffect => "Crash BeforeEffect",
            CrashPoint::AfterEffect => "Crash AfterEffect",
        },
        Fault::LockHeld(_) => "LockHeld",
        Fault::Stale => "Stale",
        Fault::Empty => "Empty",
        Fault::InTransition => "InTransition",
        Fault::NeverAttach => "NeverAttach",
        Fault::AttachLate(_) => "AttachLate",
        Fault::OldCredentials => "OldCredentials",
        Fault::AgentDies => "AgentDies",
        Fault::AgentHangs => "AgentHangs",
        Fault::AgentLies => "AgentLies",
    }
}

/// The faults that these dials lead to.
pub(crate) fn dialled(profile: &Profile) -> Vec<String> {
    let (dials, errors) = (&profile.dials, profile.errors);
    let Habits {
        twice,
        again,
        leave,
    } = profile.habits;
    let all = [
        (dials.reject, "Rejected"),
        (dials.missing, "Missing"),
        (dials.unknown, "Unknown"),
        (dials.delay, "Delay"),
        (dials.delay_reply, "DelayReply"),
        (dials.lose_reply, "LoseReply"),
        (dials.act_late_fenced, "ActLate Fenced"),
        (dials.act_late_unfenced, "ActLate Unfenced"),
        (dials.act_late_locked, "ActLate Locked"),
        (dials.crash_before, "Crash BeforeEffect"),
        (dials.crash_after, "Crash AfterEffect"),
        (dials.lock_held, "LockHeld"),
        (dials.stale, "Stale"),
        (dials.empty, "Empty"),
        (dials.in_transition, "InTransition"),
        (dials.never_attach, "NeverAttach"),
        (dials.attach_late, "AttachLate"),
        (dials.old_credentials, "OldCredentials"),
        (dials.agent_dies, "AgentDies"),
        (dials.agent_hangs, "AgentHangs"),
        (dials.agent_lies, "AgentLies"),
        (errors.fenced, "Fenced"),
        (errors.unsupported, "Unsupported"),
        (errors.unusable, "Unusable"),
        (twice, client::TWICE),
        (again, client::AGAIN),
        (leave, client::LEAVES),
        (1, finale::DELETED),
        // Not after a newer effect or a delete: these wait for as long as it could come, and that they
        // do is `LostIsWaitedFor`.
        (dials.act_late_fenced, "Late AfterRetry"),
    ];
    let on = all.into_iter().filter(|(dial, _)| *dial > 0);
    let mishaps = mishaps::dialled(profile.mishaps);
    on.map(|(_, name)| name)
        .chain(mishaps)
        .map(str::to_owned)
        .collect()
}

impl FaultPlan for Plan {
    fn decide(&self, call: &CallSite) -> Option<Fault> {
        let on = self.on.load(Ordering::Relaxed);
        let fault = on
            .then(|| {
                self.unanswered(call)
                    .or_else(|| self.seeded.decide(call))
                    .or_else(|| self.other(call))
            })
            .flatten()
            .filter(|fault| fault.fits(call.kind))
            .filter(|fault| !(self.is_out() && matches!(fault, Fault::Crash(_))));
        if let Some(fault) = &fault {
            self.note_lie(call, fault);
        }
        match (call.sandbox, &fault) {
            (Some(sandbox), Some(fault)) => {
                if matches!(fault, Fault::AgentHangs) {
                    let mut hung = self.hung.lock().unwrap_or_else(PoisonError::into_inner);
                    *hung.entry(sandbox).or_default() += 1;
                }
                let name = name(fault);
                self.trace
                    .note(format_args!("{:?} {sandbox} {name}", call.kind));
                // A create that is not recorded is no phase of anything.
                if let Some(phase) = self.records.phase(sandbox) {
                    self.coverage.fault(name, phase);
                }
            }
            (Some(sandbox), None) => self.trace.note(format_args!("{:?} {sandbox}", call.kind)),
            (None, _) => self.trace.note(format_args!("{:?} {fault:?}", call.kind)),
        }
        self.crashes.moment(&format_args!("{:?}", call.kind));
        fault.or_else(|| self.latency(call))
    }
}
