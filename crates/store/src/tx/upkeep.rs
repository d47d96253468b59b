//! Everything that is written beside a verb's own steps.

use overwinter_lifecycle::ids::{Fence, Incarnation, Millis, SandboxId};
use overwinter_lifecycle::loss;
use overwinter_lifecycle::record::{Compute, Debt, DebtKind, MainExit, Sandbox};
use overwinter_lifecycle::recording::ProcessesEnded;

use crate::core::Tx;
use crate::rows::{debts, processes, sandboxes};
use crate::{ProcessResult, StoreError, UpdateConfig};

/// Takes every unfinished operation over, in one transaction.
pub(crate) fn recover(tx: &Tx<'_>) -> Result<Vec<Sandbox>, StoreError> {
    let mut recovered = Vec::new();
    for mut sandbox in sandboxes::with_line(tx.conn)? {
        if let Some(running) = &mut sandbox.running {
            running.attempt += 1;
            sandboxes::save(tx, &mut sandbox)?;
        }
        recovered.push(sandbox);
    }
    Ok(recovered)
}

pub(crate) fn record_loss(
    tx: &Tx<'_>,
    id: SandboxId,
    observed: Compute,
    issued: Incarnation,
    now: Millis,
) -> Result<Option<Sandbox>, StoreError> {
    let mut sandbox = sandboxes::load(tx, id)?;
    if !loss::record_loss(&mut sandbox, observed, issued, now) {
        return Ok(None);
    }
    processes::end_running(tx, id, ProcessesEnded::Lost, now)?;
    sandboxes::save(tx, &mut sandbox)?;
    Ok(Some(sandbox))
}

pub(crate) fn record_frozen(
    tx: &Tx<'_>,
    id: SandboxId,
    held: Incarnation,
    fence: Fence,
    now: Millis,
) -> Result<Option<Sandbox>, StoreError> {
    let mut sandbox = sandboxes::load(tx, id)?;
    if !loss::record_frozen(&mut sandbox, held, fence, now) {
        return Ok(None);
    }
    sandboxes::save(tx, &mut sandbox)?;
    Ok(Some(sandbox))
}

pub(crate) fn save_processes(
    tx: &Tx<'_>,
    learnt: &[(SandboxId, Vec<ProcessResult>)],
    now: Millis,
) -> Result<(), StoreError> {
    for (id, results) in learnt {
        let Some(sandbox) = sandboxes::get(tx.conn, *id)? else {
            continue;
        };
        processes::save(tx, *id, results)?;
        // What was learnt may come after the loss that it is part of.
        if !sandbox.compute.may_exist() && sandbox.running.is_none() {
            processes::end_running(tx, *id, ProcessesEnded::Lost, now)?;
        }
    }
    Ok(())
}

pub(crate) fn record_main_exit(
    tx: &Tx<'_>,
    id: SandboxId,
    exit: MainExit,
) -> Result<Sandbox, StoreError> {
    let mut sandbox = sandboxes::load(tx, id)?;
    loss::record_main_exit(&mut sandbox, exit);
    sandboxes::save(tx, &mut sandbox)?;
    Ok(sandbox)
}

pub(crate) fn update(
    tx: &Tx<'_>,
    id: SandboxId,
    update: &UpdateConfig,
    now: Millis,
) -> Result<Sandbox, StoreError> {
    let mut sandbox = sandboxes::load(tx, id)?;
    if !sandbox.holds_name() {
        return Err(StoreError::NotFound(id));
    }
    let version = sandbox.config.version;
    if update.expected_version.is_some_and(|seen| seen != version) {
        return Err(StoreError::Conflict { version });
    }
    sandbox.config.version += 1;
    sandbox.config.owner.clone_from(&update.owner);
    if let Some(env) = &update.env {
        sandbox.config.env.clone_from(env);
    }
    if let Some(policy) = &update.policy {
        sandbox.config.policy = policy.clone();
    }
    if let Some(labels) = &update.labels {
        sandbox.labels.clone_from(labels);
        sandboxes::write_labels(tx, &sandbox)?;
    }
    sandbox.updated_at = now;
    sandboxes::save(tx, &mut sandbox)?;
    Ok(sandbox)
}

pub(crate) fn settle_debt(tx: &Tx<'_>, debt: &Debt) -> Result<(), StoreError> {
    if !debts::delete(tx, debt)? {
        return Ok(());
    }
    match debt.kind {
        DebtKind::Artifact | DebtKind::Storage => Ok(()),
        DebtKind::Compute => {
            let Some(mut sandbox) = sandboxes::find(tx, debt.key.sandbox)? else {
                return Ok(());
            };
            sandbox.compute_debts = debts::of_compute(tx.conn, sandbox.id)?;
            sandboxes::save(tx, &mut sandbox)
        }
    }
}
