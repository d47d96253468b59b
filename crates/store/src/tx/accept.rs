//! Accepting a verb, and beginning it in the same transaction when nothing else runs.
//!
//! The order: an idempotency key that is known answers first (so that a repeated call gets its
//! first answer whatever has happened since), then admission, then whoever is in line, then
//! capacity with the beginning.

use overwinter_lifecycle::admission::{self, call};
use overwinter_lifecycle::begin::{Begun, begin};
use overwinter_lifecycle::ids::{Millis, OperationId, SandboxId};
use overwinter_lifecycle::operation::{Operation, Outcome, Step, Stopping, Verb};
use overwinter_lifecycle::record::{Desired, Sandbox};
use overwinter_lifecycle::{Fault, Reason};

use rusqlite::Connection;

use crate::core::Tx;
use crate::rows::{effects, idempotency, operations, sandboxes};
use crate::{Accept, AcceptError, Accepted, Disposition, Idempotency, NewSandbox, StoreError};

pub(crate) fn create(tx: &Tx<'_>, new: &NewSandbox) -> Result<Accepted, AcceptError> {
    let (mut sandbox, now) = (new.sandbox.clone(), new.now);
    let key = new.idempotency.as_ref();
    if let Some(replay) = replay(tx.conn, &sandbox.tenant, key, now)? {
        return Ok(replay);
    }
    if let Some(id) = sandboxes::holder(tx.conn, &sandbox.tenant, &sandbox.name)? {
        return Err(AcceptError::NameTaken { id });
    }
    let others = sandboxes::usage_of_others(tx, sandbox.id)?;
    let op = new.operation.clone();
    match begin(&mut sandbox, op, others, tx.limits, now) {
        Begun::Running => {}
        Begun::Ended(op) => return Err(AcceptError::Denied(why_not_begun(*op))),
    }
    sandboxes::insert(tx, &mut sandbox)?;
    operations::save(tx, &sandbox.tenant, &sandbox.running)?;
    record_first_intent(tx, &sandbox, now)?;
    let operation = sandbox.running.clone();
    remember(tx, &sandbox, key, operation.as_ref(), now)?;
    Ok(Accepted {
        disposition: Disposition::Accepted,
        operation,
        sandbox,
        superseded: Vec::new(),
        begun: true,
    })
}

pub(crate) fn accept(tx: &Tx<'_>, asked: &Accept) -> Result<Accepted, AcceptError> {
    let mut sandbox = sandboxes::load(tx, asked.sandbox)?;
    let key = asked.idempotency.as_ref();
    if let Some(replay) = replay(tx.conn, &sandbox.tenant, key, asked.now)? {
        return Ok(replay);
    }
    let accepted = match admission::admit(&sandbox, asked.request) {
        admission::Disposition::Deny(reason) => {
            return Err(AcceptError::Denied(denied(&sandbox, reason)));
        }
        admission::Disposition::NoOp => Accepted {
            disposition: Disposition::NoOp,
            operation: None,
            sandbox,
            superseded: Vec::new(),
            begun: false,
        },
        admission::Disposition::Join(id) => Accepted {
            disposition: Disposition::Joined,
            operation: in_line(&sandbox, id).cloned(),
            sandbox,
            superseded: Vec::new(),
            begun: false,
        },
        admission::Disposition::Accept(verb) => begin_now(tx, sandbox, asked, verb)?,
        admission::Disposition::Queue { verb, .. } => {
            if let Verb::Delete { .. } = verb {
                // The tombstone is written when a delete is accepted, and the running operation
                // ends at its next boundary.
                sandbox.desired = Desired::Deleted;
                stop_running(&mut sandbox, Stopping::Delete(asked.operation));
            }
            wait(tx, sandbox, asked, verb, Disposition::Queued)?
        }
        admission::Disposition::TurnBack { verb, .. } => {
            stop_running(&mut sandbox, Stopping::TurnBack(Some(asked.operation)));
            wait(tx, sandbox, asked, verb, Disposition::TurnedBack)?
        }
    };
    remember(
        tx,
        &accepted.sandbox,
        key,
        accepted.operation.as_ref(),
        asked.now,
    )?;
    if !is_told_later(&accepted) {
        tx.wait_for_disk();
    }
    Ok(accepted)
}

/// Whether nobody is told of it, and no effect of it begins, before something else of it is on the disk.
fn is_told_later(accepted: &Accepted) -> bool {
    let accepts = match accepted.disposition {
        Disposition::Accepted | Disposition::Queued => true,
        Disposition::Joined | Disposition::Replay | Disposition::TurnedBack | Disposition::NoOp => {
            false
        }
    };
    let goes_on =
        (accepted.operation.as_ref()).is_some_and(|op| op.outcome.is_none() && op.intent.is_none());
    accepts && goes_on && accepted.superseded.is_empty()
}

/// A call of the data plane turns an idle suspend back, if it still can.
pub(crate) fn turn_back_for_call(
    tx: &Tx<'_>,
    id: SandboxId,
    suspend: OperationId,
) -> Result<bool, StoreError> {
    let mut sandbox = sandboxes::load(tx, id)?;
    if call::admit(&sandbox) != call::CallAdmission::TurnBack(suspend) {
        return Ok(false);
    }
    stop_running(&mut sandbox, Stopping::TurnBack(None));
    sandboxes::save(tx, &mut sandbox)?;
    Ok(true)
}

