//! What goes wrong on a real host: a clear error, nothing lost, nothing left.

mod common;

use std::fs;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use common::{Bed, Outcome, cannot_run, credentials, sandbox, until};
use overwinter_driver::{Compute, Depth, Driver, DriverError, Observed};
use overwinter_driver_local::LocalConfig;
use overwinter_lifecycle::ids::{Incarnation, SandboxId};

const SLEEPING: &str = "while true; do sleep 3600; done";
const LIVE: Observed = Observed::Live {
    held: Incarnation(1),
};

/// A runtime in front of the real one.
fn wrap(bed: &mut Bed, script: &str) -> Outcome {
    let path = bed.folder.path().join("runtime");
    fs::write(
        &path,
        format!("#!/bin/sh\n[ \"$1\" = --version ] && exec runc --version\n{script}\n"),
    )?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    bed.config.runtime = path;
    bed.restart()
}

fn pid_1(bed: &Bed, native: &str) -> Result<PathBuf, Box<dyn std::error::Error>> {
    let state = fs::read(bed.state().join("runc").join(native).join("state.json"))?;
    let state: serde_json::Value = serde_json::from_slice(&state)?;
    let pid = state["init_process_pid"].as_i64().ok_or("no pid")?;
    Ok(PathBuf::from(format!("/proc/{pid}")))
}

#[tokio::test]
async fn a_restarted_gateway_finds_its_compute_and_opens_the_socket_again() -> Outcome {
    if cannot_run().is_some() {
        return Ok(());
    }
    let mut bed = Bed::new(SLEEPING).await?;
    let id = sandbox();
    let create = bed.effect(id, 1, 1);
    bed.driver
        .create(&create, &bed.spec(), &credentials(id, 1))
        .await?;

    // The lock's descriptor does not reach the workload.
    let descriptors = fs::read_dir(pid_1(&bed, &create.key.native_name())?.join("fd"))?;
    let lock = fs::metadata(bed.sandbox_dir(id).join("lock"))?;
    for descriptor in descriptors.flatten() {
        assert_ne!(
            fs::metadata(descriptor.path()).map(|meta| meta.ino()).ok(),
            Some(lock.ino())
        );
    }

    let before = fs::metadata(bed.volatile_dir(id).join("attach/gateway.sock"))?.ino();
    bed.restart()?;
    assert_eq!(bed.observed(id).await?, LIVE);
    bed.driver.recover(id, Duration::from_secs(1)).await?;
    let socket = bed.volatile_dir(id).join("attach/gateway.sock");
    assert_ne!(fs::metadata(&socket)?.ino(), before);

    // The supervisor's user gets in and is told apart from everybody else.
    let base = 0x1000_0000;
    knock(&bed.volatile_dir(id).join("attach"), base + 65_535)?;
    knock(&bed.volatile_dir(id).join("attach"), base)?;
    knock(&bed.volatile_dir(id).join("attach"), base + 65_535)?;
    for _ in 0..2 {
        let (from, _io, peer) =
            tokio::time::timeout(Duration::from_secs(5), bed.connections.recv())
                .await?
                .ok_or("no connection")?;
        assert_eq!((from, peer.uid), (id, Some(base + 65_535)));
    }
    assert!(
        bed.connections.try_recv().is_err(),
        "another user of the sandbox got through"
    );

    bed.driver
        .reattach(&bed.effect(id, 2, 1), &credentials(id, 1))
        .await?;
    let attach: serde_json::Value =
        serde_json::from_slice(&fs::read(bed.volatile_dir(id).join("attach/attach"))?)?;
    assert_eq!(
        (attach["incarnation"].as_u64(), attach["reattach"].as_u64()),
        (Some(1), Some(1))
    );
    bed.driver.delete(&bed.effect(id, 3, 1)).await?;
    assert_eq!(bed.left(), Vec::<String>::new());
    Ok(())
}

/// Connects as a user of the host, from a thread of its own.
fn knock(folder: &Path, uid: u32) -> Outcome {
    let folder = fs::File::open(folder)?;
    std::thread::spawn(move || {
        // SAFETY: credentials and flags of this thread alone, which ends with the call.
        unsafe {
            // SECBIT_NO_SETUID_FIXUP: the capabilities stay, so that modes do not matter here.
            libc::prctl(libc::PR_SET_SECUREBITS, 4);
            libc::syscall(libc::SYS_setresuid, -1, uid, -1);
        }
        UnixStream::connect(format!("/proc/self/fd/{}/gateway.sock", folder.as_raw_fd())).and_then(
            |mut stream| {
                stream.write_all(b"x")?;
                stream.set_read_timeout(Some(Duration::from_millis(50)))?;
                let _ = stream.read(&mut [0]);
                Ok(())
            },
        )
    })
    .join()
    .map_err(|_| "the thread has panicked")??;
    Ok(())
}

