//! One durable step of a running operation.

use overwinter_lifecycle::capacity::Usage;
use overwinter_lifecycle::ids::{Fence, Millis, OperationId, SandboxId};
use overwinter_lifecycle::record::Sandbox;
use overwinter_lifecycle::recording::{self, Recorded, Recording, Rows};

use crate::core::Tx;
use crate::rows::{debts, effects, operations, processes, sandboxes};
use crate::{ProcessResult, StoreError, Written};

/// What an owner writes.
pub(crate) struct Record {
    pub(crate) sandbox: SandboxId,
    pub(crate) operation: (OperationId, Fence),
    pub(crate) recording: Recording,
    pub(crate) timings: Vec<(String, u64)>,
    pub(crate) exits: Vec<ProcessResult>,
    pub(crate) now: Millis,
}

pub(crate) fn record(tx: &Tx<'_>, asked: &Record) -> Result<Written, StoreError> {
    let mut sandbox = sandboxes::load(tx, asked.sandbox)?;
    // Only who waits may come to begin here.
    let others = match &sandbox.waiting {
        Some(_) => sandboxes::usage_of_others(tx, sandbox.id)?,
        None => Usage::default(),
    };
    let (recorded, mut rows) = recording::record(
        &mut sandbox,
        asked.operation,
        asked.recording.clone(),
        (others, tx.limits),
        asked.now,
    )
    .map_err(|recording::NotRunning| StoreError::NotRunning)?;
    write_processes(tx, &sandbox, &rows, asked)?;
    if let Recorded::Done(_) | Recorded::Ended { .. } = recorded {
        append_timings(&mut sandbox, &mut rows, asked);
        if !overwinter_lifecycle::mutant!(EndNotWritten) {
            operations::save(tx, &sandbox.tenant, &rows.ended)?;
        }
        sandboxes::save(tx, &mut sandbox)?;
        write_ledger(tx, &sandbox, &rows, asked.now)?;
    }
    let need_not_wait = rows.are_found_again() && asked.exits.is_empty()
        || !rows.intents.is_empty() && overwinter_lifecycle::mutant!(IntentNotAwaited);
    if !need_not_wait {
        tx.wait_for_disk();
    }
    Ok(Written {
        recorded,
        sandbox,
        ended: rows.ended,
    })
}

/// Ends that were told come first: an ending speaks only of the processes whose own end nobody has
/// told. What the operation itself has started, it does not speak of.
fn write_processes(
    tx: &Tx<'_>,
    sandbox: &Sandbox,
    rows: &Rows,
    asked: &Record,
) -> Result<(), StoreError> {
    let started_here = sandbox.compute.may_exist();
    let (later, first): (Vec<_>, Vec<_>) = asked
        .exits
        .iter()
        .partition(|process| started_here && process.exited_at.is_none());
    processes::save(tx, sandbox.id, first)?;
    if let Some(how) = rows.processes {
        processes::end_running(tx, sandbox.id, how, asked.now)?;
    }
    processes::save(tx, sandbox.id, later)
}

fn append_timings(sandbox: &mut Sandbox, rows: &mut Rows, asked: &Record) {
    let mut all = sandbox.running.iter_mut().chain(&mut rows.ended);
    if let Some(op) = all.find(|op| op.id == asked.operation.0) {
        op.timings.extend(asked.timings.iter().cloned());
    }
}

fn write_ledger(
    tx: &Tx<'_>,
    sandbox: &Sandbox,
    rows: &Rows,
    now: Millis,
) -> Result<(), StoreError> {
    for (key, word) in &rows.settled {
        effects::settle(tx, *key, word)?;
    }
    for (key, kind) in &rows.intents {
        if !overwinter_lifecycle::mutant!(ReceiptLost) {
            effects::insert(tx, *key, *kind, now)?;
        }
    }
    if !overwinter_lifecycle::mutant!(DebtRowLost) {
        debts::insert(tx, &rows.debts, now)?;
    }
    if sandbox.tombstone_at.is_some() {
        effects::settle_all(tx, sandbox.id, "deleted")?;
    }
    Ok(())
}
