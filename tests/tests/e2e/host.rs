//! A host that lacks something, and a gateway that is set up wrongly: it refuses to start, and says
//! why.

use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use overwinter_client::{Code, Phase};
use overwinter_tests::Gateway;
use overwinter_tests::gateway::program;
use tokio::process::Command;

use crate::host_image::runtimes;
use crate::{STUCK, create, refused, settled, sh};

/// Another user: nobody.
const NOBODY: u32 = 65534;

/// Starts a gateway that must not come up; answers with what it logged.
async fn refuses(gateway: &mut Gateway) -> anyhow::Result<String> {
    gateway.spawn()?;
    let status = gateway.ended(STUCK).await?;
    ensure!(
        status.code() == Some(1),
        "it ended with {status}: {}",
        gateway.log_tail()
    );
    ensure!(!gateway.socket().exists(), "it has left its socket");
    Ok(gateway.log_tail())
}

#[tokio::test]
async fn a_configuration_that_is_wrong_is_refused_by_name() -> anyhow::Result<()> {
    let mut gateway = Gateway::prepare()?;
    for (toml, words) in [
        (
            "[local]\nruntimee = \"runc\"\n",
            &["gateway.toml", "runtimee", "line"][..],
        ),
        ("colour = \"blue\"\n", &["gateway.toml", "colour"]),
        ("[limits]\nspeed = 3\n", &["gateway.toml", "speed"]),
        (
            "[local]\nenabled = \"perhaps\"\n",
            &["gateway.toml", "boolean"],
        ),
        ("[local\n", &["gateway.toml", "line"]),
        (
            "[local]\nruntime = \"no-such-runtime\"\n",
            &["no-such-runtime", "not found", "install"],
        ),
        (
            "[local]\nruntime = \"/no/such/runtime\"\n",
            &["/no/such/runtime", "not found"],
        ),
    ] {
        gateway.set_config(toml)?;
        let log = refuses(&mut gateway).await?;
        for word in words {
            ensure!(
                log.contains(word),
                "it does not say {word:?} of {toml:?}: {log}"
            );
        }
        std::fs::remove_file(gateway.folder().join("gateway.log"))?;
    }
    gateway.set_config("")?;
    gateway.run().await?;
    gateway.end().await
}

#[tokio::test]
async fn a_user_without_privilege_is_told_so() -> anyhow::Result<()> {
    // Where that user can reach it.
    let folder = tempfile::Builder::new().prefix("overwinter-").tempdir()?;
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755))?;
    chown(folder.path(), Some(NOBODY), Some(NOBODY))?;
    let own = folder.path().join("overwinter-gateway");
    std::fs::copy(program("overwinter-gateway")?, &own)?;
    std::fs::copy(
        program("overwinter-supervisor.static")?,
        folder.path().join("overwinter-supervisor"),
    )?;
    let ended = Command::new("setpriv")
        .args([
            &format!("--reuid={NOBODY}"),
            &format!("--regid={NOBODY}"),
            "--clear-groups",
        ])
        .arg(&own)
        .arg("run")
        .arg("--data-dir")
        .arg(folder.path().join("data"))
        .arg("--socket")
        .arg(folder.path().join("gateway.sock"))
        .stdin(Stdio::null())
        .output();
    let ended = tokio::time::timeout(STUCK, ended).await??;
    let said = String::from_utf8_lossy(&ended.stderr);
    ensure!(ended.status.code() == Some(1), "{ended:?}");
    ensure!(
        said.contains("needs root") && said.contains("65534"),
        "{said}"
    );
    Ok(())
}

