//! What each durable step writes. One [`Recording`] is one transaction; it is applied to the record
//! as the transaction finds it, so a verb that arrived in between (a resume that turns a suspend
//! back, a delete) is seen here and nowhere else.

mod ending;

use serde::{Deserialize, Serialize};

use ending::end;

use crate::begin::{Begun, begin};
use crate::capacity::{Limits, Usage};
use crate::ids::{EffectKey, Fence, Millis, OperationId};
use crate::mutant::unless;
use crate::operation::{Achieved, EffectKind, Intent, Operation, Outcome, Step, Stopping, Verb};
use crate::record::{Compute, Debt, DriverReference, Reclaimed, RetainedStatus, Sandbox};
use crate::steps::Pinned;
use crate::{Depth, Fault, Reason};

/// One durable step.
#[derive(Clone, Debug, PartialEq, Hash)]
pub enum Recording {
    /// The effect that comes next may happen from here on.
    Intent {
        effect: EffectKind,
        /// What the image was pinned to (create).
        pinned: Option<Pinned>,
        /// Whether the supervisor was asked to quiesce (suspend).
        quiesced: bool,
    },
    /// The processes have ended and their results are recorded (`stop`).
    Terminated,
    /// A suspend at a memory depth did not happen and its compute is intact: new credentials are
    /// the effect that comes next, and then it ends with this fault.
    Reattach(Fault),
    /// What was retained is still there and cannot be restored, and the same operation goes on as a
    /// cold start under a new incarnation: to end what is there is the effect that comes next.
    GiveUpMemory,
    /// The restore is settled absent: its memory is discarded, and the same operation goes on as a
    /// cold start under a new incarnation.
    FallBack,
    End(Ending),
}

/// How an operation ends, and what is so from then on.
#[derive(Clone, Debug, PartialEq, Hash)]
pub enum Ending {
    /// Attached and running. `secret`: what the supervisor attached with; the owner fills it in.
    Ready {
        compute: Compute,
        achieved: Achieved,
        remarks: Vec<String>,
        secret: Option<SecretHash>,
    },
    /// Confirmed asleep.
    Suspended(Asleep),
    /// A suspend that was rejected or undone: the sandbox is as it was.
    Aborted(Fault),
    TurnedBack,
    /// A resume or start that failed with the storage intact: asleep as before, or at `stop`.
    StillSuspended {
        fault: Fault,
        memory: Memory,
        compute: Compute,
        debts: Vec<Debt>,
    },
    Failed {
        fault: Fault,
        compute: Compute,
    },
    /// A create that left nothing: the record becomes a tombstone and the name is free.
    NeverWas {
        fault: Fault,
        debts: Vec<Debt>,
    },
    Deleted {
        remarks: Vec<String>,
    },
    /// Removing did not succeed; the wish stands and is tried again.
    NotDeleted(Fault),
    /// A delete takes over; whatever is not settled is its to settle.
    Interrupted,
}

impl Recording {
    /// What is to be removed from here on.
    #[must_use]
    pub fn debts(&self) -> &[Debt] {
        match self {
            Self::End(ending) => ending.debts(),
            Self::Intent { .. }
            | Self::Terminated
            | Self::Reattach(_)
            | Self::GiveUpMemory
            | Self::FallBack => &[],
        }
    }
}

impl Ending {
    fn debts(&self) -> &[Debt] {
        match self {
            Self::Suspended(asleep) => &asleep.debts,
            Self::StillSuspended { debts, .. } | Self::NeverWas { debts, .. } => debts,
            Self::Ready { .. }
            | Self::Aborted(_)
            | Self::TurnedBack
            | Self::Failed { .. }
            | Self::Deleted { .. }
            | Self::NotDeleted(_)
            | Self::Interrupted => &[],
        }
    }
}

