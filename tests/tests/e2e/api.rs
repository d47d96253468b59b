//! The API as any program can call it: JSON with curl on the socket.

use std::time::Duration;

use anyhow::{Context, ensure};
use overwinter_client::{Code, Depth, Phase};
use overwinter_tests::Gateway;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::{create, refused, sh, suspend, with_sandbox};

/// Status and body of one request.
pub(crate) async fn curl(
    gateway: &Gateway,
    path: &str,
    body: &Value,
) -> anyhow::Result<(u16, Value)> {
    let output = Command::new("curl")
        .args([
            "--silent",
            "--show-error",
            "--max-time",
            "30",
            "--write-out",
            "\n%{http_code}",
        ])
        .arg("--unix-socket")
        .arg(gateway.socket())
        .args([
            "--header",
            "Content-Type: application/json",
            "--data",
            &body.to_string(),
        ])
        .arg(format!("http://overwinter/{path}"))
        .output()
        .await
        .context("curl cannot be run")?;
    ensure!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout)?;
    let (body, status) = text.rsplit_once('\n').context("no status")?;
    let body = serde_json::from_str(body).with_context(|| format!("{path}: {text}"))?;
    Ok((status.parse()?, body))
}

/// One that must succeed.
pub(crate) async fn call(gateway: &Gateway, method: &str, body: Value) -> anyhow::Result<Value> {
    let (status, answer) = curl(gateway, &format!("overwinter.v1.{method}"), &body).await?;
    ensure!(status == 200, "{method} {body}: {status} {answer}");
    Ok(answer)
}

