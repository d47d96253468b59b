//! What others do to a container while the daemon's events of it are still on their way: an effect that asks
//! nothing beforehand ends as one that does, or is set right by the event.

#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use bollard::Docker;
use bollard::query_parameters::{
    KillContainerOptions, RemoveContainerOptionsBuilder, RestartContainerOptions,
};
use common::{Bed, Stage};
use futures::StreamExt;
use futures::stream::BoxStream;
use overwinter_driver::testkit::conformance::{Backend, Subject};
use overwinter_driver::{Changed, Compute, Depth, DriverError, Observed};
use overwinter_driver_docker::Flavor;
use overwinter_driver_docker::testkit::{Events, Fault};
use overwinter_lifecycle::operation::EffectKind;

const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hand {
    Pauses,
    Unpauses,
    Kills,
    Removes,
    Restarts,
    RestartsAndPauses,
}

async fn do_it(hand: Hand, client: &Docker, subject: &Subject<'_, Bed>) {
    let name = format!("overwinter-{}", subject.id.0.simple());
    let restart = None::<RestartContainerOptions>;
    match hand {
        Hand::Pauses => client.pause_container(&name).await,
        Hand::Unpauses => client.unpause_container(&name).await,
        Hand::Kills => {
            let kill = None::<KillContainerOptions>;
            client.kill_container(&name, kill).await
        }
        Hand::Removes => {
            let force = RemoveContainerOptionsBuilder::default().force(true).build();
            client.remove_container(&name, Some(force)).await
        }
        Hand::Restarts => client.restart_container(&name, restart).await,
        Hand::RestartsAndPauses => {
            client.restart_container(&name, restart).await.unwrap();
            client.pause_container(&name).await
        }
    }
    .unwrap();
}

/// The event tells, what is seen is so, and what somebody else has started ends.
async fn set_right(
    stage: &Stage,
    subject: &Subject<'_, Bed>,
    mut changes: BoxStream<'static, Changed>,
) {
    stage.proxy.events(Events::Pass);
    let settled = async {
        while let Some(changed) = changes.next().await {
            assert_eq!(changed.sandbox, subject.id);
            let seen = subject.observe().await.observed;
            assert!(
                matches!(seen, Observed::Stopped | Observed::InTransition),
                "{seen:?}"
            );
            if seen == Observed::Stopped && !stage.runs(subject).await {
                return;
            }
        }
    };
    let settled = tokio::time::timeout(PATIENCE, settled).await;
    settled.expect("nobody was told, or it runs on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_others_do_just_before_a_freeze() {
    let Some(stage) = Stage::set(Flavor::Docker).await else {
        return;
    };
    let client = stage.daemon.lock().await.client().await.unwrap();
    let driver = stage.bed.driver();
    for hand in [Hand::Pauses, Hand::Kills, Hand::Removes, Hand::Restarts] {
        let (mut subject, agent) = Subject::created(&stage.bed).await;
        let held = subject.issued;
        let changes = driver.watch();
        stage.proxy.events(Events::Wait);
        driver.prepare(subject.id, Depth::Freeze).await.unwrap();
        agent.detach().await.unwrap();
        stage.bed.port().forget(subject.id);
        do_it(hand, &client, &subject).await;

        let ctx = subject.next(EffectKind::Suspend(Depth::Freeze));
        let frozen = driver.suspend(&ctx, Depth::Freeze).await.unwrap();
        match hand {
            Hand::Kills | Hand::Removes => assert_eq!(frozen.compute, Compute::Absent),
            _ => assert_eq!(frozen.compute, Compute::Frozen { held }, "{hand:?}"),
        }
        if hand == Hand::Restarts {
            set_right(&stage, &subject, changes).await;
        }
        stage.proxy.events(Events::Pass);
        match hand {
            Hand::Pauses => drop(subject.resume(Depth::Freeze, &frozen.reference).await),
            Hand::Removes => drop(subject.start_anew().await),
            _ => drop(subject.start().await),
        }
        subject.delete().await;
    }
    stage.strike().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_others_do_just_before_a_thaw() {
    let Some(stage) = Stage::set(Flavor::Docker).await else {
        return;
    };
    let client = stage.daemon.lock().await.client().await.unwrap();
    let driver = stage.bed.driver();
    for hand in [
        Hand::Unpauses,
        Hand::Kills,
        Hand::Removes,
        Hand::Restarts,
        Hand::RestartsAndPauses,
    ] {
        let (mut subject, agent) = Subject::created(&stage.bed).await;
        let frozen = subject.suspend(Depth::Freeze, &agent).await;
        let changes = driver.watch();
        stage.proxy.events(Events::Wait);
        do_it(hand, &client, &subject).await;

        let depth = Depth::Freeze;
        let (ctx, credentials) = subject.next_incarnation(EffectKind::Resume(depth));
        let reference = &frozen.reference;
        let resumed = driver.resume(&ctx, depth, reference, &credentials).await;
        match hand {
            Hand::Unpauses => {
                resumed.unwrap();
                subject.attached().await;
            }
            Hand::RestartsAndPauses => {
                resumed.unwrap();
                set_right(&stage, &subject, changes).await;
            }
            _ => assert!(
                matches!(resumed, Err(DriverError::Missing(_))),
                "{hand:?}: {resumed:?}"
            ),
        }
        stage.proxy.events(Events::Pass);
        match hand {
            Hand::Unpauses => {}
            Hand::Removes => drop(subject.start_anew().await),
            _ => drop(subject.start().await),
        }
        subject.delete().await;
    }
    stage.strike().await;
}

/// The streams of the daemon's events end, and the driver has noticed: it asks again, a second time after a
/// pause.
async fn lose_the_events(stage: &Stage) {
    let refused = [(); 2].map(|()| stage.proxy.next("GET /events", Fault::Refused(503)));
    stage.proxy.events(Events::End);
    for refused in refused {
        refused.over().await.unwrap();
    }
}

/// Without the daemon's events nothing is taken for known.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_no_events_are_heard_each_effect_looks() {
    let Some(stage) = Stage::set(Flavor::Docker).await else {
        return;
    };
    let (mut subject, agent) = Subject::created(&stage.bed).await;
    let driver = stage.bed.driver();
    lose_the_events(&stage).await;
    let looks = || {
        let asked = stage.proxy.requests();
        let looks = asked.iter().filter(|it| *it == "GET /containers/*/json");
        looks.count()
    };
    // The answer is on its way to the driver, and then it looks.
    let noticed = async {
        looks();
        loop {
            driver.prepare(subject.id, Depth::Freeze).await.unwrap();
            if looks() > 0 {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, noticed).await.unwrap();
    let frozen = subject.suspend(Depth::Freeze, &agent).await;
    assert!(looks() > 0);
    let agent = subject.resume(Depth::Freeze, &frozen.reference).await;
    assert!(looks() > 0);

    // What is missed meanwhile is looked for afterwards.
    let changes = driver.watch();
    let client = stage.daemon.lock().await.client().await.unwrap();
    do_it(Hand::Restarts, &client, &subject).await;
    tokio::time::timeout(PATIENCE, agent.gone()).await.unwrap();
    set_right(&stage, &subject, changes).await;
    subject.delete().await;
    stage.strike().await;
}
