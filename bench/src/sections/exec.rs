//! `true` from a connected client, beside `runc exec` in an equivalent container; one after the other.

use std::time::Instant;

use overwinter_client::Client;

use super::{Plan, run_true};
use crate::bare::Bare;
use crate::host::Host;
use crate::report::{Bound, Report, Row};
use crate::stats::Samples;

const WARM_UP: usize = 5;

pub(super) async fn measure(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let host = Host::start(&plan.folder).await?;
    let client = host.client();
    let id = host.create(&client, "exec").await?;
    let folder = host.folder().join("bare");
    let bare = Bare::like(&host.sandbox_folder(&id)?, &host.image.root, folder)?;
    bare.bring_up()?;
    let (mut ran, mut streamed, mut bares) =
        (Samples::default(), Samples::default(), Samples::default());
    for round in 0..plan.rounds(300) + WARM_UP {
        let began = Instant::now();
        run_true(&client, &id).await?;
        let one = began.elapsed();
        let bared = bare.exec()?;
        let began = Instant::now();
        stream_true(&client, &id).await?;
        let two = began.elapsed();
        if round >= WARM_UP {
            ran.add(one);
            bares.add(bared);
            streamed.add(two);
        }
    }
    drop(bare);
    report.add(
        Row::timed("exec true (RunProcess)", &ran)
            .beside("runc exec", &bares)
            .bound(Bound::P50AtMost(5.0)),
    );
    report.add(
        Row::timed("exec true (stream)", &streamed)
            .beside("runc exec", &bares)
            .bound(Bound::P50AtMost(5.0)),
    );
    host.end().await
}

async fn stream_true(client: &Client, id: &str) -> anyhow::Result<()> {
    let mut exec = client.command(id, ["/bin/true"]).exec().await?;
    let exit = exec.wait().await?;
    anyhow::ensure!(exit.code == 0, "`true` ended with {}", exit.code);
    Ok(())
}
