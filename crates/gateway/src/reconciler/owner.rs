//! The owner of a sandbox's running operation: carry out an action, ask the pure core for the next.

use std::time::Duration;

use overwinter_lifecycle::Phase;
use overwinter_lifecycle::ids::{Fence, OperationId};
use overwinter_lifecycle::operation::{Operation, Verb};
use overwinter_lifecycle::record::Sandbox;
use overwinter_lifecycle::recording::{Ending, Recorded, Recording};
use overwinter_lifecycle::steps::{self, Action, Event};
use overwinter_store::{ProcessResult, StoreError};
use tracing::Instrument;

use super::Reconciler;
use super::settle::Times;

/// How long a store that refuses is given before the same recording is tried again.
const STORE_PAUSE: Duration = Duration::from_millis(500);

/// What the owner keeps between actions. All of it may be lost: the record says where to go on.
pub(super) struct Owned {
    pub sandbox: Sandbox,
    /// Microseconds of each action since the last recording.
    timings: Vec<(String, u64)>,
    /// What was learnt of processes, for the next recording.
    pub exits: Vec<ProcessResult>,
    /// Granted anew to each owner.
    pub times: Times,
}

/// Why an owner stops.
enum Stop {
    /// Nothing runs on the sandbox any more.
    Finished,
    /// Another owner, or another gateway, has taken over.
    Fenced,
}

/// Runs the operation that is recorded as running, and whatever begins after it, to the end.
pub(super) async fn run(reconciler: &Reconciler, sandbox: Sandbox) {
    let id = sandbox.id;
    if let Err(error) = reconciler.ensure_recovered(&sandbox).await {
        tracing::error!(sandbox = %id, %error, "its driver could not recover it; going on by observing");
    }
    let Some(first) = &sandbox.running else {
        return;
    };
    let mut owned = Owned {
        times: reconciler.grant(&sandbox, first),
        sandbox,
        timings: Vec::new(),
        exits: Vec::new(),
    };
    while let Some(operation) = owned.sandbox.running.clone() {
        reconciler.shut_gate(id);
        owned.times = reconciler.grant(&owned.sandbox, &operation);
        let span = tracing::info_span!(
            "operation",
            id = %operation.id,
            sandbox = %id,
            verb = operation.verb.as_str(),
            fence = %operation.fence,
            attempt = operation.attempt,
        );
        match drive(reconciler, &mut owned, operation)
            .instrument(span)
            .await
        {
            Stop::Finished => {}
            Stop::Fenced => return,
        }
    }
}

async fn drive(reconciler: &Reconciler, owned: &mut Owned, operation: Operation) -> Stop {
    let writer = (operation.id, operation.fence);
    let verb = operation.verb;
    let mut current = operation;
    let mut action = steps::first(&owned.sandbox, &current);
    loop {
        let name = action.name();
        let began = reconciler.ports.clock.monotonic();
        reconciler.crash_point(verb, name, "before");
        let done = action.clone();
        let event = match action {
            Action::Record(recording) => match record(reconciler, owned, writer, recording).await {
                Ok(Progress::Event(event)) => event,
                Ok(Progress::Ended) => {
                    reconciler.crash_point(verb, name, "after");
                    reconciler
                        .telemetry
                        .step(verb, name, reconciler.since(began));
                    return Stop::Finished;
                }
                Err(NotMine) => return Stop::Fenced,
            },
            action => {
                let span = tracing::debug_span!("step", step = name);
                #[cfg(feature = "mutants")]
                let event = reconciler.perform_wrongly(owned, &current, action);
                #[cfg(not(feature = "mutants"))]
                let event = reconciler.perform(owned, &current, action);
                event.instrument(span).await
            }
        };
        reconciler.crash_point(verb, name, "after");
        let took = reconciler.since(began);
        reconciler.telemetry.step(verb, name, took);
        owned.timings.push((
            name.to_owned(),
            u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
        ));
        tracing::debug!(step = name, ?event, took_us = took.as_micros(), "step done");
        // A recording has brought the newest record with it.
        if let Some(running) = &owned.sandbox.running {
            current = running.clone();
        }
        let deadline = reconciler.deadline(&owned.times);
        action = steps::next(&owned.sandbox, &current, done, event, deadline);
    }
}