/// What a suspension left.
#[derive(Clone, Debug, PartialEq, Hash)]
pub struct Asleep {
    pub depth: Depth,
    pub compute: Compute,
    pub reference: DriverReference,
    pub size_bytes: u64,
    /// Promised and gone.
    pub lost: Option<Depth>,
    pub debts: Vec<Debt>,
    pub remarks: Vec<String>,
    pub reclaimed: Option<Reclaimed>,
}

/// What has become of memory that a resume wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Memory {
    /// It is proved that nothing ran since it was retained: available again, bound to the present
    /// generation.
    NothingRan,
    /// It is gone, or something may have run on it.
    Lost,
}

/// SHA-256 of the secret of a supervisor's attach, for the incarnation that it attached under.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SecretHash(pub [u8; 32]);

/// What came of a recording.
#[derive(Clone, Debug, PartialEq, Hash)]
pub enum Recorded {
    /// It is durable. The key of the new intent, if there is one.
    Done(Option<EffectKey>),
    /// Nothing was written: the operation is to stop at this boundary.
    Stop(Stopping),
    /// The operation has ended; `next` is what began in the same commit.
    Ended { next: Option<OperationId> },
}

/// Everything that one transaction writes besides the record itself.
#[derive(Clone, Debug, Default, PartialEq, Hash)]
pub struct Rows {
    /// Ended operations, to be kept as history.
    pub ended: Vec<Operation>,
    /// New intents.
    pub intents: Vec<(EffectKey, EffectKind)>,
    /// Intents whose outcome is settled now, with a word for the ledger.
    pub settled: Vec<(EffectKey, &'static str)>,
    pub debts: Vec<Debt>,
    /// What has become of every process that counted as running until now, where they have ended.
    pub processes: Option<ProcessesEnded>,
}

impl Rows {
    /// Whether whoever waits may be told of this before it is on the disk. A power loss that takes it
    /// leaves the intent of before, and ends the compute with its host: what comes of the intent then is
    /// what would have come of the end. Not a create: one that is refused when it is asked for again has
    /// never been, and its storage goes.
    #[must_use]
    pub fn are_found_again(&self) -> bool {
        let [ended] = self.ended.as_slice() else {
            return false;
        };
        let wakes = matches!(ended.verb, Verb::Resume { .. } | Verb::Start);
        let done = matches!(ended.outcome, Some(Outcome::Succeeded { .. }));
        // The effect of whoever begins behind it waits for its own intent.
        wakes && done && self.intents.is_empty()
    }
}

/// How processes ended whose own end nobody has told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProcessesEnded {
    /// A suspension, or a start that discarded what slept, ended them on purpose.
    Suspension,
    /// Their compute went away.
    Lost,
}

/// The operation that wrote is not the one that runs: it was fenced off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the operation does not run any more")]
pub struct NotRunning;

/// Applies one recording of operation (`id`, `fence`).
///
/// # Errors
/// [`NotRunning`] when another operation runs, or none: the writer must stop.
pub fn record(
    sandbox: &mut Sandbox,
    (id, fence): (OperationId, Fence),
    recording: Recording,
    (others, limits): (Usage, &Limits),
    now: Millis,
) -> Result<(Recorded, Rows), NotRunning> {
    let mut rows = Rows::default();
    let is_writer = |op: &mut Operation| op.id == id && op.fence == fence;
    let Some(mut op) = sandbox.running.take_if(is_writer) else {
        return Err(NotRunning);
    };
    if let Some(stopping) = op.stopping
        && !matches!(recording, Recording::End(_))
    {
        sandbox.running = Some(op);
        return Ok((Recorded::Stop(stopping), rows));
    }
    sandbox.updated_at = now;
    let key = match recording {
        Recording::End(ending) => {
            let recorded = end(sandbox, op, ending, (others, limits), now, &mut rows);
            return Ok((recorded, rows));
        }
        Recording::Intent {
            effect,
            pinned,
            quiesced,
        } => {
            if effect.makes_compute() {
                sandbox.secret = None;
            }
            op.quiesced |= quiesced;
            if let Some(pinned) = pinned {
                sandbox.spec.image_digest = Some(pinned.digest);
                if sandbox.spec.main.is_empty() {
                    sandbox.spec.main = pinned.main;
                }
            }
            Some(intend(&mut op, effect, "settled", &mut rows))
        }
        Recording::Terminated => {
            op.step = Step::Terminated;
            None
        }
        Recording::Reattach(fault) => {
            rows.debts.extend(op.artifact().map(Debt::artifact));
            op.aborting = Some(fault);
            let word = "did not happen";
            Some(intend(&mut op, EffectKind::Reattach, word, &mut rows))
        }
        Recording::FallBack => {
            sandbox.compute = Compute::Absent;
            go_on_cold(sandbox, &mut op);
            let word = "restore failed";
            Some(intend(&mut op, EffectKind::Start, word, &mut rows))
        }
        Recording::GiveUpMemory => {
            go_on_cold(sandbox, &mut op);
            let end_it = EffectKind::Suspend(Depth::Stop);
            Some(intend(&mut op, end_it, "restore failed", &mut rows))
        }
    };
    sandbox.running = Some(op);
    Ok((Recorded::Done(key), rows))
}

