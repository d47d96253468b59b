//! What becomes of a sandbox when a request or its answer is late, lost, cut short or carried out twice on its
//! way to a real daemon.

#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use bollard::query_parameters::{
    InspectContainerOptions, StartContainerOptions, WaitContainerOptions,
};
use common::{Bed, Stage, needs, supervisor};
use futures::StreamExt;
use overwinter_driver::testkit::conformance::{Backend, Subject};
use overwinter_driver::{Depth, DriverError, DriverReference, Effected, Observed};
use overwinter_driver_docker::Flavor;
use overwinter_driver_docker::testkit::{Fault, Proxy};
use overwinter_lifecycle::operation::EffectKind;

const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: &str = "POST /containers/*/pause";
const UNPAUSE: &str = "POST /containers/*/unpause";
const START: &str = "POST /containers/*/start";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_that_comes_late_to_docker_starts_nothing() {
    a_late_start_starts_nothing(Flavor::Docker).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_that_comes_late_to_podman_starts_nothing() {
    a_late_start_starts_nothing(Flavor::Podman).await;
}

/// The gateway has settled it as not carried out, with or without a stop after it.
async fn a_late_start_starts_nothing(flavor: Flavor) {
    let Some(stage) = Stage::set(flavor).await else {
        return;
    };
    let (mut subject, agent) = Subject::created(&stage.bed).await;
    let mut last = subject.suspend(Depth::Stop, &agent).await;
    let driver = stage.bed.driver();
    for stopped in [false, true] {
        let mut late = stage.proxy.next(START, Fault::Late);
        let (ctx, credentials) = subject.next_incarnation(EffectKind::Start);
        let lost = driver.start(&ctx, &subject.spec, &credentials).await;
        assert!(matches!(lost, Err(DriverError::Unknown(_))), "{lost:?}");
        late.taken().await.unwrap();
        if stopped {
            last = subject.deepen(Depth::Stop).await;
        }
        assert_eq!(subject.observe().await.observed, Observed::Stopped);

        let status = late.let_go().await.unwrap();
        assert!(!stage.runs(&subject).await, "{status:?}");
        assert_eq!(subject.observe().await.observed, Observed::Stopped);
    }
    assert_eq!(last.leftovers, []);
    subject.start().await;
    assert_eq!(stage.bed.port().refusals(), []);
    subject.delete().await;
    stage.strike().await;
}

/// Carried out while the driver cannot know: the container's supervisor is there, since the sandbox has run
/// until just now.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_by_somebody_else_is_ended() {
    let Some(stage) = Stage::set(Flavor::Docker).await else {
        return;
    };
    let (mut subject, agent) = Subject::created(&stage.bed).await;
    stage.bed.kill(subject.id).await;
    tokio::time::timeout(PATIENCE, agent.gone()).await.unwrap();
    let daemon = stage.daemon.lock().await.client().await.unwrap();
    let name = format!("overwinter-{}", subject.id.0.simple());
    let still = Some(WaitContainerOptions {
        condition: "not-running".to_owned(),
    });
    let ended = || {
        daemon
            .wait_container(&name, still.clone())
            .collect::<Vec<_>>()
    };
    tokio::time::timeout(PATIENCE, ended()).await.unwrap();
    daemon
        .start_container(&name, None::<StartContainerOptions>)
        .await
        .unwrap();
    tokio::time::timeout(PATIENCE, ended()).await.unwrap();
    assert!(!stage.runs(&subject).await);
    // By what the driver asked for, and not by itself.
    let kills = stage.proxy.requests();
    assert!(
        kills.contains(&"POST /containers/*/kill".to_owned()),
        "{kills:?}"
    );
    // And it cannot be started again.
    let refused = daemon
        .start_container(&name, None::<StartContainerOptions>)
        .await;
    assert!(refused.is_err(), "{refused:?}");
    assert_eq!(subject.observe().await.observed, Observed::Stopped);
    subject.start().await;
    subject.delete().await;
    stage.strike().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_that_comes_late_to_docker_is_noticed() {
    a_late_pause_is_noticed(Flavor::Docker).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_that_comes_late_to_podman_is_noticed() {
    a_late_pause_is_noticed(Flavor::Podman).await;
}

/// The gateway has settled it as not carried out, and has gone on with what runs. It is told, sees what is
/// so, and can bring the memory back, though nothing inside had let go.
async fn a_late_pause_is_noticed(flavor: Flavor) {
    let Some(stage) = Stage::set(flavor).await else {
        return;
    };
    let (mut subject, agent) = Subject::created(&stage.bed).await;
    let held = subject.issued;
    let driver = stage.bed.driver();
    agent.detach().await.unwrap();
    stage.bed.port().forget(subject.id);
    let mut late = stage.proxy.next(PAUSE, Fault::Late);
    let ctx = subject.next(EffectKind::Suspend(Depth::Freeze));
    let lost = driver.suspend(&ctx, Depth::Freeze).await;
    assert!(matches!(lost, Err(DriverError::Unknown(_))), "{lost:?}");
    late.taken().await.unwrap();
    assert_eq!(subject.observe().await.observed, Observed::Live { held });
    let (ctx, credentials) = subject.next_incarnation(EffectKind::Reattach);
    driver.reattach(&ctx, &credentials).await.unwrap();
    subject.attached().await;

    let mut changes = driver.watch();
    assert_eq!(late.let_go().await.unwrap(), Some(204));
    let told = tokio::time::timeout(PATIENCE, changes.next()).await;
    let told = told.unwrap().unwrap();
    assert_eq!((told.sandbox, told.held), (subject.id, held));
    assert_eq!(subject.observe().await.observed, Observed::Frozen { held });

    stage.bed.port().forget(subject.id);
    let agent = subject
        .resume(Depth::Freeze, &DriverReference::default())
        .await;
    agent.list_processes().await.unwrap();
    assert_eq!(subject.observe().await.observed, Observed::Live { held });
    subject.delete().await;
    stage.strike().await;
}

/// What a gateway must know to wait for lost requests does not depend on who was there first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_that_was_never_seen_offers_what_any_does() {
    let (true, Some(binary)) = (needs(Flavor::Docker), supervisor()) else {
        return;
    };
    let daemon = common::daemon(Flavor::Docker).await;
    let own = daemon.lock().await.socket();
    let socket = own.with_extension("later");
    let bed = Bed::through(Flavor::Docker, &daemon, &binary, socket.clone());
    let away = bed.driver().describe().await;
    assert!(away.features[0].starts_with("away: "), "{away:?}");

    std::os::unix::fs::symlink(&own, &socket).unwrap();
    let here = bed.driver().describe().await;
    assert_eq!(away.modes, here.modes);
    for depth in [Depth::Freeze, Depth::Stop] {
        let life = away.mode(depth).map(|mode| mode.lost_request_life);
        assert!(life.is_some_and(|life| !life.is_zero()), "{depth:?}");
    }
    assert_eq!(away.mode(Depth::Checkpoint), None);
    let (mut subject, _) = Subject::created(&bed).await;
    subject.delete().await;
    assert_eq!(bed.leftovers().await, Vec::<String>::new());
    drop(bed);
    common::end(daemon);
}

/// The daemon says that it labels containers for SELinux, as one on such a host does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_docker_that_labels_containers_is_asked_for_none() {
    let says = Fault::Reworded("\"name=seccomp,profile=default\"", "\"name=selinux\"");
    is_asked_for_no_label(Flavor::Docker, "GET /info", says).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_podman_that_labels_containers_is_asked_for_none() {
    let says = Fault::Reworded("\"selinuxEnabled\":false", "\"selinuxEnabled\":true");
    is_asked_for_no_label(Flavor::Podman, "GET /libpod/info", says).await;
}

async fn is_asked_for_no_label(flavor: Flavor, request: &str, says: Fault) {
    let (true, Some(binary)) = (needs(flavor), supervisor()) else {
        return;
    };
    let daemon = common::daemon(flavor).await;
    let own = daemon.lock().await.socket();
    let proxy = Proxy::start(&own.with_extension("proxy"), &own).unwrap();
    // The first that the driver asks.
    let said = proxy.next(request, says);
    let bed = Bed::through(flavor, &daemon, &binary, proxy.socket().to_owned());
    let (mut subject, agent) = Subject::created(&bed).await;
    assert_eq!(said.over().await.unwrap(), Some(200));
    agent.list_processes().await.unwrap();
    let client = daemon.lock().await.client().await.unwrap();
    let ids = daemon.lock().await.containers().await.unwrap();
    let made = client.inspect_container(&ids[0], None::<InspectContainerOptions>);
    let options = made.await.unwrap().host_config.unwrap().security_opt;
    assert_eq!(options, Some(vec!["label=disable".to_owned()]));
    let features = bed.driver().describe().await.features;
    assert!(
        features.iter().any(|it| it.starts_with("SELinux")),
        "{features:?}"
    );
    subject.delete().await;
    assert_eq!(bed.leftovers().await, Vec::<String>::new());
    drop((bed, proxy));
    common::end(daemon);
}

/// What an effect asks of the daemon: what an event would tell is not asked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_freeze_and_its_resume_are_one_request_each() {
    let Some(stage) = Stage::set(Flavor::Docker).await else {
        return;
    };
    let (mut subject, agent) = Subject::created(&stage.bed).await;
    let driver = stage.bed.driver();
    let inspect = "GET /containers/*/json";
    let mut agent = agent;
    for _ in 0..3 {
        let _ = stage.proxy.requests();
        driver.prepare(subject.id, Depth::Freeze).await.unwrap();
        let frozen = subject.suspend(Depth::Freeze, &agent).await;
        assert_eq!(stage.proxy.requests(), [PAUSE]);
        agent = subject.resume(Depth::Freeze, &frozen.reference).await;
        assert_eq!(stage.proxy.requests(), [UNPAUSE]);
    }
    driver.prepare(subject.id, Depth::Stop).await.unwrap();
    subject.suspend(Depth::Stop, &agent).await;
    let stop = "POST /containers/*/stop";
    assert_eq!(stage.proxy.requests(), [inspect, inspect, stop, inspect]);
    subject.start().await;
    assert_eq!(stage.proxy.requests(), [inspect, START, inspect]);
    subject.delete().await;
    stage.strike().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_effect_of_docker_withstands_each_fault() {
    each_effect_withstands_each_fault(Flavor::Docker).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_effect_of_podman_withstands_each_fault() {
    each_effect_withstands_each_fault(Flavor::Podman).await;
}

/// An effect whose request met a fault ends well, or says that it may not have, and ends well when it is
/// asked for again under the same key. Only what was refused is surely undone.
async fn meets<F>(stage: &Stage, request: &str, fault: Fault, call: impl Fn() -> F) -> Effected
where
    F: Future<Output = Result<Effected, DriverError>>,
{
    let met = stage.proxy.next(request, fault);
    let first = call().await;
    met.over().await.unwrap();
    let error = match first {
        Ok(effected) => return effected,
        Err(error) => error,
    };
    let refused = matches!(fault, Fault::Refused(_));
    assert!(refused || !error.surely_no_effect(), "{request}: {error}");
    let again = call().await;
    again.unwrap_or_else(|again| panic!("{request}, {fault:?}: {error}, and then {again}"))
}

async fn each_effect_withstands_each_fault(flavor: Flavor) {
    let Some(stage) = Stage::set(flavor).await else {
        return;
    };
    let driver = stage.bed.driver();
    let freeze = Depth::Freeze;
    for fault in [
        Fault::ReplyLost,
        Fault::ReplyCut,
        Fault::Twice,
        Fault::Refused(500),
    ] {
        let mut subject = Subject::new(&stage.bed).await;
        let (ctx, credentials) = subject.next_incarnation(EffectKind::Create);
        let create = || driver.create(&ctx, &subject.spec, &credentials);
        meets(&stage, "POST /containers/create", fault, create).await;
        let agent = subject.attached().await;
        agent.detach().await.unwrap();
        stage.bed.port().forget(subject.id);

        let held = subject.issued;
        let ctx = subject.next(EffectKind::Suspend(freeze));
        let frozen = meets(&stage, PAUSE, fault, || driver.suspend(&ctx, freeze)).await;
        assert_eq!(subject.observe().await.observed, Observed::Frozen { held });

        let (ctx, credentials) = subject.next_incarnation(EffectKind::Resume(freeze));
        let reference = &frozen.reference;
        let resume = || driver.resume(&ctx, freeze, reference, &credentials);
        meets(&stage, UNPAUSE, fault, resume).await;
        subject.attached().await;
        assert_eq!(subject.observe().await.observed, Observed::Live { held });

        stage.bed.port().forget(subject.id);
        let ctx = subject.next(EffectKind::Suspend(Depth::Stop));
        let stop = || driver.suspend(&ctx, Depth::Stop);
        meets(&stage, "POST /containers/*/stop", fault, stop).await;
        assert_eq!(subject.observe().await.observed, Observed::Stopped);

        let (ctx, credentials) = subject.next_incarnation(EffectKind::Start);
        let start = || driver.start(&ctx, &subject.spec, &credentials);
        meets(&stage, START, fault, start).await;
        subject.attached().await;
        let held = subject.issued;
        assert_eq!(subject.observe().await.observed, Observed::Live { held });

        let ctx = subject.next(EffectKind::Delete);
        let mut removed = stage.proxy.next("DELETE /containers/*", fault);
        let first = driver.delete(&ctx).await;
        removed.taken().await.unwrap();
        if let Err(error) = first {
            driver.delete(&ctx).await.unwrap_or_else(|again| {
                panic!("delete, {fault:?}: {error}, and then {again}");
            });
        }
        assert_eq!(stage.bed.leftovers().await, Vec::<String>::new());
    }
    stage.strike().await;
}
