//! Memory on disk, as a user meets it: gVisor by one option, the gateway killed in between, and a
//! resume that says what it brings back or why it cannot.

use std::os::unix::fs::FileExt;

use anyhow::{Context, ensure};
use overwinter_client::{Client, Phase};
use overwinter_tests::Gateway;
use overwinter_tests::compute::Compute;
use serde_json::Value;

use crate::host_image::runtimes;
use crate::{below, settled, sh};

/// Counts in memory alone; a question is answered by way of two files.
const COUNT: &str = "n=0; while :; do n=$((n+1)); if [ -e /workspace/ask ]; then \
    echo $n > /workspace/answer; rm /workspace/ask; fi; sleep 0.02; done";
const ASK: &str = "touch /workspace/ask; while [ -e /workspace/ask ]; do sleep 0.02; done; \
    cat /workspace/answer";

async fn count(client: &Client) -> anyhow::Result<u64> {
    Ok(sh(client, "box", ASK).await?.trim().parse()?)
}

async fn suspend(gateway: &Gateway, depth: &str) -> anyhow::Result<()> {
    let suspend = ["sandbox", "suspend", "box", "--depth", depth];
    gateway.say(suspend).await?.well().map(drop)
}

/// What `sandbox get` says is retained.
async fn retained(gateway: &Gateway) -> anyhow::Result<Value> {
    let said = gateway.say(["sandbox", "get", "box", "-o", "json"]).await?;
    let sandbox: Value = serde_json::from_str(&said.well()?)?;
    Ok(sandbox["retained"].clone())
}

#[tokio::test]
async fn memory_goes_to_disk_and_comes_back_or_says_why_not() -> anyhow::Result<()> {
    if !runtimes()?.contains(&"runsc") {
        return Ok(());
    }
    let mut gateway = Gateway::start().await?;
    let image = gateway.image.name();
    let create = ["sandbox", "create", "box", "--runtime", "runsc"];
    gateway
        .say(create.iter().chain(&["--image", &image]))
        .await?
        .well()?;
    let client = gateway.client();
    let id = client.get("box").await?.id().to_owned();
    client.command("box", ["sh", "-c", COUNT]).start().await?;
    let first = count(&client).await?;

    // From Ready, and from a freeze without waking.
    let mut last = first;
    for by_way_of in [None, Some("freeze")] {
        if let Some(depth) = by_way_of {
            suspend(&gateway, depth).await?;
        }
        suspend(&gateway, "checkpoint").await?;
        ensure!(Compute::of(&id).is_err(), "its compute is left");
        let kept = retained(&gateway).await?;
        ensure!(kept["depth"] == "DEPTH_CHECKPOINT", "{kept}");
        let size: u64 = kept["sizeBytes"].as_str().context("no size")?.parse()?;
        ensure!(size > 64 << 10, "{kept}");
        gateway.kill().await?;
        gateway.run().await?;
        let resumed = gateway.say(["sandbox", "resume", "box"]).await?.well()?;
        ensure!(resumed.contains("memory"), "{resumed}");
        // The same process goes on from where it was.
        let now = count(&gateway.client()).await?;
        ensure!(now > last, "{now} after {last}");
        last = now;
    }

    // One that is damaged is not taken for another: asleep, named, and started only on request.
    let client = gateway.client();
    sh(
        &client,
        "box",
        "echo kept > /workspace/note; echo kept > /note",
    )
    .await?;
    suspend(&gateway, "checkpoint").await?;
    let artifact = below(&gateway.data_dir(), "image").context("no artifact")?;
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .open(&artifact)?;
    let middle = file.metadata()?.len() / 2;
    let mut byte = [0];
    file.read_exact_at(&mut byte, middle)?;
    file.write_all_at(&[byte[0] ^ 1], middle)?;
    let said = gateway.say(["sandbox", "resume", "box"]).await?;
    said.refused("ARTIFACT_DAMAGED", "damaged")?;
    ensure!(client.get("box").await?.phase() == Phase::Suspended);
    let cold = ["sandbox", "resume", "box", "--restart-if-restore-fails"];
    let resumed = gateway.say(cold).await?.well()?;
    ensure!(resumed.contains("storage"), "{resumed}");
    ensure!(sh(&client, "box", "cat /workspace/note /note").await? == "kept\nkept\n");
    let left = client.processes("box").await?;
    ensure!(!left.iter().any(|process| process.running), "{left:?}");

    gateway.say(["sandbox", "delete", "box"]).await?.well()?;
    ensure!(
        below(&gateway.data_dir(), "image").is_none(),
        "memory is left"
    );
    ensure!(
        below(&gateway.data_dir(), "key").is_none(),
        "its key is left"
    );
    ensure!(settled(&client).await?.is_empty());
    gateway.end().await
}

#[tokio::test]
async fn a_runtime_that_writes_no_memory_is_listed_so_and_its_sandbox_runs_on() -> anyhow::Result<()>
{
    if !runtimes()?.contains(&"runsc") {
        return Ok(());
    }
    let gateway = Gateway::start().await?;
    let listed = gateway.say(["driver", "list"]).await?.well()?;
    let on_runc = |line: &&str| line.contains("checkpoint on runc");
    let row = listed.lines().find(on_runc).context("it is not listed")?;
    ensure!(
        row.contains("no: its runtime does not write memory"),
        "{row}"
    );
    ensure!(!listed.contains("checkpoint on runsc"), "{listed}");

    let image = gateway.image.name();
    let create = ["sandbox", "create", "box", "--runtime", "runc", "--image"];
    let create = create.iter().copied().chain([image.as_str()]);
    gateway.say(create).await?.well()?;
    let refused = gateway.say(["sandbox", "suspend", "box", "--depth", "checkpoint"]);
    let refused = refused.await?;
    ensure!(refused.code == 1, "{refused:?}");
    ensure!(refused.err.contains("--runtime runsc"), "{refused:?}");
    ensure!(sh(&gateway.client(), "box", "echo here").await? == "here\n");
    Ok(())
}
