//! Every depth that is offered, and what it keeps.

use std::time::Duration;

use overwinter_lifecycle::operation::EffectKind;

use super::subject::{Counter, read, run, write};
use super::{Backend, Subject};
use crate::error::DriverError;
use crate::types::{Compute, Depth, Observed, SuspensionMode};

/// The counter would come to 40 in it.
const ASLEEP: Duration = Duration::from_secs(2);
const COUNTED_MEANWHILE: u64 = 20;

async fn mode<B: Backend>(backend: &B, depth: Depth) -> Option<SuspensionMode> {
    backend.driver().describe().await.mode(depth).cloned()
}

pub async fn freeze_keeps_the_same_process_and_it_stands_still<B: Backend>(backend: &B) {
    memory_is_kept(backend, Depth::Freeze).await;
}

pub async fn checkpoint_keeps_the_process_and_releases_its_compute<B: Backend>(backend: &B) {
    memory_is_kept(backend, Depth::Checkpoint).await;
}

async fn memory_is_kept<B: Backend>(backend: &B, depth: Depth) {
    let Some(mode) = mode(backend, depth).await else {
        return;
    };
    let (mut subject, agent) = Subject::created(backend).await;
    let held = subject.issued;
    write(&agent, "/workspace/kept", b"kept").await;
    let mut counter = Counter::start(backend, &agent).await;
    counter.reach(3).await;
    let before = agent
        .get_process(counter.id.clone())
        .await
        .expect("it runs");
    counter.leave();

    let suspended = subject.suspend(depth, &agent).await;
    agent.gone().await;
    let (compute, observed) = match depth {
        Depth::Freeze => (Compute::Frozen { held }, Observed::Frozen { held }),
        Depth::Checkpoint | Depth::Stop => (Compute::Absent, Observed::Absent),
    };
    assert_eq!(suspended.compute, compute);
    assert_eq!(subject.observe().await.observed, observed);
    tokio::time::sleep(ASLEEP).await;
    assert_eq!(subject.observe().await.observed, observed);
    let count = counter.count();

    let agent = subject.resume(depth, &suspended.reference).await;
    let held = if mode.same_compute {
        held
    } else {
        subject.issued
    };
    assert_eq!(subject.observe().await.observed, Observed::Live { held });
    let after = agent
        .get_process(counter.id.clone())
        .await
        .expect("it runs");
    assert!(after.running);
    assert_eq!(
        (after.pid, after.started_at_ms),
        (before.pid, before.started_at_ms)
    );
    counter.attach(&agent).await;
    let slept = counter.more().await - count;
    assert!(slept < COUNTED_MEANWHILE, "it ran on while asleep: {slept}");
    counter.reach(count + slept + 2).await;
    assert_eq!(read(&agent, "/workspace/kept").await, b"kept");
    assert_eq!(run(&agent, &["true"]).await, 0);
    subject.delete().await;
    assert_eq!(backend.leftovers().await, Vec::<String>::new());
}

pub async fn stop_keeps_the_contents_and_ends_the_processes<B: Backend>(backend: &B) {
    let Some(mode) = mode(backend, Depth::Stop).await else {
        return;
    };
    let (mut subject, agent) = Subject::created(backend).await;
    let contents: Vec<u8> = (0..300_000u32).map(|n| (n % 251) as u8).collect();
    write(&agent, "/workspace/kept", &contents).await;
    write(&agent, "/conformance", b"in the root").await;
    let counter = Counter::start(backend, &agent).await;

    let suspended = subject.suspend(Depth::Stop, &agent).await;
    assert_eq!(suspended.compute, Compute::Absent);
    agent.gone().await;
    let observation = subject.observe().await;
    assert!(
        matches!(observation.observed, Observed::Absent | Observed::Stopped),
        "{observation:?}"
    );
    assert!(observation.storage);

    let agent = subject.start().await;
    let held = subject.issued;
    assert_eq!(subject.observe().await.observed, Observed::Live { held });
    assert!(read(&agent, "/workspace/kept").await == contents);
    if mode.preserves.root {
        assert_eq!(read(&agent, "/conformance").await, b"in the root");
    }
    agent
        .get_process(counter.id.clone())
        .await
        .expect_err("no process outlives a stop");
    subject.delete().await;
}

