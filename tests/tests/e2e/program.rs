//! The gateway's own program: what it prints where its output is broken, and why it does not start.

use std::fs::File;
use std::path::PathBuf;
use std::process::Stdio;

use anyhow::ensure;
use overwinter_tests::Gateway;
use overwinter_tests::cli::Said;
use tokio::process::Command;

fn full() -> anyhow::Result<File> {
    Ok(File::options().write(true).open("/dev/full")?)
}

/// Runs it with its stdout there.
async fn said_to(mut command: Command, stdout: impl Into<Stdio>) -> anyhow::Result<Said> {
    let child = command.stdout(stdout).spawn()?;
    Ok(child.wait_with_output().await?.into())
}

#[tokio::test]
async fn doctor_ends_as_other_commands_do_where_its_output_is_broken() -> anyhow::Result<()> {
    let gateway = Gateway::prepare()?;
    for format in ["table", "json"] {
        let doctor = ["doctor", "-o", format];
        let (reader, writer) = std::io::pipe()?;
        drop(reader);
        let closed = said_to(gateway.cli(doctor)?, writer).await?;
        ensure!(
            closed.code == 141 && closed.err.is_empty(),
            "{format}: {closed:?}"
        );
        let full = said_to(gateway.cli(doctor)?, full()?).await?;
        full.refused("LOCAL_IO", "No space left")?;
        ensure!(full.code == 1, "{format}: {full:?}");
    }
    Ok(())
}

/// A log line that cannot be written must not take what logs it.
#[tokio::test]
async fn a_gateway_serves_although_its_log_has_no_room() -> anyhow::Result<()> {
    let mut gateway = Gateway::prepare()?;
    gateway.set_log(PathBuf::from("/dev/full"));
    gateway.run().await?;
    let image = gateway.image.name().to_owned();
    let create = ["sandbox", "create", "box", "--image", &image];
    gateway.say(create).await?.well()?;
    let exec = ["sandbox", "exec", "box", "--", "echo", "hi"];
    let out = gateway.say(exec).await?.well()?;
    ensure!(out == "hi\n", "{out:?}");
    gateway.end().await
}
