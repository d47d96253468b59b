//! The demo: a sandbox that counts in memory and writes files is put to sleep twice, at `freeze` and at
//! `stop`, with the gateway killed in between. Each claim is checked on the real thing, and the
//! program ends non-zero when one is not so.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use overwinter_client::{Achieved, Client, Depth, Done};
use overwinter_tests::Gateway;
use sha2::{Digest, Sha256};

const NAME: &str = "demo";
/// Counts in memory alone; every tenth of a second it shows where it is.
const COUNTER: &str = "n=0; while true; do n=$((n+1)); echo $n > /tmp/count.new; mv /tmp/count.new /tmp/count; usleep 100000; done";
/// Ten files of random bytes and their digests.
const WRITE: &str = "mkdir -p /workspace/data && for i in 0 1 2 3 4 5 6 7 8 9; do \
    dd if=/dev/urandom of=/workspace/data/$i bs=64k count=8 2>/dev/null; done; \
    cd /workspace/data && sha256sum * > /workspace/digests && echo root > /root/note";

struct Row {
    step: &'static str,
    kept: String,
    took: Duration,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let began = Instant::now();
    let mut gateway = Gateway::start().await?;
    let mut rows = vec![Row {
        step: "start the gateway",
        kept: "–".into(),
        took: began.elapsed(),
    }];
    play(&mut gateway, &mut rows).await?;
    gateway.end().await.context("something is left behind")?;
    print(&rows);
    println!("\nNothing is left behind: no process, mount, cgroup or file.");
    Ok(())
}

async fn play(gateway: &mut Gateway, rows: &mut Vec<Row>) -> anyhow::Result<()> {
    let client = gateway.client();
    let mut row = |step, kept: String, began: Instant| {
        rows.push(Row {
            step,
            kept,
            took: began.elapsed(),
        });
    };

    let began = Instant::now();
    client
        .create()
        .name(NAME)
        .image(gateway.image.name())
        .wait()
        .await?;
    row("create", "–".into(), began);

    let began = Instant::now();
    let counter = client
        .command(NAME, ["/bin/sh", "-c", COUNTER])
        .start()
        .await?;
    sh(&client, WRITE).await?;
    let digests = read(&client, "/workspace/digests").await?;
    row(
        "count in memory, write 5 MiB in 10 files",
        "–".into(),
        began,
    );
    tokio::time::sleep(Duration::from_millis(500)).await;

    let began = Instant::now();
    client.suspend(NAME).depth(Depth::Freeze).wait().await?;
    row(
        "suspend at freeze",
        "processes, memory, files".into(),
        began,
    );
    let asleep = Duration::from_secs(2);
    tokio::time::sleep(asleep).await;

    let began = Instant::now();
    let resumed: Done = client.resume(NAME).wait().await?;
    let woken = count(&client).await?;
    let took = began.elapsed();
    // Asleep for two seconds it would have counted twenty more.
    let before = woken;
    let still = client.process(NAME, &counter.process_id).await?;
    ensure!(
        still.running && still.pid == counter.pid,
        "the counter is not the same process"
    );
    tokio::time::sleep(Duration::from_millis(500)).await;
    let after = count(&client).await?;
    ensure!(
        after > before,
        "the counter does not go on: {before}, then {after}"
    );
    ensure!(
        woken < 20,
        "it counted while it slept: {woken} after half a second awake"
    );
    rows.push(Row {
        step: "resume",
        kept: format!(
            "process {} goes on: {woken} at waking, {after} half a second later",
            still.pid
        ),
        took,
    });
    ensure!(
        resumed.achieved == Achieved::Memory,
        "memory was not what came back"
    );

    let mut row = |step, kept: String, began: Instant| {
        rows.push(Row {
            step,
            kept,
            took: began.elapsed(),
        });
    };
    let began = Instant::now();
    let stopped = client.suspend(NAME).depth(Depth::Stop).wait().await?;
    // Most of it may be the disk's: the storage is synced before the suspend counts.
    let sync = stopped
        .operation
        .iter()
        .flat_map(|op| op.remarks())
        .find(|remark| remark.starts_with("sync="));
    let kept = sync.map_or("files".to_owned(), |sync| format!("files ({sync} of it)"));
    row("suspend at stop", kept, began);

    let began = Instant::now();
    gateway.kill().await?;
    gateway.run().await?;
    row(
        "kill the gateway with SIGKILL, start it again",
        "files, the record".into(),
        began,
    );

    let client = gateway.client();
    let began = Instant::now();
    client.resume(NAME).wait().await?;
    sh(
        &client,
        "cd /workspace/data && sha256sum -c /workspace/digests >/dev/null",
    )
    .await?;
    row(
        "resume, and check every digest inside",
        "10 files, byte for byte".into(),
        began,
    );
    ensure!(
        read(&client, "/workspace/digests").await? == digests,
        "the digests changed"
    );
    ensure!(
        read(&client, "/root/note").await? == b"root\n",
        "the root layer was not kept"
    );
    for line in String::from_utf8(digests)?.lines() {
        let (digest, file) = line.split_once("  ").context("a digest line")?;
        let bytes = read(&client, &format!("/workspace/data/{file}")).await?;
        let found: String = Sha256::digest(&bytes)
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect();
        ensure!(found == digest, "{file} is not what was written");
    }
    let gone = client.process(NAME, &counter.process_id).await?;
    ensure!(!gone.running, "the counter outlived a stop");

    let began = Instant::now();
    client.delete(NAME).wait().await?;
    row("delete", "nothing".into(), began);
    Ok(())
}

async fn sh(client: &Client, script: &str) -> anyhow::Result<Vec<u8>> {
    let ran = client
        .command(NAME, ["/bin/sh", "-c", script])
        .run()
        .await?;
    ensure!(
        ran.exit.code == 0,
        "{script:?} ended with {}: {}",
        ran.exit.code,
        String::from_utf8_lossy(&ran.stderr)
    );
    Ok(ran.stdout.to_vec())
}

async fn count(client: &Client) -> anyhow::Result<u64> {
    let text = String::from_utf8(sh(client, "cat /tmp/count").await?)?;
    text.trim()
        .parse()
        .with_context(|| format!("{text:?} is no count"))
}

async fn read(client: &Client, path: &str) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    client
        .files(NAME)
        .read(path)
        .await?
        .copy_to(&mut bytes)
        .await?;
    Ok(bytes)
}

fn print(rows: &[Row]) {
    let width = |f: &dyn Fn(&Row) -> usize| rows.iter().map(f).max().unwrap_or(0);
    let step = width(&|row| row.step.chars().count());
    let kept = width(&|row| row.kept.chars().count());
    println!("{:<step$}  {:<kept$}  {:>9}", "step", "kept", "took");
    for row in rows {
        let took = format!("{:.1} ms", row.took.as_secs_f64() * 1e3);
        println!("{:<step$}  {:<kept$}  {took:>9}", row.step, row.kept);
    }
}
