//! The daemon is killed while it has a request of the gateway's, and comes back. What runs ends with it, as
//! it does with a daemon that is not told to let it live; nothing that is stored does.

use anyhow::{Context, ensure};
use overwinter_client::Phase;
use overwinter_driver_docker::Flavor;
use overwinter_driver_docker::testkit::{Fault, Proxy};

use crate::Stage;

/// The request, what asks for it, and what must be done before.
const EFFECTS: [(&str, &[&str], Option<&str>); 5] = [
    (
        "POST /containers/*/pause",
        &["suspend", "box", "--depth", "freeze"],
        None,
    ),
    (
        "POST /containers/*/unpause",
        &["resume", "box"],
        Some("freeze"),
    ),
    (
        "POST /containers/*/stop",
        &["suspend", "box", "--depth", "stop"],
        None,
    ),
    ("POST /containers/*/start", &["resume", "box"], Some("stop")),
    ("DELETE /containers/*", &["delete", "box"], None),
];

#[tokio::test]
async fn a_daemon_that_is_killed_before_it_has_carried_out_a_request() -> anyhow::Result<()> {
    killed_over(Fault::Held).await
}

#[tokio::test]
async fn a_daemon_that_is_killed_before_it_has_answered() -> anyhow::Result<()> {
    killed_over(Fault::ReplyLost).await
}

async fn killed_over(fault: Fault) -> anyhow::Result<()> {
    let Some(mut stage) = Stage::without_gateway(Flavor::Docker).await? else {
        return Ok(());
    };
    let proxy = Proxy::start(&stage.folder.join("proxy.sock"), &stage.daemon.socket())?;
    stage.socket = proxy.socket().to_owned();
    stage.configure("never", "")?;
    stage.gateway.run().await?;
    stage.create("box").await?;
    stage
        .sh("box", "echo kept > /workspace/a; echo root > /root-file")
        .await?;
    for (request, verb, asleep) in EFFECTS {
        if let Some(depth) = asleep {
            stage
                .ow(&["sandbox", "suspend", "box", "--depth", depth])
                .await?;
        }
        let mut met = proxy.next(request, fault);
        let arguments = [&["sandbox"], verb].concat();
        let daemon = &mut stage.daemon;
        let interrupted = async {
            met.taken().await?;
            if fault == Fault::Held {
                daemon.kill()?;
                // Nobody is there to take it.
                ensure!(met.let_go().await.is_err(), "it was carried out");
            } else {
                met.over().await?;
                daemon.kill()?;
            }
            daemon.start_again().await?;
            Ok(())
        };
        // However it ends: what is so afterwards counts.
        let (said, interrupted) = tokio::join!(stage.gateway.say(arguments), interrupted);
        interrupted.with_context(|| request.to_owned())?;
        if verb[0] == "delete" {
            said?.well()?;
            break;
        }
        let now = stage
            .settled()
            .await
            .with_context(|| format!("{request}: {said:?}"))?;
        stage
            .ow(&["sandbox", "start", "box"])
            .await
            .with_context(|| format!("{request}: {now:?}, {said:?}"))?;
        let kept = stage.sh("box", "cat /workspace/a /root-file").await;
        let kept = kept.with_context(|| format!("{request}: {now:?}, {said:?}"))?;
        ensure!(kept == "kept\nroot\n", "{request}: {kept}");
    }
    drop(proxy);
    stage.strike().await
}

impl Stage {
    /// Until it serves calls, or its record says that it does not run.
    async fn settled(&self) -> anyhow::Result<Phase> {
        let client = self.gateway.client();
        let now = client.get("box").await?.phase();
        if now == Phase::Ready && self.sh("box", "true").await.is_ok() {
            return Ok(now);
        }
        let mut watch = client.watch(Some("box".into()), 0).await?;
        let mut last = now;
        let seen = watch.until(|sandbox| {
            last = sandbox.phase();
            matches!(last, Phase::Suspended | Phase::Failed)
        });
        let within = std::time::Duration::from_secs(60);
        tokio::time::timeout(within, seen)
            .await
            .context("it does not settle")??;
        Ok(last)
    }
}
