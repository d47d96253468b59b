//! A gateway that is asked to end while something runs, and asked again.

use std::time::Duration;

use anyhow::{Context, ensure};
use overwinter_client::{Depth, Outcome, Phase};
use overwinter_tests::Gateway;
use rustix::process::{Pid, Signal, kill_process};

use crate::{STUCK, with_sandbox};

/// Longer than anything is waited for here.
const HOOK: &str = "sleep 600";

fn send(gateway: &Gateway, signal: Signal) -> anyhow::Result<()> {
    let pid = gateway.pid().context("no gateway runs")?;
    let pid = Pid::from_raw(i32::try_from(pid)?).context("no pid")?;
    Ok(kill_process(pid, signal)?)
}

/// Waits until its log has this.
async fn says(gateway: &Gateway, words: &str) -> anyhow::Result<()> {
    let said = tokio::time::timeout(STUCK, async {
        // Its log is looked at until then: a test's own way.
        while !gateway.log_tail().contains(words) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    let said = said.await;
    said.with_context(|| format!("no {words:?} in:\n{}", gateway.log_tail()))
}

#[tokio::test]
async fn asked_once_it_says_what_it_waits_for_and_asked_again_it_waits_no_more()
-> anyhow::Result<()> {
    for signal in [Signal::INT, Signal::TERM] {
        let (mut gateway, client) = with_sandbox("box").await?;
        let update = ["sandbox", "update", "box", "--hook-timeout", "700s"];
        let update = [&update[..], &["--pre-suspend-hook", HOOK]].concat();
        gateway.say(update).await?.well()?;
        let accepted = client.suspend("box").depth(Depth::Freeze).accept().await?;
        let operation = accepted.operation().context("nothing to do")?;
        let mut watch = client.watch(Some("box".into()), 0).await?;
        let hook = watch.until(|sandbox| sandbox.phase() == Phase::Suspending);
        hook.await?.context("the watch ended")?;
        drop(watch);

        send(&gateway, signal)?;
        says(&gateway, "stopping: waiting for what runs").await?;
        ensure!(
            gateway.log_tail().contains("asked once more"),
            "it does not say how to end it"
        );
        send(&gateway, signal)?;
        let status = gateway.ended(STUCK).await?;
        ensure!(
            status.code() == Some(128 + signal.as_raw()),
            "{signal:?}: {status}"
        );

        // As after a crash: the operation is there, and goes on until it is turned back.
        gateway.run().await?;
        let client = gateway.client();
        ensure!(client.get("box").await?.phase() == Phase::Suspending);
        client.resume("box").wait().await?;
        let ended = client.wait_operation(operation.id(), Some(STUCK)).await?;
        ensure!(
            matches!(ended.outcome(), Some(Outcome::TurnedBack { .. })),
            "{ended:?}"
        );
        ensure!(client.get("box").await?.phase() == Phase::Ready);
        gateway.end().await?;
    }
    Ok(())
}

#[tokio::test]
async fn with_nothing_to_wait_for_it_ends_at_once_and_well() -> anyhow::Result<()> {
    let mut gateway = Gateway::start().await?;
    gateway.stop().await?;
    ensure!(gateway.log_tail().contains("stopping: nothing runs"));
    gateway.end().await
}
