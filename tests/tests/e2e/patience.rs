//! What may take for ever inside does not hold up whoever is outside: graces, hooks, and a supervisor
//! that does not answer.

use std::time::Duration;

use anyhow::{Context, ensure};
use overwinter_client::{Client, Code, Depth, Phase, Policy, SandboxRef};
use overwinter_tests::Gateway;
use overwinter_tests::compute::Compute;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::api::{call, curl};
use crate::{STUCK, below, create, refused, settled, sh, with_sandbox};

const HOUR: Duration = Duration::from_secs(60 * 60);
/// Does not heed SIGTERM.
const DEAF: &str = "trap '' TERM; touch /workspace/deaf; while :; do sleep 1; done";

/// Deletes it, which must not take as long as what goes on in it.
async fn gone(client: &Client, id: &str) -> anyhow::Result<()> {
    let delete = client.delete(SandboxRef::from(id)).wait();
    let done = tokio::time::timeout(STUCK, delete)
        .await
        .context("the delete waits")??;
    ensure!(
        done.sandbox.phase() == Phase::Tombstone,
        "{:?}",
        done.sandbox.phase()
    );
    ensure!(Compute::of(id).is_err(), "its compute is left");
    Ok(())
}

/// One that is in the middle of the grace of a suspend.
async fn in_its_grace(gateway: &Gateway, name: &str) -> anyhow::Result<String> {
    let client = gateway.client();
    let made = client
        .create()
        .name(name)
        .image(gateway.image.name())
        .policy(Policy::new().stop_grace(HOUR))
        .wait()
        .await?;
    client.command(name, ["sh", "-c", DEAF]).start().await?;
    // Killed by a SIGTERM that it was not ready for, it would be no test.
    sh(
        &client,
        name,
        "until [ -e /workspace/deaf ]; do sleep 0.1; done",
    )
    .await?;
    // Ends with SIGTERM: its end shows that the grace has begun.
    let mut heeds = client.command(name, ["sleep", "600"]).exec().await?;
    client.suspend(name).depth(Depth::Stop).accept().await?;
    let ended = tokio::time::timeout(STUCK, heeds.wait()).await;
    ended.context("no SIGTERM came")??;
    Ok(made.sandbox.id().to_owned())
}

#[tokio::test]
async fn a_delete_waits_for_no_grace() -> anyhow::Result<()> {
    let mut gateway = Gateway::start().await?;
    let id = in_its_grace(&gateway, "box").await?;
    gone(&gateway.client(), &id).await?;
    // Nor after a restart of the gateway, which takes the suspend up again.
    let id = in_its_grace(&gateway, "box").await?;
    gateway.kill().await?;
    gateway.run().await?;
    gone(&gateway.client(), &id).await?;
    create(&gateway, "box").await?;
    gateway.end().await
}