#[tokio::test]
async fn every_unary_call_takes_json_with_curl() -> anyhow::Result<()> {
    let gateway = Gateway::start().await?;
    let it = &gateway;
    let by = json!({"name": "box"});
    let wait = json!({"wait": "30s"});
    let image = gateway.image.name();

    let made = call(
        it,
        "SandboxService/CreateSandbox",
        json!({"name": "box", "spec": {"image": image}, "options": wait}),
    )
    .await?;
    ensure!(made["sandbox"]["phase"] == "PHASE_READY", "{made}");
    let id = made["sandbox"]["id"].as_str().context("no id")?.to_owned();
    let operation = made["operation"]["id"]
        .as_str()
        .context("no operation")?
        .to_owned();
    let got = call(
        it,
        "SandboxService/GetSandbox",
        json!({"sandbox": {"id": id}}),
    )
    .await?;
    ensure!(got["sandbox"]["name"] == "box", "{got}");
    let listed = call(
        it,
        "SandboxService/ListSandboxes",
        json!({"phases": ["PHASE_READY"]}),
    )
    .await?;
    ensure!(listed["sandboxes"][0]["id"] == id, "{listed}");
    let updated = call(
        it,
        "SandboxService/UpdateSandbox",
        json!({"sandbox": by, "labels": {"team": "blue"}, "env": {"COLOUR": "blue"}}),
    )
    .await?;
    ensure!(updated["sandbox"]["labels"]["team"] == "blue", "{updated}");

    let started = call(
        it,
        "ProcessService/StartProcess",
        json!({"start": {"sandbox": by, "process": {"command": ["sleep", "600"]}}}),
    )
    .await?;
    let process = started["process"]["processId"]
        .as_str()
        .context("no process id")?
        .to_owned();
    // "hello\n" in base64, both ways.
    let ran = call(it, "ProcessService/RunProcess", json!({"start": {"sandbox": by, "process": {"command": ["sh", "-c", "cat; echo $COLOUR >&2; exit 3"]}}, "stdin": "aGVsbG8K"})).await?;
    ensure!(
        ran["exit"]["code"] == 3 && ran["stdout"] == "aGVsbG8K" && ran["stderr"] == "Ymx1ZQo=",
        "{ran}"
    );
    call(
        it,
        "ProcessService/SignalProcess",
        json!({"sandbox": by, "processId": process, "signal": 15}),
    )
    .await?;
    let processes = call(it, "ProcessService/ListProcesses", json!({"sandbox": by})).await?;
    ensure!(
        processes["processes"]
            .as_array()
            .is_some_and(|all| all.len() == 2),
        "{processes}"
    );
    let found = call(
        it,
        "ProcessService/GetProcess",
        json!({"sandbox": by, "processId": process}),
    )
    .await?;
    ensure!(
        found["process"]["command"] == json!(["sleep", "600"]),
        "{found}"
    );

    let path = |text: &str| json!({"text": text});
    call(
        it,
        "FileService/MakeDirectory",
        json!({"sandbox": by, "path": path("a/b"), "parents": true}),
    )
    .await?;
    sh(&gateway.client(), "box", "echo file > a/b/one").await?;
    let stat = call(
        it,
        "FileService/StatFile",
        json!({"sandbox": by, "path": path("a/b/one")}),
    )
    .await?;
    // 64-bit numbers are strings in JSON.
    ensure!(
        stat["info"]["size"] == "5" || stat["file"]["size"] == "5",
        "{stat}"
    );
    call(
        it,
        "FileService/RenameFile",
        json!({"sandbox": by, "from": path("a/b/one"), "to": path("a/two")}),
    )
    .await?;
    let entries = call(
        it,
        "FileService/ListDirectory",
        json!({"sandbox": by, "path": path("a")}),
    )
    .await?;
    ensure!(
        entries["entries"]
            .as_array()
            .is_some_and(|all| all.len() == 2),
        "{entries}"
    );
    call(
        it,
        "FileService/RemoveFile",
        json!({"sandbox": by, "path": path("a"), "recursive": true}),
    )
    .await?;

    let slept = call(
        it,
        "SandboxService/SuspendSandbox",
        json!({"sandbox": by, "depth": "DEPTH_FREEZE", "options": wait}),
    )
    .await?;
    ensure!(
        slept["sandbox"]["retained"]["depth"] == "DEPTH_FREEZE",
        "{slept}"
    );
    let woken = call(
        it,
        "SandboxService/ResumeSandbox",
        json!({"sandbox": by, "options": wait}),
    )
    .await?;
    ensure!(
        woken["operation"]["outcome"]["succeeded"]["achieved"] == "ACHIEVED_MEMORY",
        "{woken}"
    );
    call(
        it,
        "SandboxService/SuspendSandbox",
        json!({"sandbox": by, "options": wait}),
    )
    .await?;
    let woken = call(
        it,
        "SandboxService/StartSandbox",
        json!({"sandbox": by, "options": wait}),
    )
    .await?;
    ensure!(woken["sandbox"]["phase"] == "PHASE_READY", "{woken}");

    let got = call(
        it,
        "OperationService/GetOperation",
        json!({"id": operation}),
    )
    .await?;
    ensure!(got["operation"]["sandboxId"] == id, "{got}");
    let listed = call(
        it,
        "OperationService/ListOperations",
        json!({"sandboxId": id}),
    )
    .await?;
    ensure!(
        listed["operations"]
            .as_array()
            .is_some_and(|all| all.len() == 5),
        "{listed}"
    );
    let waited = call(
        it,
        "OperationService/WaitOperation",
        json!({"id": operation, "timeout": "1s"}),
    )
    .await?;
    ensure!(waited["operation"]["step"] == "ended", "{waited}");
    let drivers = call(it, "DriverService/ListDrivers", json!({})).await?;
    ensure!(drivers["drivers"][0]["name"] == "local", "{drivers}");
    let status = call(it, "GatewayService/GetGateway", json!({})).await?;
    ensure!(status["sandboxes"].is_object(), "{status}");
    let deleted = call(
        it,
        "SandboxService/DeleteSandbox",
        json!({"sandbox": by, "options": wait}),
    )
    .await?;
    ensure!(
        deleted["sandbox"]["phase"] == "PHASE_TOMBSTONE",
        "{deleted}"
    );

    // An error has its code, its stable reason, and what to do next.
    let (status, error) = curl(
        it,
        "overwinter.v1.SandboxService/GetSandbox",
        &json!({"sandbox": by}),
    )
    .await?;
    ensure!(
        status == 404 && error["code"] == "not_found",
        "{status} {error}"
    );
    let details = &error["details"][0];
    ensure!(details["type"] == "google.rpc.ErrorInfo", "{error}");
    let (status, error) = curl(
        it,
        "overwinter.v1.SandboxService/GetSandbox",
        &json!({"sandbox": 7}),
    )
    .await?;
    ensure!(
        status == 400 && error["code"] == "invalid_argument",
        "{status} {error}"
    );

    let drained = call(it, "GatewayService/DrainGateway", json!({"timeout": "1s"})).await?;
    ensure!(drained.is_object(), "{drained}");
    let mut gateway = gateway;
    gateway.stop().await?;
    gateway.end().await
}