#[tokio::test]
async fn a_runtime_killed_at_any_moment_leaves_nothing_and_the_next_try_works() -> Outcome {
    if cannot_run().is_some() {
        return Ok(());
    }
    let mut bed = Bed::new(SLEEPING).await?;
    let delay = bed.folder.path().join("delay");
    wrap(
        &mut bed,
        &format!(
            "exec timeout -s KILL $(cat {}) runc \"$@\"",
            delay.display()
        ),
    )?;
    let mut killed = 0;
    for milliseconds in (4..90).step_by(7) {
        fs::write(&delay, format!("0.{milliseconds:03}"))?;
        let id = sandbox();
        match bed
            .driver
            .create(&bed.effect(id, 1, 1), &bed.spec(), &credentials(id, 1))
            .await
        {
            Ok(_) => assert_eq!(bed.observed(id).await?, LIVE),
            Err(DriverError::Rejected(_)) => {
                killed += 1;
                let seen = bed.driver.observe(id).await?;
                assert_eq!((seen.observed, seen.storage), (Observed::Absent, false));
                fs::write(&delay, "10")?;
                bed.driver
                    .create(&bed.effect(id, 1, 1), &bed.spec(), &credentials(id, 1))
                    .await?;
            }
            Err(other) => return Err(other.into()),
        }
        bed.driver.delete(&bed.effect(id, 2, 1)).await?;
        assert_eq!(bed.left(), Vec::<String>::new(), "after {milliseconds} ms");
    }
    assert!(killed > 0, "the runtime was always quicker");
    Ok(())
}

