//! Compute that goes away behind the gateway's back: nothing but memory is lost, and it is said.

use std::time::Duration;

use anyhow::{Context, ensure};
use overwinter_client::raw::ExitCause::{EXIT_CAUSE_LOST, EXIT_CAUSE_OWN};
use overwinter_client::{Achieved, Client, Code, Depth, ExitCause, Phase, Policy, raw};
use overwinter_tests::Gateway;
use overwinter_tests::compute::Compute;

use crate::{STUCK, create, read, refused, sh, suspend, until, with_sandbox};

const NOTE: &str = "echo kept > /workspace/note; echo root > /root/note; sync";

fn ended_as(process: &raw::ProcessInfo, cause: raw::ExitCause) -> bool {
    let exit = process.exit.as_option();
    !process.running && exit.is_some_and(|exit| exit.cause == cause)
}

async fn check_notes(client: &Client, name: &str) -> anyhow::Result<()> {
    ensure!(read(client, name, "/workspace/note").await? == b"kept\n");
    ensure!(read(client, name, "/root/note").await? == b"root\n");
    Ok(())
}

#[tokio::test]
async fn a_supervisor_killed_from_the_host_is_compute_lost_and_resume_brings_the_storage()
-> anyhow::Result<()> {
    let (gateway, client) = with_sandbox("box").await?;
    sh(&client, "box", NOTE).await?;
    let mut exec = client.command("box", ["sleep", "600"]).exec().await?;
    let id = client.get("box").await?.id().to_owned();
    Compute::of(&id)?.kill()?;
    let failed = until(&client, "box", Phase::Failed).await?;
    ensure!(
        failed.failure() == Some("COMPUTE_LOST"),
        "{:?}",
        failed.failure()
    );
    let said = gateway
        .say(["sandbox", "exec", "box", "--", "true"])
        .await?;
    said.refused("SANDBOX_FAILED", "failed")?;
    let said = gateway.say(["sandbox", "get", "box"]).await?.well()?;
    ensure!(said.contains("COMPUTE_LOST"), "{said}");
    ensure!(Compute::of(&id).is_err(), "something of it is still there");

    let process = exec.process_id().to_owned();
    let done = client.resume("box").wait().await?;
    ensure!(done.achieved == Achieved::Storage, "{:?}", done.achieved);
    ensure!(
        done.sandbox.failure().is_none(),
        "{:?}",
        done.sandbox.failure()
    );
    check_notes(&client, "box").await?;
    // What ran is known to be lost; it is not passed off as an exit.
    if let Ok(exit) = exec.wait().await {
        ensure!(exit.cause == ExitCause::Lost, "{exit:?}");
    }
    let process = client.process("box", &process).await?;
    ensure!(ended_as(&process, EXIT_CAUSE_LOST), "{process:?}");
    gateway.end().await
}

#[tokio::test]
async fn memory_lost_while_frozen_is_said_and_start_or_a_fallback_wake_the_storage()
-> anyhow::Result<()> {
    let mut gateway = Gateway::start().await?;
    let client = gateway.client();
    let names = ["strict", "fallback", "start", "asleep"];
    for name in names {
        create(&gateway, name).await?;
        sh(&client, name, NOTE).await?;
        suspend(&client, name, Depth::Freeze).await?;
    }
    let mut computes = Vec::new();
    for name in names {
        computes.push(Compute::of(client.get(name).await?.id())?);
    }
    let asleep = computes.pop().context("four were made")?;
    for compute in computes {
        compute.kill()?;
    }
    // While nobody looks.
    gateway.kill().await?;
    asleep.kill()?;
    gateway.run().await?;
    let client = gateway.client();

    for name in ["strict", "asleep"] {
        let error = refused(
            client.resume(name).wait().await,
            Code::FailedPrecondition,
            "RETAINED_LOST",
        )?;
        ensure!(
            error
                .next()
                .is_some_and(|next| next.contains("--restart-if-restore-fails")),
            "{error:?}"
        );
        let lost = client.get(name).await?;
        ensure!(lost.phase() == Phase::Suspended, "{:?}", lost.phase());
        ensure!(
            lost.depth() == Some(Depth::Stop) && lost.lost() == Some(Depth::Freeze),
            "{lost:?}"
        );
    }
    let said = gateway.say(["sandbox", "resume", "strict"]).await?;
    said.refused("RETAINED_LOST", "freeze")?;
    let said = gateway
        .say([
            "sandbox",
            "resume",
            "fallback",
            "--restart-if-restore-fails",
        ])
        .await?;
    ensure!(said.well()?.contains("(storage)"));
    let done = client.start("start").wait().await?;
    ensure!(done.achieved == Achieved::Storage, "{:?}", done.achieved);
    for name in ["strict", "asleep"] {
        let done = client
            .resume(name)
            .restart_if_restore_fails(true)
            .wait()
            .await?;
        ensure!(done.achieved == Achieved::Storage, "{:?}", done.achieved);
    }
    for name in names {
        check_notes(&client, name).await?;
        let now = client.get(name).await?;
        ensure!(now.lost().is_none(), "{now:?}");
    }
    gateway.end().await
}

