//! The suite that every driver passes, on daemons of the tests' own with the real supervisor.

#![allow(clippy::unwrap_used)]

mod common;

use std::path::Path;
use std::sync::Arc;

use common::{Bed, needs, needs_rootless, supervisor};
use overwinter_driver::testkit::conformance;
use overwinter_driver_docker::Flavor;
use overwinter_driver_docker::testkit::Daemon;
use tokio::sync::Mutex;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_docker_driver_conforms() {
    conforms(Flavor::Docker).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_podman_driver_conforms() {
    conforms(Flavor::Podman).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_podman_driver_conforms_without_privilege() {
    let (true, Some(binary)) = (needs_rootless(), supervisor()) else {
        return;
    };
    passes(Flavor::Podman, common::rootless().await, &binary).await;
}

async fn conforms(flavor: Flavor) {
    let (true, Some(binary)) = (needs(flavor), supervisor()) else {
        return;
    };
    passes(flavor, common::daemon(flavor).await, &binary).await;
}

async fn passes(flavor: Flavor, daemon: Arc<Mutex<Daemon>>, binary: &Path) {
    let report = conformance::run(|| Bed::new(flavor, &daemon, binary)).await;
    assert!(report.failed.is_empty(), "{report}");
    assert!(report.passed.len() > 20, "{report}");
    common::end(daemon);
}
