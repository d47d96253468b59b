//! What is looked at as time goes by, whether anything is committed or not.

use std::time::Duration;

use overwinter_driver::Observed;
use overwinter_lifecycle::capacity::Usage;
use overwinter_lifecycle::operation::{EffectKind, Verb};
use overwinter_lifecycle::{Depth, Phase};

use super::invariant::Invariant;
use super::stage::Stage;

const BETWEEN: Duration = Duration::from_secs(3);
/// What an owner may take in all: the operation's deadline, then whatever it is in the middle of, each
/// with its own (see [`super::profile::DEADLINES`]).
const OWNERS_TIME: Duration = Duration::from_secs(110);
/// Three rounds of the gateway's housekeeping, which looks again where it could not tell.
const TO_NOTICE: Duration = Duration::from_secs(95);

/// For as long as the gateway lives.
pub(crate) async fn run(stage: &Stage) {
    loop {
        stage.sleep(BETWEEN).await;
        deadlines(stage);
        losses(stage);
        capacity(stage);
    }
}

/// Whether anything runs whose record holds nothing: it came late, and nobody looked again.
fn capacity(stage: &Stage) {
    let model = stage.model.borrow();
    for (id, seen) in &model.told.seen {
        let runs = matches!(stage.world.truth(*id), Observed::Live { .. });
        if runs && !stage.plan.lied_of(*id) {
            let held = Usage::of(&seen.record).running;
            stage.expect(Invariant::CapacityHolds, held > 0, || {
                format!("{id} runs and is {}", seen.record.phase())
            });
        }
    }
}

/// Whether any owner has gone on for too long.
fn deadlines(stage: &Stage) {
    let (now, trouble) = (stage.time.now(), stage.disk_trouble.get());
    let model = stage.model.borrow();
    for seen in model.told.seen.values() {
        let Some(op) = &seen.record.running else {
            continue;
        };
        // One that nobody can tell of stays Creating, and is looked at until it is settled.
        if op.verb == Verb::Create {
            continue;
        }
        // Nor is memory given up that may be on disk, for as long as nobody can tell.
        if op
            .intent
            .is_some_and(|it| it.effect == EffectKind::Suspend(Depth::Checkpoint))
        {
            continue;
        }
        let (since, trouble_then) = seen.since;
        let took = now.saturating_sub(since.max(stage.up_since.get()));
        let took = took.saturating_sub(trouble - trouble_then);
        stage.expect(Invariant::DeadlinesHold, took < OWNERS_TIME, || {
            format!(
                "{}: {} at {:?} goes on for {took:?}",
                seen.record.id,
                op.verb.as_str(),
                op.step
            )
        });
    }
}

/// Whether any record has said for too long that compute is there which is not.
fn losses(stage: &Stage) {
    let now = stage.time.now();
    let mut model = stage.model.borrow_mut();
    let model = &mut *model;
    for (id, seen) in &model.told.seen {
        let record = &seen.record;
        let claims = matches!(
            record.phase(),
            Phase::Ready | Phase::Suspended(Depth::Freeze)
        );
        let there = !matches!(stage.world.truth(*id), Observed::Absent | Observed::Stopped);
        if !claims || there || stage.plan.lied_of(*id) {
            model.told.missing.remove(id);
            continue;
        }
        let since = *model.told.missing.entry(*id).or_insert(now);
        let took = now.saturating_sub(since.max(stage.up_since.get()));
        stage.expect(Invariant::LossIsNoticed, took < TO_NOTICE, || {
            format!("{id} is {}, and gone for {took:?}", record.phase())
        });
    }
}
