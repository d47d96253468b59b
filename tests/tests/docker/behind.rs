//! What others do to a container, its daemon and its socket behind the gateway's back. In each the sandbox
//! ends in a state that says what is so, a verb leads out, and nothing that has data is removed.

use anyhow::ensure;
use bollard::query_parameters::{KillContainerOptions, RestartContainerOptions};
use overwinter_client::{Depth, Phase};
use overwinter_driver_docker::Flavor;
use overwinter_driver_docker::testkit::Daemon;

use crate::{IMAGE, Stage};

/// As the daemon does it by itself.
const NO_KILL: Option<KillContainerOptions> = None;
const NO_RESTART: Option<RestartContainerOptions> = None;

impl Stage {
    /// Waits, by watching, until a sandbox is in this phase.
    pub(crate) async fn until(&self, name: &str, phase: Phase) -> anyhow::Result<()> {
        let client = self.gateway.client();
        let mut watch = client.watch(Some(name.into()), 0).await?;
        let seen = watch.until(|sandbox| sandbox.phase() == phase);
        let seen = tokio::time::timeout(std::time::Duration::from_secs(60), seen).await;
        ensure!(
            matches!(seen, Ok(Ok(Some(_)))),
            "{name} does not become {phase:?}: {:?}",
            client.get(name).await?.failure()
        );
        Ok(())
    }

    /// A resume is refused and says what is lost; the sandbox stays asleep, and nothing is made.
    async fn root_is_lost(&self, name: &str) -> anyhow::Result<()> {
        // Asked again it is no different.
        for _ in 0..2 {
            let refused = self.gateway.say(["sandbox", "resume", name]).await?;
            refused.refused("ROOT_LOST", "the workspace is as it was")?;
            let now = self.gateway.client().get(name).await?;
            ensure!(
                now.phase() == Phase::Suspended && now.depth() == Some(Depth::Stop),
                "{now:?}"
            );
        }
        ensure!(self.containers().await?.is_empty(), "one was made");
        Ok(())
    }

    pub(crate) async fn native(&self, name: &str) -> anyhow::Result<String> {
        let id = self.gateway.client().get(name).await?.id().replace('-', "");
        Ok(format!("overwinter-{id}"))
    }
}

#[tokio::test]
async fn a_container_that_is_killed_stopped_or_removed_leaves_its_workspace() -> anyhow::Result<()>
{
    let Some(stage) = Stage::set(Flavor::Docker).await? else {
        return Ok(());
    };
    stage.create("box").await?;
    stage
        .sh("box", "echo kept > /workspace/a; echo root > /root-file")
        .await?;
    let native = stage.native("box").await?;
    let client = stage.daemon.client().await?;

    client.kill_container(&native, NO_KILL).await?;
    stage.until("box", Phase::Failed).await?;
    stage.ow(&["sandbox", "resume", "box"]).await?;
    ensure!(stage.sh("box", "cat /workspace/a /root-file").await? == "kept\nroot\n");

    // What somebody else has started is not the gateway's, and ends when the gateway starts its own.
    client.restart_container(&native, NO_RESTART).await?;
    stage.until("box", Phase::Failed).await?;
    stage.ow(&["sandbox", "resume", "box"]).await?;
    ensure!(stage.sh("box", "cat /workspace/a /root-file").await? == "kept\nroot\n");

    // The root layer goes with the container: a resume does not pass over that, and the workspace is not
    // touched.
    stage.daemon.remove(&native).await?;
    stage.until("box", Phase::Failed).await?;
    stage.root_is_lost("box").await?;
    let went_on = ["sandbox", "resume", "box", "--restart-if-restore-fails"];
    stage.ow(&went_on).await?;
    ensure!(
        stage
            .sh("box", "cat /workspace/a; ls /root-file 2>&1 || true")
            .await?
            .starts_with("kept\nls: ")
    );

    // The same while it sleeps.
    stage.sh("box", "echo root > /root-file").await?;
    let suspend = ["sandbox", "suspend", "box", "--depth", "stop"];
    stage.ow(&suspend).await?;
    stage.daemon.remove(&native).await?;
    stage.root_is_lost("box").await?;
    stage.ow(&["sandbox", "start", "box"]).await?;
    ensure!(
        stage
            .sh("box", "cat /workspace/a; ls /root-file 2>&1 || true")
            .await?
            .starts_with("kept\nls: ")
    );

    // While it is frozen: its memory is lost, and nothing else.
    stage
        .ow(&["sandbox", "suspend", "box", "--depth", "freeze"])
        .await?;
    client.kill_container(&native, NO_KILL).await?;
    let client = stage.gateway.client();
    let refused = client.resume("box").wait().await;
    ensure!(
        refused.is_err(),
        "memory that is gone was resumed: {refused:?}"
    );
    let now = client.get("box").await?;
    ensure!(
        now.phase() == Phase::Suspended && now.depth() == Some(Depth::Stop),
        "{now:?}"
    );
    stage.ow(&["sandbox", "start", "box"]).await?;
    ensure!(stage.sh("box", "cat /workspace/a").await? == "kept\n");
    stage.strike().await
}

