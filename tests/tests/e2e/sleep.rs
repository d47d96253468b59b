//! An exec that ends while its sandbox is being put to sleep.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, ensure};
use overwinter_client::{Client, Depth, ExecEvent, ExitCause};
use overwinter_tests::Gateway;

use crate::{STUCK, create, with_sandbox};

/// Times each of two sandboxes is put to sleep while a program in it ends.
const ROUNDS: u32 = 250;

#[tokio::test]
async fn every_exit_arrives_tagged_when_a_program_ends_during_a_suspend() -> anyhow::Result<()> {
    let gateway = Gateway::start().await?;
    let mut rounds = Vec::new();
    for name in ["first", "second"] {
        create(&gateway, name).await?;
        rounds.push(tokio::spawn(race(gateway.client(), name)));
    }
    let mut causes = BTreeMap::new();
    for race in rounds {
        for (cause, count) in race.await?? {
            *causes.entry(cause).or_insert(0) += count;
        }
    }
    // A race that always ends the same way has not been run.
    let seen = |cause| causes.get(cause).copied().unwrap_or(0);
    ensure!(seen("own") + seen("suspension") == 2 * ROUNDS, "{causes:?}");
    ensure!(
        seen("own") >= 20 && seen("suspension") >= 20,
        "it was no race: {causes:?}"
    );
    gateway.end().await
}

async fn race(client: Client, name: &'static str) -> anyhow::Result<BTreeMap<&'static str, u32>> {
    let mut causes = BTreeMap::new();
    let mut lives = Duration::from_millis(10);
    for round in 0..ROUNDS {
        let one = tokio::time::timeout(STUCK, one(&client, name, round, lives)).await;
        let cause = one.with_context(|| format!("round {round} of {name} is stuck"))?;
        let cause = cause.with_context(|| format!("round {round} of {name}"))?;
        // Whoever won has it harder next time: both ends stay close on a machine of any speed.
        lives = match cause {
            "own" => lives * 9 / 8,
            _ => lives * 8 / 9,
        };
        *causes.entry(cause).or_insert(0) += 1;
    }
    Ok(causes)
}

/// Suspends while a program that ends by itself after `lives` is about to.
async fn one(
    client: &Client,
    name: &str,
    round: u32,
    lives: Duration,
) -> anyhow::Result<&'static str> {
    let code = i32::try_from(round % 100)? + 1;
    let script = format!("echo up; usleep {}; exit {code}", lives.as_micros());
    let mut exec = client.command(name, ["sh", "-c", &script]).exec().await?;
    let first = exec.next().await;
    ensure!(first == Some(ExecEvent::Stdout("up\n".into())), "{first:?}");
    let (slept, exit) = tokio::join!(client.suspend(name).depth(Depth::Stop).wait(), exec.wait());
    slept?;
    let exit = exit?;
    // The record says the same as the stream.
    let process = client.process(name, exec.process_id()).await?;
    let kept = process.exit.as_option().context("no exit is kept")?;
    ensure!(
        !process.running && kept.code == exit.code,
        "{process:?}, {exit:?}"
    );
    client.resume(name).wait().await?;
    // What it left behind keeps its result after the resume.
    ensure!(!client.process(name, exec.process_id()).await?.running);
    match exit.cause {
        ExitCause::Own => {
            ensure!(exit.code == code && exit.signal.is_none(), "{exit:?}");
            Ok("own")
        }
        ExitCause::Suspension => {
            // The shell that took the signal, or that saw its child take it.
            ensure!(exit.code != 0, "{exit:?}");
            Ok("suspension")
        }
        other => anyhow::bail!("{other:?}: {exit:?}"),
    }
}

#[tokio::test]
async fn what_a_suspension_ends_says_so() -> anyhow::Result<()> {
    let gateway = Gateway::start().await?;
    let client = gateway.client();
    create(&gateway, "box").await?;
    let mut polite = client
        .command(
            "box",
            [
                "sh",
                "-c",
                "trap 'echo bye; exit 9' TERM; echo up; while :; do usleep 10000; done",
            ],
        )
        .exec()
        .await?;
    let mut stubborn = client
        .command(
            "box",
            [
                "sh",
                "-c",
                "trap '' TERM; echo up; while :; do usleep 10000; done",
            ],
        )
        .exec()
        .await?;
    for exec in [&mut polite, &mut stubborn] {
        ensure!(exec.next().await == Some(ExecEvent::Stdout("up\n".into())));
    }
    let policy = overwinter_client::Policy::new().stop_grace(Duration::from_millis(300));
    client.update("box").policy(policy).send().await?;
    client.suspend("box").depth(Depth::Stop).wait().await?;
    let mut last = None;
    while let Some(event) = polite.next().await {
        if let ExecEvent::Stdout(data) = event {
            last = Some(data);
        }
    }
    ensure!(last.as_deref() == Some(b"bye\n"), "{last:?}");
    let exit = polite.wait().await?;
    ensure!(
        exit.code == 9 && exit.cause == ExitCause::Suspension,
        "{exit:?}"
    );
    let exit = stubborn.wait().await?;
    ensure!(
        exit.signal == Some(9) && exit.cause == ExitCause::Suspension,
        "{exit:?}"
    );
    gateway.end().await
}

#[tokio::test]
async fn hooks_that_the_command_sets_run_around_each_sleep_until_they_are_removed()
-> anyhow::Result<()> {
    let (gateway, client) = with_sandbox("box").await?;
    let update = ["sandbox", "update", "box"];
    let set = [
        "--pre-suspend-hook",
        "echo down >> /workspace/log",
        "--post-resume-hook",
        "echo up >> /workspace/log",
        "--hook-timeout",
        "5s",
    ];
    gateway.say(update.iter().chain(&set)).await?.well()?;
    for depth in [Depth::Freeze, Depth::Stop] {
        client.suspend("box").depth(depth).wait().await?;
        client.resume("box").wait().await?;
    }
    let removed = ["--pre-suspend-hook", "", "--post-resume-hook", ""];
    gateway.say(update.iter().chain(&removed)).await?.well()?;
    client.suspend("box").depth(Depth::Freeze).wait().await?;
    client.resume("box").wait().await?;
    let log = crate::sh(&client, "box", "cat /workspace/log").await?;
    ensure!(log == "down\nup\ndown\nup\n", "{log:?}");
    gateway.end().await
}
