//! 100,000 sandboxes that sleep: what they cost a gateway that has nothing to do with them.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::ensure;
use futures::TryStreamExt;
use overwinter_client::Client;

use super::Plan;
use crate::child::{Child, Serving};
use crate::report::{Bound, Report, Row};
use crate::seed;
use crate::stats::Samples;

const PAGE: u32 = 100;

pub(super) async fn measure(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let number = plan.rounds(100_000);
    let folder = plan.folder()?;
    let (empty, full) = (folder.path().join("empty"), folder.path().join("full"));
    seed::sleeping(&empty, 0).await?;
    let began = Instant::now();
    seed::sleeping(&full, number).await?;
    eprintln!(
        "  {number} written in {:.1} s",
        began.elapsed().as_secs_f64()
    );

    let (mut without, mut with) = (Seen::default(), Seen::default());
    for _ in 0..plan.rounds(10).max(3) {
        without.look(folder.path(), &empty, 0).await?;
        with.look(folder.path(), &full, number).await?;
    }
    let over = with.mib.p50() - without.mib.p50();
    report.add(
        Row::value(
            format!("{number} asleep: memory over an empty gateway"),
            "MiB",
            over,
        )
        .bound(Bound::P50AtMost(32.0))
        .note(format!(
            "resident after a page was listed {} times: {:.1} MiB, empty {:.1} MiB",
            with.pages.len() / with.mib.len(),
            with.mib.p50(),
            without.mib.p50()
        )),
    );
    report.add(
        Row::timed(format!("{number} asleep: start-up"), &with.start_ups)
            .beside("empty", &without.start_ups)
            .bound(Bound::P50AtMost(300.0)),
    );
    report.add(
        Row::timed(
            format!("{number} asleep: a page of {PAGE} listed"),
            &with.pages,
        )
        .bound(Bound::P50AtMost(3.0)),
    );
    Ok(())
}

#[derive(Default)]
struct Seen {
    mib: Samples,
    start_ups: Samples,
    pages: Samples,
}

impl Seen {
    /// One life of a gateway.
    async fn look(&mut self, folder: &Path, data: &Path, number: usize) -> anyhow::Result<()> {
        let socket = folder.join("gateway.sock");
        let child = Serving::start(Child::Gateway, data, &socket, Duration::ZERO).await?;
        self.start_ups.add(child.start_up);
        let client = Client::connect(&socket);
        for _ in 0..50 {
            let began = Instant::now();
            let mut page = client.list().page_size(PAGE).stream();
            let mut listed = 0;
            while listed < number.min(PAGE as usize) && page.try_next().await?.is_some() {
                listed += 1;
            }
            self.pages.add(began.elapsed());
            ensure!(
                listed == number.min(PAGE as usize),
                "{listed} of a page are there"
            );
        }
        self.mib
            .add_ms(child.resident_bytes()? as f64 / f64::from(1 << 20));
        child.end().await
    }
}
