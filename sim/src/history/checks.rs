//! What is checked after every commit, of the records that it changed, against the record before it
//! and against what is really there.

use futures::FutureExt as _;
use overwinter_driver::Observed;
use overwinter_driver::testkit::Violation as WorldViolation;
use overwinter_gateway::api::Api;
use overwinter_lifecycle::capacity::Usage;
use overwinter_lifecycle::ids::OperationId;
use overwinter_lifecycle::operation::{Achieved, Operation, Outcome, Verb};
use overwinter_lifecycle::record::{Desired, RetainedStatus, Sandbox};
use overwinter_lifecycle::{Depth, Phase};

use super::invariant::Invariant;
use super::stage::{Model, Stage};

/// A record as it was last, and what was there then.
#[derive(Clone)]
pub(crate) struct Seen {
    pub record: Sandbox,
    /// The memory that it was last Ready or went to sleep with.
    asleep_with: Option<u64>,
    /// A suspend that runs, and the memory that was live when it began.
    suspending: Option<(OperationId, Option<u64>)>,
}

/// Looks at all that has changed.
pub(crate) fn after_commits(stage: &Stage, api: &Api) {
    let store = &api.reconciler.store;
    loop {
        let after = stage.model.borrow().seq;
        let Some(Ok(changes)) = store.changes_since(after, 500).now_or_never() else {
            return;
        };
        if changes.changes.is_empty() {
            break;
        }
        stage.model.borrow_mut().seq = changes.next;
        for (_, record) in changes.changes {
            let before = stage.model.borrow().seen.get(&record.id).cloned();
            stage.trace.note(format_args!(
                "record {} {} {:?} fence {} issued {}",
                record.id,
                record.phase(),
                record.compute,
                record.fence,
                record.issued
            ));
            let ended = (before
                .as_ref()
                .and_then(|seen| seen.record.running.as_ref()))
            .filter(|op| record.running.as_ref().map(|now| now.id) != Some(op.id))
            .and_then(|op| store.operation(op.id).now_or_never()?.ok()?);
            let seen = of_one(stage, before.as_ref(), record, ended.as_ref());
            let mut model = stage.model.borrow_mut();
            note_calls(&mut model, &seen.record);
            model.seen.insert(seen.record.id, seen);
        }
    }
}

/// What the backend has seen that must never be.
pub(crate) fn of_the_world(stage: &Stage) {
    for violation in stage.world.violations() {
        let invariant = match violation {
            WorldViolation::TwoLive(_)
            | WorldViolation::TwoMains(_)
            | WorldViolation::NameReused(_) => Invariant::NeverTwo,
            WorldViolation::StaleWrite { .. } => Invariant::NoStaleWrite,
            WorldViolation::FrozenWhileAttached(_) => Invariant::DetachedBeforeFrozen,
            WorldViolation::OldCredentialsAccepted(_) => Invariant::OldCredentialsRefused,
        };
        stage.violate(invariant, format!("{violation:?}"));
    }
}

fn note_calls(model: &mut Model, record: &Sandbox) {
    if record.phase() == Phase::Ready {
        for (sandbox, ready) in model.calls.values_mut() {
            *ready |= *sandbox == record.id;
        }
    }
}

fn of_one(
    stage: &Stage,
    before: Option<&Seen>,
    record: Sandbox,
    ended: Option<&Operation>,
) -> Seen {
    let id = record.id;
    let memory = stage.world.memory_of(id);
    if let Some(before) = before {
        succession(stage, &before.record, &record, ended);
    }
    names(stage, &record);
    if let Some(running) = &record.running {
        let asked = running.requester.as_str();
        stage.expect(
            Invariant::NothingUnasked,
            asked.starts_with("client-") || asked.starts_with("gateway: a delete"),
            || format!("{id}: {} by {asked:?}", running.verb.as_str()),
        );
    }
    if let Some(held) = record.compute.held() {
        stage.expect(Invariant::HeldWasIssued, held <= record.issued, || {
            format!("{id}: held {held}, issued {}", record.issued)
        });
    }
    capacity(stage, before.map(|seen| &seen.record), &record);
    contents(stage, &record);
    let mut seen = Seen {
        asleep_with: before.and_then(|seen| seen.asleep_with),
        suspending: before.and_then(|seen| seen.suspending),
        record,
    };
    if let Some(ended) = ended {
        of_its_end(stage, &mut seen, ended, memory);
    }
    match &seen.record.running {
        Some(op) if matches!(op.verb, Verb::Suspend { .. }) => {
            if seen.suspending.map(|(id, _)| id) != Some(op.id) {
                seen.suspending = Some((op.id, memory));
            }
        }
        Some(_) | None => {}
    }
    match seen.record.phase() {
        // What is taken for lost, and is not, is found again by a resume.
        Phase::Ready => seen.asleep_with = memory.or(seen.asleep_with),
        Phase::Suspended(Depth::Stop) => seen.asleep_with = None,
        _ => {}
    }
    seen
}

