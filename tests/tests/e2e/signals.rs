//! Signals to the command while nobody answers it, and while what it asked for takes its time.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context, ensure};
use overwinter_tests::Gateway;
use overwinter_tests::compute::Compute;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Child;

use crate::{STUCK, with_sandbox};

/// By then a client that will wait does.
const WAITS: Duration = Duration::from_millis(500);

fn send(pid: u32, signal: Signal) -> anyhow::Result<()> {
    let pid = Pid::from_raw(i32::try_from(pid)?).context("no pid")?;
    Ok(kill_process(pid, signal)?)
}

/// As a shell has it.
fn code(status: ExitStatus) -> Option<i32> {
    status.code().or(status.signal().map(|signal| 128 + signal))
}

/// Sends signals to a client that waits, and answers with what it said.
async fn ends(mut child: Child, signals: &[Signal]) -> anyhow::Result<String> {
    for signal in signals {
        tokio::time::sleep(WAITS).await;
        ensure!(child.try_wait()?.is_none(), "it has ended by itself");
        send(child.id().context("it has ended")?, *signal)?;
    }
    let ended = tokio::time::timeout(STUCK, child.wait_with_output()).await;
    let ended = ended.with_context(|| format!("{signals:?} do not end it"))??;
    let last = signals.last().context("no signal")?;
    ensure!(
        code(ended.status) == Some(128 + last.as_raw()),
        "{signals:?}: {ended:?}"
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

async fn look(gateway: &Gateway, live: Child) -> anyhow::Result<()> {
    // Not started yet: one is enough.
    for signal in [Signal::TERM, Signal::HUP, Signal::INT] {
        let exec = ["sandbox", "exec", "box", "--", "true"];
        let said = ends(gateway.cli(exec)?.spawn()?, &[signal]).await?;
        ensure!(said.contains("before it had started"), "{said}");
        let connect = ["sandbox", "connect", "box"];
        ends(gateway.cli(connect)?.spawn()?, &[signal]).await?;
    }
    // Started: it may be on its way, until somebody insists.
    let said = ends(live, &[Signal::TERM; 3]).await?;
    ensure!(said.contains("left it running, as "), "{said}");
    Ok(())
}

#[tokio::test]
async fn a_verb_that_is_interrupted_names_the_operation_that_goes_on() -> anyhow::Result<()> {
    let (gateway, _) = with_sandbox("box").await?;
    let update = ["sandbox", "update", "box", "--pre-suspend-hook", "sleep 3"];
    gateway.say(update).await?.well()?;
    let suspend = ["sandbox", "suspend", "box", "--depth", "freeze"];
    let said = ends(gateway.cli(suspend)?.spawn()?, &[Signal::INT]).await?;
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
