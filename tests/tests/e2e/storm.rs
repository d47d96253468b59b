//! Twenty clients at once, with verbs at random on four sandboxes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use futures::TryStreamExt;
use overwinter_client::{Client, Code, Depth, Error, Phase};
use overwinter_tests::Gateway;

use crate::{create, read, settled, sh};

const CLIENTS: u64 = 20;
const SANDBOXES: [&str; 4] = ["north", "east", "south", "west"];
const TIME: Duration = Duration::from_secs(12);
/// One seed gives every client one order of verbs; how they fall between each other differs.
const SEED: u64 = 20_260_101;

/// SplitMix64 (Steele, Lea, Flood 2014): enough to choose with.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}

/// A write that the gateway has acknowledged.
struct Written {
    sandbox: &'static str,
    path: String,
    contents: String,
}

#[derive(Default)]
struct Tally {
    slept: AtomicU64,
    woken: AtomicU64,
    ran: AtomicU64,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn verbs_from_twenty_clients_all_end_and_lose_no_write() -> anyhow::Result<()> {
    let gateway = Gateway::start().await?;
    for name in SANDBOXES {
        create(&gateway, name).await?;
    }
    let tally = Arc::new(Tally::default());
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| tokio::spawn(play(gateway.client(), number, tally.clone())))
        .collect();
    let mut written = Vec::new();
    for client in clients {
        written.extend(client.await??);
    }
    let client = gateway.client();
    settled(&client).await?;
    for name in SANDBOXES {
        client
            .resume(name)
            .restart_if_restore_fails(true)
            .wait()
            .await?;
    }
    ensure!(
        settled(&client)
            .await?
            .iter()
            .all(|sandbox| sandbox.phase() == Phase::Ready)
    );
    ensure!(
        written.len() > 10,
        "only {} writes were acknowledged",
        written.len()
    );
    for write in &written {
        let found = read(&client, write.sandbox, write.path.as_str()).await;
        let found = found.with_context(|| format!("{}:{}", write.sandbox, write.path))?;
        ensure!(
            found == write.contents.as_bytes(),
            "{}:{} differs",
            write.sandbox,
            write.path
        );
    }
    for (count, what) in [
        (&tally.slept, "suspends"),
        (&tally.woken, "wakes"),
        (&tally.ran, "execs"),
    ] {
        let count = count.load(Ordering::Relaxed);
        ensure!(count > 10, "only {count} {what} ended well");
    }
    for operation in client
        .operations(None, false)
        .try_collect::<Vec<_>>()
        .await?
    {
        ensure!(operation.outcome().is_some(), "{operation:?} has not ended");
    }
    // Each still works.
    for name in SANDBOXES {
        ensure!(sh(&client, name, "echo well").await? == "well\n");
    }
    gateway.end().await
}

async fn play(client: Client, number: u64, tally: Arc<Tally>) -> anyhow::Result<Vec<Written>> {
    let mut random = Random(SEED + number);
    let mut written = Vec::new();
    let until = Instant::now() + TIME;
    for turn in 0_u64.. {
        if Instant::now() >= until {
            break;
        }
        let sandbox = SANDBOXES[usize::try_from(random.below(4))?];
        match random.below(14) {
            0 => count(
                &tally.slept,
                client.suspend(sandbox).depth(Depth::Freeze).wait().await,
            )?,
            1 => count(
                &tally.slept,
                client.suspend(sandbox).depth(Depth::Stop).wait().await,
            )?,
            2 => drop(ended(client.suspend(sandbox).accept().await)?),
            3 | 4 => count(&tally.woken, client.resume(sandbox).wait().await)?,
            5 => count(
                &tally.woken,
                client
                    .resume(sandbox)
                    .restart_if_restore_fails(true)
                    .wait()
                    .await,
            )?,
            6 => count(&tally.woken, client.start(sandbox).wait().await)?,
            7 => drop(ended(client.get(sandbox).await)?),
            8 | 9 => count(&tally.ran, client.command(sandbox, ["true"]).run().await)?,
            _ => {
                let path = format!("/workspace/{number}-{turn}");
                let contents = format!("{number} {turn} {}", random.below(u64::MAX));
                let write = client
                    .files(sandbox)
                    .write(path.as_str())
                    .bytes(contents.clone())
                    .await;
                if ended(write)?.is_some() {
                    written.push(Written {
                        sandbox,
                        path,
                        contents,
                    });
                }
            }
        }
    }
    Ok(written)
}

fn count<T>(counter: &AtomicU64, answer: Result<T, Error>) -> anyhow::Result<()> {
    if ended(answer)?.is_some() {
        counter.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// An answer, or a refusal that another client's verb explains. All else is a fault.
fn ended<T>(answer: Result<T, Error>) -> anyhow::Result<Option<T>> {
    let error = match answer {
        Ok(answer) => return Ok(Some(answer)),
        Err(error) => error,
    };
    let explained = match error.code() {
        Code::FailedPrecondition => matches!(
            error.reason(),
            "SANDBOX_SUSPENDED" | "ALREADY_DEEPER" | "QUIESCED"
        ),
        Code::Unavailable => matches!(
            error.reason(),
            "SANDBOX_SUSPENDED" | "SANDBOX_SUSPENDING" | "SANDBOX_RESUMING"
                // Cut off while it ran.
                | "SUPERVISOR_UNREACHABLE" | "DETACHED"
        ),
        Code::Aborted => matches!(
            error.reason(),
            "OPERATION_SUPERSEDED" | "OPERATION_TURNED_BACK"
        ),
        // To go from freeze to stop without waking is not this driver's yet.
        Code::Unimplemented => error.reason() == "UNSUPPORTED",
        _ => false,
    };
    ensure!(explained, "{error:?}");
    Ok(None)
}
