//! Freeze on the local driver, by a connected client.

use std::time::Instant;

use overwinter_client::Depth;

use super::{Plan, run_true};
use crate::host::Host;
use crate::report::{Bound, Report, Row};
use crate::stats::{Samples, Steps};

pub(super) async fn measure(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let host = Host::start(&plan.folder).await?;
    let client = host.client();
    let id = host.create(&client, "freeze").await?;
    run_true(&client, &id).await?;
    let (mut suspends, mut resumes) = (Samples::default(), Samples::default());
    let (mut down, mut up) = (Steps::default(), Steps::default());
    for _ in 0..plan.rounds(300) {
        let began = Instant::now();
        let done = client
            .suspend(id.as_str())
            .depth(Depth::Freeze)
            .wait()
            .await?;
        suspends.add(began.elapsed());
        down.add(done.operation.as_ref());
        let began = Instant::now();
        let done = client.resume(id.as_str()).wait().await?;
        run_true(&client, &id).await?;
        resumes.add(began.elapsed());
        up.add(done.operation.as_ref());
    }
    report.add(
        Row::timed("freeze: suspend", &suspends)
            .bound(Bound::P50AtMost(5.0))
            .note(plan.note(&down)),
    );
    report.add(
        Row::timed("freeze: resume until an exec has answered", &resumes)
            .bound(Bound::P50AtMost(5.0))
            .note(plan.note(&up)),
    );
    host.end().await
}
