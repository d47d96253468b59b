//! The gateway's own program: what it prints where its output is broken, and why it does not start.

use std::ffi::OsStr;
use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, ensure};
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
async fn doctor_prints_as_other_commands_do_and_ends_so_where_its_output_is_broken()
-> anyhow::Result<()> {
    let gateway = Gateway::prepare()?;
    let json = gateway.say(["doctor", "-o", "json"]).await?.well()?;
    let json: Vec<serde_json::Value> = serde_json::from_str(&json)?;
    let names: Vec<_> = json
        .iter()
        .filter_map(|check| check["name"].as_str())
        .collect();
    let said = gateway.say(["doctor", "-o", "name"]).await?.well()?;
    ensure!(
        said.lines().eq(names.iter().copied()) && !names.is_empty(),
        "{said}"
    );
    for format in ["table", "json", "name"] {
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

/// A gateway that must not start, said by the command that becomes it.
async fn refuses(
    gateway: &Gateway,
    arguments: &[&OsStr],
    reason: &str,
    words: &str,
) -> anyhow::Result<()> {
    let run = ["gateway", "run"].map(OsStr::new);
    let said = gateway.say([&run[..], arguments].concat()).await?;
    said.refused(reason, words)
        .with_context(|| format!("{arguments:?}"))?;
    ensure!(said.code == 1, "{arguments:?}: {said:?}");
    Ok(())
}

#[tokio::test]
async fn a_gateway_that_does_not_start_says_why_and_what_to_do() -> anyhow::Result<()> {
    let gateway = Gateway::start().await?;
    let folder = gateway.folder();
    let (data_dir, config) = ("--data-dir".as_ref(), "--config".as_ref());

    let (mine, other) = (gateway.data_dir(), folder.join("other"));
    let (mine, other) = (mine.as_os_str(), other.as_os_str());
    refuses(
        &gateway,
        &[data_dir, mine],
        "DATA_DIR_IN_USE",
        "another gateway",
    )
    .await?;
    // The supervisor is found only with the test's own configuration.
    let usual = folder.join("gateway.toml");
    let usual = [config, usual.as_os_str()];
    let with_usual = [&[data_dir, other], &usual[..]].concat();
    refuses(&gateway, &with_usual, "SOCKET_IN_USE", "another gateway").await?;

    let written = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).map(|()| path.into_os_string())
    };
    let none = folder.join("none.toml");
    refuses(
        &gateway,
        &[config, none.as_os_str()],
        "CONFIG_UNREADABLE",
        "none.toml",
    )
    .await?;
    let misspelt = written("misspelt.toml", "[local]\nruntimee = \"runc\"\n")?;
    refuses(&gateway, &[config, &misspelt], "CONFIG_INVALID", "runtimee").await?;
    for (name, toml, reason, words) in [
        (
            "idle.toml",
            "[local]\nenabled = false\n",
            "NO_DRIVER",
            "no driver",
        ),
        (
            "runtime.toml",
            "[local]\nsupervisor = \"/bin/true\"\nruntime = \"nonesuch\"\n",
            "RUNTIME_MISSING",
            "nonesuch",
        ),
        (
            "supervisor.toml",
            "[local]\nsupervisor = \"/nonesuch\"\n",
            "SUPERVISOR_MISSING",
            "/nonesuch",
        ),
    ] {
        let path = written(name, toml)?;
        let apart = folder.join(name.replace(".toml", ""));
        let arguments = [data_dir, apart.as_os_str(), config, &path];
        refuses(&gateway, &arguments, reason, words).await?;
    }
    let file = written("file", "")?;
    refuses(&gateway, &[data_dir, &file], "DATA_DIR_UNUSABLE", "file").await?;

    let misread = gateway.say(["gateway", "run", "--log", "nonesuch"]).await?;
    misread.refused("USAGE", "nonesuch")?;
    ensure!(misread.code == 2, "{misread:?}");
    gateway.end().await
}

#[tokio::test]
async fn a_gateway_that_may_not_says_that_it_needs_root() -> anyhow::Result<()> {
    // Where nobody may enter and write: what was built lies in a home folder.
    let folder = tempfile::tempdir()?;
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o777))?;
    let program = folder.path().join("overwinter-gateway");
    std::fs::copy(
        overwinter_tests::gateway::program("overwinter-gateway")?,
        &program,
    )?;
    let config = folder.path().join("gateway.toml");
    std::fs::write(&config, "[local]\nsupervisor = \"/bin/true\"\n")?;
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
        .arg(&program)
        .args(["run", "--data-dir"])
        .arg(folder.path().join("data"))
        .arg("--socket")
        .arg(folder.path().join("gateway.sock"))
        .arg("--config")
        .arg(&config);
    let said = Said::from(command.output().await?);
    // The log's lines come before it.
    let error = said
        .err
        .split_inclusive('\n')
        .skip_while(|line| !line.starts_with("error["));
    let said = Said {
        err: error.collect(),
        ..said
    };
    said.refused("NOT_ROOT", "65534")?;
    Ok(())
}

/// As long as a client can name it, with what is made aside of it longer than that.
#[tokio::test]
async fn the_longest_socket_that_can_be_named_is_served_and_no_longer_one() -> anyhow::Result<()> {
    let mut gateway = Gateway::prepare()?;
    let folder = gateway.folder().join("socket");
    let name = |bytes: usize| folder.join("s".repeat(bytes - folder.as_os_str().len() - 1));
    let arguments = ["--socket".as_ref(), name(108).as_os_str()].map(OsStr::to_owned);
    let said = gateway.say([&["gateway".into(), "run".into()], &arguments[..]].concat());
    let said = said.await?;
    said.refused("SOCKET_PATH_TOO_LONG", "108 bytes")?;
    ensure!(!folder.exists() && !gateway.data_dir().exists());
    gateway.set_socket(name(107));
    gateway.run().await?;
    ensure!(std::fs::read_dir(&folder)?.count() == 1);
    gateway.end().await
}