#[tokio::test]
async fn health_and_reflection_answer() -> anyhow::Result<()> {
    let gateway = Gateway::start().await?;
    let (status, health) = curl(&gateway, "grpc.health.v1.Health/Check", &json!({})).await?;
    ensure!(
        status == 200 && health["status"] == "SERVING",
        "{status} {health}"
    );
    let named = json!({"service": "overwinter.v1.SandboxService"});
    let (status, health) = curl(&gateway, "grpc.health.v1.Health/Check", &named).await?;
    ensure!(
        status == 200 && health["status"] == "SERVING",
        "{status} {health}"
    );
    let (status, _) = curl(
        &gateway,
        "grpc.health.v1.Health/Check",
        &json!({"service": "no.such"}),
    )
    .await?;
    ensure!(status == 404, "{status}");

    // Reflection is a stream: each message in an envelope of one byte of flags and four of length.
    let ask = json!({"listServices": ""}).to_string();
    let mut body = vec![0];
    body.extend_from_slice(&u32::try_from(ask.len())?.to_be_bytes());
    body.extend_from_slice(ask.as_bytes());
    let file = gateway.folder().join("reflection");
    std::fs::write(&file, body)?;
    let output = Command::new("curl")
        .args([
            "--silent",
            "--show-error",
            "--max-time",
            "30",
            "--http2-prior-knowledge",
            "--unix-socket",
        ])
        .arg(gateway.socket())
        .args([
            "--header",
            "Content-Type: application/connect+json",
            "--data-binary",
        ])
        .arg(format!("@{}", file.display()))
        .arg("http://overwinter/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
        .output()
        .await?;
    let text = String::from_utf8_lossy(&output.stdout);
    for service in [
        "Sandbox",
        "Operation",
        "Process",
        "File",
        "Gateway",
        "Driver",
    ] {
        ensure!(
            text.contains(&format!("overwinter.v1.{service}Service")),
            "{text}"
        );
    }
    gateway.end().await
}

#[tokio::test]
async fn a_drain_takes_no_new_work_and_ends_what_runs() -> anyhow::Result<()> {
    let (mut gateway, client) = with_sandbox("box").await?;
    create(&gateway, "asleep").await?;
    suspend(&client, "asleep", Depth::Freeze).await?;
    let accepted = client
        .create()
        .name("new")
        .image(gateway.image.name())
        .accept()
        .await?;
    let left = client.drain_gateway(Some(Duration::from_secs(20))).await?;
    ensure!(left.is_empty(), "{left:?}");
    let created = accepted.operation().context("no operation")?;
    ensure!(
        client.operation(created.id()).await?.outcome().is_some(),
        "it has not ended"
    );
    ensure!(client.get("new").await?.phase() == Phase::Ready);
    for answer in [
        client
            .create()
            .name("late")
            .image(gateway.image.name())
            .accept()
            .await
            .map(drop),
        client.suspend("box").accept().await.map(drop),
        client.delete("box").accept().await.map(drop),
        client.command("box", ["true"]).run().await.map(drop),
    ] {
        refused(answer, Code::Unavailable, "GATEWAY_DRAINING")?;
    }
    let said = gateway.say(["gateway", "status"]).await?.well()?;
    ensure!(said.contains("draining"), "{said}");
    let said = gateway.say(["sandbox", "suspend", "box"]).await?;
    said.refused("GATEWAY_DRAINING", "draining")?;
    // The sandboxes stay as they are, awake and asleep, and the next gateway takes them up.
    gateway.stop().await?;
    gateway.run().await?;
    let client = gateway.client();
    ensure!(sh(&client, "box", "echo well").await? == "well\n");
    ensure!(client.get("asleep").await?.depth() == Some(Depth::Freeze));
    client.resume("asleep").wait().await?;
    gateway.end().await
}
