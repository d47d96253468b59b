//! What becomes of a sandbox when a request or its answer is late, lost, cut short or carried out twice on its
//! way to a real daemon.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use bollard::query_parameters::{StartContainerOptions, WaitContainerOptions};
use common::{Bed, needs, short, supervisor};
use futures::StreamExt;
use overwinter_driver::testkit::conformance::{Backend, Subject};
use overwinter_driver::{Depth, DriverError, DriverReference, Observed};
use overwinter_driver_docker::Flavor;
use overwinter_driver_docker::testkit::{Daemon, Fault, Proxy};
use overwinter_lifecycle::operation::EffectKind;

const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: &str = "POST /containers/*/pause";
const START: &str = "POST /containers/*/start";

/// A driver with a proxy between it and its daemon.
struct Stage {
    bed: Bed,
    proxy: Proxy,
    daemon: Arc<tokio::sync::Mutex<Daemon>>,
}

impl Stage {
    /// None where no daemon can be run.
    async fn set(flavor: Flavor) -> Option<Self> {
        let (true, Some(binary)) = (needs(flavor), supervisor()) else {
            return None;
        };
        let daemon = common::daemon(flavor).await;
        let own = daemon.lock().await.socket();
        let socket = std::env::temp_dir().join(format!("ow-proxy-{}.sock", short()));
        let proxy = Proxy::start(&socket, &own).unwrap();
        Some(Self {
            bed: Bed::through(flavor, &daemon, &binary, socket),
            proxy,
            daemon,
        })
    }

    /// Whether anything runs in the sandbox's container.
    async fn runs(&self, subject: &Subject<'_, Bed>) -> bool {
        let daemon = self.daemon.lock().await;
        daemon.pid_of(subject.id).await.is_ok()
    }

    async fn strike(self) {
        assert_eq!(self.bed.leftovers().await, Vec::<String>::new());
        drop((self.bed, self.proxy));
        common::end(self.daemon);
    }
}

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
