//! What is checked after every commit, of the records that it changed, against the record before it
//! and against what is really there.

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::FutureExt as _;
use overwinter_driver::Observed;
use overwinter_driver::testkit::Violation as WorldViolation;
use overwinter_gateway::api::Api;
use overwinter_lifecycle::capacity::Usage;
use overwinter_lifecycle::ids::{OperationId, SandboxId};
use overwinter_lifecycle::operation::{EffectKind, Operation, Verb};
use overwinter_lifecycle::record::{Desired, RetainedStatus, Sandbox};
use overwinter_lifecycle::{Depth, Phase};
use overwinter_store::Store;

use super::ends;
use super::invariant::Invariant;
use super::stage::{Model, Stage};

/// A record as it was last, and what was there then.
#[derive(Clone)]
pub(crate) struct Seen {
    pub record: Sandbox,
    /// The memory that it was last Ready or went to sleep with.
    pub asleep_with: Option<u64>,
    /// The memory that it was last Ready with.
    pub was_ready: Option<u64>,
    /// A suspend that runs, and what it found.
    pub suspending: Option<(OperationId, Before)>,
    /// When its running operation was first seen, and what trouble the disk had made until then.
    pub since: (Duration, Duration),
}

/// What a suspend has found, and must leave when it does not happen.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Before {
    pub memory: Option<u64>,
    pub connection: Option<(u64, u64)>,
    /// As far as anybody else may break a connection.
    pub undisturbed: (u32, u32),
}

impl Before {
    pub(crate) fn of(stage: &Stage, id: SandboxId) -> Self {
        let broken = stage.model.borrow().broken.get(&id).copied();
        Self {
            memory: stage.world.memory_of(id),
            connection: stage.world.connection_of(id),
            undisturbed: (stage.life.get(), broken.unwrap_or(0) + stage.plan.hung(id)),
        }
    }
}

/// Looks at all that has changed.
pub(crate) fn after_commits(stage: &Stage, api: &Api) {
    let store = &api.reconciler.store;
    let in_danger = stage.power.is_in_danger();
    {
        let mut model = stage.model.borrow_mut();
        model.on_disk = match (in_danger, model.on_disk.take()) {
            (true, None) => Some(model.told.clone()),
            (true, known) => known,
            (false, _) => None,
        };
    }
    loop {
        let after = stage.model.borrow().told.seq;
        let Some(Ok(changes)) = store.committed_since(after, 500).now_or_never() else {
            return;
        };
        if changes.changes.is_empty() {
            break;
        }
        stage.model.borrow_mut().told.seq = changes.next;
        for (_, record) in changes.changes {
            let before = stage.model.borrow().told.seen.get(&record.id).cloned();
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
            intent_first(stage, store, record.id);
            let seen = of_one(stage, before.as_ref(), record, ended.as_ref());
            idle_cuts_nothing(stage, api, &seen.record);
            let mut model = stage.model.borrow_mut();
            note_calls(&mut model, &seen.record);
            model.told.seen.insert(seen.record.id, seen);
        }
    }
    note_room(stage);
}

/// Whatever was let in is open until it has ended, be it a process, a read or a write.
fn idle_cuts_nothing(stage: &Stage, api: &Api, record: &Sandbox) {
    let op = record.running.as_ref().filter(|op| op.intent.is_some());
    let Some(Verb::Suspend {
        idle: true, depth, ..
    }) = op.map(|op| op.verb)
    else {
        return;
    };
    let slot = api.reconciler.hub.find(record.id);
    let open = slot.map_or(0, |slot| slot.open_calls());
    stage.expect(Invariant::IdleCutsNothing, open == 0, || {
        format!(
            "{}: {open} calls are open, and it goes to sleep at {depth}",
            record.id
        )
    });
}

fn note_room(stage: &Stage) {
    let mut model = stage.model.borrow_mut();
    let used = |seen: &Seen| Usage::of(&seen.record).running;
    let used: u64 = model.told.seen.values().map(used).sum();
    let full = stage
        .profile
        .limits
        .running
        .is_some_and(|most| used >= most);
    model.told.room_since = match (full, model.told.room_since) {
        (true, _) => None,
        (false, since) => since.or(Some(stage.time.now())),
    };
}

