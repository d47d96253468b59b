//! A sandbox from its creation to its end, by the command.

use anyhow::ensure;
use overwinter_driver_docker::Flavor;

use crate::{IMAGE, Stage};

#[tokio::test]
async fn a_docker_container_sleeps_and_wakes_by_the_command() -> anyhow::Result<()> {
    sleeps_and_wakes(Flavor::Docker).await
}

#[tokio::test]
async fn a_podman_container_sleeps_and_wakes_by_the_command() -> anyhow::Result<()> {
    sleeps_and_wakes(Flavor::Podman).await
}

async fn sleeps_and_wakes(flavor: Flavor) -> anyhow::Result<()> {
    let Some(stage) = Stage::set(flavor).await? else {
        return Ok(());
    };
    let drivers = stage.ow(&["driver", "list"]).await?;
    let ours: Vec<_> = drivers
        .lines()
        .filter(|it| it.contains(flavor.name()))
        .collect();
    ensure!(!ours.is_empty(), "{drivers}");
    ensure!(
        drivers.contains("this driver does not write memory to disk"),
        "{drivers}"
    );

    stage.create("one").await?;
    let made = stage.containers().await?;
    ensure!(made.len() == 1, "{made:?}");
    let got = stage.ow(&["sandbox", "get", "one"]).await?;
    ensure!(got.contains("sha256:"), "the image is not pinned: {got}");

    let script =
        "echo kept > /workspace/a; echo kept > /root-file; sleep 1000 & echo $! > /tmp/pid";
    stage
        .ow(&["sandbox", "exec", "one", "--", "sh", "-c", script])
        .await?;
    for depth in ["freeze", "stop", "freeze", "stop"] {
        stage
            .ow(&["sandbox", "suspend", "one", "--depth", depth])
            .await?;
        let asleep = stage.ow(&["sandbox", "get", "one"]).await?;
        ensure!(asleep.contains(depth), "{asleep}");
        stage.ow(&["sandbox", "resume", "one"]).await?;
        let script = "cat /workspace/a /root-file; grep -q ^sleep /proc/$(cat /tmp/pid)/cmdline && echo runs";
        let kept = stage
            .gateway
            .say(["sandbox", "exec", "one", "--", "sh", "-c", script])
            .await?;
        let expected = match depth {
            "freeze" => "kept\nkept\nruns\n",
            _ => "kept\nkept\n",
        };
        ensure!(kept.out == expected, "after {depth}: {kept:?}");
        if depth == "stop" {
            let script = "sleep 1000 & echo $! > /tmp/pid";
            stage
                .ow(&["sandbox", "exec", "one", "--", "sh", "-c", script])
                .await?;
        }
        ensure!(stage.containers().await? == made, "not the same container");
    }
    stage.ow(&["sandbox", "delete", "one"]).await?;
    ensure!(stage.containers().await?.is_empty(), "it is left");

    // What cannot be had is refused in words, and leaves the name free.
    let missing = stage
        .gateway
        .say([
            "sandbox",
            "create",
            "one",
            "--driver",
            flavor.name(),
            "--image",
            "no-such:image",
        ])
        .await?;
    missing.refused("IMAGE_UNUSABLE", "no-such:image")?;
    let network = stage
        .gateway
        .say([
            "sandbox",
            "create",
            "one",
            "--driver",
            flavor.name(),
            "--image",
            IMAGE,
            "--network",
            "internet",
        ])
        .await?;
    network.refused("UNSUPPORTED", "internet")?;
    stage.create("one").await?;
    stage.strike().await
}

#[tokio::test]
async fn a_gateway_that_was_killed_finds_its_containers_again() -> anyhow::Result<()> {
    let Some(mut stage) = Stage::set(Flavor::Docker).await? else {
        return Ok(());
    };
    for name in ["awake", "frozen", "stopped"] {
        stage.create(name).await?;
        let script = "echo $0 > /workspace/name; sleep 1000 & echo $! > /tmp/pid";
        stage
            .ow(&["sandbox", "exec", name, "--", "sh", "-c", script, name])
            .await?;
    }
    stage
        .ow(&["sandbox", "suspend", "frozen", "--depth", "freeze"])
        .await?;
    stage
        .ow(&["sandbox", "suspend", "stopped", "--depth", "stop"])
        .await?;
    stage.gateway.kill().await?;
    stage.gateway.run().await?;
    for (name, runs) in [("awake", true), ("frozen", true), ("stopped", false)] {
        if name != "awake" {
            stage.ow(&["sandbox", "resume", name]).await?;
        }
        let script =
            "cat /workspace/name; grep -q ^sleep /proc/$(cat /tmp/pid)/cmdline && echo runs; true";
        let said = stage
            .ow(&["sandbox", "exec", name, "--", "sh", "-c", script])
            .await?;
        let expected = format!("{name}\n{}", if runs { "runs\n" } else { "" });
        ensure!(said == expected, "{name}: {said:?}");
    }
    stage.strike().await
}

#[tokio::test]
async fn what_an_image_runs_by_itself_is_its_main_process() -> anyhow::Result<()> {
    let Some(stage) = Stage::set(Flavor::Docker).await? else {
        return Ok(());
    };
    let script = "id -u > /tmp/who; pwd >> /tmp/who; echo $GREETING >> /tmp/who; sleep 1; exit 7";
    let command = format!("CMD {}", serde_json::json!(["-c", script]));
    let says = [
        "ENV GREETING=hello",
        "USER 1000",
        "WORKDIR /home",
        "ENTRYPOINT [\"/bin/sh\"]",
        &command,
    ];
    stage.daemon.import_as("own:latest", &[], &says).await?;
    stage
        .ow(&[
            "sandbox",
            "create",
            "own",
            "--driver",
            "docker",
            "--image",
            "own:latest",
        ])
        .await?;
    let mut watch = stage.gateway.client().watch(Some("own".into()), 0).await?;
    let ended = watch.until(|sandbox| sandbox.raw().main_exit.is_set());
    let ended = tokio::time::timeout(std::time::Duration::from_secs(30), ended).await??;
    ensure!(
        ended.is_some_and(|it| it.raw().main_exit.code == 7),
        "not its exit"
    );
    let wrote = stage.sh("own", "cat /tmp/who; echo $GREETING").await?;
    ensure!(wrote == "1000\n/home\nhello\nhello\n", "{wrote:?}");
    // The sandbox is none the worse for it, and a cold start runs it again.
    stage.sh("own", "rm /tmp/who").await?;
    stage
        .ow(&["sandbox", "suspend", "own", "--depth", "stop"])
        .await?;
    stage.ow(&["sandbox", "resume", "own"]).await?;
    stage
        .sh("own", "while ! grep -q hello /tmp/who; do sleep 0.1; done")
        .await?;
    stage.strike().await
}
