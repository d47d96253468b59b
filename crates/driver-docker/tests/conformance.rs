//! The suite that every driver passes, on daemons of the tests' own with the real supervisor.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Bed, needs, supervisor};
use overwinter_driver::testkit::conformance;
use overwinter_driver_docker::Flavor;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_docker_driver_conforms() {
    conforms(Flavor::Docker).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_podman_driver_conforms() {
    conforms(Flavor::Podman).await;
}

async fn conforms(flavor: Flavor) {
    let (true, Some(binary)) = (needs(flavor), supervisor()) else {
        return;
    };
    let daemon = common::daemon(flavor).await;
    let report = conformance::run(|| Bed::new(flavor, &daemon, &binary)).await;
    assert!(report.failed.is_empty(), "{report}");
    assert!(report.passed.len() > 20, "{report}");
    common::end(daemon);
}
