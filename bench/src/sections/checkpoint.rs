//! Memory on disk, through the gateway, beside gVisor's own commands on a container with the same memory.
//!
//! The memory is one buffer of a process, and dirty: 16 MiB of noise and 16 MiB of a program in turns.
//! None of it is zeros, which would cost nothing, and noise does not pack. Gateway and runtime take turns,
//! and the one stands still or is on disk while the other is measured.
//!
//! The gateway's checkpoint is synced, encrypted and authenticated; the runtime's is none of these. Both
//! pack: gVisor by its default, which is what who types the command gets. The sync of the storage that the
//! memory lies over is apart.

use std::path::Path;
use std::time::Instant;

use anyhow::Context;
use overwinter_client::Depth;

use super::stop::sync_ms;
use super::{Plan, run_true};
use crate::gvisor::{self, Gvisor};
use crate::host::Host;
use crate::memory::{self, Then};
use crate::report::{Bound, Report, Row};
use crate::stats::{Samples, Steps};

/// In MiB, with full rounds. The largest takes twice as much memory while it is written.
const SIZES: [(u32, usize); 3] = [(64, 6), (512, 3), (2048, 1)];

#[derive(Default)]
struct Taken {
    checkpoints: Samples,
    syncs: Samples,
    resumes: Samples,
    bare_checkpoints: Samples,
    bare_restores: Samples,
    down: Steps,
    up: Steps,
    packed: u64,
    bare_packed: u64,
    remarks: String,
}

pub(super) async fn measure(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    if !gvisor::is_there() {
        eprintln!("checkpoint: NOT MEASURED: runsc is not installed (make setup)");
        return Ok(());
    }
    // A look leaves out what takes minutes to be filled.
    let sizes = if plan.quick { &SIZES[..2] } else { &SIZES[..] };
    for (mib, rounds) in sizes {
        let host = Host::start(&plan.folder).await?;
        let folder = host.folder().join("bare");
        let rounds = plan.rounds(*rounds);
        let taken = one(&host, &folder, *mib, rounds).await?;
        host.end().await?;
        add(plan, report, *mib, &taken);
    }
    Ok(())
}

async fn one(host: &Host, folder: &Path, mib: u32, rounds: usize) -> anyhow::Result<Taken> {
    let client = host.client();
    let script = memory::held(mib, Then::Tick);
    let create = client.create().name("memory").runtime("runsc");
    let create = create.image(host.image.name());
    let id = create.wait().await?.sandbox.id().to_owned();
    memory::run(&client, &id, &script).await?;
    let script = format!("{script}; wait");
    let mut bare = Gvisor::new(&host.image.root, folder.to_owned(), &script)?;
    let freeze = client.suspend(id.as_str()).depth(Depth::Freeze);
    freeze.wait().await?;
    bare.start()?;
    client.resume(id.as_str()).wait().await?;
    let mut taken = Taken::default();
    for _ in 0..rounds {
        bare.pause()?;
        let began = Instant::now();
        let suspend = client.suspend(id.as_str()).depth(Depth::Checkpoint);
        let done = suspend.wait().await?;
        let took = began.elapsed().as_secs_f64() * 1e3;
        let operation = done.operation.as_ref().context("there was nothing to do")?;
        let sync = sync_ms(operation).context("the driver did not say how long the sync took")?;
        taken.checkpoints.add_ms(took - sync);
        taken.syncs.add_ms(sync);
        taken.down.add(done.operation.as_ref());
        let retained = done.sandbox.raw().retained.as_option();
        taken.packed = retained.map_or(0, |retained| retained.size_bytes);

        let remarks = done.operation.iter().flat_map(|it| it.remarks());
        taken.remarks = remarks.cloned().collect::<Vec<_>>().join(" ");

        bare.resume()?;
        taken.bare_checkpoints.add(bare.checkpoint()?);
        taken.bare_packed = bare.written()?;

        let began = Instant::now();
        let done = client.resume(id.as_str()).wait().await?;
        run_true(&client, &id).await?;
        taken.resumes.add(began.elapsed());
        taken.up.add(done.operation.as_ref());

        let freeze = client.suspend(id.as_str()).depth(Depth::Freeze);
        freeze.wait().await?;
        taken.bare_restores.add(bare.restore()?);
        client.resume(id.as_str()).wait().await?;
    }
    Ok(taken)
}

fn add(plan: &Plan, report: &mut Report, mib: u32, taken: &Taken) {
    let (packed, bare) = (taken.packed >> 20, taken.bare_packed >> 20);
    let mut note = format!("{packed} MiB on disk, by runsc {bare}; {}", taken.remarks);
    if plan.steps {
        note.push_str("; ");
        note.push_str(&plan.note(&taken.down));
    }
    report.add(
        Row::timed(
            format!("checkpoint: {mib} MiB, without the sync"),
            &taken.checkpoints,
        )
        .beside("runsc checkpoint", &taken.bare_checkpoints)
        .bound(Bound::RatioAtMost(1.2))
        .note(note),
    );
    report.add(Row::timed(
        format!("checkpoint: {mib} MiB, storage sync"),
        &taken.syncs,
    ));
    let what = format!("checkpoint: {mib} MiB, resume until an exec has answered");
    report.add(
        Row::timed(what, &taken.resumes)
            .beside("runsc create + restore until it runs", &taken.bare_restores)
            .bound(Bound::RatioAtMost(1.2))
            .note(plan.note(&taken.up)),
    );
}
