//! An exec in one sandbox while 50 others suspend, on the local driver.

use std::time::Instant;

use overwinter_client::{Client, Depth};
use tokio::task::JoinSet;

use super::{Plan, run_true};
use crate::host::Host;
use crate::report::{Bound, Report, Row};
use crate::stats::Samples;

const OTHERS: usize = 50;

pub(super) async fn measure(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let host = Host::start(&plan.folder).await?;
    let client = host.client();
    let id = host.create(&client, "quiet").await?;
    let mut others = Vec::new();
    for number in 0..OTHERS {
        others.push(host.create(&client, &format!("other-{number}")).await?);
    }
    let mut alone = Samples::default();
    for _ in 0..plan.rounds(300) {
        let began = Instant::now();
        run_true(&client, &id).await?;
        alone.add(began.elapsed());
    }
    let figures = [
        (Depth::Freeze, plan.rounds(20)),
        (Depth::Stop, plan.rounds(5)),
    ];
    for (depth, rounds) in figures {
        let (mut during, mut suspends) = (Samples::default(), Samples::default());
        for _ in 0..rounds {
            let mut going = all(&host, &others, Some(depth));
            while !going.is_empty() {
                let began = Instant::now();
                run_true(&client, &id).await?;
                during.add(began.elapsed());
                while let Some(done) = going.try_join_next() {
                    suspends.add_ms(done??);
                }
            }
            let mut back = all(&host, &others, None);
            while let Some(done) = back.join_next().await {
                done??;
            }
        }
        report.add(
            Row::timed(
                format!("exec while {OTHERS} others suspend at {}", depth.as_str()),
                &during,
            )
            .beside("alone", &alone)
            .bound(Bound::P99AtMost(25.0))
            .note(format!(
                "{} execs; a suspend among {OTHERS}: p50 {:.1} ms, p99 {:.1} ms",
                during.len(),
                suspends.p50(),
                suspends.p99()
            )),
        );
    }
    host.end().await
}

/// Suspends them at `depth`, or resumes them; each over a connection of its own. Milliseconds.
fn all(host: &Host, others: &[String], depth: Option<Depth>) -> JoinSet<anyhow::Result<f64>> {
    let mut going = JoinSet::new();
    for id in others.iter().cloned() {
        let client: Client = host.client();
        going.spawn(async move {
            let began = Instant::now();
            match depth {
                Some(depth) => client.suspend(id).depth(depth).wait().await?,
                None => client.resume(id).wait().await?,
            };
            Ok(began.elapsed().as_secs_f64() * 1e3)
        });
    }
    going
}
