//! Signals to the command while nobody answers it, and while what it asked for takes its time.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context, ensure};
use overwinter_client::Phase;
use overwinter_tests::Gateway;
use overwinter_tests::compute::Compute;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Child;

use crate::{STUCK, until, with_sandbox};

fn send(pid: u32, signal: Signal) -> anyhow::Result<()> {
    let pid = Pid::from_raw(i32::try_from(pid)?).context("no pid")?;
    Ok(kill_process(pid, signal)?)
}

/// As a shell has it.
fn code(status: ExitStatus) -> Option<i32> {
    status.code().or(status.signal().map(|signal| 128 + signal))
}

/// Waits until the client takes this signal itself: before, the kernel ends it.
async fn takes(child: &Child, signal: Signal) -> anyhow::Result<()> {
    let status = format!("/proc/{}/status", child.id().context("it has ended")?);
    let caught = || {
        let status = std::fs::read_to_string(&status).unwrap_or_default();
        let mask = status.lines().find_map(|it| it.strip_prefix("SigCgt:"));
        let mask = mask.and_then(|it| u64::from_str_radix(it.trim(), 16).ok());
        mask.is_some_and(|mask| mask & (1 << (signal.as_raw() - 1)) != 0)
    };
    let taken = async {
        // Nothing tells of it.
        while !caught() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let taken = tokio::time::timeout(STUCK, taken).await;
    taken.context("it never takes the signal")
}

/// Waits for the end of a client that was sent this signal, and answers with what it said.
async fn ends(child: Child, signal: Signal) -> anyhow::Result<String> {
    let ended = tokio::time::timeout(STUCK, child.wait_with_output()).await;
    let ended = ended.with_context(|| format!("{signal:?} does not end it"))??;
    ensure!(
        code(ended.status) == Some(128 + signal.as_raw()),
        "{signal:?}: {ended:?}"
    );
    Ok(String::from_utf8(ended.stderr)?)
}

#[tokio::test]
async fn a_supervisor_that_does_not_answer_keeps_no_client() -> anyhow::Result<()> {
    let (gateway, client) = with_sandbox("box").await?;
    let supervisor = Compute::of(client.get("box").await?.id())?.pid;
    let supervisor = u32::try_from(supervisor)?;
    let exec = ["sandbox", "exec", "box", "--"];
    let long = [&exec[..], &["sh", "-c", "echo up; exec sleep 600"]].concat();
    let mut live = gateway.cli(long)?.spawn()?;
    let mut up = String::new();
    let stdout = live.stdout.take().context("no stdout")?;
    BufReader::new(stdout).read_line(&mut up).await?;

    send(supervisor, Signal::STOP)?;
    let looked = look(&gateway, live).await;
    send(supervisor, Signal::CONT)?;
    looked?;
    gateway.end().await
}

async fn look(gateway: &Gateway, mut live: Child) -> anyhow::Result<()> {
    // Not started yet: one is enough.
    for signal in [Signal::TERM, Signal::HUP, Signal::INT] {
        let exec = ["sandbox", "exec", "box", "--", "true"];
        let child = gateway.cli(exec)?.spawn()?;
        takes(&child, signal).await?;
        send(child.id().context("it has ended")?, signal)?;
        let said = ends(child, signal).await?;
        ensure!(said.contains("before it had started"), "{said}");
        // It asks for a shell first, and takes none while it does.
        let child = gateway.cli(["sandbox", "connect", "box"])?.spawn()?;
        send(child.id().context("it has ended")?, signal)?;
        ends(child, signal).await?;
    }
    // Started: it may be on its way, until somebody insists.
    let mut insisted = 0;
    let left = async {
        while live.try_wait()?.is_none() {
            send(live.id().context("it has ended")?, Signal::TERM)?;
            insisted += 1;
            // Two that come together are one to it.
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        anyhow::Ok(())
    };
    let left = tokio::time::timeout(STUCK, left).await;
    left.context("nothing ends it")??;
    ensure!(insisted >= 3, "it was left after {insisted}");
    let said = ends(live, Signal::TERM).await?;
    ensure!(said.contains("left it running, as "), "{said}");
    Ok(())
}

#[tokio::test]
async fn a_verb_that_is_interrupted_names_the_operation_that_goes_on() -> anyhow::Result<()> {
    let (gateway, client) = with_sandbox("box").await?;
    let update = ["sandbox", "update", "box", "--pre-suspend-hook", "sleep 3"];
    gateway.say(update).await?.well()?;
    let suspend = ["sandbox", "suspend", "box", "--depth", "freeze"];
    let child = gateway.cli(suspend)?.spawn()?;
    until(&client, "box", Phase::Suspending).await?;
    send(child.id().context("it has ended")?, Signal::INT)?;
    let said = ends(child, Signal::INT).await?;
    let wait = said.trim().rsplit_once("overwinter ");
    let wait = wait.with_context(|| said.clone())?.1;
    ensure!(said.lines().count() == 1, "{said}");
    let followed = gateway.say(wait.split(' ')).await?.well()?;
    ensure!(
        followed.contains("suspend") && followed.contains("succeeded"),
        "{followed}"
    );
    gateway.end().await
}
