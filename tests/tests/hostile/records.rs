//! Names, labels and ids: what is shown of them, and what they open.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;

use anyhow::{Context, ensure};
use overwinter_client::{Depth, FilePath};
use overwinter_tests::Gateway;
use prost_reflect::{DescriptorPool, FieldDescriptor, Kind, MessageDescriptor, MethodDescriptor};
use serde_json::{Map, Value, json};
use tokio::process::Command;

use crate::stage::{Image, Stage};

const ESCAPES: &str = "\x1b[2J\x1b]0;title\x07\r\n\u{202e}gnp.exe";
const NOBODY: &str = "0197a000-0000-7000-8000-000000000000";

/// What takes no id, and why that is so. A call that is in neither place fails the test.
const WITHOUT_ID: &[&str] = &[
    "SandboxService/CreateSandbox",
    "SandboxService/ListSandboxes",
    "GatewayService/GetGateway",
    "GatewayService/DrainGateway",
    "DriverService/ListDrivers",
];
/// A list of what an id has: nothing, where there is none.
const EMPTY_LISTS: &[&str] = &["OperationService/ListOperations"];

/// Names an id that is nowhere in every field that takes one; None: no field does.
fn request(message: &MessageDescriptor, depth: usize) -> Option<Value> {
    let mut fields = Map::new();
    let mut named = false;
    for field in message.fields() {
        let (value, names) = match value(&field, depth) {
            Some(it) => it,
            None => continue,
        };
        // One of several that exclude each other.
        let other = field.containing_oneof().is_some_and(|oneof| {
            !oneof.is_synthetic() && oneof.fields().any(|it| fields.contains_key(it.json_name()))
        });
        if !other {
            named |= names;
            fields.insert(field.json_name().to_owned(), value);
        }
    }
    named.then_some(Value::Object(fields))
}

/// A value that the field takes, and whether an id that is nowhere is in it.
fn value(field: &FieldDescriptor, depth: usize) -> Option<(Value, bool)> {
    if field.is_list() || field.is_map() || depth > 4 {
        return None;
    }
    match field.kind() {
        Kind::Message(message) if message.name() == "SandboxRef" => {
            Some((json!({ "id": NOBODY }), true))
        }
        Kind::Message(message) if message.name() == "FilePath" => {
            Some((json!({ "text": "/workspace/x" }), false))
        }
        Kind::Message(message) if message.name() == "ProcessSpec" => {
            Some((json!({ "command": ["true"] }), false))
        }
        Kind::Message(message) => request(&message, depth + 1).map(|value| (value, true)),
        Kind::String if matches!(field.name(), "id" | "sandbox_id") => Some((json!(NOBODY), true)),
        Kind::String if field.name() == "process_id" => {
            Some((json!("0197a000-0000-7000-8000-000000000001"), false))
        }
        _ => None,
    }
}

