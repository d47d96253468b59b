//! Clients that are killed in the middle of every call: the gateway carries on, and nothing is stuck.

use std::time::Duration;

use anyhow::{Context, ensure};
use overwinter_client::{Client, Code, Phase};
use overwinter_tests::Gateway;

use crate::{STUCK, settled, sh, with_sandbox};

/// When a client is killed, after it was started: before it speaks, while it waits, at its end.
const MOMENTS: [u64; 7] = [5, 15, 25, 40, 60, 100, 200];

/// Starts the command and kills it after so many milliseconds, or finds that it has ended.
async fn killed(gateway: &Gateway, arguments: &[&str], after: u64) -> anyhow::Result<()> {
    let mut child = gateway.cli(arguments)?.spawn()?;
    if tokio::time::timeout(Duration::from_millis(after), child.wait())
        .await
        .is_err()
    {
        child.start_kill()?;
        child.wait().await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_verb_is_completed_when_its_client_is_killed() -> anyhow::Result<()> {
    let gateway = Gateway::start().await?;
    let client = gateway.client();
    let image = gateway.image.name();
    let mut made = 0;
    for (n, after) in MOMENTS.into_iter().enumerate() {
        killed(
            &gateway,
            &["sandbox", "create", &format!("box-{n}"), "--image", &image],
            after,
        )
        .await?;
        made += usize::from(client.get(format!("box-{n}")).await.is_ok());
    }
    let sandboxes = settled(&client).await?;
    // One may have been accepted just after it was looked for.
    ensure!(
        sandboxes.len() >= made && made > 0,
        "{made} were accepted: {sandboxes:?}"
    );
    ensure!(
        sandboxes
            .iter()
            .all(|sandbox| sandbox.phase() == Phase::Ready),
        "{sandboxes:?}"
    );
    client.create().name("box").image(&image).wait().await?;
    for depth in ["freeze", "stop"] {
        for after in MOMENTS {
            killed(
                &gateway,
                &["sandbox", "suspend", "box", "--depth", depth],
                after,
            )
            .await?;
            settled(&client).await?;
            killed(&gateway, &["sandbox", "resume", "box"], after).await?;
            settled(&client).await?;
            killed(
                &gateway,
                &["sandbox", "suspend", "box", "--depth", depth],
                after,
            )
            .await?;
            killed(&gateway, &["sandbox", "start", "box"], after).await?;
            settled(&client).await?;
        }
    }
    client.resume("box").wait().await?;
    // Those that only look or wait leave nothing behind either.
    for call in [
        &["sandbox", "wait", "box", "--for", "failed"][..],
        &["sandbox", "list"],
        &["process", "list", "box"],
        &["sandbox", "connect", "box"],
        &["gateway", "status"],
    ] {
        for after in [10, 40] {
            killed(&gateway, call, after).await?;
        }
    }
    ensure!(sh(&client, "box", "echo well").await? == "well\n");
    for (sandbox, after) in sandboxes.iter().zip(MOMENTS) {
        killed(&gateway, &["sandbox", "delete", sandbox.name()], after).await?;
    }
    // A delete was carried out as a whole, or was never asked for.
    for sandbox in &sandboxes {
        match client.get(sandbox.name()).await {
            Err(error) => ensure!(error.code() == Code::NotFound, "{error:?}"),
            Ok(found) if found.phase() == Phase::Deleting => gone(&client, &found).await?,
            Ok(found) => ensure!(found.phase() == Phase::Ready, "{found:?}"),
        }
    }
    gateway.end().await
}

async fn gone(client: &Client, sandbox: &overwinter_client::Sandbox) -> anyhow::Result<()> {
    let mut watch = client.watch(Some(sandbox.into()), 0).await?;
    let seen = watch.until(|sandbox| sandbox.phase() == Phase::Tombstone);
    tokio::time::timeout(STUCK, seen)
        .await
        .context("the delete is stuck")??;
    Ok(())
}

#[tokio::test]
async fn a_program_runs_on_when_its_client_is_killed() -> anyhow::Result<()> {
    let (gateway, client) = with_sandbox("box").await?;
    for after in MOMENTS {
        sh(&client, "box", "rm -f /workspace/began /workspace/ended").await?;
        let script = "echo > began; usleep 300000; echo > ended";
        killed(
            &gateway,
            &["sandbox", "exec", "box", "--", "sh", "-c", script],
            after,
        )
        .await?;
        let seen = "[ ! -e began ] || { n=0; while [ ! -e ended ] && [ $n -lt 500 ]; do usleep 10000; n=$((n+1)); done; cat ended; }";
        sh(&client, "box", seen).await?;
    }
    // One whose output nobody takes any more is not in the way of a suspend, nor of others.
    killed(&gateway, &["sandbox", "exec", "box", "--", "yes"], 150).await?;
    client.suspend("box").wait().await?;
    client.resume("box").wait().await?;
    ensure!(sh(&client, "box", "echo well").await? == "well\n");
    let processes = client.processes("box").await?;
    ensure!(
        processes.iter().all(|process| !process.running),
        "{processes:?}"
    );
    gateway.end().await
}

#[tokio::test]
async fn a_copy_is_whole_or_not_there_when_its_client_is_killed() -> anyhow::Result<()> {
    let (gateway, client) = with_sandbox("box").await?;
    let size: u64 = 48 << 20;
    let source = gateway.folder().join("source");
    std::fs::write(&source, vec![3; usize::try_from(size)?])?;
    let source = source.display().to_string();
    sh(&client, "box", "echo old > /workspace/file").await?;
    let mut kept = 0;
    for after in MOMENTS {
        killed(
            &gateway,
            &["sandbox", "cp", &source, "box:/workspace/file"],
            after,
        )
        .await?;
        let now = client.files("box").stat("/workspace/file").await?.size;
        ensure!(now == 4 || now == size, "{now} bytes are there");
        kept += usize::from(now == 4);
        sh(&client, "box", "echo old > /workspace/file").await?;
    }
    ensure!(kept > 0, "none was killed in time");
    // Nothing half-written lies about.
    let names = sh(&client, "box", "ls -A /workspace").await?;
    ensure!(names == "file\n", "{names}");
    gateway
        .say(["sandbox", "cp", &source, "box:/workspace/file"])
        .await?
        .well()?;
    let target = gateway.folder().join("target").display().to_string();
    for after in MOMENTS {
        killed(
            &gateway,
            &["sandbox", "cp", "box:/workspace/file", &target],
            after,
        )
        .await?;
    }
    // Neither kind of stream is left open: they would keep it awake.
    client.suspend("box").wait().await?;
    client.resume("box").wait().await?;
    gateway
        .say(["sandbox", "cp", "box:/workspace/file", &target])
        .await?
        .well()?;
    ensure!(std::fs::metadata(&target)?.len() == size);
    gateway.end().await
}
