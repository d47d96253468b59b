//! One suspend and resume on the simulated driver: how many durable commits, and how much time the
//! gateway adds to a driver that takes none.

use std::path::Path;
use std::time::Instant;

use anyhow::ensure;
use overwinter_client::{Client, Depth};

use super::Plan;
use crate::embedded::Embedded;
use crate::report::{Bound, Report, Row};
use crate::stats::{Samples, Steps};

const PAIRS: u64 = 20;

/// Durable commits of one suspend and one resume at a depth. A suspend records its beginning, its
/// intent and its end; a resume of resident memory begins with its intent, a cold one records it
/// after that.
pub const PROMISED: [(Depth, u64); 2] = [(Depth::Freeze, 5), (Depth::Stop, 6)];

/// Counts them, in a gateway of its own.
///
/// # Errors
/// When pairs differ, or something fails.
pub async fn count(folder: &Path, depth: Depth) -> anyhow::Result<u64> {
    let gateway = Embedded::start(folder).await?;
    let client = gateway.client();
    client.create().name("one").image("busybox").wait().await?;
    // One client alone: nobody is there to share a commit with.
    let before = gateway.stats().commits;
    for _ in 0..PAIRS {
        pair(&client, "one", depth).await?;
    }
    let commits = gateway.stats().commits - before;
    ensure!(
        commits.is_multiple_of(PAIRS),
        "{PAIRS} pairs at {} made {commits} durable commits: they differ",
        depth.as_str()
    );
    gateway.end().await?;
    Ok(commits / PAIRS)
}

async fn pair(client: &Client, name: &str, depth: Depth) -> anyhow::Result<()> {
    client.suspend(name).depth(depth).wait().await?;
    client.resume(name).wait().await?;
    Ok(())
}

pub(super) async fn measure(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    for (depth, promised) in PROMISED {
        let folder = plan.folder()?;
        let commits = count(folder.path(), depth).await?;
        ensure!(
            commits == promised,
            "a pair at {} made {commits} durable commits, not {promised}",
            depth.as_str()
        );
        report.add(
            Row::value(
                format!("simulated, {}: durable commits of a pair", depth.as_str()),
                "",
                commits as f64,
            )
            .bound(Bound::P50AtMost(6.0)),
        );
        let folder = plan.folder()?;
        let gateway = Embedded::start(folder.path()).await?;
        let client = gateway.client();
        client.create().name("one").image("busybox").wait().await?;
        let (mut pairs, mut steps) = (Samples::default(), Steps::default());
        for _ in 0..plan.rounds(500) {
            let began = Instant::now();
            let down = client.suspend("one").depth(depth).wait().await?;
            let up = client.resume("one").wait().await?;
            pairs.add(began.elapsed());
            steps.add(down.operation.as_ref());
            steps.add(up.operation.as_ref());
        }
        gateway.end().await?;
        report.add(
            Row::timed(
                format!("simulated, {}: time added to a pair", depth.as_str()),
                &pairs,
            )
            .bound(Bound::P50AtMost(2.5))
            .note(plan.note(&steps)),
        );
    }
    Ok(())
}