/// An effect that has reached the backend is in the ledger, whose rows outlive it.
fn intent_first(stage: &Stage, store: &Store, id: SandboxId) {
    let (Some(newest), Some(Ok(receipt))) = (
        stage.world.newest_effect(id),
        store.newest_receipt(id).now_or_never(),
    ) else {
        return;
    };
    let receipt = receipt.map(|receipt| receipt.key);
    stage.expect(Invariant::IntentFirst, receipt >= Some(newest), || {
        format!("{id}: {newest:?} was carried out, the ledger is at {receipt:?}")
    });
}

/// What the backend has seen that must never be.
pub(crate) fn of_the_world(stage: &Stage) {
    for violation in stage.world.violations() {
        // Told that it is gone, nobody asks it to let go.
        if let WorldViolation::FrozenWhileAttached(id) = violation
            && stage.plan.lied_of(id)
        {
            continue;
        }
        let invariant = match violation {
            WorldViolation::TwoLive(_)
            | WorldViolation::TwoMains(_)
            | WorldViolation::NameReused(_) => Invariant::NeverTwo,
            WorldViolation::Overtaken(_) => Invariant::LostIsWaitedFor,
            WorldViolation::StaleWrite { .. } => Invariant::NoStaleWrite,
            WorldViolation::FrozenWhileAttached(_) => Invariant::DetachedBeforeFrozen,
            WorldViolation::OldCredentialsAccepted(_) => Invariant::OldCredentialsRefused,
        };
        stage.violate(invariant, format!("{violation:?}"));
    }
}