/// From one record to the next.
fn succession(stage: &Stage, before: &Sandbox, now: &Sandbox, ended: Option<&Operation>) {
    let id = now.id;
    stage.expect(
        Invariant::NumbersRise,
        now.fence >= before.fence && now.issued >= before.issued && now.revision > before.revision,
        || {
            format!(
                "{id}: fence {} to {}, issued {} to {}, revision {} to {}",
                before.fence, now.fence, before.issued, now.issued, before.revision, now.revision
            )
        },
    );
    let new = (now.running.as_ref())
        .filter(|op| before.running.as_ref().map(|running| running.id) != Some(op.id));
    if let Some(new) = new {
        stage.expect(Invariant::NumbersRise, new.fence > before.fence, || {
            format!("{id}: a new operation under fence {}", new.fence)
        });
        if new.verb.starts_compute() {
            stage.expect(Invariant::NumbersRise, now.issued > before.issued, || {
                format!("{id}: a {} under the old incarnation", new.verb.as_str())
            });
        }
    }
    if before.desired == Desired::Deleted {
        stage.expect(
            Invariant::DeleteDominates,
            now.desired == Desired::Deleted
                && (before.tombstone_at.is_none() || now.tombstone_at.is_some()),
            || format!("{id}: {} after {}", now.phase(), before.phase()),
        );
    }
    if now.tombstone_at.is_some() && before.tombstone_at.is_none() {
        let by = ended.or(before.running.as_ref()).map(|op| op.verb);
        let may = before.desired == Desired::Deleted
            || matches!(by, Some(Verb::Delete { .. } | Verb::Create));
        stage.expect(Invariant::RecordsStay, may, || {
            format!("{id}: a tombstone by {by:?}")
        });
    }
    if let (Some(was), Some(is)) = (&before.retained, &now.retained)
        && was.status == RetainedStatus::Consumed
        && was.reference == is.reference
    {
        let consumed = is.status != RetainedStatus::Available || is.depth == Depth::Stop;
        stage.expect(Invariant::ConsumedStaysConsumed, consumed, || {
            format!("{id}: {:?}", is.status)
        });
    }
}

/// A name is one id's.
fn names(stage: &Stage, record: &Sandbox) {
    let name = record.name.as_str();
    let mut model = stage.model.borrow_mut();
    if !record.holds_name() {
        if model.names.get(name) == Some(&record.id) {
            model.names.remove(name);
        }
        return;
    }
    let holder = model.names.insert(name.to_owned(), record.id);
    let other = holder.filter(|holder| *holder != record.id);
    // Its tombstone may come later in the same look.
    drop(model);
    let alive = other.filter(|other| match stage.records.phase(*other) {
        Some(phase) => phase != "tombstone",
        None => false,
    });
    stage.expect(Invariant::IdStays, alive.is_none(), || {
        format!("{name} is {} while {other:?} lives", record.id)
    });
}

/// The truth against what the record holds.
fn capacity(stage: &Stage, before: Option<&Sandbox>, record: &Sandbox) {
    let runs = matches!(stage.world.truth(record.id), Observed::Live { .. });
    if runs && !stage.profile.backend_lies() {
        let held = Usage::of(record).running;
        stage.expect(Invariant::CapacityHolds, held > 0, || {
            format!(
                "{} runs and its record ({}, {:?}) holds nothing",
                record.id,
                record.phase(),
                record.compute
            )
        });
    }
    let Some(limit) = stage.profile.limits.running else {
        return;
    };
    let begins = (record.running.as_ref()).is_some_and(|op| {
        op.verb.starts_compute()
            && before
                .and_then(|before| before.running.as_ref())
                .map(|op| op.id)
                != Some(op.id)
    });
    if begins {
        let model = stage.model.borrow();
        let others = model
            .seen
            .values()
            .filter(|seen| seen.record.id != record.id);
        let used: u64 = others.map(|seen| Usage::of(&seen.record).running).sum();
        drop(model);
        stage.expect(Invariant::LimitsHold, used < limit, || {
            format!("{} begins beside {used} of {limit}", record.id)
        });
    }
}

/// What was acknowledged, on the disk itself.
pub(crate) fn contents(stage: &Stage, record: &Sandbox) {
    if matches!(record.phase(), Phase::Deleting | Phase::Tombstone) {
        return;
    }
    let model = stage.model.borrow();
    let Some(files) = model
        .files
        .get(&record.id)
        .filter(|files| !files.is_empty())
    else {
        return;
    };
    let there = stage.world.workspace(record.id).unwrap_or_default();
    let lost = files.iter().find(|(path, data)| {
        there.get(path.as_bytes()).map(AsRef::as_ref) != Some(data.as_bytes())
    });
    stage.expect(Invariant::ContentsStay, lost.is_none(), || {
        format!("{} ({}): {lost:?} is not there", record.id, record.phase())
    });
}

/// An operation has ended.
fn of_its_end(stage: &Stage, seen: &mut Seen, ended: &Operation, memory: Option<u64>) {
    let id = seen.record.id;
    let outcome = ended.outcome.as_ref();
    stage.trace.note(format_args!(
        "ended {} {} {id}: {outcome:?}",
        ended.verb.as_str(),
        ended.id
    ));
    let ready = seen.record.phase() == Phase::Ready;
    match (ended.verb, outcome) {
        (Verb::Suspend { depth, .. }, Some(Outcome::Succeeded { .. })) => {
            // The next may have begun in the same commit: this is the only moment to see it.
            seen.asleep_with = memory.filter(|_| depth != Depth::Stop);
        }
        (
            Verb::Resume { .. },
            Some(Outcome::Succeeded {
                achieved: Achieved::Memory,
                ..
            }),
        ) => {
            // What was killed since says nothing.
            let same = memory.is_none() || seen.asleep_with == memory;
            stage.expect(Invariant::MemoryIsMemory, same, || {
                format!(
                    "{id}: slept with memory {:?}, woke with {memory:?}",
                    seen.asleep_with
                )
            });
        }
        (Verb::Suspend { .. }, Some(Outcome::Failed(_) | Outcome::TurnedBack(_))) if ready => {
            if let (Some((op, Some(was))), Some(is)) = (seen.suspending, memory)
                && op == ended.id
            {
                stage.expect(Invariant::RejectedSuspendLeavesIt, was == is, || {
                    format!("{id}: memory {was} before, {is} after")
                });
            }
        }
        _ => {}
    }
    seen.suspending = None;
}
