//! Exec streams that outlive what carries them: by offset, with no byte lost or doubled.

use std::time::Duration;

use anyhow::{Context, ensure};
use overwinter_client::{Client, Depth, Exec, ExecEvent, Exit};
use overwinter_tests::Gateway;

use crate::{STUCK, suspend, until, with_sandbox};

/// Counts to the given number on stdout, slowly enough that what it writes while nobody is attached
/// is kept.
fn counter(to: u32) -> String {
    format!(
        "i=0; while [ $i -lt {to} ]; do echo $i; i=$((i+1)); usleep 1000; done; echo end >&2; exit 7"
    )
}

fn counted(to: u32) -> String {
    (0..to).map(|i| format!("{i}\n")).collect()
}

/// What came out of an exec in all.
#[derive(Debug, Default)]
struct Came {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    reattached: u32,
}

/// Reads to the end, in a task, while the test does something to the sandbox.
fn follow(mut exec: Exec) -> tokio::task::JoinHandle<anyhow::Result<(Came, Exit)>> {
    tokio::spawn(async move {
        let mut came = Came::default();
        while let Some(event) = exec.next().await {
            match event {
                ExecEvent::Stdout(data) => came.stdout.extend_from_slice(&data),
                ExecEvent::Stderr(data) => came.stderr.extend_from_slice(&data),
                ExecEvent::Gap { stderr, bytes } => {
                    anyhow::bail!("{bytes} bytes were lost (stderr: {stderr})");
                }
                ExecEvent::Reattached => came.reattached += 1,
                _ => {}
            }
        }
        Ok((came, exec.wait().await?))
    })
}

async fn all_of_it(
    followed: tokio::task::JoinHandle<anyhow::Result<(Came, Exit)>>,
    to: u32,
) -> anyhow::Result<Came> {
    let (came, exit) = tokio::time::timeout(STUCK, followed)
        .await
        .context("the stream is stuck")???;
    ensure!(exit.code == 7, "{exit:?}");
    let stdout = String::from_utf8_lossy(&came.stdout);
    let wrong = stdout
        .lines()
        .enumerate()
        .find(|(i, line)| *line != i.to_string());
    ensure!(
        stdout == counted(to),
        "it differs at {wrong:?}, of {} lines",
        stdout.lines().count()
    );
    ensure!(
        came.stderr == b"end\n" && exit.stdout_bytes == stdout.len() as u64,
        "{exit:?}"
    );
    Ok(came)
}

