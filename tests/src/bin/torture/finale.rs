//! When nobody kills any more: everything wakes with all that was promised, is deleted, and leaves
//! nothing on the host.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use overwinter_client::{Achieved, Code, Depth, Phase};
use overwinter_tests::{Gateway, orphans, watcher};

use crate::contents;
use crate::ledger::{Ledger, keeps_memory};
use crate::life;
use crate::report::FROM_DISK;
use crate::stage::{RUNSC, Stage};

/// How long each verb may take when nothing is in its way.
const CALM: Duration = Duration::from_secs(60);
/// How long what was killed last may take to be gone from the host.
const GONE: Duration = Duration::from_secs(10);

/// # Errors
/// Says what does not hold.
pub(crate) async fn settle(stage: &Stage, gateway: &Gateway) -> anyhow::Result<()> {
    for ledger in stage.all() {
        if !ledger.is_deleted() {
            awake(stage, &ledger)
                .await
                .with_context(|| format!("{} does not wake up", ledger.id))?;
            ensure!(
                life::main_lives(stage, &ledger).await,
                "{}: its main process cannot be asked",
                ledger.id
            );
            if ledger.runtime == RUNSC {
                through_disk(stage, &ledger)
                    .await
                    .with_context(|| format!("{}, by way of the disk", ledger.id))?;
            }
            ensure!(
                contents::read_all(stage, &ledger).await,
                "{}: not every file can be read",
                ledger.id
            );
            ledger.delete();
            let delete = stage.client.delete(ledger.id.as_str());
            delete.limit(CALM).wait().await.context("the last delete")?;
            stage.report.proved("sandboxes awake in the end");
        }
        gone(stage, gateway, &ledger).await?;
    }
    let through_disk = stage.report.has_proved(FROM_DISK);
    ensure!(
        through_disk || !stage.runtimes.contains(&RUNSC),
        "no memory came back from the disk"
    );
    let left = stage.client.list().all().await?;
    ensure!(left.is_empty(), "the list still has {left:?}");
    Ok(())
}

/// Its memory goes to disk and comes back, and its main process is the same.
async fn through_disk(stage: &Stage, ledger: &Arc<Ledger>) -> anyhow::Result<()> {
    let suspend = stage.client.suspend(ledger.id.as_str());
    let suspend = suspend.depth(Depth::Checkpoint).limit(CALM);
    suspend.wait().await.context("the checkpoint")?;
    let resume = stage.client.resume(ledger.id.as_str()).limit(CALM);
    let resumed = resume.wait().await.context("the restore")?;
    let achieved = resumed.achieved;
    ensure!(
        achieved == Achieved::Memory,
        "the restore brought {achieved:?}"
    );
    ensure!(
        life::main_lives(stage, ledger).await,
        "its main process cannot be asked"
    );
    stage.report.proved(FROM_DISK);
    Ok(())
}

/// Its verbs that lead out, until it is ready.
async fn awake(stage: &Stage, ledger: &Arc<Ledger>) -> anyhow::Result<()> {
    let mut watch = stage
        .client
        .watch(Some(ledger.id.as_str().into()), 0)
        .await?;
    let settled = watch.until(|sandbox| {
        matches!(
            sandbox.phase(),
            Phase::Ready | Phase::Suspended | Phase::Failed
        )
    });
    tokio::time::timeout(CALM, settled)
        .await
        .context("it stays in a transition")??;
    let sandbox = stage.client.get(ledger.id.as_str()).await?;
    match sandbox.phase() {
        Phase::Ready => Ok(()),
        Phase::Suspended | Phase::Failed => {
            let memory = ledger.steady().filter(|_| keeps_memory(&sandbox));
            let resume = stage.client.resume(ledger.id.as_str()).limit(CALM);
            match resume.wait().await {
                Ok(_) => Ok(()),
                Err(error) => {
                    if memory.is_some_and(|epoch| ledger.lives_in(epoch)) {
                        bail!("its memory should be there: {error}");
                    }
                    // What it was asked to keep was killed: the other verb leads out.
                    let start = stage.client.start(ledger.id.as_str()).limit(CALM);
                    start.wait().await.context("start")?;
                    Ok(())
                }
            }
        }
        other => bail!("it is {}", other.as_str()),
    }
}

/// Nothing is left of what was deleted.
async fn gone(stage: &Stage, gateway: &Gateway, ledger: &Ledger) -> anyhow::Result<()> {
    match stage.client.get(ledger.id.as_str()).await {
        Err(error) if error.code() == Code::NotFound => {}
        Ok(sandbox) if sandbox.phase() == Phase::Tombstone => {}
        other => bail!("{} was deleted, and the API says {other:?}", ledger.id),
    }
    if let Ok(sandbox) = stage.client.get(ledger.name.as_str()).await {
        ensure!(
            sandbox.id() != ledger.id,
            "{} is still found by its name",
            ledger.id
        );
    }
    let left = watcher::traces_of(&ledger.id, &gateway.data_dir());
    ensure!(
        left.is_empty(),
        "{} was deleted, and left {left:?}",
        ledger.id
    );
    stage.report.proved("sandboxes that left nothing");
    Ok(())
}

/// Ends the gateway and looks at the host.
///
/// # Errors
/// Names everything that is left.
pub(crate) async fn host(gateway: Gateway) -> anyhow::Result<()> {
    let (folder, data) = (gateway.folder().to_owned(), gateway.data_dir());
    let socket = folder.display().to_string();
    // Each kind of folder that a sandbox has something in.
    let local = data.join("local");
    let owned = ["sandboxes", "ranges", "runc", "mnt"].map(|name| local.join(name));
    gateway
        .end_with(|| {
            for folder in &owned {
                let left: Vec<_> = std::fs::read_dir(folder)
                    .into_iter()
                    .flatten()
                    .flatten()
                    .map(|entry| entry.path())
                    .collect();
                ensure!(left.is_empty(), "files that nobody owns: {left:?}");
            }
            let sockets = std::fs::read_to_string("/proc/net/unix")?;
            let left: Vec<_> = sockets
                .lines()
                .filter(|line| line.contains(&socket))
                .collect();
            ensure!(left.is_empty(), "sockets that nobody owns: {left:?}");
            let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
            let left: Vec<_> = mounts
                .lines()
                .filter(|line| line.contains(" nsfs ") && line.contains("overwinter"))
                .collect();
            ensure!(left.is_empty(), "namespaces that nobody owns: {left:?}");
            Ok(())
        })
        .await?;
    // Whatever the gateway or one of its kin has left running was adopted.
    let until = tokio::time::Instant::now() + GONE;
    loop {
        let left = orphans::children();
        if left.is_empty() {
            return Ok(());
        }
        if tokio::time::Instant::now() > until {
            let left: Vec<String> = left.into_iter().map(orphans::describe).collect();
            bail!("processes that nobody owns: {left:#?}");
        }
        // Nothing tells of the end of what somebody else reaps.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
