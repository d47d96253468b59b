//! A freeze that gives 512 MiB back to swap on zram, beside a bare loop of `process_madvise` over a
//! stopped process that holds the same; and the way back, as it is used and with prefetch.
//!
//! Half of the memory is noise and half of it programs, filled anew each round, since what was swapped once
//! and only read is dropped the next time and costs nothing. They take turns.

use std::time::Instant;

use anyhow::Context;
use overwinter_client::{Client, Depth};
use overwinter_tests::zram::{self, Zram};

use super::{Plan, run_true};
use crate::host::Host;
use crate::memory::{self, Then};
use crate::pageout::Holder;
use crate::report::{Bound, Report, Row};
use crate::stats::Samples;

const MIB: u32 = 512;
/// Reads all of it, and ends with that.
const TOUCH: &str = "cd /workspace; echo > touch; until [ -e touched ]; do usleep 500; done";

#[derive(Default)]
struct Taken {
    freezes: Samples,
    /// In MiB a second.
    moved: Samples,
    bare: Samples,
    kept: Way,
    cold: Way,
    prefetched: Way,
    swapped: u64,
    freed: u64,
}

/// Of one way back.
#[derive(Default)]
struct Way {
    resumes: Samples,
    touches: Samples,
}

pub(super) async fn measure(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    if let Some(why) = zram::missing() {
        eprintln!("reclaim: NOT MEASURED: {why}");
        return Ok(());
    }
    let swap = Zram::new(3 << 30)?;
    let host = Host::start(&plan.folder).await?;
    let client = host.client();
    let id = host.create(&client, "memory").await?;
    let mut taken = Taken::default();
    for _ in 0..plan.rounds(10) {
        memory::run(&client, &id, &memory::held(MIB, Then::Touch)).await?;
        client
            .suspend(id.as_str())
            .depth(Depth::Freeze)
            .wait()
            .await?;
        back(&client, &id, false, &mut taken.kept).await?;
        for prefetch in [false, true] {
            memory::run(&client, &id, &memory::held(MIB, Then::Touch)).await?;
            one(&client, &id, prefetch, &mut taken).await?;
            let holder = Holder::start(MIB)?;
            let took = holder.page_out()?;
            let bytes = holder.swapped()?;
            taken.bare.add_ms(rate(bytes, took.as_secs_f64()));
        }
    }
    host.end().await?;
    drop(swap);
    add(report, &taken);
    Ok(())
}

async fn one(client: &Client, id: &str, prefetch: bool, taken: &mut Taken) -> anyhow::Result<()> {
    let began = Instant::now();
    let suspend = client.suspend(id).depth(Depth::Freeze).reclaim(true);
    let done = suspend.wait().await?;
    taken.freezes.add(began.elapsed());
    let operation = done.operation.as_ref().context("there was nothing to do")?;
    let words: Vec<_> = (operation.remarks().iter())
        .flat_map(|remark| remark.split(' '))
        .collect();
    let said = |name: &str, unit: &str| -> Option<f64> {
        let mut said = words.iter().filter_map(|word| word.strip_prefix(name));
        said.next()?.strip_suffix(unit)?.parse().ok()
    };
    let told = (
        said("swapped=", "B"),
        said("reclaim=", "ms"),
        said("freed=", "B"),
    );
    let (Some(swapped), Some(took), Some(freed)) = told else {
        anyhow::bail!("it does not say how much was moved: {words:?}");
    };
    (taken.swapped, taken.freed) = (swapped as u64, freed as u64);
    taken.moved.add_ms(rate(taken.swapped, took / 1e3));
    let way = if prefetch {
        &mut taken.prefetched
    } else {
        &mut taken.cold
    };
    back(client, id, prefetch, way).await
}

async fn back(client: &Client, id: &str, prefetch: bool, way: &mut Way) -> anyhow::Result<()> {
    let began = Instant::now();
    client.resume(id).prefetch(prefetch).wait().await?;
    run_true(client, id).await?;
    way.resumes.add(began.elapsed());
    let began = Instant::now();
    memory::run(client, id, TOUCH).await?;
    way.touches.add(began.elapsed());
    Ok(())
}

/// MiB a second.
fn rate(bytes: u64, seconds: f64) -> f64 {
    bytes as f64 / f64::from(1 << 20) / seconds
}

fn add(report: &mut Report, taken: &Taken) {
    let note = format!(
        "{} MiB moved, {} MiB of it for others",
        taken.swapped >> 20,
        taken.freed >> 20
    );
    report.add(
        Row::value("reclaim: memory moved to zram", "MiB/s", taken.moved.p50())
            .beside_value("process_madvise", taken.bare.p50())
            .bound(Bound::RatioAtLeast(0.9))
            .note(note),
    );
    let what = format!("reclaim: freeze of {MIB} MiB");
    report.add(Row::timed(what, &taken.freezes));
    for (name, way) in [
        ("nothing given back", &taken.kept),
        ("as it is used", &taken.cold),
        ("with prefetch", &taken.prefetched),
    ] {
        let what = format!("reclaim: resume until an exec has answered, {name}");
        report.add(Row::timed(what, &way.resumes));
        let what = format!("reclaim: then all of it is read, {name}");
        report.add(Row::timed(what, &way.touches));
    }
}
