//! What is found where files of a sandbox are read, listed and copied, and in an image. What an image
//! may hold is tried name by name in `crates/driver-local/src/image/extract.rs`; here is one, through
//! the command. Paths that lead outside are also in `tests/e2e/files.rs`.

use std::collections::BTreeSet;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, ensure};
use overwinter_client::{FilePath, Sandbox};
use serde_json::json;
use tokio::io::AsyncReadExt;

use crate::attack::{self, check};
use crate::stage::{Image, PATIENCE, Stage, has_python, runtimes};

const PROGRAM: &str = include_str!("programs/files.py");
const OUTSIDE: &str = "of the host";

/// Each call ends, whatever it finds.
async fn ends<T>(what: &str, call: impl Future<Output = T>) -> anyhow::Result<T> {
    let ended = tokio::time::timeout(PATIENCE, call).await;
    ended.with_context(|| format!("{what} hangs"))
}

#[tokio::test]
async fn no_file_of_a_sandbox_is_more_than_a_file() -> anyhow::Result<()> {
    if !has_python()? {
        return Ok(());
    }
    let runtimes = runtimes()?;
    let stage = Stage::open().await?;
    let outside = stage.gateway.folder().join("outside");
    std::fs::write(&outside, OUTSIDE)?;
    for runtime in runtimes {
        let tenant = stage.tenant(runtime, Image::Host, runtime).await?;
        let knows = json!({ "host": outside });
        let outcomes = attack::run(&stage, runtime, "root", PROGRAM, &knows).await?;
        let made: &[&str] = &["ok", "EPERM", "ENAMETOOLONG", "EFBIG"];
        let allowed = [
            ("link", made),
            // gVisor has devices of its own; the host's kernel sees none of them.
            ("device", made),
            ("bomb", made),
            ("hard link outside", &["EXDEV", "EPERM", "EACCES"]),
        ];
        check(runtime, &outcomes, &allowed)?;
        let found = look(&stage, runtime, &outside).await;
        found.with_context(|| format!("on {runtime}"))?;
        on_the_host(&stage, &tenant)?;
        stage.unharmed(runtime).await?;
    }
    ensure!(std::fs::read_to_string(&outside)? == OUTSIDE);
    stage.close().await
}

/// Lists, reads, writes and copies all that was made.
async fn look(stage: &Stage, name: &str, outside: &Path) -> anyhow::Result<()> {
    let files = stage.client.files(name);
    let entries = ends("a listing", files.list("/workspace/odd")).await??;
    ensure!(entries.len() >= 20, "{entries:?}");
    let names: BTreeSet<_> = entries.iter().map(|entry| entry.raw_name.clone()).collect();
    ensure!(names.len() == entries.len(), "a name twice");
    for entry in &entries {
        let raw = [b"/workspace/odd/", entry.raw_name.as_ref()].concat();
        let what = String::from_utf8_lossy(&raw).escape_debug().to_string();
        let path = FilePath::from(raw);
        let _ = ends(&what, files.stat(path.clone())).await?;
        let read = ends(&what, files.read_range(path.clone(), 0, 4096)).await?;
        if let Ok(mut read) = read {
            let mut bytes = Vec::new();
            // It may have ended, or be refused by now.
            let _ = ends(&what, read.copy_to(&mut bytes)).await?;
            ensure!(bytes.len() <= 4096, "{what}: {} bytes", bytes.len());
            ensure!(bytes != OUTSIDE.as_bytes(), "{what} leads outside");
        }
        let below = [path.as_bytes(), b"/below"].concat();
        let _ = ends(&what, files.write(FilePath::from(below)).bytes("x")).await?;
    }
    for kind in ["pipe", "door", "loop", "null", "disk"] {
        let path = format!("/workspace/odd/{kind}");
        let read = ends(kind, files.read(path.as_str())).await?;
        ensure!(read.is_err(), "{kind} was read");
        let target = format!("{name}:{path}");
        let said = ends(kind, stage.gateway.say(["sandbox", "cp", &target, "-"])).await??;
        ensure!(
            said.code != 0 && !said.err.contains('\x1b'),
            "{kind}: {said:?}"
        );
    }
    // A terabyte that is nothing: as much of it comes as is read, and the gateway holds little.
    let before = stage.memory("VmRSS:")?;
    let mut copying = stage
        .gateway
        .cli(["sandbox", "cp", &format!("{name}:/workspace/odd/bomb"), "-"])?
        .stderr(Stdio::null())
        .spawn()?;
    let mut taken = copying.stdout.take().context("no stdout")?.take(64 << 20);
    let mut bytes = vec![0; 1 << 20];
    let mut read = 0;
    while let Ok(more @ 1..) = ends("the bomb", taken.read(&mut bytes)).await? {
        read += more;
    }
    ensure!(read == 64 << 20, "{read} bytes of the bomb");
    // Nobody reads on.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let during = stage.memory("VmRSS:")?;
    ensure!(
        during < before + (64 << 20),
        "{before} bytes, then {during}"
    );
    copying.start_kill()?;
    copying.wait().await?;
    // Names, as they come to a terminal: whatever fails is told in letters.
    for odd in ["esc\x1b[2J\x1b]0;title\x07", "new\nline"] {
        let source = format!("{name}:/workspace/odd/{odd}/none");
        let said = stage.gateway.say(["sandbox", "cp", &source, "-"]).await?;
        ensure!(said.code != 0 && !said.err.contains('\x1b'), "{said:?}");
    }
    ensure!(std::fs::read_to_string(outside)? == OUTSIDE);
    Ok(())
}

