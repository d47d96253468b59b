//! Stop on the local driver; and cold starts beside `runc create` and `runc start` as commands on an
//! equivalent bundle, one after the other.

use std::time::Instant;

use anyhow::Context;
use overwinter_client::{Depth, Operation};

use super::{Plan, run_true};
use crate::bare::Bare;
use crate::host::Host;
use crate::report::{Bound, Report, Row};
use crate::stats::{Samples, Steps};

#[derive(Default)]
struct Taken {
    suspends: Samples,
    syncs: Samples,
    resumes: Samples,
    creates: Samples,
    bares: Samples,
    down: Steps,
    up: Steps,
    new: Steps,
}

pub(super) async fn measure(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let host = Host::start(&plan.folder).await?;
    let client = host.client();
    let id = host.create(&client, "stop").await?;
    let folder = host.folder().join("bare");
    let bare = Bare::like(&host.sandbox_folder(&id)?, &host.image.root, folder)?;
    let mut taken = Taken::default();
    for round in 0..plan.rounds(60) {
        let began = Instant::now();
        let done = client
            .suspend(id.as_str())
            .depth(Depth::Stop)
            .wait()
            .await?;
        let took = began.elapsed();
        let operation = done.operation.as_ref().context("there was nothing to do")?;
        let sync = sync_ms(operation).context("the driver did not say how long the sync took")?;
        taken.suspends.add_ms(took.as_secs_f64() * 1e3 - sync);
        taken.syncs.add_ms(sync);
        taken.down.add(done.operation.as_ref());

        taken.bares.add(bare.bring_up()?);
        bare.take_down()?;

        let began = Instant::now();
        let done = client.resume(id.as_str()).wait().await?;
        run_true(&client, &id).await?;
        taken.resumes.add(began.elapsed());
        taken.up.add(done.operation.as_ref());

        taken.bares.add(bare.bring_up()?);
        bare.take_down()?;

        let name = format!("new-{round}");
        let began = Instant::now();
        let create = client.create().name(&name).image(host.image.name());
        let done = create.wait().await?;
        run_true(&client, &name).await?;
        taken.creates.add(began.elapsed());
        taken.new.add(done.operation.as_ref());
        client.delete(name.as_str()).wait().await?;
    }
    drop(bare);
    report.add(
        Row::timed(
            "stop: suspend of an idle sandbox, without the sync",
            &taken.suspends,
        )
        .bound(Bound::P50AtMost(40.0))
        .note(plan.note(&taken.down)),
    );
    report.add(Row::timed("stop: storage sync", &taken.syncs));
    let cold = [
        (
            "stop: resume until an exec has answered",
            &taken.resumes,
            &taken.up,
        ),
        (
            "create until an exec has answered",
            &taken.creates,
            &taken.new,
        ),
    ];
    for (what, samples, steps) in cold {
        report.add(
            Row::timed(what, samples)
                .beside("runc create + start", &taken.bares)
                .bound(Bound::RatioAtMost(1.2))
                .note(plan.note(steps)),
        );
    }
    host.end().await
}

/// Of the remark `sync=1.5ms`.
pub(super) fn sync_ms(operation: &Operation) -> Option<f64> {
    let remarks = operation.remarks().iter();
    let mut said = remarks.filter_map(|remark| remark.strip_prefix("sync="));
    said.next()?.strip_suffix("ms")?.parse().ok()
}
