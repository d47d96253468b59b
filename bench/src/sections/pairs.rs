//! Pairs of suspend and resume a second: 64 clients with a connection and a sandbox each, a gateway on
//! the simulated driver in a process of its own, and the same processors for all.

use std::time::{Duration, Instant};

use overwinter_client::{Client, Depth};
use tokio::task::JoinSet;

use super::Plan;
use crate::child::{Child, Serving};
use crate::report::{Bound, Report, Row};

const CLIENTS: usize = 64;

pub(super) async fn measure(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    for depth in [Depth::Freeze, Depth::Stop] {
        let folder = plan.folder()?;
        let socket = folder.path().join("gateway.sock");
        let data = folder.path().join("data");
        let child = Serving::start(Child::Gateway, &data, &socket, Duration::ZERO).await?;
        let clients: Vec<Client> = (0..CLIENTS).map(|_| Client::connect(&socket)).collect();
        for (number, client) in clients.iter().enumerate() {
            client
                .create()
                .name(name(number))
                .image("busybox")
                .wait()
                .await?;
        }
        let before = clients[0].gateway_status().await?;
        let began = Instant::now();
        let until = began + Duration::from_millis(if plan.quick { 1_000 } else { 5_000 });
        let mut tasks = JoinSet::new();
        for (number, client) in clients.iter().cloned().enumerate() {
            tasks.spawn(async move {
                let mut pairs = 0;
                while Instant::now() < until {
                    client.suspend(name(number)).depth(depth).wait().await?;
                    client.resume(name(number)).wait().await?;
                    pairs += 1;
                }
                anyhow::Ok(pairs)
            });
        }
        let mut pairs = 0;
        while let Some(done) = tasks.join_next().await {
            pairs += done??;
        }
        let took = began.elapsed().as_secs_f64();
        let after = clients[0].gateway_status().await?;
        let commits = after.store_commits - before.store_commits;
        let transactions = after.store_transactions - before.store_transactions;
        report.add(
            Row::value(
                format!(
                    "simulated, {}: pairs a second, {CLIENTS} clients",
                    depth.as_str()
                ),
                "/s",
                f64::from(pairs) / took,
            )
            .bound(Bound::P50AtLeast(1_000.0))
            .note(format!(
                "{:.1} transactions share a commit",
                transactions as f64 / commits as f64
            )),
        );
        child.end().await?;
    }
    Ok(())
}

fn name(number: usize) -> String {
    format!("sandbox-{number}")
}