/// What lies on the host's disk is in folders that nobody enters, set-user-id programs above all.
fn on_the_host(stage: &Stage, tenant: &Sandbox) -> anyhow::Result<()> {
    let storage = stage
        .gateway
        .data_dir()
        .join("local/sandboxes")
        .join(tenant.id());
    let shell = storage.join("workspace/odd/shell");
    let kept = std::fs::metadata(&shell)?;
    let parent = std::fs::metadata(&storage)?;
    ensure!(
        parent.permissions().mode() & 0o077 == 0 && parent.uid() == 0,
        "a program with mode {:o} of user {} can be run by every user",
        kept.mode(),
        kept.uid()
    );
    Ok(())
}

/// A header as it is: the library would refuse what is tried here.
fn header(
    name: &[u8],
    kind: tar::EntryType,
    link: &[u8],
    mode: u32,
    size: usize,
) -> anyhow::Result<tar::Header> {
    let mut header = tar::Header::new_gnu();
    header.as_old_mut().name[..name.len()].copy_from_slice(name);
    header.as_old_mut().linkname[..link.len()].copy_from_slice(link);
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size as u64);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_device_major(8)?;
    header.set_device_minor(0)?;
    header.set_cksum();
    Ok(header)
}

/// A tar with what an image must not have.
fn image(path: &Path, busybox: &Path, outside: &Path) -> anyhow::Result<()> {
    let mut tar = tar::Builder::new(std::fs::File::create(path)?);
    let mut entry = |name: &[u8], kind, link: &[u8], mode, data: &[u8]| -> anyhow::Result<()> {
        let header = header(name, kind, link, mode, data.len())?;
        Ok(tar.append(&header, data)?)
    };
    let outside = outside.as_os_str().as_encoded_bytes();
    use tar::EntryType as Kind;
    entry(b"bin/", Kind::Directory, b"", 0o755, b"")?;
    entry(
        b"bin/busybox",
        Kind::Regular,
        b"",
        0o4755,
        &std::fs::read(busybox)?,
    )?;
    for applet in [&b"sh"[..], b"ls", b"stat", b"cat", b"find"] {
        entry(
            &[b"bin/", applet].concat(),
            Kind::Symlink,
            b"busybox",
            0o777,
            b"",
        )?;
    }
    for folder in [
        &b"proc/"[..],
        b"dev/",
        b"sys/",
        b"tmp/",
        b"workspace/",
        b"etc/",
        b"run/",
    ] {
        entry(folder, Kind::Directory, b"", 0o755, b"")?;
    }
    entry(b"etc/link", Kind::Symlink, b"..", 0o777, b"")?;
    entry(
        b"etc/out",
        Kind::Symlink,
        &outside[..outside.len().min(99)],
        0o777,
        b"",
    )?;
    entry(b"etc/new\nline\x1b[2J", Kind::Regular, b"", 0o644, b"odd")?;
    entry(b"etc/\xff", Kind::Regular, b"", 0o2644, b"odd")?;
    tar.into_inner()?.flush()?;
    Ok(())
}