#[tokio::test]
async fn a_hanging_runtime_ends_unknown_and_recovery_takes_the_lock_from_what_it_left() -> Outcome {
    if cannot_run().is_some() {
        return Ok(());
    }
    let mut bed = Bed::new(SLEEPING).await?;
    let id = sandbox();
    bed.driver
        .create(&bed.effect(id, 1, 1), &bed.spec(), &credentials(id, 1))
        .await?;
    bed.driver
        .suspend(&bed.effect(id, 2, 1), Depth::Stop)
        .await?;
    fs::write(bed.sandbox_dir(id).join("workspace/kept"), "kept")?;

    // Its children are killed with it, and let go of the lock; one that has gone its own way survives
    // it, with the lock.
    for (serial, left, seen) in [
        (1, "sleep 3600 & wait", Observed::Absent),
        (2, "setsid sleep 3600 & wait", Observed::InTransition),
    ] {
        wrap(&mut bed, left)?;
        let mut start = bed.effect(id, 3, serial);
        start.deadline = Duration::from_millis(300);
        let begun = std::time::Instant::now();
        let outcome = bed
            .driver
            .start(&start, &bed.spec(), &credentials(id, 2))
            .await;
        assert!(
            matches!(outcome, Err(DriverError::Unknown(_))),
            "{outcome:?}"
        );
        assert!(begun.elapsed() < Duration::from_secs(2));
        assert_eq!(bed.observed(id).await?, seen);
    }

    bed.driver.recover(id, Duration::from_millis(100)).await?;
    let seen = bed.driver.observe(id).await?;
    assert_eq!((seen.observed, seen.storage), (Observed::Absent, true));
    wrap(&mut bed, "exec runc \"$@\"")?;
    bed.driver
        .start(&bed.effect(id, 4, 3), &bed.spec(), &credentials(id, 3))
        .await?;
    assert_eq!(
        fs::read_to_string(bed.sandbox_dir(id).join("workspace/kept"))?,
        "kept"
    );
    bed.driver.delete(&bed.effect(id, 5, 3)).await?;
    assert_eq!(bed.left(), Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn on_a_full_disk_a_create_says_so_and_stops_and_deletes_work() -> Outcome {
    if cannot_run().is_some() {
        return Ok(());
    }
    let mut bed = Bed::new(SLEEPING).await?;
    let disk = bed.folder.path().join("disk");
    fs::create_dir(&disk)?;
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=4m,mode=755", "tmpfs"])
        .arg(&disk)
        .status()?;
    assert!(mounted.success());
    let result = full_disk(&mut bed, &disk).await;
    // Away from the disk, so that it can be unmounted.
    bed.config.state_dir = bed.folder.path().join("state");
    bed.reopen()?;
    until("the disk can be unmounted", || {
        std::process::Command::new("umount")
            .arg(&disk)
            .status()
            .is_ok_and(|status| status.success())
    })
    .await?;
    result
}

async fn full_disk(bed: &mut Bed, disk: &Path) -> Outcome {
    bed.config.state_dir = disk.join("state");
    bed.reopen()?;
    let (a, b) = (sandbox(), sandbox());
    bed.driver
        .create(&bed.effect(a, 1, 1), &bed.spec(), &credentials(a, 1))
        .await?;
    let filler = disk.join("filler");
    let full = std::process::Command::new("dd")
        .args(["if=/dev/zero", "bs=4k"])
        .arg(format!("of={}", filler.display()))
        .stderr(std::process::Stdio::null())
        .status()?;
    assert!(!full.success(), "the disk is not full");
    let refused = bed
        .driver
        .create(&bed.effect(b, 1, 1), &bed.spec(), &credentials(b, 1))
        .await;
    match refused {
        Err(DriverError::NoSpace(text)) => assert!(text.contains("no space left on"), "{text}"),
        other => return Err(format!("{other:?}").into()),
    }
    let seen = bed.driver.observe(b).await?;
    assert_eq!((seen.observed, seen.storage), (Observed::Absent, false));
    assert!(!bed.sandbox_dir(b).exists());

    let stopped = bed
        .driver
        .suspend(&bed.effect(a, 2, 1), Depth::Stop)
        .await?;
    assert_eq!(stopped.compute, Compute::Absent);
    bed.driver.delete(&bed.effect(a, 3, 1)).await?;
    assert_eq!(bed.left(), Vec::<String>::new());
    fs::remove_file(filler)?;
    bed.driver
        .create(&bed.effect(b, 2, 2), &bed.spec(), &credentials(b, 2))
        .await?;
    bed.driver.delete(&bed.effect(b, 3, 2)).await?;
    assert_eq!(bed.left(), Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn images_are_taken_as_they_were_pinned_or_refused_whole() -> Outcome {
    if cannot_run().is_some() {
        return Ok(());
    }
    let bed = Bed::new(SLEEPING).await?;
    let at = |name: &str| bed.folder.path().join(name).display().to_string();
    let missing = bed.driver.pin(&at("nowhere")).await;
    assert!(
        matches!(missing, Err(DriverError::Missing(_))),
        "{missing:?}"
    );

    // A tar, with what no tar may bring.
    let mut tar = tar::Builder::new(Vec::new());
    tar.append_dir_all(".", at("image"))?;
    let mut header = tar::Header::new_gnu();
    header.set_size(4);
    header.set_mode(0o4755);
    header.set_uid(70_000);
    header.set_gid(0);
    tar.append_data(&mut header, "bin/setuid", &b"text"[..])?;
    let bytes = tar.into_inner()?;
    fs::write(at("good.tar"), &bytes)?;
    let pinned = bed.driver.pin(&at("good.tar")).await?;
    let id = sandbox();
    let spec = overwinter_driver::ComputeSpec {
        image: pinned.clone(),
        ..bed.spec()
    };
    bed.driver
        .create(&bed.effect(id, 1, 1), &spec, &credentials(id, 1))
        .await?;
    let digest = pinned.digest.strip_prefix("sha256:").ok_or("no digest")?;
    let root = bed
        .state()
        .join("images/by-digest")
        .join(digest)
        .join("rootfs");
    let meta = fs::metadata(root.join("bin/setuid"))?;
    assert_eq!((meta.mode() & 0o7777, meta.uid()), (0o755, 65_534));

    // The tar may go: what was pinned is kept.
    fs::remove_file(at("good.tar"))?;
    bed.driver
        .suspend(&bed.effect(id, 2, 1), Depth::Stop)
        .await?;
    bed.driver
        .start(&bed.effect(id, 3, 2), &spec, &credentials(id, 2))
        .await?;
    bed.driver.delete(&bed.effect(id, 4, 2)).await?;

    // Broken, or leading outside: refused with nothing left of it.
    let mut outside = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(0);
    header.set_mode(0o777);
    header.set_uid(0);
    header.set_gid(0);
    header.set_entry_type(tar::EntryType::Symlink);
    outside.append_link(&mut header, "out", at("image"))?;
    let mut header = tar::Header::new_gnu();
    header.set_size(4);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    outside.append_data(&mut header, "out/planted", &b"text"[..])?;
    fs::write(at("outside.tar"), outside.into_inner()?)?;
    fs::write(
        at("broken.tar"),
        bytes.get(..bytes.len() / 2).unwrap_or_default(),
    )?;
    fs::write(at("no.tar"), "this is no tar")?;
    for name in ["outside.tar", "broken.tar", "no.tar"] {
        let refused = bed.driver.pin(&at(name)).await;
        assert!(
            matches!(refused, Err(DriverError::Rejected(_))),
            "{name}: {refused:?}"
        );
    }
    assert!(!Path::new(&at("image/planted")).exists());
    let kept: Vec<_> = fs::read_dir(bed.state().join("images/by-digest"))?
        .flatten()
        .filter(|entry| entry.path().is_dir())
        .collect();
    assert_eq!(kept.len(), 1);

    // A folder that was changed is not what was pinned.
    let id = sandbox();
    bed.driver
        .create(&bed.effect(id, 1, 1), &bed.spec(), &credentials(id, 1))
        .await?;
    bed.driver
        .suspend(&bed.effect(id, 2, 1), Depth::Stop)
        .await?;
    fs::write(at("image/bin/new"), "new")?;
    let changed = bed
        .driver
        .start(&bed.effect(id, 3, 2), &bed.spec(), &credentials(id, 2))
        .await;
    assert!(
        matches!(changed, Err(DriverError::Missing(_))),
        "{changed:?}"
    );
    assert!(bed.driver.observe(id).await?.storage);
    bed.driver.delete(&bed.effect(id, 4, 2)).await?;
    assert_eq!(bed.left(), Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn an_unprivileged_gateway_and_an_absent_runtime_are_told_plainly() -> Outcome {
    if cannot_run().is_some() {
        return Ok(());
    }
    let bed = Bed::new(SLEEPING).await?;
    let mut config = bed.config.clone();
    config.runtime = PathBuf::from("no-such-runtime");
    let open = |config: LocalConfig| {
        let (sender, _receiver) = tokio::sync::mpsc::unbounded_channel();
        overwinter_driver_local::LocalDriver::open(
            config,
            std::sync::Arc::new(common::Port::new(sender)),
            std::sync::Arc::clone(&bed.receipts) as _,
        )
        .err()
        .map(|error| error.to_string())
    };
    let text = open(config).ok_or("opened")?;
    assert!(text.contains("`no-such-runtime` was not found"), "{text}");

    let config = bed.config.clone();
    let text = std::thread::scope(|scope| {
        scope
            .spawn(|| {
                // SAFETY: of this thread alone, which ends here.
                unsafe { libc::syscall(libc::SYS_setresuid, -1, 1000, -1) };
                open(config)
            })
            .join()
    })
    .map_err(|_| "the thread has panicked")?
    .ok_or("opened")?;
    assert!(text.contains("needs root"), "{text}");
    Ok(())
}

#[test]
fn the_doctor_finds_nothing_missing_where_these_tests_run() -> Outcome {
    if cannot_run().is_some() {
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let checks = overwinter_driver_local::doctor(&folder.path().join("state"), Path::new("runc"));
    let missing: Vec<_> = checks
        .iter()
        .filter(|check| check.status == overwinter_driver_local::Status::Missing)
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
    assert!(checks.iter().all(|check| !check.detail.is_empty()));
    let without = overwinter_driver_local::doctor(folder.path(), Path::new("no-such-runtime"));
    assert!(
        without
            .iter()
            .any(|check| check.name == "runtime" && check.fix.contains("install"))
    );
    Ok(())
}

#[tokio::test]
async fn fifty_stops_at_once_all_end_and_leave_nothing() -> Outcome {
    if cannot_run().is_some() {
        return Ok(());
    }
    let bed = Bed::new(SLEEPING).await?;
    let ids: Vec<SandboxId> = (0..50).map(|_| sandbox()).collect();
    let creates = ids.iter().map(|&id| {
        let (ctx, spec, driver) = (bed.effect(id, 1, 1), bed.spec(), bed.driver.clone());
        async move { driver.create(&ctx, &spec, &credentials(id, 1)).await }
    });
    for made in futures::future::join_all(creates).await {
        made?;
    }
    let stops = ids.iter().map(|&id| {
        let (ctx, driver) = (bed.effect(id, 2, 1), bed.driver.clone());
        async move { driver.suspend(&ctx, Depth::Stop).await }
    });
    for stopped in futures::future::join_all(stops).await {
        assert_eq!(stopped?.compute, Compute::Absent);
    }
    let deletes = ids.iter().map(|&id| {
        let (ctx, driver) = (bed.effect(id, 3, 1), bed.driver.clone());
        async move { driver.delete(&ctx).await }
    });
    for deleted in futures::future::join_all(deletes).await {
        deleted?;
    }
    assert_eq!(bed.left(), Vec::<String>::new());
    Ok(())
}
