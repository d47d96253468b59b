//! The suite that every driver passes, on a Docker daemon with the real supervisor.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Bed, needs, supervisor};
use overwinter_driver::testkit::conformance;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_docker_driver_conforms() {
    let (true, Some(binary)) = (needs(), supervisor()) else {
        return;
    };
    let daemon = common::daemon().await;
    let report = conformance::run(|| Bed::new(&daemon, &binary)).await;
    assert!(report.failed.is_empty(), "{report}");
    assert!(report.passed.len() > 20, "{report}");
    common::end(daemon);
}
