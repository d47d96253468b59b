//! A freeze that gives its memory back, as a user meets it: to swap in memory, never to a disk in the
//! clear; what was given back is another's, and comes back as it was.

use anyhow::{Context, ensure};
use overwinter_client::{Code, Depth, Error, Phase, raw};
use overwinter_tests::Gateway;
use overwinter_tests::zram::{self, PlainSwap, Zram};

use crate::host_image::runtimes;
use crate::{refused, sh, suspend};

const MIB: u64 = 1 << 20;
/// What the program inside holds: half of it noise, half of it text.
const HELD: u64 = 96 * MIB;
/// More than it ever takes with the files that it has read: nothing is swapped but when it is asked for.
const LIMIT: u64 = 256 * MIB;

/// Reads all of it into one buffer, and tells its sum once it is asked to.
const HOLD: &str = "cd /workspace; head -c 50331648 /dev/urandom > data; \
    yes 'this is what a program writes' | head -c 50331648 >> data; md5sum < data > before; \
    (dd if=data bs=100663296 count=1 iflag=fullblock 2> /dev/null | (until [ -e tell ]; do sleep 0.02; done; md5sum > after)) \
        > /dev/null 2>&1 < /dev/null & \
    until [ \"$(awk '/VmRSS|VmSwap/ { n += $2 } END { print n }' /proc/$(pidof dd)/status)\" -gt 98000 ]; do sleep 0.02; done; rm data";

const TELL: &str = "cd /workspace; touch tell; until [ -s after ]; do sleep 0.02; done; \
    cmp before after && rm before after tell && echo same";

#[tokio::test]
async fn a_freeze_gives_its_memory_back_to_swap_that_nobody_can_read() -> anyhow::Result<()> {
    if let Some(why) = zram::missing() {
        ensure!(
            std::env::var_os("OVERWINTER_REQUIRE_LOCAL").is_none(),
            "OVERWINTER_REQUIRE_LOCAL is set, and this test {why}"
        );
        eprintln!("SKIPPED: {why}");
        return Ok(());
    }
    let runtimes = runtimes()?;
    let mut gateway = Gateway::prepare()?;
    gateway.set_config(&format!("[limits]\nmemory_bytes = {}\n", 320 * MIB))?;
    if std::fs::read_to_string("/proc/swaps")?.lines().count() == 1 {
        gateway.run().await?;
        is_not_offered(&gateway).await?;
        gateway.stop().await?;
    }
    let zram = Zram::new(1 << 30)?;
    gateway.run().await?;
    let listed = gateway.say(["driver", "list"]).await?.well()?;
    ensure!(listed.contains("memory (--reclaim)"), "{listed}");
    for runtime in runtimes {
        let given = round(&gateway, &zram, runtime).await;
        given.with_context(|| runtime.to_owned())?;
    }
    // Another swap has come, and it is the kernel that chooses.
    let client = gateway.client();
    create(&gateway, "box", "runc", LIMIT).await?;
    sh(&client, "box", HOLD).await?;
    let clear = PlainSwap::new(gateway.folder().join("swap"))?;
    let frozen = freeze(&gateway).await?;
    ensure!(
        frozen.contains("its memory stays") && frozen.contains("in the clear"),
        "{frozen}"
    );
    let sandbox = client.get("box").await?;
    ensure!(sandbox.phase() == Phase::Suspended && reclaimed(&sandbox).is_err());
    ensure!(zram.used()? < 8 * MIB, "{}", zram.used()?);
    client.resume("box").wait().await?;
    ensure!(sh(&client, "box", TELL).await? == "same\n");
    drop(clear);
    gateway.end().await
}