fn note_calls(model: &mut Model, record: &Sandbox) {
    if let Some(op) = &record.running {
        let idle = matches!(op.verb, Verb::Suspend { idle: true, .. });
        let idle = idle && op.intent.is_some();
        model.told.idle.insert(record.id, idle);
        for call in model.calls.values_mut() {
            let open = call.sandbox == record.id && call.open.load(Ordering::Relaxed);
            call.put_to_sleep |= idle && open;
        }
    }
    if record.phase() == Phase::Ready {
        for call in model.calls.values_mut() {
            call.ready |= call.sandbox == record.id;
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
            ["client-", "gateway: a delete", "gateway: idle"]
                .iter()
                .any(|known| asked.starts_with(known)),
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
    at_rest(stage, &record);
    resident(stage, &record);
    on_disk(stage, before, &record);
    let goes_on = before
        .filter(|before| before.record.running.as_ref().map(|op| op.id) == running_id(&record));
    // What is asked for as long as it takes has ended, and its time with it.
    let writes = |record: &Sandbox| {
        let intent = record.running.as_ref().and_then(|op| op.intent);
        intent.is_some_and(|it| it.effect == EffectKind::Suspend(Depth::Checkpoint))
    };
    let goes_on = goes_on.filter(|before| !writes(&before.record) || writes(&record));
    let mut seen = Seen {
        asleep_with: before.and_then(|seen| seen.asleep_with),
        was_ready: before.and_then(|seen| seen.was_ready),
        suspending: before.and_then(|seen| seen.suspending),
        since: goes_on.map_or((stage.time.now(), stage.disk_trouble.get()), |it| it.since),
        record,
    };
    if let (Some(before), Some(ended)) = (before, ended) {
        ends::of(stage, &before.record, &mut seen, ended);
    }
    match &seen.record.running {
        Some(op) if matches!(op.verb, Verb::Suspend { .. }) => {
            if seen.suspending.map(|(id, _)| id) != Some(op.id) {
                seen.suspending = Some((op.id, Before::of(stage, id)));
            }
        }
        Some(_) | None => {}
    }
    match seen.record.phase() {
        // What is taken for lost, and is not, is found again by a resume.
        Phase::Ready => {
            seen.asleep_with = memory.or(seen.asleep_with);
            seen.was_ready = memory.or(seen.was_ready);
        }
        Phase::Suspended(Depth::Stop) => seen.asleep_with = None,
        _ => {}
    }
    seen
}

fn running_id(record: &Sandbox) -> Option<OperationId> {
    record.running.as_ref().map(|op| op.id)
}

/// Nothing runs: what is wanted is what is so.
fn at_rest(stage: &Stage, record: &Sandbox) {
    let wanted = match record.phase() {
        Phase::Ready => Desired::Running,
        Phase::Suspended(depth) => Desired::Suspended(depth),
        _ => return,
    };
    stage.expect(Invariant::WishIsSo, record.desired == wanted, || {
        format!("{}: {} and {:?}", record.id, record.phase(), record.desired)
    });
}

/// Memory that is told to be resident has compute that holds it.
fn resident(stage: &Stage, record: &Sandbox) {
    if record.phase() == Phase::Suspended(Depth::Freeze) {
        let held = record.compute.may_exist();
        stage.expect(Invariant::UsedOnce, held, || {
            format!("{}: frozen, and {:?}", record.id, record.compute)
        });
    }
}

/// Memory that is told to be on disk is there, until somebody spoils it.
fn on_disk(stage: &Stage, before: Option<&Seen>, record: &Sandbox) {
    if record.phase() != Phase::Suspended(Depth::Checkpoint) || stage.plan.lied_of(record.id) {
        return;
    }
    let key = (record.retained.as_ref()).and_then(|retained| retained.artifact);
    let name = key.map(|key| key.native_name()).unwrap_or_default();
    // It is offered until a restore finds it out, and no longer.
    let found_out = (record.failure.as_ref()).is_some_and(|it| it.fault.reason.condemns_memory());
    let rotten = stage.model.borrow().rotten.contains(&name) && !found_out;
    let artifacts = stage.world.artifacts(record.id);
    let there = artifacts.iter().find(|artifact| artifact.name == name);
    // Which it is when it falls asleep, its end tells.
    let slept = before.filter(|seen| seen.record.phase() == record.phase());
    let asleep_with = slept.and_then(|seen| seen.asleep_with);
    let right =
        there.is_some_and(|it| it.usable && asleep_with.is_none_or(|memory| memory == it.memory));
    stage.expect(Invariant::MemoryIsOnDisk, right || rotten, || {
        format!(
            "{}: {key:?} of memory {asleep_with:?}, and there is {artifacts:?}",
            record.id
        )
    });
}

/// Nothing takes the place of a delete, and nothing comes behind it.
fn dominance(stage: &Stage, before: &Sandbox, now: &Sandbox) {
    let is_delete = |op: &&Operation| matches!(op.verb, Verb::Delete { .. });
    let in_line = |record: &Sandbox| [record.running.clone(), record.waiting.clone()];
    let deletes = in_line(now).iter().flatten().any(|op| is_delete(&op));
    stage.expect(
        Invariant::DeleteDominates,
        !deletes || now.desired == Desired::Deleted,
        || format!("{}: a delete is in line, and not wanted", now.id),
    );
    let known: Vec<_> = in_line(before)
        .into_iter()
        .flatten()
        .map(|op| op.id)
        .collect();
    for new in in_line(now).iter().flatten() {
        if known.contains(&new.id) {
            continue;
        }
        let (id, asked) = (now.id, &new.requester);
        if before.desired == Desired::Deleted {
            stage.expect(Invariant::DeleteDominates, is_delete(&new), || {
                format!("{id}: a {} behind a delete", new.verb.as_str())
            });
        } else if is_delete(&new) {
            let client = asked.starts_with("client-");
            stage.expect(Invariant::RecordsStay, client, || {
                format!("{id}: a delete by {asked:?}")
            });
        }
    }
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
    dominance(stage, before, now);
    if now.tombstone_at.is_some() && before.tombstone_at.is_none() {
        let by = ended.or(before.running.as_ref()).map(|op| op.verb);
        let may = before.desired == Desired::Deleted
            || matches!(by, Some(Verb::Delete { .. } | Verb::Create));
        stage.expect(Invariant::RecordsStay, may, || {
            format!("{id}: a tombstone by {by:?}")
        });
    }
    if let (Some(op), Some(retained)) = (&now.running, &now.retained)
        && op.verb.starts_compute()
    {
        let held = retained.status != RetainedStatus::Available;
        stage.expect(Invariant::UsedOnce, held, || {
            format!("{id}: a {} runs, and it is available", op.verb.as_str())
        });
    }
}

/// A name is one id's.
fn names(stage: &Stage, record: &Sandbox) {
    let name = record.name.as_str();
    let mut model = stage.model.borrow_mut();
    if !record.holds_name() {
        if model.told.names.get(name) == Some(&record.id) {
            model.told.names.remove(name);
        }
        return;
    }
    let holder = model.told.names.insert(name.to_owned(), record.id);
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
    if runs && !stage.plan.lied_of(record.id) {
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
            .told
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
