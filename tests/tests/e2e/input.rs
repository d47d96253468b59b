//! Names, images and options that cannot be.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::ensure;
use overwinter_tests::Gateway;
use serde_json::json;

use crate::api::curl;
use crate::{create, settled, sh};

#[tokio::test]
async fn a_name_that_is_taken_or_no_dns_label_is_refused_and_changes_nothing() -> anyhow::Result<()>
{
    let gateway = Gateway::start().await?;
    let first = create(&gateway, "box").await?;
    let image = gateway.image.name();
    let again = gateway
        .say(["sandbox", "create", "box", "--image", &image])
        .await?;
    again.refused("NAME_TAKEN", "box")?;
    for bad in [
        "Box",
        "a_b",
        "a-",
        "a.b",
        "ä",
        // One more than a label has.
        &"a".repeat(64),
        // A name that could be taken for an id.
        "0190b4f6-3b1f-7cc0-8000-000000000000",
    ] {
        let said = gateway
            .say(["sandbox", "create", "--image", &image, bad])
            .await?;
        said.refused("INVALID_ARGUMENT", "name")?;
    }
    // A variable that is not set, and what looks like an option.
    for usage in ["", "-a"] {
        let said = gateway
            .say(["sandbox", "create", "--image", &image, usage])
            .await?;
        ensure!(said.code == 2, "{usage:?}: {said:?}");
    }
    let kept = settled(&gateway.client()).await?;
    ensure!(kept.len() == 1 && kept[0].id() == first.id(), "{kept:?}");
    // The name is free once its sandbox is deleted.
    gateway.say(["sandbox", "delete", "box"]).await?.well()?;
    ensure!(create(&gateway, "box").await?.id() != first.id());
    gateway.end().await
}

#[tokio::test]
async fn an_image_that_is_not_there_or_broken_is_refused_and_leaves_nothing() -> anyhow::Result<()>
{
    let gateway = Gateway::start().await?;
    let file = |name: &str| gateway.folder().join(name);
    std::fs::create_dir(file("empty"))?;
    std::fs::write(file("empty.tar"), b"")?;
    std::fs::write(file("noise.tar"), vec![0x5a; 4096])?;
    // Any file can be named, and the gateway may read what its caller may not.
    std::fs::write(file("secret"), format!("{}\n", "hush-hush ".repeat(200)))?;
    let whole = file("whole.tar");
    let packed = std::process::Command::new("tar")
        .arg("-cf")
        .arg(&whole)
        .arg("-C")
        .arg(&gateway.image.root)
        .arg(".")
        .status()?;
    ensure!(packed.success());
    let bytes = std::fs::read(&whole)?;
    std::fs::write(file("truncated.tar"), &bytes[..bytes.len() / 2])?;
    for (image, words) in [
        ("missing", "is not there"),
        ("missing.tar", "is not there"),
        ("empty.tar", "empty.tar"),
        ("noise.tar", "noise.tar"),
        ("truncated.tar", "truncated.tar"),
        ("empty", "empty"),
    ] {
        let path = file(image);
        let said = create_from(&gateway, &path).await?;
        said.refused("IMAGE_UNUSABLE", words)?;
    }
    let said = create_from(&gateway, &file("secret")).await?;
    said.refused("IMAGE_UNUSABLE", "no entry of a tar")?;
    ensure!(!said.err.contains("hush"), "{said:?}");
    ensure!(!gateway.log_tail().contains("hush"), "the log has it");
    let said = gateway.say(["sandbox", "create", "box"]).await?;
    said.refused("INVALID_ARGUMENT", "image")?;
    let said = gateway
        .say(["sandbox", "create", "box", "--image", "no-such-name"])
        .await?;
    said.refused("IMAGE_UNUSABLE", "no-such-name")?;
    let said = gateway
        .say(["sandbox", "create", "box", "--image", "x", "--driver", "vm"])
        .await?;
    said.refused("INVALID_ARGUMENT", "vm")?;
    // Each failed create has given its name back, and a tar that is whole works.
    ensure!(settled(&gateway.client()).await?.is_empty());
    create_from(&gateway, &whole).await?.well()?;
    ensure!(sh(&gateway.client(), "box", "echo hello").await? == "hello\n");
    gateway.end().await
}

