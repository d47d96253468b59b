//! Programs that cannot be run, and output that is faster than its reader.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use overwinter_client::{Code, ExecEvent, ExitCause};
use sha2::{Digest, Sha256};
use tokio::io::AsyncReadExt;

use crate::{STUCK, refused, sh, with_sandbox};

#[tokio::test]
async fn what_cannot_be_run_says_why_with_the_code_of_a_shell() -> anyhow::Result<()> {
    let (gateway, client) = with_sandbox("box").await?;
    sh(&client, "box", "echo data > /workspace/plain; printf '#!/no/such/interpreter\\n' > /workspace/script; chmod +x /workspace/script").await?;
    for (program, code, words) in [
        ("no-such-program", 127, "no-such-program: program not found"),
        (
            "/no/such/program",
            127,
            "/no/such/program: program not found",
        ),
        ("/workspace/script", 127, "interpreter"),
        (
            "/workspace/plain",
            126,
            "/workspace/plain: cannot be executed",
        ),
        ("/workspace", 126, "/workspace: cannot be executed"),
        ("/workspace/plain/below", 127, "program not found"),
    ] {
        let said = gateway
            .say(["sandbox", "exec", "box", "--", program])
            .await?;
        ensure!(said.code == code, "{program}: {said:?}");
        let reason = match code {
            127 => "COMMAND_NOT_FOUND",
            _ => "COMMAND_NOT_EXECUTABLE",
        };
        said.refused(reason, words)?;
        let detached = gateway
            .say(["sandbox", "exec", "-d", "box", "--", program])
            .await?;
        ensure!(detached.code == code && detached.out.is_empty());
        detached.refused(reason, words)?;
        // The SDK has the same: an exit, not an error.
        let exit = client.command("box", [program]).run().await?.exit;
        ensure!(
            exit.code == code && exit.cause == ExitCause::Own,
            "{program}: {exit:?}"
        );
        ensure!(
            exit.error.as_deref().is_some_and(|why| why.contains(words)),
            "{exit:?}"
        );
    }
    let said = gateway
        .say([
            "sandbox",
            "exec",
            "box",
            "--workdir",
            "/no/such",
            "--",
            "true",
        ])
        .await?;
    ensure!(
        said.code == 126 && said.err.contains("/no/such"),
        "{said:?}"
    );
    let said = gateway
        .say([
            "sandbox",
            "exec",
            "box",
            "--user",
            "nobody-here",
            "--",
            "true",
        ])
        .await?;
    ensure!(
        said.code == 126 && said.err.contains("nobody-here"),
        "{said:?}"
    );
    // Codes of programs, and signals that end them, come through as they are.
    for (script, code) in [
        ("exit 0", 0),
        ("exit 77", 77),
        ("kill -9 $$", 137),
        ("kill -15 $$", 143),
    ] {
        let said = gateway
            .say(["sandbox", "exec", "box", "--", "sh", "-c", script])
            .await?;
        ensure!(said.code == code, "{script}: {said:?}");
    }
    // Stdin goes in, byte for byte, and its end too.
    let input: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    let digest: String = Sha256::digest(&input)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let said = gateway
        .say_with(["sandbox", "exec", "box", "--", "sha256sum"], &input)
        .await?;
    ensure!(said.well()?.starts_with(&digest));
    gateway.end().await
}

#[tokio::test]
async fn an_exec_of_a_sandbox_that_sleeps_is_refused_with_the_way_out() -> anyhow::Result<()> {
    let (gateway, client) = with_sandbox("box").await?;
    client.suspend("box").wait().await?;
    let said = gateway
        .say(["sandbox", "exec", "box", "--", "true"])
        .await?;
    ensure!(said.code == 125, "{said:?}");
    said.refused("SANDBOX_SUSPENDED", "resume it")?;
    refused(
        client.files("box").stat("/etc").await,
        Code::FailedPrecondition,
        "SANDBOX_SUSPENDED",
    )?;
    gateway.end().await
}

/// 64 MiB, as fast as a program can write them.
const FLOOD: &str =
    "i=0; while [ $i -lt 64 ]; do dd if=/dev/zero bs=1M count=1 2>/dev/null; i=$((i+1)); done";

#[tokio::test]
async fn output_faster_than_its_reader_waits_and_stalls_nobody() -> anyhow::Result<()> {
    let (gateway, client) = with_sandbox("box").await?;
    let before = client.gateway_status().await?.resident_bytes;
    let mut floods = Vec::new();
    for _ in 0..4 {
        floods.push(client.command("box", ["sh", "-c", FLOOD]).exec().await?);
    }
    // Nobody reads them: what they write must wait inside, and others be served all the while.
    let until = Instant::now() + Duration::from_secs(2);
    let mut slowest = Duration::ZERO;
    while Instant::now() < until {
        let began = Instant::now();
        ensure!(sh(&client, "box", "echo quick").await? == "quick\n");
        slowest = slowest.max(began.elapsed());
    }
    ensure!(
        slowest < Duration::from_millis(1500),
        "another exec took {slowest:?}"
    );
    let after = client.gateway_status().await?.resident_bytes;
    ensure!(
        after < before + (48 << 20),
        "the gateway grew from {before} to {after} bytes"
    );
    // Once they are read, every byte is there.
    for mut flood in floods {
        let mut bytes = 0_usize;
        let exit = tokio::time::timeout(STUCK, async {
            while let Some(event) = flood.next().await {
                match event {
                    ExecEvent::Stdout(data) => bytes += data.len(),
                    other => anyhow::bail!("{other:?}"),
                }
            }
            anyhow::Ok(flood.wait().await?)
        });
        let exit = exit.await.context("a flood is stuck")??;
        ensure!(
            exit.code == 0 && bytes == 64 << 20,
            "{bytes} bytes came, {exit:?}"
        );
    }
    gateway.end().await
}

#[tokio::test]
async fn a_reader_that_goes_away_ends_the_program_as_a_broken_pipe_does() -> anyhow::Result<()> {
    let (gateway, client) = with_sandbox("box").await?;
    let mut command = gateway.cli(["sandbox", "exec", "box", "--", "yes"])?;
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let mut stdout = child.stdout.take().context("no stdout")?;
    let mut first = [0; 4096];
    stdout.read_exact(&mut first).await?;
    ensure!(first.chunks(2).all(|line| line == b"y\n"));
    drop(stdout);
    let status = tokio::time::timeout(STUCK, child.wait()).await??;
    ensure!(status.code() == Some(141), "{status}");
    let processes = client.processes("box").await?;
    ensure!(
        processes.iter().all(|process| !process.running),
        "it runs on: {processes:?}"
    );
    gateway.end().await
}

#[tokio::test]
async fn a_user_that_no_sandbox_can_have_is_told_with_those_that_it_has() -> anyhow::Result<()> {
    let (gateway, _) = with_sandbox("box").await?;
    for (user, words) in [
        (
            "65536",
            "user 65536: this sandbox has no such id, only 0 to 65535",
        ),
        (
            "99999999999",
            "user 99999999999: this sandbox has no such id",
        ),
        ("1000:70000", "group 70000: this sandbox has no such id"),
    ] {
        let exec = ["sandbox", "exec", "--user", user, "box", "--", "true"];
        let said = gateway.say(exec).await?;
        ensure!(said.code == 126, "{said:?}");
        said.refused("COMMAND_NOT_EXECUTABLE", words)?;
        let copy = ["sandbox", "cp", "--user", user, "box:/etc/passwd", "-"];
        gateway
            .say(copy)
            .await?
            .refused("USER_OUT_OF_RANGE", words)?;
    }
    gateway.end().await
}
