//! Whoever takes all there is: processes, memory, processors, files, bytes.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use overwinter_client::{Phase, Sandbox};

use crate::stage::{PATIENCE, Stage, runtimes};

/// More than any attack goes on.
const STUCK: Duration = Duration::from_secs(60);

async fn tenant(stage: &Stage, name: &str, runtime: &str) -> anyhow::Result<Sandbox> {
    let create = stage
        .client
        .create()
        .name(name)
        .image(stage.gateway.image.name())
        .runtime(runtime)
        .pids(200)
        .memory_bytes(96 << 20);
    Ok(create.wait().await?.sandbox)
}

/// Attacks for some seconds, in which the neighbour is asked again and again; then it is deleted,
/// alive or not.
async fn attack(stage: &Stage, name: &str, script: &str) -> anyhow::Result<String> {
    let command = ["/bin/sh", "-c", script];
    let running = stage.client.command(name, command).run();
    let running = tokio::time::timeout(STUCK, running);
    tokio::pin!(running);
    let mut longest = Duration::ZERO;
    let ended = loop {
        tokio::select! {
            ended = &mut running => break ended,
            () = tokio::time::sleep(Duration::from_millis(300)) => {
                let begun = Instant::now();
                stage.unharmed(name).await?;
                longest = longest.max(begun.elapsed());
            }
        }
    };
    // Its own sandbox may have ended with it.
    let said = match ended.with_context(|| format!("{name} does not end"))? {
        Ok(ran) => {
            let stderr = String::from_utf8_lossy(&ran.stderr).into_owned();
            format!(
                "{:?} {} {}",
                ran.exit.code,
                String::from_utf8_lossy(&ran.stdout),
                stderr
            )
        }
        Err(error) => format!("{error}"),
    };
    println!(
        "{name}: the neighbour waited {longest:?} at most; {}",
        said.chars().take(120).collect::<String>()
    );
    stage.unharmed(name).await?;
    let is = stage.client.get(name).await?.phase();
    ensure!(
        matches!(is, Phase::Ready | Phase::Failed),
        "{name} is {is:?}"
    );
    let deleted = stage.client.delete(name).wait();
    tokio::time::timeout(PATIENCE, deleted)
        .await
        .with_context(|| format!("{name} is not deleted"))??;
    Ok(said)
}

/// A fork bomb with an end, for a test that must end too; it tells whether a fork was refused.
const FORKS: &str = "end=$(($(date +%s)+3)); bomb() { while [ $(date +%s) -lt $end ]; do bomb & bomb & sleep 0.1; done; }; bomb 2>&1 | grep -m1 -o 'fork.*' ; true";
/// More memory than there is for it, in one process and in a file in memory.
const MEMORY: &str = "dd if=/dev/zero of=/dev/shm/a bs=1M count=60; x=x; while :; do x=$x$x; done";
/// For each of two processors, thirty-two that spin.
const SPIN: &str =
    "for i in $(seq 64); do timeout 3 sh -c 'while :; do :; done' & done; wait; echo spun";

async fn take_all(stage: &Stage, runtime: &str) -> anyhow::Result<()> {
    for (what, script) in [("forks", FORKS), ("memory", MEMORY), ("spin", SPIN)] {
        let name = format!("{what}-{runtime}");
        if let Err(error) = tenant(stage, &name, runtime).await {
            // A host without a controller refuses the limit, and says which.
            ensure!(
                std::env::var_os("OVERWINTER_REQUIRE_LOCAL").is_none(),
                "{error:#}"
            );
            println!("SKIPPED {name}: {error:#}");
            continue;
        }
        let said = attack(stage, &name, script).await?;
        match what {
            // As below: on gVisor there may be no thread left for its own.
            "spin" => ensure!(runtime != "runc" || said.contains("spun"), "{said}"),
            // It must not have come to its end by itself.
            "memory" => ensure!(!said.starts_with("0 "), "{said}"),
            // On gVisor the limit counts threads of its own too, without which it ends.
            _ => ensure!(runtime != "runc" || said.contains("fork: "), "{said}"),
        }
    }
    Ok(())
}

#[tokio::test]
async fn who_takes_all_takes_its_own_alone() -> anyhow::Result<()> {
    let runtimes = runtimes()?;
    let stage = Stage::open().await?;
    // Side by side, as tenants are.
    let attacks = runtimes.iter().map(|runtime| take_all(&stage, runtime));
    futures::future::try_join_all(attacks).await?;
    stage.close().await
}

/// Bytes and inodes are bounded where the filesystem has project quotas.
#[tokio::test]
async fn who_fills_the_disk_meets_its_quota() -> anyhow::Result<()> {
    let stage = Stage::open().await?;
    let create = stage
        .client
        .create()
        .name("filler")
        .image(stage.gateway.image.name())
        .disk_bytes(16 << 20);
    match create.wait().await {
        Err(refused) => {
            ensure!(refused.reason() == "UNSUPPORTED", "{refused:?}");
            // A limit that cannot hold is none, and it is said.
            println!("SKIPPED a disk filler and an inode bomb: {refused}");
        }
        Ok(_) => {
            for script in [
                "dd if=/dev/zero of=/workspace/big bs=1M count=64",
                "i=0; while [ $i -lt 5000 ]; do : > /workspace/f$i || exit 1; i=$((i+1)); done",
                "dd if=/dev/zero of=/big bs=1M count=64",
            ] {
                let ran = stage
                    .client
                    .command("filler", ["/bin/sh", "-c", script])
                    .run()
                    .await?;
                ensure!(ran.exit.code != 0, "{script}: {ran:?}");
                stage.unharmed(script).await?;
            }
        }
    }
    // What is in memory has limits of its own everywhere.
    let create = stage
        .client
        .create()
        .name("shm")
        .image(stage.gateway.image.name());
    create.wait().await?;
    let script = "dd if=/dev/zero of=/dev/shm/big bs=1M count=128; dd if=/dev/zero of=/dev/big bs=1M count=128; du -m /dev/shm/big /dev/big";
    let ran = stage
        .client
        .command("shm", ["/bin/sh", "-c", script])
        .run()
        .await?;
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    let sizes = said
        .lines()
        .filter_map(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    let sizes: Vec<_> = sizes.collect();
    ensure!(
        sizes.len() == 2 && sizes.iter().all(|size| *size <= 65),
        "{ran:?}"
    );
    stage.unharmed("a filler of memory").await?;
    stage.close().await
}