pub async fn a_depth_that_is_not_offered_is_unsupported_without_effect<B: Backend>(backend: &B) {
    let (mut subject, agent) = Subject::created(backend).await;
    let held = subject.issued;
    for depth in Depth::ALL {
        if mode(backend, depth).await.is_some() {
            continue;
        }
        let driver = backend.driver();
        let prepared = driver.prepare(subject.id, depth).await;
        assert!(
            matches!(prepared, Err(DriverError::Unsupported(_))),
            "{prepared:?}"
        );
        let ctx = subject.next(EffectKind::Suspend(depth));
        let suspended = driver.suspend(&ctx, depth).await;
        assert!(
            matches!(suspended, Err(DriverError::Unsupported(_))),
            "{suspended:?}"
        );
        assert_eq!(subject.observe().await.observed, Observed::Live { held });
        assert_eq!(run(&agent, &["true"]).await, 0);
    }
    subject.delete().await;
}

pub async fn frozen_compute_is_stopped_without_waking<B: Backend>(backend: &B) {
    if mode(backend, Depth::Freeze).await.is_none() {
        return;
    }
    let (mut subject, agent) = Subject::created(backend).await;
    write(&agent, "/workspace/kept", b"kept").await;
    Counter::start(backend, &agent).await.reach(1).await;
    subject.suspend(Depth::Freeze, &agent).await;
    let attaches = backend.port().refusals().len();
    let stopped = subject.deepen(Depth::Stop).await;
    assert_eq!(stopped.compute, Compute::Absent);
    // Who had woken would have tried to attach with what was revoked, or with what was used.
    assert_eq!(backend.port().refusals().len(), attaches);
    let agent = subject.start().await;
    assert_eq!(read(&agent, "/workspace/kept").await, b"kept");
    subject.delete().await;
    assert_eq!(backend.leftovers().await, Vec::<String>::new());
}

pub async fn absent_compute_is_stopped_again<B: Backend>(backend: &B) {
    let (mut subject, agent) = Subject::created(backend).await;
    write(&agent, "/workspace/kept", b"kept").await;
    for _ in 0..2 {
        let stopped = subject.suspend(Depth::Stop, &agent).await;
        assert_eq!(stopped.compute, Compute::Absent);
    }
    let agent = subject.start().await;
    assert_eq!(read(&agent, "/workspace/kept").await, b"kept");
    subject.delete().await;
}

pub async fn twenty_stops_keep_every_byte<B: Backend>(backend: &B) {
    let (mut subject, mut agent) = Subject::created(backend).await;
    let mut contents = Vec::new();
    for cycle in 0..20u8 {
        contents.extend([cycle; 1000]);
        write(&agent, "/workspace/all", &contents).await;
        write(&agent, &format!("/workspace/{cycle}"), &[cycle; 10]).await;
        subject.suspend(Depth::Stop, &agent).await;
        agent = subject.start().await;
        assert!(read(&agent, "/workspace/all").await == contents, "{cycle}");
    }
    for cycle in 0..20u8 {
        assert_eq!(
            read(&agent, &format!("/workspace/{cycle}")).await,
            [cycle; 10]
        );
    }
    subject.delete().await;
    assert_eq!(backend.leftovers().await, Vec::<String>::new());
}

pub async fn twenty_freezes_keep_every_byte<B: Backend>(backend: &B) {
    if mode(backend, Depth::Freeze).await.is_none() {
        return;
    }
    let (mut subject, mut agent) = Subject::created(backend).await;
    let mut counter = Counter::start(backend, &agent).await;
    let mut contents = Vec::new();
    for cycle in 0..20u8 {
        contents.extend([cycle; 1000]);
        write(&agent, "/workspace/all", &contents).await;
        counter.more().await;
        counter.leave();
        let suspended = subject.suspend(Depth::Freeze, &agent).await;
        agent = subject.resume(Depth::Freeze, &suspended.reference).await;
        // The same memory: its count goes on without a gap.
        counter.attach(&agent).await;
        counter.more().await;
        assert!(read(&agent, "/workspace/all").await == contents, "{cycle}");
    }
    subject.delete().await;
    assert_eq!(backend.leftovers().await, Vec::<String>::new());
}