#[tokio::test]
async fn an_image_brings_nothing_but_files() -> anyhow::Result<()> {
    let stage = Stage::open().await?;
    let outside = stage.gateway.folder().join("outside");
    std::fs::write(&outside, OUTSIDE)?;
    let busybox = stage.gateway.image.root.join("bin/busybox");
    let tame = stage.gateway.folder().join("tame.tar");
    image(&tame, &busybox, &outside)?;
    let tame = tame.display().to_string();
    let create = ["sandbox", "create", "tame", "--image", &tame];
    stage.gateway.say(create).await?.well()?;
    let ran = stage.client.command(
        "tame",
        [
            "/bin/sh",
            "-c",
            "find / -xdev -perm -4000 -o -xdev -perm -2000; stat -c %a /bin/busybox; cat /etc/out",
        ],
    );
    let ran = ran.run().await?;
    let said = String::from_utf8_lossy(&ran.stdout);
    ensure!(said == "755\n", "{ran:?}");

    // What leads outside, or is no file, is refused or left out; never done.
    use tar::EntryType as Kind;
    let host = outside.display().to_string();
    let cases: [(&str, &[u8], Kind, &[u8]); 6] = [
        ("up", b"../../../../escaped", Kind::Regular, b""),
        ("absolute", b"/escaped", Kind::Regular, b""),
        ("through", b"etc/up/../../escaped", Kind::Regular, b""),
        ("hard", b"etc/hard", Kind::Link, host.as_bytes()),
        ("device", b"etc/disk", Kind::Block, b""),
        ("pipe", b"etc/pipe", Kind::Fifo, b""),
    ];
    for (name, path, kind, link) in cases {
        let tar_path = stage.gateway.folder().join(format!("{name}.tar"));
        image(&tar_path, &busybox, &outside)?;
        let whole = std::fs::read(&tar_path)?;
        let header = header(path, kind, &link[..link.len().min(99)], 0o644, 0)?;
        // Before all else.
        std::fs::write(&tar_path, [&header.as_bytes()[..], &whole].concat())?;
        let image = tar_path.display().to_string();
        let said = stage
            .gateway
            .say(["sandbox", "create", name, "--image", &image])
            .await?;
        if said.code == 0 {
            let command = [
                "/bin/sh",
                "-c",
                "cat /etc/hard /etc/disk; ls -l /etc/disk /etc/pipe",
            ];
            let ran = stage.client.command(name, command).run().await?;
            let said = String::from_utf8_lossy(&ran.stdout).into_owned();
            ensure!(!said.contains(OUTSIDE), "{name}: {said}");
            ensure!(
                !said.lines().any(|line| line.starts_with(['b', 'c'])),
                "{name}: {said}"
            );
        } else {
            ensure!(said.err.contains("error["), "{name}: {said:?}");
        }
        for escaped in [
            Path::new("/escaped").to_owned(),
            stage.gateway.folder().join("escaped"),
            stage.gateway.data_dir().join("escaped"),
        ] {
            ensure!(!escaped.exists(), "{name}: {}", escaped.display());
        }
        stage.unharmed(name).await?;
    }
    ensure!(std::fs::read_to_string(&outside)? == OUTSIDE);
    stage.close().await
}
