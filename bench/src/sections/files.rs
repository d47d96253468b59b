//! A file of 1 GiB into a sandbox and out of it, page cache warm, beside the one-hop stream of the same
//! bytes; one after the other. And in once more, in the place of the one that is there: on ext4 that waits
//! for the disk (`auto_da_alloc` writes out what takes another's name, so that a power loss leaves one of
//! the two), and has no bound.

use std::time::{Duration, Instant};

use anyhow::ensure;
use bytes::Bytes;
use overwinter_client::Client;

use super::Plan;
use crate::child::{Child, Serving};
use crate::host::Host;
use crate::report::{Bound, Report, Row};
use crate::stats::Samples;

const PATH: &str = "/workspace/big";

pub(super) async fn measure(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    // What other sections have left for the disk to do is not part of this: only one of the two writes
    // a file.
    rustix::fs::sync();
    let size: usize = if plan.quick { 256 << 20 } else { 1 << 30 };
    let host = Host::start(&plan.folder).await?;
    let client = host.client();
    let id = host.create(&client, "files").await?;
    let socket = host.folder().join("hop.sock");
    let hop = Serving::start(Child::Hop, host.folder(), &socket, Duration::ZERO).await?;
    let one = Client::connect(&socket);
    let data = Bytes::from(vec![0x5a; size]);
    let (mut ins, mut outs) = (Samples::default(), Samples::default());
    let mut replaced = Samples::default();
    let (mut hop_ins, mut hop_outs) = (Samples::default(), Samples::default());
    for _ in 0..if plan.quick { 2 } else { 5 } {
        hop_ins.add_ms(write(&one, &id, &data).await?);
        ins.add_ms(write(&client, &id, &data).await?);
        hop_outs.add_ms(read(&one, &id, size).await?);
        outs.add_ms(read(&client, &id, size).await?);
        replaced.add_ms(write(&client, &id, &data).await?);
        client.files(id.as_str()).remove(PATH, false).await?;
    }
    hop.end().await?;
    for (way, through, bare) in [("in", &ins, &hop_ins), ("out", &outs, &hop_outs)] {
        report.add(
            Row::value(
                format!("a file of {} MiB {way}", size >> 20),
                "MB/s",
                through.p50(),
            )
            .beside_value("one-hop stream", bare.p50())
            .bound(Bound::RatioAtLeast(0.45)),
        );
    }
    report.add(
        Row::value(
            format!("a file of {} MiB in, over one that is there", size >> 20),
            "MB/s",
            replaced.p50(),
        )
        .beside_value("one-hop stream", hop_ins.p50()),
    );
    host.end().await
}

/// MB/s.
async fn write(client: &Client, id: &str, data: &Bytes) -> anyhow::Result<f64> {
    let began = Instant::now();
    let info = client.files(id).write(PATH).bytes(data.clone()).await?;
    let took = began.elapsed();
    ensure!(
        info.size == data.len() as u64,
        "{} bytes arrived",
        info.size
    );
    Ok(rate(data.len(), took))
}

async fn read(client: &Client, id: &str, size: usize) -> anyhow::Result<f64> {
    let began = Instant::now();
    let mut reader = client.files(id).read_range(PATH, 0, size as u64).await?;
    let mut taken = 0;
    while let Some(data) = reader.next().await? {
        taken += data.len();
    }
    let took = began.elapsed();
    ensure!(taken == size, "{taken} bytes came back");
    Ok(rate(size, took))
}

fn rate(bytes: usize, took: Duration) -> f64 {
    bytes as f64 / 1e6 / took.as_secs_f64()
}