/// Without swap it is refused before anything is done, with the reason.
async fn is_not_offered(gateway: &Gateway) -> anyhow::Result<()> {
    let client = gateway.client();
    create(gateway, "box", "", MIB << 5).await?;
    let suspend = [
        "sandbox",
        "suspend",
        "box",
        "--reclaim",
        "--depth",
        "freeze",
    ];
    let said = gateway.say(suspend).await?;
    said.refused("UNSUPPORTED", "there is no swap")?;
    let listed = gateway.say(["driver", "list"]).await?.well()?;
    let line = listed
        .lines()
        .find(|line| line.contains("freeze --reclaim"));
    ensure!(
        line.is_some_and(|line| line.contains("not here: there is no swap")),
        "{listed}"
    );
    let deeper = client
        .suspend("box")
        .depth(Depth::Stop)
        .reclaim(true)
        .wait()
        .await;
    refused(deeper, Code::InvalidArgument, "INVALID_ARGUMENT")?;
    ensure!(client.get("box").await?.phase() == Phase::Ready);
    client.delete("box").wait().await?;
    Ok(())
}

/// Given back twice: brought in as it is used, and before anything runs.
async fn round(gateway: &Gateway, zram: &Zram, runtime: &str) -> anyhow::Result<()> {
    let client = gateway.client();
    create(gateway, "box", runtime, LIMIT).await?;
    sh(&client, "box", HOLD).await?;

    // One that keeps its memory leaves no room for another.
    suspend(&client, "box", Depth::Freeze).await?;
    let full = create(gateway, "other", runtime, 128 * MIB).await;
    refused(full, Code::ResourceExhausted, "CAPACITY_EXCEEDED")?;
    client.resume("box").wait().await?;

    let frozen = freeze(gateway).await?;
    ensure!(
        frozen.contains("suspended (freeze)") && frozen.contains(" given back, "),
        "{frozen}"
    );
    let sandbox = client.get("box").await?;
    let given = reclaimed(&sandbox)?;
    eprintln!("{runtime}: {given:?}, {} in zram", zram.used()?);
    // Noise cannot be packed, and stays in memory as a copy.
    ensure!((40 * MIB..HELD).contains(&given.freed_bytes), "{given:?}");
    ensure!(
        (20 * MIB..80 * MIB).contains(&given.left_bytes),
        "{given:?}"
    );
    ensure!(zram.used()? > HELD, "{}", zram.used()?);
    let shown = gateway.say(["sandbox", "get", "box"]).await?.well()?;
    ensure!(shown.contains(" given back, "), "{shown}");

    // What it gave back is another's; and while that has it, it cannot wake.
    create(gateway, "other", runtime, 128 * MIB).await?;
    let woken = client.resume("box").wait().await;
    refused(woken, Code::FailedPrecondition, "CAPACITY_EXCEEDED")?;
    client.delete("other").wait().await?;
    client.resume("box").wait().await?;
    let sandbox = client.get("box").await?;
    ensure!(sandbox.phase() == Phase::Ready && reclaimed(&sandbox).is_err());

    freeze(gateway).await?;
    ensure!(zram.used()? > HELD, "{}", zram.used()?);
    let woken = gateway
        .say(["sandbox", "resume", "box", "--prefetch"])
        .await?
        .well()?;
    ensure!(woken.contains("prefetch="), "{woken}");
    ensure!(sh(&client, "box", TELL).await? == "same\n");
    client.delete("box").wait().await?;
    Ok(())
}

async fn create(gateway: &Gateway, name: &str, runtime: &str, memory: u64) -> Result<(), Error> {
    let create = gateway.client().create().name(name).runtime(runtime);
    let create = create.image(gateway.image.name()).memory_bytes(memory);
    create.wait().await?;
    Ok(())
}

async fn freeze(gateway: &Gateway) -> anyhow::Result<String> {
    let freeze = [
        "sandbox",
        "suspend",
        "box",
        "--depth",
        "freeze",
        "--reclaim",
    ];
    gateway.say(freeze).await?.well()
}

fn reclaimed(sandbox: &overwinter_client::Sandbox) -> anyhow::Result<raw::Reclaimed> {
    let retained = sandbox.raw().retained.as_option();
    let reclaimed = retained.and_then(|retained| retained.reclaimed.as_option());
    reclaimed.cloned().context("nothing was given back")
}
