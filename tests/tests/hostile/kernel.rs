//! PID 1 and the kernel, from inside: as root, as an ordinary user, and as PID 1's own user, which
//! root inside can become.

use anyhow::{Context, ensure};
use overwinter_client::Phase;
use serde_json::json;

use crate::attack::{self, check};
use crate::stage::{Image, PATIENCE, Stage, has_gvisor, has_python};

const PROGRAM: &str = include_str!("programs/kernel.py");
/// PID 1's, which a workload is not given.
const SUPERVISOR: u32 = 65_535;

const REFUSED: &[&str] = &["EPERM", "EACCES"];
const FORBIDDEN: &[&str] = &["EPERM", "ENOSYS"];

/// What may come of each on the host's own kernel.
const ON_RUNC: &[(&str, &[&str])] = &[
    ("ptrace", &["EPERM"]),
    ("memory", REFUSED),
    ("link", REFUSED),
    ("steal descriptor", &["EPERM"]),
    ("limit", REFUSED),
    // Root inside can have its own sandbox end first when its memory is short: nobody else's.
    ("victim", &["EACCES", "ok"]),
    // Those that are not refused are kept from PID 1 by the kernel, or read and dropped by it: the
    // sandbox lives on, which is looked at afterwards.
    ("signal", &["EPERM", "ok"]),
    ("unshare", &["EPERM"]),
    // Time namespaces are of no use without the rights to set a clock.
    ("unshare time", &["EPERM"]),
    ("clone", &["EPERM"]),
    ("clone3", &["ENOSYS"]),
    ("setns", FORBIDDEN),
    ("mount", FORBIDDEN),
    ("handle", FORBIDDEN),
    ("forbidden", FORBIDDEN),
    ("device", &["EPERM"]),
    (
        "kernel write",
        &["EACCES", "EROFS", "ENOENT", "EIO", "EPERM"],
    ),
    ("kernel read", &["EACCES", "EPERM", "ENOENT", "0 seen"]),
    ("socket", &["EPERM", "EACCES", "EAFNOSUPPORT"]),
];

#[tokio::test]
async fn the_kernel_and_pid_1_give_nothing_away() -> anyhow::Result<()> {
    if !has_python()? {
        return Ok(());
    }
    let stage = Stage::open().await?;
    stage.tenant("tenant", Image::Host, "runc").await?;
    let before = stage.client.get("tenant").await?;
    for (who, user, knows) in [
        ("root", "root", json!({})),
        ("an ordinary user", "user", json!({})),
        ("PID 1's user", "root", json!({ "become": SUPERVISOR })),
    ] {
        let outcomes = attack::run(&stage, "tenant", user, PROGRAM, &knows).await?;
        check(who, &outcomes, ON_RUNC)?;
        // The same PID 1, which still serves.
        let now = stage.client.get("tenant").await?;
        ensure!(
            now.phase() == Phase::Ready
                && now.raw().incarnation_held == before.raw().incarnation_held,
            "after {who}: {now:?}"
        );
        stage.unharmed(who).await?;
    }
    stage.close().await
}

#[tokio::test]
async fn on_gvisor_who_kills_pid_1_ends_its_own_sandbox_alone() -> anyhow::Result<()> {
    if !has_python()? || !has_gvisor()? {
        return Ok(());
    }
    let stage = Stage::open().await?;
    stage.tenant("tenant", Image::Host, "runsc").await?;
    stage.tenant("other", Image::Busybox, "runsc").await?;
    // The call itself fails with its sandbox, in whatever words.
    let _ = attack::run(&stage, "tenant", "root", PROGRAM, &json!({})).await;
    stage.unharmed("an attack on gVisor").await?;
    let _ = stage
        .client
        .command("tenant", ["/bin/sh", "-c", "kill -9 1"])
        .run()
        .await;
    let mut watch = stage.client.watch(Some("tenant".into()), 0).await?;
    let ended = watch.until(|sandbox| sandbox.phase() == Phase::Failed);
    tokio::time::timeout(PATIENCE, ended)
        .await
        .context("its sandbox goes on")??;
    let other = stage.client.command("other", ["echo", "well"]).run();
    ensure!(other.await?.stdout.as_ref() == b"well\n");
    stage.unharmed("the end of another's PID 1").await?;
    // Its storage is there: a resume brings it back.
    stage.client.resume("tenant").wait().await?;
    stage.close().await
}