enum Progress {
    Event(Event),
    Ended,
}

/// The operation is not this owner's any more.
struct NotMine;

async fn record(
    reconciler: &Reconciler,
    owned: &mut Owned,
    writer: (OperationId, Fence),
    mut recording: Recording,
) -> Result<Progress, NotMine> {
    let slot = reconciler.hub.find(owned.sandbox.id);
    if let Recording::End(Ending::Ready { secret, .. }) = &mut recording {
        *secret = slot.as_ref().and_then(|slot| slot.secret());
    }
    owned.exits.extend(reconciler.learnt.take(owned.sandbox.id));
    loop {
        let written = reconciler
            .store
            .record(
                owned.sandbox.id,
                writer,
                recording.clone(),
                owned.timings.clone(),
                owned.exits.clone(),
                reconciler.ports.clock.wall(),
            )
            .await;
        let written = match written {
            Ok(written) => written,
            Err(StoreError::NotRunning | StoreError::NotFound(_) | StoreError::Closed) => {
                tracing::warn!("fenced off: the operation is not this owner's any more");
                return Err(NotMine);
            }
            // Nothing was written, and what has happened has happened: it must be recorded. A full
            // disk is the usual cause, and ends when someone makes room.
            Err(error) => {
                tracing::error!(%error, "recording failed; trying again");
                reconciler.ports.clock.sleep(STORE_PAUSE).await;
                continue;
            }
        };
        owned.sandbox = written.sandbox;
        return Ok(match written.recorded {
            Recorded::Done(_) => {
                owned.timings.clear();
                owned.exits.clear();
                Progress::Event(Event::Recorded)
            }
            Recorded::Stop(stopping) => Progress::Event(Event::Stopped(stopping)),
            Recorded::Ended { next: _ } => {
                owned.timings.clear();
                owned.exits.clear();
                reconciler.settle_slot(&owned.sandbox);
                reconciler.sync_soon();
                // At once, not in the next round.
                if !recording.debts().is_empty() {
                    let reconciler = reconciler.clone();
                    tokio::spawn(async move { reconciler.pay_debts().await });
                }
                for operation in &written.ended {
                    reconciler.telemetry.ended(operation);
                }
                if !overwinter_lifecycle::mutant!(WaitersForgotten) {
                    reconciler.waiters.ended(written.ended);
                }
                Progress::Ended
            }
        });
    }
}

impl Reconciler {
    pub(super) fn since(&self, began: Duration) -> Duration {
        self.ports.clock.monotonic().saturating_sub(began)
    }

    /// Opens or closes the data plane as the record now says. Before anybody is told of the end, so
    /// that whoever was told finds it so.
    fn settle_slot(&self, sandbox: &Sandbox) {
        match sandbox.phase() {
            Phase::Ready => {
                let slot = self.hub.find(sandbox.id);
                if let Some(slot) = &slot {
                    slot.open_gate();
                    self.follow(sandbox, slot);
                }
                // A suspend that was undone without a word from inside: whatever would have told of
                // the end of its compute may have ended before this gateway began.
                if !slot.is_some_and(|slot| slot.is_attached()) {
                    self.leave_to_owner(sandbox.id);
                }
            }
            // A supervisor that comes late to a failure is let in by the resume that asks for it.
            Phase::Suspended(_) | Phase::Failed | Phase::Tombstone => self.hub.remove(sandbox.id),
            // The next operation, or the user, decides; the gate stays as that leaves it.
            Phase::Creating | Phase::Suspending(_) | Phase::Resuming | Phase::Deleting => {}
        }
    }

    pub(super) fn crash_point(&self, verb: Verb, name: &'static str, side: &'static str) {
        if let Some(crash) = &self.ports.crash {
            let depth = match verb {
                Verb::Suspend { depth, .. } => depth.as_str(),
                Verb::Create | Verb::Resume { .. } | Verb::Start | Verb::Delete { .. } => "any",
            };
            crash.reached(&format_args!("{}.{depth}.{name}", verb.as_str()), side);
        }
    }
}
