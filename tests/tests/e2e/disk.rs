//! A full disk: clear errors, deletes still work, and it goes on when room is made.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use overwinter_client::{Depth, Phase};
use overwinter_tests::Gateway;

use crate::{create, settled, sh, suspend};

/// A small filesystem in a file, mounted; gone when it is dropped.
struct Small {
    folder: tempfile::TempDir,
}

impl Small {
    fn new() -> anyhow::Result<Self> {
        Self::mounted(|image| {
            File::create(image)?.set_len(96 << 20)?;
            // Blocks smaller than a page, as on small disks: a page may be there in part.
            run(Command::new("mkfs.ext4")
                .args(["-q", "-F", "-m", "0", "-b", "1024"])
                .arg(image))
        })
    }

    /// With what another has on its disk now, repaired as after a power loss.
    fn of(other: &Self) -> anyhow::Result<Self> {
        Self::mounted(|image| {
            std::fs::copy(other.folder.path().join("image"), image)?;
            let mut repair = Command::new("e2fsck");
            let repaired = repair.args(["-f", "-y"]).arg(image).output()?;
            // 1: it had something to repair, and has done so.
            ensure!(
                matches!(repaired.status.code(), Some(0 | 1)),
                "{repaired:?}"
            );
            Ok(())
        })
    }

    fn mounted(make: impl FnOnce(&Path) -> anyhow::Result<()>) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("overwinter-disk-")
            .tempdir()?;
        let (image, point) = (folder.path().join("image"), folder.path().join("disk"));
        make(&image)?;
        std::fs::create_dir(&point)?;
        run(Command::new("mount")
            .args(["-o", "loop"])
            .arg(&image)
            .arg(&point))?;
        Ok(Self { folder })
    }

    fn point(&self) -> PathBuf {
        self.folder.path().join("disk")
    }

    /// Takes every byte that is left.
    fn fill(&self) -> anyhow::Result<PathBuf> {
        self.fill_to("filler")
    }

    fn fill_more(&self) -> anyhow::Result<PathBuf> {
        self.fill_to(&format!("filler-{}", uuid::Uuid::new_v4()))
    }

    fn fill_to(&self, name: &str) -> anyhow::Result<PathBuf> {
        let path = self.point().join(name);
        let mut file = File::create(&path)?;
        let mut piece = vec![7_u8; 1 << 20];
        while !piece.is_empty() {
            match file.write_all(&piece).and_then(|()| file.sync_data()) {
                Ok(()) => {}
                Err(error) if error.kind() == std::io::ErrorKind::StorageFull => {
                    piece.truncate(piece.len() / 2);
                }
                Err(error) => return Err(error).context("filling the disk"),
            }
        }
        Ok(path)
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.point(), rustix::mount::UnmountFlags::DETACH);
    }
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    ensure!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

async fn end(gateway: Gateway, disk: Small, data: &Path) -> anyhow::Result<()> {
    gateway.end().await?;
    std::fs::remove_dir_all(data)?;
    // Not detached: nothing may hold it any more.
    rustix::mount::unmount(disk.point(), rustix::mount::UnmountFlags::empty())
        .context("something still holds the disk")?;
    Ok(())
}

#[tokio::test]
async fn on_a_full_disk_errors_are_clear_and_deletes_work() -> anyhow::Result<()> {
    let disk = Small::new()?;
    let data = disk.point().join("data");
    let mut gateway = Gateway::prepare()?;
    gateway.set_data_dir(data.clone());
    gateway.run().await?;
    let client = gateway.client();
    for name in ["kept", "frozen", "spare"] {
        create(&gateway, name).await?;
    }
    sh(&client, "kept", "echo before > /workspace/note; sync").await?;
    suspend(&client, "frozen", Depth::Freeze).await?;

    let filler = disk.fill()?;
    // A program inside is told by the kernel; what it has is still there to be read.
    let wrote = client.command(
        "kept",
        [
            "dd",
            "if=/dev/zero",
            "of=/workspace/big",
            "bs=64k",
            "count=64",
        ],
    );
    let wrote = wrote.run().await?;
    let said = String::from_utf8_lossy(&wrote.stderr);
    ensure!(
        wrote.exit.code != 0 && said.contains("No space left"),
        "{wrote:?}"
    );
    ensure!(sh(&client, "kept", "cat /workspace/note").await? == "before\n");
    // So is a copy.
    let big = gateway.folder().join("big");
    std::fs::write(&big, vec![1; 4 << 20])?;
    let big = big.display().to_string();
    let said = gateway
        .say(["sandbox", "cp", &big, "kept:/workspace/copied"])
        .await?;
    said.refused("NO_SPACE", "No space left")?;
    // A create fails in words, and holds nothing.
    let said = gateway
        .say(["sandbox", "create", "new", "--image", &gateway.image.name()])
        .await?;
    said.refused("DISK_FULL", "")?;
    // Deletes work, awake and asleep.
    for name in ["spare", "frozen"] {
        gateway.say(["sandbox", "delete", name]).await?.well()?;
    }
    let left = client.list().all().await?;
    ensure!(left.len() == 1 && left[0].name() == "kept", "{left:?}");

    std::fs::remove_file(filler)?;
    create(&gateway, "new").await?;
    suspend(&client, "kept", Depth::Stop).await?;
    client.resume("kept").wait().await?;
    ensure!(sh(&client, "kept", "cat /workspace/note").await? == "before\n");
    ensure!(
        settled(&client)
            .await?
            .iter()
            .all(|sandbox| sandbox.phase() == Phase::Ready)
    );
    drop(client);
    end(gateway, disk, &data).await
}

/// What a disk holds the moment that a call has answered is what there is after a power loss.
#[tokio::test]
async fn a_create_that_was_answered_is_there_after_a_power_loss() -> anyhow::Result<()> {
    let disk = Small::new()?;
    let data = disk.point().join("data");
    let mut gateway = Gateway::prepare()?;
    gateway.set_data_dir(data.clone());
    gateway.run().await?;
    let made = create(&gateway, "box").await?;
    // Not what the kernel still has to write.
    let lost = Small::of(&disk)?;
    let at = |disk: &Small| disk.point().join("data/local/sandboxes").join(made.id());
    ensure!(at(&disk).is_dir());
    ensure!(
        at(&lost).join("workspace").is_dir(),
        "its workspace is lost"
    );
    let hostname = std::fs::read_to_string(at(&lost).join("root/upper/etc/hostname"))?;
    ensure!(hostname == "box\n", "{hostname:?}");
    drop(lost);
    end(gateway, disk, &data).await
}

/// It has to start, or nothing could be deleted.
#[tokio::test]
async fn a_gateway_starts_on_a_full_disk_and_deletes() -> anyhow::Result<()> {
    let disk = Small::new()?;
    let data = disk.point().join("data");
    let mut gateway = Gateway::prepare()?;
    gateway.set_data_dir(data.clone());
    gateway.run().await?;
    create(&gateway, "box").await?;
    gateway
        .client()
        .suspend("box")
        .depth(Depth::Stop)
        .wait()
        .await?;
    for clean in [true, false] {
        if clean {
            disk.fill()?;
            gateway.stop().await?;
        } else {
            gateway.kill().await?;
        }
        // What its end has freed, to the last block.
        disk.fill_more()?;
        gateway.run().await?;
        let status = gateway.client().gateway_status().await?;
        ensure!(status.unfinished_operations == 0, "{status:?}");
    }
    gateway.say(["sandbox", "delete", "box"]).await?.well()?;
    end(gateway, disk, &data).await
}
