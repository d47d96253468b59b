//! Memory on disk: how it comes there from each side, how often it is used, and how it goes.

use std::time::Duration;

use overwinter_lifecycle::operation::EffectKind;

use super::subject::{Counter, read, write};
use super::{Backend, Subject};
use crate::error::{DriverError, Unusable};
use crate::types::{Compute, Debt, Depth, DriverReference, EffectContext, Observed};

/// The counter would come to 40 in it.
const ASLEEP: Duration = Duration::from_secs(2);
const COUNTED_MEANWHILE: u64 = 20;

async fn offers<B: Backend>(backend: &B, depth: Depth) -> bool {
    backend.driver().describe().await.mode(depth).is_some()
}

/// A sandbox whose memory is on disk, with a file that was written before. None: that is not offered.
async fn on_disk<B: Backend>(backend: &B) -> Option<(Subject<'_, B>, Written)> {
    if !offers(backend, Depth::Checkpoint).await {
        return None;
    }
    let (mut subject, agent) = Subject::created(backend).await;
    write(&agent, "/workspace/kept", b"kept").await;
    agent.detach().await.expect("detach");
    backend.port().forget(subject.id);
    let written = written(&mut subject).await;
    Some((subject, written))
}

/// Until nothing of it runs: a kill takes its time.
async fn gone<B: Backend>(subject: &Subject<'_, B>) {
    let gone = async {
        while !matches!(
            subject.observe().await.observed,
            Observed::Absent | Observed::Stopped
        ) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let gone = tokio::time::timeout(Duration::from_secs(20), gone).await;
    gone.expect("it was killed, and runs");
}

/// The first effect of an operation, with what it wrote.
struct Written {
    ctx: EffectContext,
    reference: DriverReference,
}

async fn written<B: Backend>(subject: &mut Subject<'_, B>) -> Written {
    let ctx = subject.next(EffectKind::Suspend(Depth::Checkpoint));
    let driver = subject.backend.driver();
    let suspended = driver.suspend(&ctx, Depth::Checkpoint).await;
    let suspended = suspended.expect("checkpoint");
    assert_eq!(suspended.compute, Compute::Absent);
    assert!(suspended.size_bytes > 0, "memory takes room");
    let reference = suspended.reference;
    Written { ctx, reference }
}

pub async fn frozen_compute_is_written_to_disk_without_waking<B: Backend>(backend: &B) {
    if !offers(backend, Depth::Freeze).await || !offers(backend, Depth::Checkpoint).await {
        return;
    }
    let (mut subject, agent) = Subject::created(backend).await;
    write(&agent, "/workspace/kept", b"kept").await;
    let mut counter = Counter::start(backend, &agent).await;
    counter.reach(3).await;
    counter.leave();
    subject.suspend(Depth::Freeze, &agent).await;
    let count = counter.count();
    tokio::time::sleep(ASLEEP / 2).await;
    let attaches = backend.port().refusals().len();
    let on_disk = written(&mut subject).await;
    tokio::time::sleep(ASLEEP / 2).await;
    // Who had woken would have tried to attach.
    assert_eq!(backend.port().refusals().len(), attaches);
    assert_eq!(subject.observe().await.observed, Observed::Absent);
    let agent = subject.resume(Depth::Checkpoint, &on_disk.reference).await;
    counter.attach(&agent).await;
    let slept = counter.more().await - count;
    assert!(slept < COUNTED_MEANWHILE, "it ran on while asleep: {slept}");
    assert_eq!(read(&agent, "/workspace/kept").await, b"kept");
    subject.delete().await;
    assert_eq!(backend.leftovers().await, Vec::<String>::new());
}

pub async fn memory_on_disk_is_given_up_for_a_stop<B: Backend>(backend: &B) {
    let Some((mut subject, on_disk)) = on_disk(backend).await else {
        return;
    };
    let stopped = subject.deepen(Depth::Stop).await;
    assert_eq!(stopped.compute, Compute::Absent);
    // Its caller owes the artifact, told of or not.
    let debt = Debt::artifact(on_disk.ctx.key);
    for _ in 0..2 {
        backend.driver().discard(&debt).await.expect("discard");
    }
    let agent = subject.start().await;
    assert_eq!(read(&agent, "/workspace/kept").await, b"kept");
    subject.delete().await;
    assert_eq!(backend.leftovers().await, Vec::<String>::new());
}

pub async fn a_checkpoint_that_is_asked_for_again_answers_with_what_it_did<B: Backend>(
    backend: &B,
) {
    let Some((mut subject, on_disk)) = on_disk(backend).await else {
        return;
    };
    backend.restart().await;
    let driver = backend.driver();
    let again = driver.suspend(&on_disk.ctx, Depth::Checkpoint).await;
    let again = again.expect("it was done");
    assert_eq!(again.compute, Compute::Absent);
    assert_eq!(again.reference, on_disk.reference);
    let agent = subject.resume(Depth::Checkpoint, &again.reference).await;
    agent.list_processes().await.expect("it runs");
    // What never was written is missing, and not as if it had been.
    backend.kill(subject.id).await;
    gone(&subject).await;
    let ctx = subject.next(EffectKind::Suspend(Depth::Checkpoint));
    let nothing = backend.driver().suspend(&ctx, Depth::Checkpoint).await;
    assert!(
        matches!(nothing, Err(DriverError::Missing(_))),
        "{nothing:?}"
    );
    subject.delete().await;
    assert_eq!(backend.leftovers().await, Vec::<String>::new());
}

pub async fn memory_on_disk_is_used_once<B: Backend>(backend: &B) {
    let Some((mut subject, on_disk)) = on_disk(backend).await else {
        return;
    };
    let reference = &on_disk.reference;
    subject.resume(Depth::Checkpoint, reference).await;
    backend.kill(subject.id).await;
    gone(&subject).await;
    let (ctx, credentials) = subject.next_incarnation(EffectKind::Resume(Depth::Checkpoint));
    let driver = backend.driver();
    let twice = driver.resume(&ctx, Depth::Checkpoint, reference, &credentials);
    let twice = twice.await;
    assert!(
        matches!(
            twice,
            Err(DriverError::Missing(_)
                | DriverError::Unusable {
                    why: Unusable::Stale,
                    ..
                })
        ),
        "{twice:?}"
    );
    let observed = subject.observe().await.observed;
    assert!(
        matches!(observed, Observed::Absent | Observed::Stopped),
        "{observed:?}"
    );
    subject.start().await;
    subject.delete().await;
    assert_eq!(backend.leftovers().await, Vec::<String>::new());
}

pub async fn a_reference_of_another_driver_is_foreign<B: Backend>(backend: &B) {
    let Some((mut subject, on_disk)) = on_disk(backend).await else {
        return;
    };
    let foreign = DriverReference {
        driver: "another".to_owned(),
        ..on_disk.reference.clone()
    };
    let (ctx, credentials) = subject.next_incarnation(EffectKind::Resume(Depth::Checkpoint));
    let driver = backend.driver();
    let refused = driver.resume(&ctx, Depth::Checkpoint, &foreign, &credentials);
    let refused = refused.await;
    assert!(
        matches!(
            refused,
            Err(DriverError::Unusable {
                why: Unusable::Foreign,
                ..
            })
        ),
        "{refused:?}"
    );
    // Nothing ran: what was written is as good as before.
    let agent = subject.resume(Depth::Checkpoint, &on_disk.reference).await;
    agent.list_processes().await.expect("it runs");
    subject.delete().await;
    assert_eq!(backend.leftovers().await, Vec::<String>::new());
}
