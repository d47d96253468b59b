//! One delete that takes 10 s, on the simulated driver: what it does to everybody else, which must be
//! nothing.

use std::time::{Duration, Instant};

use anyhow::ensure;
use overwinter_client::{Client, Depth, Phase};

use super::{Plan, run_true};
use crate::child::{Child, Serving};
use crate::report::{Bound, Report, Row};
use crate::stats::Samples;

const TAKES: Duration = Duration::from_secs(10);
/// What two runs of the same thing differ by here.
const NO_EFFECT: f64 = 1.25;

#[derive(Default)]
struct Taken {
    execs: Samples,
    pairs: Samples,
}

pub(super) async fn measure(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let folder = plan.folder()?;
    let socket = folder.path().join("gateway.sock");
    let takes = if plan.quick { TAKES / 5 } else { TAKES };
    let data = folder.path().join("data");
    let child = Serving::start(Child::Gateway, &data, &socket, takes).await?;
    let client = Client::connect(&socket);
    for name in ["other", "gone"] {
        client.create().name(name).image("busybox").wait().await?;
    }
    let mut before = Taken::default();
    before.take(&client, takes / 2).await?;
    let deleting = tokio::spawn({
        let client = client.clone();
        async move {
            let began = Instant::now();
            client.delete("gone").wait().await?;
            anyhow::Ok(began.elapsed())
        }
    });
    let mut during = Taken::default();
    during.take(&client, takes / 2).await?;
    let phase = client.get("gone").await?.phase();
    ensure!(
        phase == Phase::Deleting,
        "the delete was over before: {}",
        phase.as_str()
    );
    let took = deleting.await??;
    ensure!(took >= takes, "the delete took {took:?}");
    for (what, samples, alone) in [
        ("exec", &during.execs, &before.execs),
        ("a suspend and resume", &during.pairs, &before.pairs),
    ] {
        report.add(
            Row::timed(
                format!(
                    "{what} while a delete takes {} s elsewhere",
                    takes.as_secs()
                ),
                samples,
            )
            .beside("before", alone)
            .bound(Bound::RatioAtMost(NO_EFFECT)),
        );
    }
    child.end().await
}

impl Taken {
    async fn take(&mut self, client: &Client, time: Duration) -> anyhow::Result<()> {
        let until = Instant::now() + time;
        while Instant::now() < until {
            let began = Instant::now();
            run_true(client, "other").await?;
            self.execs.add(began.elapsed());
            let began = Instant::now();
            client.suspend("other").depth(Depth::Stop).wait().await?;
            client.resume("other").wait().await?;
            self.pairs.add(began.elapsed());
        }
        Ok(())
    }
}