/// Calls a method with curl, whatever its shape; answers with the code of its error, or none.
async fn call(
    gateway: &Gateway,
    method: &MethodDescriptor,
    body: &Value,
) -> anyhow::Result<String> {
    let streams = method.is_client_streaming() || method.is_server_streaming();
    let text = body.to_string();
    let mut bytes = text.clone().into_bytes();
    if streams {
        // Of the Connect protocol: each message in an envelope.
        bytes = [
            &[0][..],
            &u32::try_from(text.len())?.to_be_bytes(),
            text.as_bytes(),
        ]
        .concat();
    }
    let file = gateway.folder().join(format!("{}.request", method.name()));
    std::fs::write(&file, bytes)?;
    let kind = if streams {
        "application/connect+json"
    } else {
        "application/json"
    };
    let output = Command::new("curl")
        .args(["--silent", "--show-error", "--max-time", "10"])
        .args(["--http2-prior-knowledge", "--unix-socket"])
        .arg(gateway.socket())
        .args([
            "--header",
            &format!("Content-Type: {kind}"),
            "--data-binary",
        ])
        .arg(format!("@{}", file.display()))
        .arg(format!(
            "http://overwinter/{}/{}",
            method.parent_service().full_name(),
            method.name()
        ))
        .output()
        .await?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(
        output.status.success(),
        "{}: {said} {}",
        method.name(),
        String::from_utf8_lossy(&output.stderr)
    );
    let from = said
        .find('{')
        .with_context(|| format!("{}: {said:?}", method.name()))?;
    let to = said.rfind('}').context("no end")?;
    let answer: Value = serde_json::from_str(&said[from..=to])?;
    let error = answer.get("error").unwrap_or(&answer);
    Ok(error["code"].as_str().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn an_id_of_somebody_else_is_not_found_by_any_call() -> anyhow::Result<()> {
    let stage = Stage::open().await?;
    let pool = DescriptorPool::decode(overwinter_api::DESCRIPTOR_SET)?;
    let services = pool
        .services()
        .filter(|it| it.package_name() == "overwinter.v1");
    let methods: Vec<_> = services
        .flat_map(|it| it.methods().collect::<Vec<_>>())
        .collect();
    ensure!(methods.len() >= 20, "{} calls", methods.len());
    let mut wrong = Vec::new();
    let mut without = BTreeSet::new();
    for method in &methods {
        let name = format!("{}/{}", method.parent_service().name(), method.name());
        let Some(body) = request(&method.input(), 0) else {
            without.insert(name);
            continue;
        };
        if WITHOUT_ID.contains(&name.as_str()) {
            continue;
        }
        let code = call(&stage.gateway, method, &body).await?;
        let right = if EMPTY_LISTS.contains(&name.as_str()) {
            ""
        } else {
            "not_found"
        };
        if code != right {
            wrong.push(format!("{name} {body}: {code:?}"));
        }
    }
    ensure!(wrong.is_empty(), "{wrong:#?}");
    let known: BTreeSet<_> = WITHOUT_ID.iter().map(|name| (*name).to_owned()).collect();
    let unknown: Vec<_> = without.difference(&known).collect();
    ensure!(unknown.is_empty(), "these take no id: {unknown:?}");
    stage.unharmed("ids of somebody else").await?;
    stage.close().await
}

#[tokio::test]
async fn no_listing_plays_with_the_terminal() -> anyhow::Result<()> {
    let stage = Stage::open().await?;
    let (client, gateway) = (&stage.client, &stage.gateway);
    stage.tenant("tenant", Image::Busybox, "runc").await?;
    // What is refused is refused in letters.
    for arguments in [
        vec!["sandbox", "create", "--image", "x", ESCAPES],
        vec!["sandbox", "create", "--image", ESCAPES, "other"],
        vec!["sandbox", "get", ESCAPES],
        vec!["sandbox", "exec", ESCAPES, "--", "true"],
        vec!["operation", "get", ESCAPES],
    ] {
        let said = gateway.say(&arguments).await?;
        ensure!(said.code != 0, "{arguments:?}: {said:?}");
        ensure!(
            !said.out.contains('\x1b') && !said.err.contains('\x1b'),
            "{said:?}"
        );
    }
    // What is taken is shown in letters: labels, variables, commands, requesters, owners.
    let label = client
        .update("tenant")
        .label("team", ESCAPES)
        .owner(ESCAPES);
    let labelled = label.env("X", ESCAPES).send().await;
    println!(
        "a label with escapes: {:?}",
        labelled
            .map(|it| it.raw().labels.len())
            .map_err(|it| it.to_string())
    );
    let slept = client
        .suspend("tenant")
        .requester(ESCAPES)
        .depth(Depth::Freeze)
        .wait()
        .await;
    println!(
        "a requester with escapes: {:?}",
        slept.map(drop).map_err(|it| it.to_string())
    );
    let _ = client.resume("tenant").wait().await;
    client
        .command("tenant", ["sleep", "600", ESCAPES])
        .start()
        .await?;
    let ran = client.command("tenant", [ESCAPES]).run().await?;
    ensure!(ran.exit.code == 127, "{ran:?}");
    let path = FilePath::from(format!("/workspace/{}", ESCAPES.replace(['\r', '\n'], "")));
    client.files("tenant").write(path).bytes("odd").await?;
    for arguments in [
        vec!["sandbox", "list"],
        vec!["sandbox", "get", "tenant"],
        vec!["process", "list", "tenant"],
        vec!["operation", "list"],
        vec!["driver", "list"],
        vec!["gateway", "status"],
        vec!["sandbox", "exec", "tenant", "--", ESCAPES],
        vec!["sandbox", "cp", "tenant:/workspace/\x1b[2J", "-"],
    ] {
        let said = gateway.say(&arguments).await?;
        for text in [&said.out, &said.err] {
            let acts = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
            ensure!(!text.contains(acts), "{arguments:?}: {text:?}");
        }
        let json = gateway
            .say(arguments.iter().copied().chain(["-o", "json"]))
            .await?;
        ensure!(!json.out.contains('\x1b'), "{arguments:?}: {:?}", json.out);
    }
    stage.unharmed("escapes").await?;
    stage.close().await
}

#[tokio::test]
async fn user_ids_are_somebodys_as_long_as_storage_is() -> anyhow::Result<()> {
    let mut stage = Stage::open().await?;
    let ranges = stage.gateway.data_dir().join("local/ranges");
    // The first of its user ids, by whom this host sees its files belong to.
    let base = |stage: &Stage, sandbox: &overwinter_client::Sandbox| -> anyhow::Result<u32> {
        Ok(std::fs::metadata(stage.attach_folder(sandbox)?)?.uid() - crate::dial::SUPERVISOR)
    };
    let first = stage.tenant("first", Image::Busybox, "runc").await?;
    let of_first = base(&stage, &first)?;
    stage
        .client
        .suspend("first")
        .depth(Depth::Stop)
        .wait()
        .await?;
    let mut seen = BTreeSet::from([of_first]);
    for round in 0..6 {
        if round == 3 {
            stage.gateway.stop().await?;
            stage.gateway.run().await?;
        }
        let name = format!("other-{round}");
        let other = stage.tenant(&name, Image::Busybox, "runc").await?;
        ensure!(
            seen.insert(base(&stage, &other)?),
            "{name} has another's user ids"
        );
        stage
            .client
            .suspend(name.as_str())
            .depth(Depth::Stop)
            .wait()
            .await?;
    }
    let files = std::fs::read_dir(&ranges)?.count();
    ensure!(
        files == seen.len() + 1,
        "{files} ranges for {} sandboxes and the neighbour",
        seen.len()
    );
    // Gone with its storage, and only with it.
    let storage = stage
        .gateway
        .data_dir()
        .join("local/sandboxes")
        .join(first.id());
    ensure!(storage.exists());
    stage.client.delete("first").wait().await?;
    ensure!(!storage.exists() && std::fs::read_dir(&ranges)?.count() == files - 1);
    stage.unharmed("a reuse of user ids").await?;
    stage.close().await
}