#[tokio::test]
async fn a_daemon_that_is_killed_away_or_another_is_never_taken_for_an_empty_one()
-> anyhow::Result<()> {
    let Some(mut stage) = Stage::set(Flavor::Docker).await? else {
        return Ok(());
    };
    for name in ["awake", "asleep"] {
        stage.create(name).await?;
        stage
            .sh(name, "echo kept > /workspace/a; echo root > /root-file")
            .await?;
    }
    stage
        .ow(&["sandbox", "suspend", "asleep", "--depth", "stop"])
        .await?;

    // Killed, and away: the record stays what it is.
    stage.daemon.kill()?;
    let refused = stage.gateway.say(["sandbox", "resume", "asleep"]).await?;
    refused.refused("START_FAILED", "no daemon answers")?;
    let asleep = stage.gateway.client().get("asleep").await?;
    ensure!(asleep.phase() == Phase::Suspended, "{asleep:?}");

    // Another daemon, with the same image, at the same socket.
    let folder = stage.folder.with_extension("other");
    std::fs::create_dir(&folder)?;
    let other = Daemon::start(Flavor::Docker, &folder).await?;
    other.import(IMAGE, &[]).await?;
    let (own, aside) = (stage.daemon.socket(), stage.folder.join("aside.sock"));
    std::fs::rename(&own, &aside)?;
    std::os::unix::fs::symlink(other.socket(), &own)?;
    let refused = stage.gateway.say(["sandbox", "resume", "asleep"]).await?;
    refused.refused("START_FAILED", "is another one")?;
    ensure!(
        other.containers().await?.is_empty(),
        "something was made there"
    );
    std::fs::remove_file(&own)?;
    drop(other);

    // Back again: it has ended what ran, and what was stored is there.
    stage.daemon.start_again().await?;
    stage.until("awake", Phase::Failed).await?;
    for name in ["awake", "asleep"] {
        stage.ow(&["sandbox", "resume", name]).await?;
        ensure!(
            stage.sh(name, "cat /workspace/a /root-file").await? == "kept\nroot\n",
            "{name}"
        );
    }
    stage.strike().await
}

#[tokio::test]
async fn a_gateway_that_starts_before_its_daemon_offers_what_it_does() -> anyhow::Result<()> {
    let Some(mut stage) = Stage::without_gateway(Flavor::Docker).await? else {
        return Ok(());
    };
    stage.daemon.end()?;
    stage.gateway.run().await?;
    let away = stage.ow(&["driver", "list"]).await?;
    ensure!(away.contains("not seen yet"), "{away}");
    let create = [
        "sandbox", "create", "early", "--driver", "docker", "--image", IMAGE,
    ];
    stage
        .gateway
        .say(create)
        .await?
        .refused("IMAGE_UNUSABLE", "no daemon answers")?;

    stage.daemon.start_again().await?;
    stage.create("box").await?;
    stage.sh("box", "echo kept > /tmp/memory").await?;
    for depth in ["freeze", "stop"] {
        let suspend = ["sandbox", "suspend", "box", "--depth", depth];
        stage.ow(&suspend).await?;
        stage.ow(&["sandbox", "resume", "box"]).await?;
    }
    stage.strike().await
}

/// A pause by somebody else, or a freeze that the daemon carries out after it was settled as not done.
#[tokio::test]
async fn a_container_that_is_paused_while_it_is_ready_sleeps_and_wakes_with_its_memory()
-> anyhow::Result<()> {
    let Some(stage) = Stage::set(Flavor::Docker).await? else {
        return Ok(());
    };
    stage.create("box").await?;
    stage.sh("box", "sleep 1000 & echo $! > /tmp/pid").await?;
    let native = stage.native("box").await?;
    stage
        .daemon
        .client()
        .await?
        .pause_container(&native)
        .await?;
    stage.until("box", Phase::Suspended).await?;
    let asleep = stage.gateway.client().get("box").await?;
    ensure!(asleep.depth() == Some(Depth::Freeze), "{asleep:?}");
    stage.ow(&["sandbox", "resume", "box"]).await?;
    let runs = "grep -q ^sleep /proc/$(cat /tmp/pid)/cmdline && echo runs";
    ensure!(stage.sh("box", runs).await? == "runs\n");
    stage.strike().await
}