#[tokio::test]
async fn a_delete_waits_for_no_hook_after_a_resume() -> anyhow::Result<()> {
    let (gateway, client) = with_sandbox("box").await?;
    let id = client.get("box").await?.id().to_owned();
    client.suspend("box").depth(Depth::Stop).wait().await?;
    let slow = Policy::new()
        .post_resume_hook([
            "sh",
            "-c",
            "touch /workspace/the-hook-has-begun; sleep 3600",
        ])
        .hook_timeout(HOUR);
    client.update("box").policy(slow).send().await?;
    client.resume("box").accept().await?;
    // Nobody is let in to look: on the host its workspace is a folder.
    let begun = async {
        while below(&gateway.data_dir(), "the-hook-has-begun").is_none() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(STUCK, begun)
        .await
        .context("the hook does not begin")?;
    gone(&client, &id).await?;
    ensure!(settled(&client).await?.is_empty());
    gateway.end().await
}

#[tokio::test]
async fn times_that_cannot_be_kept_are_refused() -> anyhow::Result<()> {
    let (gateway, client) = with_sandbox("box").await?;
    for (option, time, words) in [
        ("--stop-grace", "99999999h", "stop_grace"),
        ("--stop-grace", "3601", "stop_grace"),
        ("--hook-timeout", "18446744073709551615", "hook_timeout"),
        ("--hook-timeout", "0", "hook_timeout"),
    ] {
        let said = gateway
            .say(["sandbox", "update", "box", option, time])
            .await?;
        said.refused("INVALID_ARGUMENT", words)?;
    }
    gateway
        .say(["sandbox", "update", "box", "--stop-grace", "1h"])
        .await?
        .well()?;
    // As JSON too, in and out.
    let update = |grace: &str| json!({"sandbox": {"name": "box"}, "policy": {"stopGrace": grace}});
    let (status, answer) = curl(
        &gateway,
        "overwinter.v1.SandboxService/UpdateSandbox",
        &update("315576000000s"),
    )
    .await?;
    ensure!(
        status == 400 && answer["code"] == "invalid_argument",
        "{status} {answer}"
    );
    call(&gateway, "SandboxService/UpdateSandbox", update("0s")).await?;
    let list = call(&gateway, "SandboxService/ListSandboxes", json!({})).await?;
    let policy = &list["sandboxes"][0]["config"]["policy"];
    ensure!(policy["stopGrace"] == "0s", "{policy}");
    ensure!(policy["hookTimeout"] == "10s", "{policy}");
    // No grace at all is one that is kept: whoever does not heed SIGTERM has none.
    client.command("box", ["sh", "-c", DEAF]).start().await?;
    client.suspend("box").depth(Depth::Stop).wait().await?;
    gateway.end().await
}

#[tokio::test]
async fn a_supervisor_that_does_not_answer_is_told_of() -> anyhow::Result<()> {
    let mut gateway = Gateway::prepare()?;
    gateway.set_config("[deadlines]\nagent_ms = 1500\n")?;
    gateway.run().await?;
    let client = gateway.client();
    let id = create(&gateway, "box").await?.id().to_owned();
    let pid1 = Pid::from_raw(Compute::of(&id)?.pid).context("no PID 1")?;
    kill_process(pid1, Signal::STOP)?;
    let said = gateway
        .say(["sandbox", "exec", "box", "--", "true"])
        .await?;
    said.refused("SUPERVISOR_UNREACHABLE", "")?;
    let silent = |answer: Result<(), _>| {
        refused(answer, Code::DeadlineExceeded, "SUPERVISOR_UNREACHABLE").map(drop)
    };
    let ran = client.command("box", ["true"]).run().await;
    silent(ran.map(drop))?;
    let started = client.command("box", ["true"]).start().await;
    silent(started.map(drop))?;
    silent(client.processes("box").await.map(drop))?;
    silent(client.files("box").stat("/").await.map(drop))?;
    silent(client.files("box").list("/").await.map(drop))?;
    silent(client.files("box").remove("/nothing", false).await)?;
    silent(client.files("box").read("/etc/passwd").await.map(drop))?;
    let more_than_is_in_flight = vec![7; 64 << 20];
    let written = client.files("box").write("/workspace/a");
    silent(written.bytes(more_than_is_in_flight).await.map(drop))?;
    // It answers again, and so does its sandbox.
    kill_process(pid1, Signal::CONT)?;
    ensure!(sh(&client, "box", "echo hello; ls /workspace").await? == "hello\n");
    // And whatever it does, its sandbox can be deleted.
    kill_process(pid1, Signal::STOP)?;
    gone(&client, &id).await?;
    gateway.end().await
}

/// Sends the messages of a stream, and answers with what it ends with.
async fn stream(gateway: &Gateway, method: &str, messages: &[Value]) -> anyhow::Result<Value> {
    let mut body = Vec::new();
    for message in messages {
        let message = message.to_string();
        body.push(0);
        body.extend(u32::try_from(message.len())?.to_be_bytes());
        body.extend(message.bytes());
    }
    let file = gateway.folder().join("stream");
    std::fs::write(&file, body)?;
    let answer = tokio::process::Command::new("curl")
        .args(["--silent", "--http2-prior-knowledge", "--max-time", "30"])
        .args(["--header", "Content-Type: application/connect+json"])
        .arg("--data-binary")
        .arg(format!("@{}", file.display()))
        .arg("--unix-socket")
        .arg(gateway.socket())
        .arg(format!("http://overwinter/overwinter.v1.{method}"))
        .output()
        .await?
        .stdout;
    let mut rest = &answer[..];
    while let Some((&[_, a, b, c, d], message)) = rest.split_first_chunk() {
        let length = u32::from_be_bytes([a, b, c, d]) as usize;
        let (message, after) = message.split_at_checked(length).context("it is cut")?;
        if after.is_empty() {
            return Ok(serde_json::from_slice(message)?);
        }
        rest = after;
    }
    anyhow::bail!("no stream: {}", String::from_utf8_lossy(&answer))
}

#[tokio::test]
async fn json_with_a_field_that_is_not_there_is_refused() -> anyhow::Result<()> {
    let (gateway, client) = with_sandbox("box").await?;
    let before = client.get("box").await?;
    let by = json!({"name": "box"});
    for (method, body, words) in [
        (
            "SandboxService/SuspendSandbox",
            json!({"sandbox": by, "dept": "DEPTH_FREEZE"}),
            "dept",
        ),
        (
            "SandboxService/SuspendSandbox",
            json!({"sandbox": by, "options": {"wiat": "30s"}}),
            "wiat",
        ),
        (
            "SandboxService/DeleteSandbox",
            json!({"sandbox": {"nmae": "box"}}),
            "nmae",
        ),
        (
            "ProcessService/RunProcess",
            json!({"start": {"sandbox": by, "process": {"command": ["true"], "workdri": "/"}}}),
            "workdri",
        ),
    ] {
        let (status, answer) = curl(&gateway, &format!("overwinter.v1.{method}"), &body).await?;
        ensure!(status == 400, "{method}: {status} {answer}");
        ensure!(answer["code"] == "invalid_argument", "{answer}");
        let message = answer["message"].as_str().unwrap_or_default();
        ensure!(message.contains(words), "{answer}");
    }
    // Of a stream each message is.
    let start = json!({"start": {"sandbox": by, "process": {"command": ["cat"], "stdin": true}}});
    let last = stream(
        &gateway,
        "ProcessService/Exec",
        &[start, json!({"singal": 15})],
    )
    .await?;
    ensure!(last["error"]["code"] == "invalid_argument", "{last}");
    ensure!(last.to_string().contains("singal"), "{last}");
    let start = json!({"start": {"sandbox": by, "path": {"text": "a"}}});
    let last = stream(
        &gateway,
        "FileService/WriteFile",
        &[start, json!({"dta": "eA=="})],
    )
    .await?;
    ensure!(last.to_string().contains("dta"), "{last}");
    ensure!(sh(&client, "box", "ls /workspace").await?.is_empty());

    let after = client.get("box").await?;
    ensure!(after.raw().revision == before.raw().revision, "{after:?}");
    // By either of a field's names, as protobuf has it.
    for body in [
        json!({"sandbox": by, "depth": "DEPTH_FREEZE", "options": {"idempotencyKey": "a"}}),
        json!({"sandbox": by, "depth": 1, "options": {"idempotency_key": "b"}}),
    ] {
        call(&gateway, "SandboxService/SuspendSandbox", body).await?;
    }
    gateway.end().await
}