async fn create_from(
    gateway: &Gateway,
    image: &Path,
) -> anyhow::Result<overwinter_tests::cli::Said> {
    gateway
        .say([
            "sandbox".as_ref(),
            "create".as_ref(),
            "box".as_ref(),
            "--image".as_ref(),
            image.as_os_str(),
        ])
        .await
}

#[tokio::test]
async fn what_does_not_exist_is_named() -> anyhow::Result<()> {
    let gateway = Gateway::start().await?;
    for verb in ["get", "suspend", "resume", "start", "delete", "connect"] {
        gateway
            .say(["sandbox", verb, "nobody"])
            .await?
            .refused("SANDBOX_NOT_FOUND", "nobody")?;
    }
    let said = gateway.say(["sandbox", "suspend"]).await?;
    said.refused("NO_SANDBOX", "there is none")?;
    let said = gateway
        .say(["operation", "get", "0190b4f6-3b1f-7cc0-8000-000000000000"])
        .await?;
    said.refused("OPERATION_NOT_FOUND", "0190b4f6")?;
    create(&gateway, "box").await?;
    // A depth that the driver has not is refused before anything is written.
    let said = gateway
        .say(["sandbox", "suspend", "box", "--depth", "checkpoint"])
        .await?;
    ensure!(
        said.code != 0 && said.err.contains("checkpoint"),
        "{said:?}"
    );
    ensure!(sh(&gateway.client(), "box", "echo still").await? == "still\n");
    gateway.end().await
}

#[tokio::test]
async fn who_may_not_use_the_socket_is_told_whose_it_is() -> anyhow::Result<()> {
    const NOBODY: u32 = 65_534;
    let gateway = Gateway::start().await?;
    let command = gateway.cli(["gateway", "status"])?;
    // The command itself must be within that user's reach.
    let own = gateway.folder().join("overwinter");
    std::fs::copy(command.as_std().get_program(), &own)?;
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(gateway.folder(), open)?;
    let output = tokio::process::Command::new(&own)
        .args(["gateway", "status", "--socket"])
        .arg(gateway.socket())
        .uid(NOBODY)
        .gid(NOBODY)
        .output()
        .await?;
    let said = String::from_utf8(output.stderr)?;
    ensure!(
        said.starts_with("error[GATEWAY_UNREACHABLE]: ") && said.contains("ermission denied"),
        "{said}"
    );
    ensure!(said.contains("next: its socket is for the user"), "{said}");
    gateway.end().await
}

#[tokio::test]
async fn what_cannot_be_kept_is_refused_before_anything_is_written() -> anyhow::Result<()> {
    let gateway = Gateway::start().await?;
    let image = gateway.image.name();
    for (option, value, words) in [
        ("--memory", "1", "memory_bytes"),
        ("--memory", "9999999T", "memory_bytes"),
        ("--cpus", "0.001", "cpu_millis"),
        ("--label", "a\u{7}b=x", "labels"),
    ] {
        let said = gateway
            .say(["sandbox", "create", "box", "--image", &image, option, value])
            .await?;
        said.refused("INVALID_ARGUMENT", words)?;
    }
    let client = gateway.client();
    ensure!(settled(&client).await?.is_empty());
    create(&gateway, "box").await?;
    for changes in [
        json!({"labels": {"": "x"}}),
        json!({"labels": {"a=b": "x"}}),
        json!({"env": {"": "x"}}),
        json!({"env": {"a=b": ""}}),
    ] {
        let mut body = json!({"sandbox": {"name": "box"}});
        for (key, value) in changes.as_object().into_iter().flatten() {
            body[key] = value.clone();
        }
        let (status, answer) = curl(
            &gateway,
            "overwinter.v1.SandboxService/UpdateSandbox",
            &body,
        )
        .await?;
        ensure!(
            status == 400 && answer["code"] == "invalid_argument",
            "{body}: {status} {answer}"
        );
    }
    // The least that can be asked for is enough to run in.
    let least = ["--memory", "6M", "--cpus", "0.01"];
    let create = ["sandbox", "create", "small", "--image", &image];
    gateway.say(create.iter().chain(&least)).await?.well()?;
    gateway
        .say(["sandbox", "exec", "small", "--", "true"])
        .await?
        .well()?;
    gateway.end().await
}