#[tokio::test]
async fn compute_lost_while_the_gateway_is_down_is_found_when_it_is_back() -> anyhow::Result<()> {
    let (mut gateway, client) = with_sandbox("box").await?;
    sh(&client, "box", NOTE).await?;
    let mut ended = client
        .command("box", ["/bin/sh", "-c", "exit 7"])
        .exec()
        .await?;
    ended.wait().await?;
    let ran = client.command("box", ["sleep", "600"]).exec().await?;
    let (ended, ran) = (ended.process_id().to_owned(), ran.process_id().to_owned());
    // Takes along what was learnt.
    suspend(&client, "box", Depth::Freeze).await?;
    client.resume("box").wait().await?;
    let id = client.get("box").await?.id().to_owned();
    gateway.kill().await?;
    Compute::of(&id)?.kill()?;
    gateway.run().await?;
    let client = gateway.client();
    let failed = until(&client, "box", Phase::Failed).await?;
    ensure!(
        failed.failure() == Some("COMPUTE_LOST"),
        "{:?}",
        failed.failure()
    );
    let process = client.process("box", &ended).await?;
    ensure!(
        ended_as(&process, EXIT_CAUSE_OWN) && process.exit.code == 7,
        "{process:?}"
    );
    let process = client.process("box", &ran).await?;
    ensure!(ended_as(&process, EXIT_CAUSE_LOST), "{process:?}");
    let done = client.resume("box").wait().await?;
    ensure!(done.achieved == Achieved::Storage, "{:?}", done.achieved);
    check_notes(&client, "box").await?;
    gateway.end().await
}

#[tokio::test]
async fn compute_lost_in_a_suspend_while_the_gateway_is_down_is_found_when_that_is_undone()
-> anyhow::Result<()> {
    let (mut gateway, client) = with_sandbox("box").await?;
    sh(&client, "box", NOTE).await?;
    let slow = Policy::new()
        .pre_suspend_hook(["sleep", "600"])
        .hook_timeout(Duration::from_secs(600));
    client.update("box").policy(slow).send().await?;
    let id = client.get("box").await?.id().to_owned();
    let asked = client.suspend("box").depth(Depth::Freeze).accept().await?;
    let operation = asked.operation().context("it has no operation")?;
    gateway.kill().await?;
    Compute::of(&id)?.kill()?;
    gateway.run().await?;
    let client = gateway.client();
    let ended = client.wait_operation(operation.id(), Some(STUCK)).await?;
    ensure!(ended.achieved().is_err(), "{ended:?}");
    // It is not Ready for as long as nobody happens to look.
    let failed = until(&client, "box", Phase::Failed).await?;
    ensure!(
        failed.failure() == Some("COMPUTE_LOST"),
        "{:?}",
        failed.failure()
    );
    let done = client.resume("box").wait().await?;
    ensure!(done.achieved == Achieved::Storage, "{:?}", done.achieved);
    check_notes(&client, "box").await?;
    gateway.end().await
}
