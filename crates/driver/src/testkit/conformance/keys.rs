//! One key is one effect, smaller keys are refused, and sandboxes do not wait for one another.

use overwinter_lifecycle::ids::{Fence, Serial};
use overwinter_lifecycle::operation::EffectKind;

use super::subject::{read, run, start_of, write};
use super::{Backend, Subject};
use crate::error::DriverError;
use crate::types::{Compute, Depth, Observed};

pub async fn the_same_key_twice_is_one_effect<B: Backend>(backend: &B) {
    let driver = backend.driver();
    let mut subject = Subject::new(backend).await;
    let (ctx, credentials) = subject.next_incarnation(EffectKind::Create);
    let first = driver.create(&ctx, &subject.spec, &credentials).await;
    first.expect("create");
    let agent = subject.attached().await;
    let long = start_of("00000000-0000-4000-8000-000000000001", &backend.counter());
    agent.start_process(long.clone()).await.expect("start");
    let again = driver.create(&ctx, &subject.spec, &credentials).await;
    let held = subject.issued;
    assert_eq!(again.expect("create again").compute, Compute::Live { held });
    // The process of the first is there: it is the same compute.
    let agent = subject.attached().await;
    let process = agent.get_process(long.process_id.clone()).await;
    assert!(process.expect("it runs").running);
    write(&agent, "/workspace/kept", b"kept").await;

    let ctx = subject.next(EffectKind::Suspend(Depth::Stop));
    for _ in 0..2 {
        let stopped = driver.suspend(&ctx, Depth::Stop).await;
        assert_eq!(stopped.expect("stop").compute, Compute::Absent);
    }

    let (ctx, credentials) = subject.next_incarnation(EffectKind::Start);
    let started = driver.start(&ctx, &subject.spec, &credentials).await;
    started.expect("start");
    let agent = subject.attached().await;
    agent.start_process(long.clone()).await.expect("start");
    let again = driver.start(&ctx, &subject.spec, &credentials).await;
    let held = subject.issued;
    assert_eq!(again.expect("start again").compute, Compute::Live { held });
    let agent = subject.attached().await;
    let process = agent.get_process(long.process_id.clone()).await;
    assert!(process.expect("it runs").running);
    assert_eq!(read(&agent, "/workspace/kept").await, b"kept");
    let found = driver.list().await.expect("list");
    let ours = found.iter().filter(|it| it.sandbox == Some(subject.id));
    assert_eq!(ours.count(), 1, "{found:?}");

    if driver.describe().await.mode(Depth::Freeze).is_some() {
        agent.detach().await.expect("detach");
        let ctx = subject.next(EffectKind::Suspend(Depth::Freeze));
        for _ in 0..2 {
            let frozen = driver.suspend(&ctx, Depth::Freeze).await;
            assert_eq!(frozen.expect("freeze").compute, Compute::Frozen { held });
        }
    }
    let ctx = subject.next(EffectKind::Delete);
    for _ in 0..2 {
        driver.delete(&ctx).await.expect("delete");
        assert_eq!(subject.observe().await.observed, Observed::Absent);
    }
    assert_eq!(backend.leftovers().await, Vec::<String>::new());
}

pub async fn a_smaller_key_is_fenced<B: Backend>(backend: &B) {
    let driver = backend.driver();
    let (mut subject, agent) = Subject::created(backend).await;
    let held = subject.issued;
    let late = subject.next(EffectKind::Suspend(Depth::Stop));
    let (newest, credentials) = subject.next_incarnation(EffectKind::Reattach);
    agent.detach().await.expect("detach");
    backend.port().forget(subject.id);
    driver
        .reattach(&newest, &credentials)
        .await
        .expect("reattach");
    let agent = subject.attached().await;

    let fenced = driver.suspend(&late, Depth::Stop).await;
    assert_eq!(fenced, Err(DriverError::Fenced));
    // The serial orders within one fence.
    let mut smaller = newest.clone();
    smaller.key.serial = Serial(0);
    let fenced = driver.suspend(&smaller, Depth::Stop).await;
    assert_eq!(fenced, Err(DriverError::Fenced));
    assert_eq!(subject.observe().await.observed, Observed::Live { held });
    assert_eq!(run(&agent, &["true"]).await, 0);

    subject.delete().await;
    // A create that arrives after the delete makes nothing.
    let mut late = newest;
    late.key.fence = Fence(1);
    let fenced = driver.create(&late, &subject.spec, &credentials).await;
    assert_eq!(fenced, Err(DriverError::Fenced));
    assert_eq!(backend.leftovers().await, Vec::<String>::new());
}

pub async fn effects_on_different_sandboxes_run_in_parallel<B: Backend>(backend: &B) {
    let lives = (0..8u8).map(|n| async move {
        let (mut subject, agent) = Subject::created(backend).await;
        write(&agent, "/workspace/whose", &[n; 64]).await;
        subject.suspend(Depth::Stop, &agent).await;
        let agent = subject.start().await;
        assert_eq!(read(&agent, "/workspace/whose").await, [n; 64]);
        subject.delete().await;
    });
    futures::future::join_all(lives).await;
    assert_eq!(backend.leftovers().await, Vec::<String>::new());
}