#[tokio::test]
async fn a_stream_goes_on_over_freezes_with_no_byte_lost_or_doubled() -> anyhow::Result<()> {
    let (gateway, client) = with_sandbox("box").await?;
    let exec = client
        .command("box", ["sh", "-c", &counter(2000)])
        .exec()
        .await?;
    let process = exec.process_id().to_owned();
    let followed = follow(exec);
    // Stdin as well: what was sent and not taken yet is sent again, once.
    let mut cat = client.command("box", ["cat"]).stdin(true).exec().await?;
    let stdin = cat.take_stdin().context("no stdin")?;
    let echoed = follow(cat);
    let mut sent = Vec::new();
    for round in 0..5_u32 {
        let piece = format!("{round}").repeat(20_000).into_bytes();
        sent.extend_from_slice(&piece);
        ensure!(stdin.send(piece).await, "stdin is closed");
        suspend(&client, "box", Depth::Freeze).await?;
        let asleep = client.process("box", &process).await;
        ensure!(
            asleep.is_err() || asleep?.running,
            "it ended while it slept"
        );
        client.resume("box").wait().await?;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    drop(stdin);
    let (echo, exit) = tokio::time::timeout(STUCK, echoed)
        .await
        .context("cat is stuck")???;
    ensure!(
        exit.code == 0 && echo.stdout == sent,
        "{} bytes of {} came back",
        echo.stdout.len(),
        sent.len()
    );
    let came = all_of_it(followed, 2000).await?;
    ensure!(
        came.reattached >= 4,
        "it was attached again {} times",
        came.reattached
    );
    gateway.end().await
}

#[tokio::test]
async fn a_stream_goes_on_over_a_gateway_that_is_killed_while_ready() -> anyhow::Result<()> {
    let (mut gateway, client) = with_sandbox("box").await?;
    let exec = client
        .command("box", ["sh", "-c", &counter(2500)])
        .exec()
        .await?;
    let process = client.process("box", exec.process_id()).await?;
    let followed = follow(exec);
    let before = client.get("box").await?;
    for _ in 0..2 {
        tokio::time::sleep(Duration::from_millis(300)).await;
        gateway.kill().await?;
        gateway.run().await?;
    }
    let client = gateway.client();
    let after = client.get("box").await?;
    ensure!(
        after.raw().incarnation_issued == before.raw().incarnation_issued,
        "it was started anew"
    );
    attached(&client).await?;
    let now = client.process("box", &process.process_id).await?;
    ensure!(now.pid == process.pid, "{now:?}");
    let came = all_of_it(followed, 2500).await?;
    ensure!(came.reattached >= 1, "it was never attached again");
    gateway.end().await
}

/// Waits until the supervisor is there again: a call waits for it.
async fn attached(client: &Client) -> anyhow::Result<()> {
    crate::sh(client, "box", "true").await.map(drop)
}

#[tokio::test]
async fn a_sandbox_asleep_stays_so_over_a_gateway_that_is_killed() -> anyhow::Result<()> {
    let (mut gateway, client) = with_sandbox("box").await?;
    let exec = client
        .command("box", ["sh", "-c", &counter(1000)])
        .exec()
        .await?;
    let followed = follow(exec);
    tokio::time::sleep(Duration::from_millis(100)).await;
    suspend(&client, "box", Depth::Freeze).await?;
    gateway.kill().await?;
    gateway.run().await?;
    let client = gateway.client();
    let asleep = until(&client, "box", overwinter_client::Phase::Suspended).await?;
    ensure!(asleep.depth() == Some(Depth::Freeze), "{asleep:?}");
    let done = client.resume("box").wait().await?;
    ensure!(
        done.achieved == overwinter_client::Achieved::Memory,
        "{:?}",
        done.achieved
    );
    all_of_it(followed, 1000).await?;
    gateway.end().await
}

#[tokio::test]
async fn the_command_waits_through_a_freeze_and_ends_with_a_stop() -> anyhow::Result<()> {
    let (gateway, client) = with_sandbox("box").await?;
    let running = |script: String| exec_command(&gateway, script);
    let through = running(counter(600))?;
    started(&client, 1).await?;
    suspend(&client, "box", Depth::Freeze).await?;
    client.resume("box").wait().await?;
    let said = overwinter_tests::cli::Said::from(tokio::time::timeout(STUCK, through).await???);
    ensure!(
        said.code == 7 && said.out == counted(600),
        "{}: {}",
        said.code,
        said.err
    );
    ensure!(
        said.err
            .contains("the sandbox sleeps; this goes on when it is awake"),
        "{}",
        said.err
    );
    ensure!(said.err.contains("this goes on\n"), "{}", said.err);

    let ended = running("exec sleep 600".to_owned())?;
    started(&client, 1).await?;
    suspend(&client, "box", Depth::Stop).await?;
    let said = overwinter_tests::cli::Said::from(tokio::time::timeout(STUCK, ended).await???);
    ensure!(said.code == 143, "{said:?}");
    ensure!(
        said.err.contains("the suspension of the sandbox ended it"),
        "{}",
        said.err
    );
    gateway.end().await
}

type Output = std::io::Result<std::process::Output>;

fn exec_command(
    gateway: &Gateway,
    script: String,
) -> anyhow::Result<tokio::task::JoinHandle<Output>> {
    let mut command = gateway.cli(["sandbox", "exec", "box", "--", "sh", "-c", &script])?;
    Ok(tokio::spawn(async move { command.output().await }))
}

/// Waits until so many processes run inside. No event tells of a start.
async fn started(client: &Client, count: usize) -> anyhow::Result<()> {
    let wait = async {
        loop {
            let processes = client.processes("box").await?;
            if processes.iter().filter(|process| process.running).count() >= count {
                return anyhow::Ok(());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(STUCK, wait)
        .await
        .context("it does not start")?
}
