//! A Podman without privilege: beside a gateway of root, and beside one that its own user runs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, ensure};
use overwinter_driver_docker::Flavor;
use overwinter_driver_docker::testkit::{Daemon, cannot_run_rootless};
use overwinter_tests::gateway::program;
use tokio::net::UnixStream;
use tokio::process::Command;

use crate::{IMAGE, Stage, new_folder, skips};

/// For a gateway to serve.
const PATIENCE: Duration = Duration::from_secs(30);

fn mode(path: &Path, mode: u32) -> anyhow::Result<()> {
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(mode))?)
}

#[tokio::test]
async fn a_gateway_of_root_says_what_a_rootless_podman_lacks() -> anyhow::Result<()> {
    if skips(cannot_run_rootless())? {
        return Ok(());
    }
    let folder = new_folder()?;
    let daemon = Daemon::start_rootless(&folder).await?;
    let mut stage = Stage::beside(daemon, Flavor::Podman, folder).await?;
    stage.configure("never", "[local]\nenabled = false\n")?;
    stage.gateway.run().await?;
    mode(stage.gateway.folder(), 0o711)?;
    let closed = stage.gateway.data_dir();
    let create = [
        "sandbox", "create", "box", "--driver", "podman", "--image", IMAGE,
    ];
    let refused = stage.gateway.say(create).await?;
    let words = format!("chmod o+x {}", closed.display());
    refused.refused("DRIVER_REJECTED", &words)?;
    let config = stage.gateway.folder().join("gateway.toml");
    let (config, data) = (config.to_string_lossy(), closed.to_string_lossy());
    let doctor = ["doctor", "--config", &config, "--data-dir", &data];
    let said = stage.gateway.say(doctor).await?.out;
    ensure!(
        said.contains("rootless (user ") && said.contains(&words),
        "{said}"
    );
    mode(&closed, 0o711)?;
    let said = stage.gateway.say(doctor).await?.out;
    ensure!(!said.contains(&words), "{said}");

    stage.create("box").await?;
    let seen = stage
        .sh("box", "echo kept > /workspace/file; stat -c %u /workspace")
        .await?;
    ensure!(seen == "0\n", "the workspace is not of user 0: {seen:?}");
    // What is offered is what its host allows: under control groups v1 no freeze.
    let drivers = stage.ow(&["driver", "list"]).await?;
    let offered = !drivers.contains("a rootless Podman pauses nothing")
        && !drivers.contains("this rootless Podman makes control groups by itself");
    let suspend = ["sandbox", "suspend", "box", "--depth", "freeze"];
    let frozen = stage.gateway.say(suspend).await?;
    if offered {
        frozen.well()?;
        stage.ow(&["sandbox", "resume", "box"]).await?;
    } else {
        frozen.refused("UNSUPPORTED", "does not offer depth freeze")?;
        ensure!(said.contains("no depth freeze"), "{said}");
    }
    stage
        .ow(&["sandbox", "suspend", "box", "--depth", "stop"])
        .await?;
    stage.gateway.kill().await?;
    stage.gateway.run().await?;
    stage.ow(&["sandbox", "resume", "box"]).await?;
    ensure!(stage.sh("box", "cat /workspace/file").await? == "kept\n");
    stage.strike().await
}

#[tokio::test]
async fn a_gateway_of_the_user_has_sandboxes_on_its_own_podman() -> anyhow::Result<()> {
    if skips(cannot_run_rootless())? {
        return Ok(());
    }
    let folder = new_folder()?;
    let daemon = Daemon::start_rootless(&folder).await?;
    daemon.import(IMAGE, &[]).await?;
    // Where the user finds them, wherever they were built.
    for (built, name) in [
        ("overwinter-gateway", "overwinter-gateway"),
        ("overwinter", "overwinter"),
        ("overwinter-supervisor.static", "overwinter-supervisor"),
    ] {
        fs::copy(program(built)?, folder.join(name))?;
    }
    let (config, socket) = (
        folder.join("gateway.toml"),
        folder.join("home/gateway.sock"),
    );
    let podman = daemon.socket();
    fs::write(
        &config,
        format!(
            "[local]\nenabled = false\n[podman]\nenabled = true\npull = \"never\"\nsocket = {podman:?}\n"
        ),
    )?;
    let mut gateway = Command::from(daemon.podman(&["unshare"])?)
        .arg(folder.join("overwinter-gateway"))
        .arg("run")
        .arg("--config")
        .arg(&config)
        .arg("--data-dir")
        .arg(folder.join("home/data"))
        .arg("--socket")
        .arg(&socket)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(fs::File::create(folder.join("gateway.log"))?)
        .kill_on_drop(true)
        .spawn()?;
    let serves = tokio::time::timeout(PATIENCE, async {
        while UnixStream::connect(&socket).await.is_err() {
            // No event tells that another process has begun to listen.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let log = || fs::read_to_string(folder.join("gateway.log")).unwrap_or_default();
    serves.await.with_context(log)?;
    let ow = async |arguments: &[&str]| {
        // Its API is the user's alone, and root of the host is nobody in its namespace.
        let mut command = Command::from(daemon.as_user(&folder.join("overwinter"))?);
        command.arg("--socket").arg(&socket).args(arguments);
        let output = command.output().await?;
        ensure!(
            output.status.success(),
            "{arguments:?}: {output:?}\n{}",
            log()
        );
        Ok(String::from_utf8(output.stdout)?)
    };
    ow(&[
        "sandbox", "create", "box", "--driver", "podman", "--image", IMAGE,
    ])
    .await?;
    let write = "echo kept > /workspace/file; stat -c %u /workspace";
    let seen = ow(&["sandbox", "exec", "box", "--", "sh", "-c", write]).await?;
    ensure!(seen == "0\n", "the workspace is not of user 0: {seen:?}");
    ow(&["sandbox", "suspend", "box", "--depth", "stop"]).await?;
    ow(&["sandbox", "resume", "box"]).await?;
    let kept = ow(&["sandbox", "exec", "box", "--", "cat", "/workspace/file"]).await?;
    ensure!(kept == "kept\n", "{kept:?}");
    ow(&["sandbox", "delete", "box"]).await?;
    ensure!(daemon.containers().await?.is_empty(), "a container is left");
    gateway.kill().await?;
    drop(daemon);
    let traces = Daemon::traces(&folder);
    ensure!(traces.is_empty() && !folder.exists(), "{traces:?}");
    Ok(())
}