fn begin_now(
    tx: &Tx<'_>,
    mut sandbox: Sandbox,
    asked: &Accept,
    verb: Verb,
) -> Result<Accepted, AcceptError> {
    let others = sandboxes::usage_of_others(tx, sandbox.id)?;
    let op = operation(asked, verb);
    let (operation, begun) = match begin(&mut sandbox, op, others, tx.limits, asked.now) {
        Begun::Running => (sandbox.running.clone(), true),
        Begun::Ended(op) => (Some(*op), false),
    };
    if begun {
        sandbox.updated_at = asked.now;
    }
    operations::save(tx, &sandbox.tenant, &operation)?;
    sandboxes::save(tx, &mut sandbox)?;
    if begun {
        record_first_intent(tx, &sandbox, asked.now)?;
    }
    Ok(Accepted {
        disposition: Disposition::Accepted,
        operation,
        sandbox,
        superseded: Vec::new(),
        begun,
    })
}

/// Takes the waiting place; whoever had it is superseded.
fn wait(
    tx: &Tx<'_>,
    mut sandbox: Sandbox,
    asked: &Accept,
    verb: Verb,
    disposition: Disposition,
) -> Result<Accepted, AcceptError> {
    let mut superseded = Vec::new();
    if let Some(mut old) = sandbox.waiting.take() {
        old.step = Step::Ended;
        old.ended_at = Some(asked.now);
        old.outcome = Some(Outcome::SupersededBy(asked.operation));
        superseded.push(old.id);
        if !overwinter_lifecycle::mutant!(SupersededForgotten) {
            operations::save(tx, &sandbox.tenant, [&old])?;
        }
    }
    let op = operation(asked, verb);
    operations::save(tx, &sandbox.tenant, [&op])?;
    sandbox.waiting = Some(op.clone());
    sandbox.updated_at = asked.now;
    sandboxes::save(tx, &mut sandbox)?;
    Ok(Accepted {
        disposition,
        operation: Some(op),
        sandbox,
        superseded,
        begun: false,
    })
}

fn operation(asked: &Accept, verb: Verb) -> Operation {
    let mut op = Operation::new(
        asked.operation,
        asked.sandbox,
        verb,
        &asked.requester,
        asked.now,
    );
    if !overwinter_lifecycle::mutant!(ForgetDeadline) {
        op.deadlines = asked.deadlines;
    }
    op
}

fn stop_running(sandbox: &mut Sandbox, stopping: Stopping) {
    if let Some(running) = &mut sandbox.running {
        running.stopping = Some(stopping);
    }
}

fn in_line(sandbox: &Sandbox, id: OperationId) -> Option<&Operation> {
    let mut line = sandbox.running.iter().chain(&sandbox.waiting);
    line.find(|op| op.id == id)
}

/// An intent that was recorded by the beginning itself has its row in the ledger from then on.
fn record_first_intent(tx: &Tx<'_>, sandbox: &Sandbox, now: Millis) -> Result<(), StoreError> {
    if let Some(op) = &sandbox.running
        && let (Some(key), Some(intent)) = (op.intent_key(), op.intent)
    {
        effects::insert(tx, key, intent.effect, now)?;
    }
    Ok(())
}

/// The answer to an earlier call with the same key, on whatever sandbox that was.
pub(crate) fn replay(
    conn: &Connection,
    tenant: &str,
    key: Option<&Idempotency>,
    now: Millis,
) -> Result<Option<Accepted>, AcceptError> {
    let Some(key) = key else { return Ok(None) };
    let Some(earlier) = idempotency::find(conn, tenant, key, now)? else {
        return Ok(None);
    };
    let operation = match earlier.operation {
        Some(id) => operations::get(conn, id)?,
        None => None,
    };
    let sandbox = sandboxes::get(conn, earlier.sandbox)?;
    Ok(Some(Accepted {
        disposition: Disposition::Replay,
        operation,
        sandbox: sandbox.ok_or(StoreError::NotFound(earlier.sandbox))?,
        superseded: Vec::new(),
        begun: false,
    }))
}

fn remember(
    tx: &Tx<'_>,
    sandbox: &Sandbox,
    key: Option<&Idempotency>,
    operation: Option<&Operation>,
    now: Millis,
) -> Result<(), StoreError> {
    let Some(key) = key else { return Ok(()) };
    let operation = operation.map(|op| op.id);
    idempotency::remember(tx, &sandbox.tenant, key, sandbox.id, operation, now)
}

/// A create that does not begin has left nothing, so it is a refusal.
fn why_not_begun(op: Operation) -> Fault {
    match op.outcome {
        Some(Outcome::Failed(fault)) => fault,
        Some(Outcome::Succeeded { .. } | Outcome::SupersededBy(_) | Outcome::TurnedBack(_))
        | None => Fault::new(Reason::Interrupted, "the create ended before it began"),
    }
}

/// The words of a refusal; the rule itself is admission's.
fn denied(sandbox: &Sandbox, reason: Reason) -> Fault {
    let message = match (reason, &sandbox.retained) {
        (Reason::AlreadyDeeper, Some(retained)) => {
            format!("it sleeps at {} already, deeper than asked", retained.depth)
        }
        (Reason::Deleting, _) if sandbox.tombstone_at.is_some() => "the sandbox is gone".to_owned(),
        (Reason::Deleting, _) => "the sandbox is being deleted".to_owned(),
        (Reason::DeleteInLine, _) => "a delete waits in line, and nothing replaces it".to_owned(),
        (Reason::NotIdle, _) => "it is in use, or not ready".to_owned(),
        (reason, _) => format!("refused: {}", reason.code()),
    };
    Fault::new(reason, message)
}
