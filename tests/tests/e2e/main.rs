//! Faults and bad input, as a user meets them: the real gateway with the real local driver, through
//! the command and the SDK. Each test has a gateway of its own in folders of its own, and ends with a
//! look at what is left on the host.
#![allow(clippy::unwrap_used)]

mod api;
mod checkpoint;
mod clients;
mod disk;
mod exec;
mod files;
mod host;
mod host_image;
mod input;
mod lost;
mod patience;
mod program;
mod reclaim;
mod signals;
mod sleep;
mod stop;
mod storm;
mod streams;
mod terminal;
mod verbs;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use futures::TryStreamExt;
use overwinter_client::{Client, Code, Depth, Error, Phase, Sandbox};
use overwinter_tests::Gateway;

/// More than anything here takes: what is not done by then is stuck.
const STUCK: Duration = Duration::from_secs(30);

/// A gateway with one sandbox that is ready.
async fn with_sandbox(name: &str) -> anyhow::Result<(Gateway, Client)> {
    let gateway = Gateway::start().await?;
    let client = gateway.client();
    create(&gateway, name).await?;
    Ok((gateway, client))
}

async fn create(gateway: &Gateway, name: &str) -> anyhow::Result<Sandbox> {
    let create = gateway
        .client()
        .create()
        .name(name)
        .image(gateway.image.name());
    Ok(create.wait().await?.sandbox)
}

/// Runs a script inside, which must end well; answers with its stdout.
async fn sh(client: &Client, name: &str, script: &str) -> anyhow::Result<String> {
    let ran = client
        .command(name, ["/bin/sh", "-c", script])
        .run()
        .await?;
    ensure!(
        ran.exit.code == 0,
        "{script:?} ended with {:?}: {}",
        ran.exit,
        String::from_utf8_lossy(&ran.stderr)
    );
    Ok(String::from_utf8(ran.stdout.to_vec())?)
}

async fn read(
    client: &Client,
    name: &str,
    path: impl Into<overwinter_client::FilePath>,
) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    client
        .files(name)
        .read(path)
        .await?
        .copy_to(&mut bytes)
        .await?;
    Ok(bytes)
}

/// Waits, by watching, until the sandbox is in this phase.
async fn until(client: &Client, name: &str, phase: Phase) -> anyhow::Result<Sandbox> {
    let mut watch = client.watch(Some(name.into()), 0).await?;
    let seen = tokio::time::timeout(STUCK, watch.until(|sandbox| sandbox.phase() == phase)).await;
    seen.with_context(|| format!("{name} does not become {phase:?}"))??
        .context("the watch ended")
}

fn is_in_motion(sandbox: &Sandbox) -> bool {
    matches!(
        sandbox.phase(),
        Phase::Creating | Phase::Suspending | Phase::Resuming | Phase::Deleting
    )
}

/// Waits until every operation has ended, and checks that every sandbox has come to rest.
async fn settled(client: &Client) -> anyhow::Result<Vec<Sandbox>> {
    let mut watch = client.watch(None, 0).await?;
    let rest = async {
        loop {
            if client.gateway_status().await?.unfinished_operations == 0 {
                let sandboxes = client.list().all().await?;
                // What a client that was killed had asked for may be accepted in between.
                if !sandboxes.iter().any(is_in_motion) {
                    return anyhow::Ok(sandboxes);
                }
            }
            // Each end of an operation changes a sandbox.
            watch.next().await?;
        }
    };
    let Ok(sandboxes) = tokio::time::timeout(STUCK, rest).await else {
        let stuck: Vec<_> = client.operations(None, true).try_collect().await?;
        anyhow::bail!("these operations do not end: {stuck:?}");
    };
    let sandboxes = sandboxes?;
    for sandbox in &sandboxes {
        ensure!(
            matches!(sandbox.phase(), Phase::Ready | Phase::Suspended),
            "{} is {:?}: {:?}",
            sandbox.name(),
            sandbox.phase(),
            sandbox.failure()
        );
    }
    Ok(sandboxes)
}

async fn suspend(client: &Client, name: &str, depth: Depth) -> anyhow::Result<Sandbox> {
    let done = client.suspend(name).depth(depth).wait().await?;
    ensure!(
        done.sandbox.phase() == Phase::Suspended,
        "{:?}",
        done.sandbox.phase()
    );
    ensure!(
        done.sandbox.depth() == Some(depth),
        "{:?}",
        done.sandbox.depth()
    );
    Ok(done.sandbox)
}

/// A file of that name somewhere in the folder. What goes while it is looked for is not there.
fn below(folder: &Path, name: &str) -> Option<PathBuf> {
    let mut entries = std::fs::read_dir(folder).ok()?.flatten();
    entries.find_map(|entry| {
        let path = entry.path();
        if entry.file_type().ok()?.is_dir() {
            below(&path, name)
        } else {
            (entry.file_name() == name).then_some(path)
        }
    })
}

/// The error that a call must have ended with.
fn refused<T: std::fmt::Debug>(
    answer: Result<T, Error>,
    code: Code,
    reason: &str,
) -> anyhow::Result<Error> {
    let error = answer.err().context("it ended well")?;
    ensure!(
        error.code() == code && error.reason() == reason,
        "not {code:?}/{reason}: {error:?}"
    );
    Ok(error)
}
