//! Paths that lead outside, and names that are not text.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use anyhow::ensure;
use overwinter_client::{Code, FilePath};

use crate::{read, refused, sh, with_sandbox};

#[tokio::test]
async fn no_path_leads_out_of_the_sandbox() -> anyhow::Result<()> {
    let (gateway, client) = with_sandbox("box").await?;
    // On the host, at a path that the sandbox has not.
    let outside = gateway.folder().join("outside");
    std::fs::write(&outside, "the host's")?;
    let source = gateway.folder().join("source");
    std::fs::write(&source, "the sandbox's")?;
    let (outside_text, source_text) = (outside.display().to_string(), source.display().to_string());
    let up = "../".repeat(40);

    // Out of the workspace by "..": ends at the sandbox's own root.
    let target = format!("box:{up}etc/made");
    gateway
        .say(["sandbox", "cp", &source_text, &target])
        .await?
        .well()?;
    ensure!(sh(&client, "box", "cat /etc/made").await? == "the sandbox's");
    ensure!(
        !std::path::Path::new("/etc/made").exists(),
        "it was written on the host"
    );
    let said = gateway
        .say(["sandbox", "cp", &format!("box:{up}{outside_text}"), "-"])
        .await?;
    said.refused("FILE_NOT_FOUND", "outside")?;

    // By symbolic links that are made inside, absolute and relative, of a file and of a folder.
    let folder = gateway.folder().display().to_string();
    sh(
        &client,
        "box",
        &format!(
            "cd /workspace && ln -s {outside_text} absolute && ln -s {up}{outside_text} relative \
             && ln -s {folder} folder && ln -s /proc/1/root/ escape && ln -s /proc/self/cwd cwd"
        ),
    )
    .await?;
    let said = gateway
        .say(["sandbox", "cp", &format!("box:{outside_text}"), "-"])
        .await?;
    said.refused("FILE_NOT_FOUND", "outside")?;
    for path in ["absolute", "relative", "folder/outside"] {
        let answer = client.files("box").read(path).await;
        ensure!(answer.is_err(), "{path} was read");
    }
    for path in ["absolute", "relative", "folder/outside", "folder/new"] {
        // Refused, or written inside; never on the host.
        let _ = client
            .files("box")
            .write(path)
            .make_parents(true)
            .bytes("overwritten")
            .await;
    }
    let _ = client
        .files("box")
        .write(format!("escape{outside_text}"))
        .bytes("overwritten")
        .await;
    let _ = client.files("box").remove("folder", true).await;
    ensure!(
        std::fs::read_to_string(&outside)? == "the host's",
        "it was written by way of a link"
    );
    ensure!(
        !gateway.folder().join("new").exists(),
        "it was made by way of a link"
    );
    ensure!(
        gateway.folder().join("busybox").is_dir(),
        "it was removed by way of a link"
    );

    // The supervisor's own folder is nobody's.
    let attach = client
        .files("box")
        .user("user")
        .read("/run/overwinter/attach")
        .await;
    ensure!(attach.is_err(), "its credentials were read");
    let written = client
        .files("box")
        .write("/run/overwinter/attach")
        .bytes("{}")
        .await;
    ensure!(written.is_err(), "its credentials were overwritten");
    // A user is bound by his own rights.
    sh(
        &client,
        "box",
        "echo secret > /root/secret; chmod 600 /root/secret; chmod 700 /root",
    )
    .await?;
    let denied = client.files("box").user("user").read("/root/secret").await;
    refused(
        denied.map(|_| ()),
        Code::PermissionDenied,
        "FILE_PERMISSION_DENIED",
    )?;
    // What is no regular file is refused instead of waited for.
    sh(&client, "box", "mkfifo /workspace/pipe").await?;
    for path in ["/workspace/pipe", "/dev/zero", "/workspace"] {
        let answer = client.files("box").read(path).await;
        ensure!(answer.is_err(), "{path} was read");
    }
    // Nor replaced: whoever has it open would go on with what is gone.
    sh(&client, "box", "ln -s pipe /workspace/to-pipe").await?;
    for path in ["/workspace/pipe", "/workspace/to-pipe", "/dev/null"] {
        let answer = client.files("box").write(path).bytes("contents").await;
        refused(answer, Code::FailedPrecondition, "NOT_A_REGULAR_FILE")?;
    }
    sh(
        &client,
        "box",
        "test -p /workspace/pipe && test -c /dev/null",
    )
    .await?;
    gateway.end().await
}

#[tokio::test]
async fn a_name_that_is_not_utf8_makes_the_round_trip() -> anyhow::Result<()> {
    let (gateway, client) = with_sandbox("box").await?;
    let name = b"bad-\xff\xfe-\xe4\n-name".to_vec();
    let files = client.files("box");
    files
        .write(FilePath::from(name.clone()))
        .bytes("contents")
        .await?;
    ensure!(read(&client, "box", FilePath::from(name.clone())).await? == b"contents");
    let entries = files.list("/workspace").await?;
    let found: Vec<_> = entries
        .iter()
        .filter(|entry| entry.raw_name.as_ref() == name)
        .collect();
    ensure!(found.len() == 1 && found[0].size == 8, "{entries:?}");
    // What a listing calls it is of no harm to a terminal, and says that it is not all.
    ensure!(std::str::from_utf8(found[0].name.as_bytes()).is_ok());
    // As the kernel has it.
    let seen = sh(&client, "box", "printf %s /workspace/*name | od -An -tx1").await?;
    ensure!(
        seen.replace([' ', '\n'], "")
            .ends_with("fffe2de40a2d6e616d65"),
        "{seen}"
    );
    // Through the command, from a file of that name to one of another.
    let here = gateway.folder().join(OsStr::from_bytes(b"here-\xff"));
    std::fs::write(&here, "from here")?;
    let inside = OsString::from_vec(b"box:/workspace/there-\xff".to_vec());
    let back = gateway.folder().join(OsStr::from_bytes(b"back-\xfe"));
    gateway
        .say([
            "sandbox".as_ref(),
            "cp".as_ref(),
            here.as_os_str(),
            inside.as_os_str(),
        ])
        .await?
        .well()?;
    gateway
        .say([
            "sandbox".as_ref(),
            "cp".as_ref(),
            inside.as_os_str(),
            back.as_os_str(),
        ])
        .await?
        .well()?;
    ensure!(std::fs::read(&back)? == b"from here");
    let renamed = b"renamed-\xfd".to_vec();
    files
        .rename(
            FilePath::from(name.clone()),
            FilePath::from(renamed.clone()),
        )
        .await?;
    refused(
        files.stat(FilePath::from(name)).await,
        Code::NotFound,
        "FILE_NOT_FOUND",
    )?;
    files.remove(FilePath::from(renamed), false).await?;
    gateway.end().await
}