#[tokio::test]
async fn two_gateways_never_share_a_data_folder_or_a_socket() -> anyhow::Result<()> {
    let gateway = Gateway::start().await?;
    create(&gateway, "box").await?;
    let mut second = Gateway::prepare()?;
    second.set_data_dir(gateway.data_dir());
    let log = refuses(&mut second).await?;
    ensure!(
        log.contains("another gateway") || log.contains("lock"),
        "{log}"
    );
    // The first has not noticed.
    ensure!(sh(&gateway.client(), "box", "echo well").await? == "well\n");
    // What is left of the second is the first's: not for its harness to clear.
    second.set_data_dir(second.folder().join("data"));
    drop(second);
    ensure!(sh(&gateway.client(), "box", "echo well").await? == "well\n");

    let mut other = Gateway::prepare()?;
    std::os::unix::fs::symlink(gateway.socket(), other.socket())?;
    other.spawn()?;
    let status = other.ended(STUCK).await?;
    ensure!(status.code() == Some(1), "{status}");
    ensure!(
        other.log_tail().contains("in use by another gateway"),
        "{}",
        other.log_tail()
    );
    ensure!(sh(&gateway.client(), "box", "echo well").await? == "well\n");
    gateway.end().await
}

/// A runtime that never comes back from `run` while a file is there.
const HANGING: &str = "#!/bin/sh\ncase \" $* \" in *' run '*) [ -e HANG ] && exec sleep 600;; esac\nexec runc \"$@\"\n";

/// The last try before the operation's deadline ended the runtime, or found the one before it still at
/// its lock.
fn says_it_hangs(message: &str) -> bool {
    message.contains("did not end within") || message.contains("its lock was not free within")
}

#[tokio::test]
async fn a_runtime_that_hangs_is_ended_at_the_deadline_and_loses_nothing() -> anyhow::Result<()> {
    let mut gateway = Gateway::prepare()?;
    let (script, hang) = (
        gateway.folder().join("hanging-runtime"),
        gateway.folder().join("hang"),
    );
    std::fs::write(
        &script,
        HANGING.replace("HANG", &hang.display().to_string()),
    )?;
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755))?;
    gateway.set_config(&format!(
        "[deadlines]\neffect_ms = 1500\n[local]\nruntime = {:?}\n",
        script.display().to_string()
    ))?;
    gateway.run().await?;
    let client = gateway.client();
    create(&gateway, "box").await?;
    sh(&client, "box", "echo kept > /workspace/note").await?;
    client.suspend("box").wait().await?;

    std::fs::write(&hang, b"")?;
    let began = Instant::now();
    let failed = client
        .create()
        .name("other")
        .image(gateway.image.name())
        .wait()
        .await;
    let error = refused(failed, Code::FailedPrecondition, "START_FAILED")?;
    ensure!(says_it_hangs(error.message()), "{error:?}");
    let failed = client.resume("box").wait().await;
    let error = refused(failed, Code::FailedPrecondition, "START_FAILED")?;
    ensure!(says_it_hangs(error.message()), "{error:?}");
    ensure!(
        began.elapsed() < Duration::from_secs(15),
        "{:?}",
        began.elapsed()
    );
    let kept = settled(&client).await?;
    ensure!(
        kept.len() == 1 && kept[0].phase() == Phase::Suspended,
        "{kept:?}"
    );

    std::fs::remove_file(&hang)?;
    client.resume("box").wait().await?;
    ensure!(sh(&client, "box", "cat /workspace/note").await? == "kept\n");
    create(&gateway, "other").await?;
    gateway.end().await
}

#[tokio::test]
async fn a_network_that_one_runtime_lacks_is_listed_so_and_refused_before_anything_is_written()
-> anyhow::Result<()> {
    if !runtimes()?.contains(&"runsc") {
        return Ok(());
    }
    let gateway = Gateway::start().await?;
    let listed = gateway.say(["driver", "list"]).await?.well()?;
    let row = |name: &str| {
        let row = |line: &&str| line.split_whitespace().any(|word| word == name);
        listed.lines().find(row).map(str::to_owned)
    };
    let internet = row("internet").context("no such network")?;
    ensure!(internet.contains("yes; not on runsc: "), "{listed}");
    ensure!(
        row("none").is_some_and(|row| !row.contains("not on")),
        "{listed}"
    );
    let image = gateway.image.name();
    let on = ["--runtime", "runsc", "--network", "internet"];
    let create = ["sandbox", "create", "box", "--image", &image];
    let said = gateway.say(create.iter().chain(&on)).await?;
    said.refused("UNSUPPORTED", "runsc")?;
    ensure!(settled(&gateway.client()).await?.is_empty());
    gateway.end().await
}
