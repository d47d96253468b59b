//! Behind the driver's back, and after its gateway has died.

use std::time::Duration;

use futures::StreamExt as _;
use overwinter_lifecycle::operation::EffectKind;

use super::subject::{Counter, PATIENCE, read, run, write};
use super::{Backend, Subject};
use crate::types::{Depth, Observed};

pub async fn new_credentials_replace_the_old<B: Backend>(backend: &B) {
    let (mut subject, agent) = Subject::created(backend).await;
    let held = subject.issued;
    let mut counter = Counter::start(backend, &agent).await;
    counter.reach(2).await;
    counter.leave();
    agent.detach().await.expect("detach");
    backend.port().forget(subject.id);

    let (ctx, credentials) = subject.next_incarnation(EffectKind::Reattach);
    let driver = backend.driver();
    driver.reattach(&ctx, &credentials).await.expect("reattach");
    // The port lets in the new token alone, and only with the secret of before.
    let fresh = subject.attached().await;
    agent
        .list_processes()
        .await
        .expect_err("the old way in is closed");
    counter.attach(&fresh).await;
    counter.more().await;
    assert_eq!(backend.port().refusals(), []);
    // Still the compute that was started under the old number.
    assert_eq!(subject.observe().await.observed, Observed::Live { held });
    subject.delete().await;
}

pub async fn killed_from_outside_is_noticed_and_starts_again<B: Backend>(backend: &B) {
    let (mut subject, agent) = Subject::created(backend).await;
    let held = subject.issued;
    write(&agent, "/workspace/kept", b"kept").await;
    let mut changes = backend.driver().watch();
    backend.kill(subject.id).await;
    let ended = async {
        while let Some(changed) = changes.next().await {
            if changed.sandbox == subject.id {
                return changed.held;
            }
        }
        panic!("the watch ended");
    };
    let ended = tokio::time::timeout(PATIENCE, ended).await;
    assert_eq!(ended.expect("nobody noticed"), held);
    tokio::time::timeout(PATIENCE, agent.gone())
        .await
        .expect("its agent is still there");
    let observation = subject.observe().await;
    assert!(
        matches!(observation.observed, Observed::Absent | Observed::Stopped),
        "{observation:?}"
    );
    assert!(observation.storage);
    let agent = subject.start().await;
    assert_eq!(read(&agent, "/workspace/kept").await, b"kept");
    subject.delete().await;
    assert_eq!(backend.leftovers().await, Vec::<String>::new());
}

pub async fn a_restarted_driver_finds_what_is_live_frozen_and_absent<B: Backend>(backend: &B) {
    let offers_freeze = backend
        .driver()
        .describe()
        .await
        .mode(Depth::Freeze)
        .is_some();
    let (mut live, agent) = Subject::created(backend).await;
    let mut counter = Counter::start(backend, &agent).await;
    counter.reach(1).await;
    counter.leave();
    let (mut asleep, agent) = Subject::created(backend).await;
    write(&agent, "/workspace/kept", b"asleep").await;
    let depth = if offers_freeze {
        Depth::Freeze
    } else {
        Depth::Stop
    };
    let suspended = asleep.suspend(depth, &agent).await;
    let (mut stopped, agent) = Subject::created(backend).await;
    write(&agent, "/workspace/kept", b"stopped").await;
    stopped.suspend(Depth::Stop, &agent).await;
    drop(agent);

    backend.port().restart();
    backend.restart().await;

    let driver = backend.driver();
    for id in [live.id, asleep.id, stopped.id] {
        driver
            .recover(id, Duration::from_secs(5))
            .await
            .expect("recover");
    }
    let held = live.issued;
    assert_eq!(live.observe().await.observed, Observed::Live { held });
    // By itself, with the secret that it has.
    let agent = live.attached().await;
    counter.attach(&agent).await;
    counter.more().await;
    assert_eq!(run(&agent, &["true"]).await, 0);

    let agent = if offers_freeze {
        let held = asleep.issued;
        assert_eq!(asleep.observe().await.observed, Observed::Frozen { held });
        asleep.resume(depth, &suspended.reference).await
    } else {
        asleep.start().await
    };
    assert_eq!(read(&agent, "/workspace/kept").await, b"asleep");

    assert!(matches!(
        stopped.observe().await.observed,
        Observed::Absent | Observed::Stopped
    ));
    let agent = stopped.start().await;
    assert_eq!(read(&agent, "/workspace/kept").await, b"stopped");

    for subject in [&mut live, &mut asleep, &mut stopped] {
        subject.delete().await;
    }
    assert_eq!(backend.leftovers().await, Vec::<String>::new());
}