/// Settles the intent before with this word, if there is one, and records the next under the next
/// serial.
fn intend(
    op: &mut Operation,
    effect: EffectKind,
    before: &'static str,
    rows: &mut Rows,
) -> EffectKey {
    settle(op, before, rows);
    unless!(ReuseSerial, {
        op.serial = op.serial.next();
    });
    op.step = Step::Intent;
    let intent = Intent {
        serial: op.serial,
        effect,
    };
    op.intent = Some(intent);
    let key = op.key_of(intent);
    rows.intents.push((key, effect));
    key
}

/// The memory is of no more use, and what comes of the operation is new.
fn go_on_cold(sandbox: &mut Sandbox, op: &mut Operation) {
    op.cold = true;
    sandbox.secret = None;
    sandbox.issued = sandbox.issued.next();
    sandbox.generation = sandbox.generation.next();
    if let Some(retained) = &mut sandbox.retained {
        retained.status = RetainedStatus::Discarding;
    }
}

fn settle(op: &mut Operation, word: &'static str, rows: &mut Rows) {
    if let Some(key) = op.intent_key() {
        rows.settled.push((key, word));
    }
    op.intent = None;
}

/// The waiting operation begins in the transaction in which the running one ends, so that nothing
/// can come between them.
fn begin_next(
    sandbox: &mut Sandbox,
    (others, limits): (Usage, &Limits),
    now: Millis,
    rows: &mut Rows,
) -> Recorded {
    let waiting = sandbox.waiting.take();
    let Some(mut waiting) = waiting.filter(|_| !crate::mutant!(WaitingDropped)) else {
        return Recorded::Ended { next: None };
    };
    if sandbox.tombstone_at.is_some() {
        let fault = Fault::new(Reason::Deleting, "the sandbox is gone");
        waiting.outcome = Some(match waiting.verb {
            // What a waiting delete wanted is so.
            Verb::Delete { .. } => Outcome::Succeeded {
                achieved: Achieved::Done,
                remarks: Vec::new(),
            },
            Verb::Create | Verb::Suspend { .. } | Verb::Resume { .. } | Verb::Start => {
                Outcome::Failed(fault)
            }
        });
        waiting.step = Step::Ended;
        waiting.ended_at = Some(now);
        rows.ended.push(waiting);
        return Recorded::Ended { next: None };
    }
    let next = waiting.id;
    match begin(sandbox, waiting, others, limits, now) {
        Begun::Running => {
            let begun = sandbox.running.iter();
            rows.intents.extend(begun.filter_map(|op| {
                let intent = op.intent?;
                Some((op.key_of(intent), intent.effect))
            }));
            Recorded::Ended { next: Some(next) }
        }
        Begun::Ended(op) => {
            rows.ended.push(*op);
            Recorded::Ended { next: None }
        }
    }
}
