//! gVisor's runtime is killed, or the gateway is, at moments that matter: there is the old truth or the
//! new one, and the next call goes on from it.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use common::{Bed, Outcome, credentials, runsc, sandbox, until};
use overwinter_driver::{Compute, Depth, Driver, DriverError, Observed};
use overwinter_lifecycle::ids::{Incarnation, SandboxId};
use serde_json::Value;

const COUNTING: &str = "n=0; head -c 20000000 /dev/urandom > /dev/shm/noise; while true; do n=$((n+1)); \
    echo $n > /workspace/.n; mv /workspace/.n /workspace/count; sleep 0.02; done";
const PATIENCE: Duration = Duration::from_secs(5);

/// A runtime whose call of `verb` is killed after so long as the file `delay` says, or fails at once
/// where that says `refuse`; empty: neither.
async fn killed_in(runsc: &Path, verb: &str) -> Result<Bed, Box<dyn std::error::Error>> {
    let mut bed = Bed::on(runsc, COUNTING).await?;
    let (delay, path) = (delay(&bed), bed.folder.path().join("runsc"));
    fs::write(&delay, "")?;
    let script = format!(
        "#!/bin/sh\nfor word in \"$@\"; do [ \"$word\" = {verb} ] && d=$(cat {delay}); done\n\
         [ \"$d\" = refuse ] && exit 9\n\
         [ -n \"$d\" ] && exec timeout -s KILL $d {runsc} \"$@\"\nexec {runsc} \"$@\"\n",
        delay = delay.display(),
        runsc = runsc.display(),
    );
    fs::write(&path, script)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    bed.config.runtime = path;
    bed.config.also = Vec::new();
    bed.restart()?;
    Ok(bed)
}

fn delay(bed: &Bed) -> std::path::PathBuf {
    bed.folder.path().join("delay")
}

async fn counting(bed: &Bed, id: SandboxId) -> Outcome {
    bed.driver
        .create(&bed.effect(id, 1, 1), &bed.spec(), &credentials(id, 1))
        .await?;
    until("it counts", || bed.number(id, "count") > 2).await
}

/// What is so. A copy of the lock of a runtime that was killed may be with another child of ours,
/// between its fork and its exec; then it says so for a moment.
async fn settled(bed: &Bed, id: SandboxId) -> Result<Observed, Box<dyn std::error::Error>> {
    for _ in 0..100 {
        match bed.observed(id).await? {
            Observed::InTransition => tokio::time::sleep(Duration::from_millis(5)).await,
            other => return Ok(other),
        }
    }
    Err("in transition for good".into())
}

async fn goes_on(bed: &Bed, id: SandboxId, what: &str) -> Outcome {
    let count = bed.number(id, "count");
    until(what, || bed.number(id, "count") > count + 1).await
}

#[tokio::test]
async fn a_pause_killed_at_any_moment_is_settled_by_asking_the_sentry() -> Outcome {
    let Some(runsc) = runsc() else { return Ok(()) };
    let bed = killed_in(&runsc, "pause").await?;
    let id = sandbox();
    counting(&bed, id).await?;
    // From what one takes here that is left alone, earlier and earlier, so that all come on its way on a
    // machine of any speed, and however busy.
    let began = Instant::now();
    let ctx = bed.effect(id, 2, 1);
    let reference = bed.driver.suspend(&ctx, Depth::Freeze).await?.reference;
    let took = began.elapsed();
    let (ctx, fresh) = (bed.effect(id, 3, 1), credentials(id, 1));
    let thawed = (bed.driver).resume(&ctx, Depth::Freeze, &reference, &fresh);
    thawed.await?;
    let (mut fence, mut killed, mut after) = (3, 0, took);
    for _ in 0..60 {
        fs::write(delay(&bed), format!("{:.4}", after.as_secs_f64()))?;
        fence += 2;
        let frozen = bed
            .driver
            .suspend(&bed.effect(id, fence, 1), Depth::Freeze)
            .await;
        fs::write(delay(&bed), "")?;
        match frozen {
            Ok(frozen) => {
                bed.driver
                    .resume(
                        &bed.effect(id, fence + 1, 1),
                        Depth::Freeze,
                        &frozen.reference,
                        &credentials(id, 1),
                    )
                    .await?;
                after = after * 3 / 4;
            }
            // It was put right at once: it runs.
            Err(DriverError::Rejected(_)) => {
                killed += 1;
                after = after * 5 / 6;
            }
            Err(other) => return Err(format!("{after:?}: {other:?}").into()),
        }
        let held = Incarnation(1);
        assert_eq!(settled(&bed, id).await?, Observed::Live { held });
        goes_on(&bed, id, "it runs, whatever the runtime has noted").await?;
        if killed == 8 {
            break;
        }
    }
    assert_eq!(killed, 8, "so many were killed on their way");
    bed.driver.delete(&bed.effect(id, 99, 1)).await?;
    assert_eq!(bed.left(), Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn a_checkpoint_killed_at_any_moment_leaves_it_running_or_frozen_as_it_was() -> Outcome {
    let Some(runsc) = runsc() else { return Ok(()) };
    let bed = killed_in(&runsc, "checkpoint").await?;
    let id = sandbox();
    counting(&bed, id).await?;
    let limit = limit_of(&bed, id);
    let (mut fence, mut killed) = (1, 0);
    for (round, millis) in [20, 40, 60, 90, 120, 160, 220].into_iter().enumerate() {
        let frozen = round % 2 == 1;
        if frozen {
            fence += 1;
            bed.driver
                .suspend(&bed.effect(id, fence, 1), Depth::Freeze)
                .await?;
        }
        let count = bed.number(id, "count");
        fs::write(delay(&bed), format!("0.{millis:03}"))?;
        fence += 1;
        let ctx = bed.effect(id, fence, 1);
        let taken = bed.driver.suspend(&ctx, Depth::Checkpoint).await;
        fs::write(delay(&bed), "")?;
        let held = Incarnation(1);
        match taken {
            // Quicker than it was killed.
            Ok(_) => break,
            Err(DriverError::Rejected(_)) => killed += 1,
            Err(other) => return Err(format!("{millis} ms: {other:?}").into()),
        }
        assert_eq!(
            fs::read_dir(bed.artifacts(id)).map_or(0, Iterator::count),
            0
        );
        assert!(
            !bed.volatile_dir(id).join("memory").exists(),
            "plain memory is left"
        );
        assert_eq!(
            limit_of(&bed, id),
            limit,
            "its memory has no limit any more"
        );
        if frozen {
            assert_eq!(settled(&bed, id).await?, Observed::Frozen { held });
            assert_eq!(bed.number(id, "count"), count, "it ran");
            fence += 1;
            bed.driver
                .resume(
                    &bed.effect(id, fence, 1),
                    Depth::Freeze,
                    &Default::default(),
                    &credentials(id, 1),
                )
                .await?;
        }
        assert_eq!(settled(&bed, id).await?, Observed::Live { held });
        goes_on(&bed, id, "it runs on").await?;
    }
    assert!(killed > 2, "only {killed} were killed on their way");
    if settled(&bed, id).await? != Observed::Absent {
        bed.driver
            .suspend(&bed.effect(id, 90, 1), Depth::Checkpoint)
            .await?;
    }
    bed.driver
        .resume(
            &bed.effect(id, 91, 2),
            Depth::Checkpoint,
            &Default::default(),
            &credentials(id, 2),
        )
        .await?;
    goes_on(&bed, id, "its memory is whole").await?;
    bed.driver.delete(&bed.effect(id, 99, 2)).await?;
    assert_eq!(bed.left(), Vec::<String>::new());
    Ok(())
}

fn limit_of(bed: &Bed, id: SandboxId) -> Option<String> {
    let native = fs::read(bed.sandbox_dir(id).join("compute.json")).ok()?;
    let record: Value = serde_json::from_slice(&native).ok()?;
    let native = record["native"].as_str()?.to_owned();
    let v1 = Path::new("/sys/fs/cgroup/memory/overwinter");
    let v2 = Path::new("/sys/fs/cgroup/overwinter");
    [(v1, "memory.limit_in_bytes"), (v2, "memory.max")]
        .into_iter()
        .find_map(|(root, file)| {
            let group = root.join(&bed.config.gateway_id).join(&native);
            fs::read_to_string(group.join(file)).ok()
        })
}

#[tokio::test]
async fn a_restore_that_the_runtime_refuses_ran_nothing_and_can_be_tried_again() -> Outcome {
    let Some(runsc) = runsc() else { return Ok(()) };
    let bed = killed_in(&runsc, "restore").await?;
    let id = sandbox();
    counting(&bed, id).await?;
    bed.driver
        .suspend(&bed.effect(id, 2, 1), Depth::Checkpoint)
        .await?;
    let count = bed.number(id, "count");
    fs::write(delay(&bed), "refuse")?;
    for fence in 3..5 {
        let refused = bed
            .driver
            .resume(
                &bed.effect(id, fence, fence),
                Depth::Checkpoint,
                &Default::default(),
                &credentials(id, fence),
            )
            .await;
        assert!(
            matches!(refused, Err(DriverError::Rejected(_))),
            "{refused:?}"
        );
        assert_eq!(settled(&bed, id).await?, Observed::Absent);
    }
    assert_eq!(bed.number(id, "count"), count, "it ran");
    fs::write(delay(&bed), "")?;
    bed.driver
        .resume(
            &bed.effect(id, 5, 5),
            Depth::Checkpoint,
            &Default::default(),
            &credentials(id, 5),
        )
        .await?;
    goes_on(&bed, id, "its memory is whole").await?;
    assert!(bed.number(id, "count") > count);
    bed.driver.delete(&bed.effect(id, 6, 5)).await?;
    assert_eq!(bed.left(), Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn a_restore_killed_on_its_way_is_never_taken_for_one_that_ran_nothing() -> Outcome {
    let Some(runsc) = runsc() else { return Ok(()) };
    let bed = killed_in(&runsc, "restore").await?;
    let mut killed = 0;
    for millis in [10, 30, 60, 100, 150] {
        let id = sandbox();
        counting(&bed, id).await?;
        bed.driver
            .suspend(&bed.effect(id, 2, 1), Depth::Checkpoint)
            .await?;
        fs::write(delay(&bed), format!("0.{millis:03}"))?;
        let resumed = bed
            .driver
            .resume(
                &bed.effect(id, 3, 2),
                Depth::Checkpoint,
                &Default::default(),
                &credentials(id, 2),
            )
            .await;
        fs::write(delay(&bed), "")?;
        match resumed {
            // Quicker than it was killed.
            Ok(_) => {
                goes_on(&bed, id, "it is restored").await?;
                bed.driver.delete(&bed.effect(id, 4, 2)).await?;
                continue;
            }
            Err(DriverError::Unknown(_)) => killed += 1,
            Err(other) => return Err(format!("{millis} ms: {other:?}").into()),
        }
        bed.driver.recover(id, PATIENCE).await?;
        assert_eq!(settled(&bed, id).await?, Observed::Absent);
        // Whether it ran nobody knows, so that memory is never used again.
        let again = bed
            .driver
            .resume(
                &bed.effect(id, 4, 3),
                Depth::Checkpoint,
                &Default::default(),
                &credentials(id, 3),
            )
            .await;
        assert!(
            again.as_ref().is_err_and(DriverError::surely_no_effect),
            "{again:?}"
        );
        bed.driver
            .start(&bed.effect(id, 5, 4), &bed.spec(), &credentials(id, 4))
            .await?;
        goes_on(&bed, id, "it starts on its storage").await?;
        bed.driver.delete(&bed.effect(id, 6, 4)).await?;
    }
    assert!(killed > 1, "only {killed} were killed on their way");
    assert_eq!(bed.left(), Vec::<String>::new());
    Ok(())
}

/// The gateway dies while the memory is written.
#[tokio::test]
async fn a_compute_whose_memory_was_being_written_runs_on_as_it_did() -> Outcome {
    let Some(runsc) = runsc() else { return Ok(()) };
    let mut bed = Bed::on(&runsc, COUNTING).await?;
    let id = sandbox();
    counting(&bed, id).await?;
    let limit = limit_of(&bed, id).ok_or("no limit")?;
    bed.driver
        .suspend(&bed.effect(id, 2, 1), Depth::Freeze)
        .await?;
    let note = bed.sandbox_dir(id).join("compute.json");
    let mut record: Value = serde_json::from_slice(&fs::read(&note)?)?;
    let native = record["native"].as_str().ok_or("no name")?.to_owned();
    for asleep in [true, false] {
        record["saving"] = serde_json::json!({ "limit": limit.trim() });
        record["asleep"] = asleep.into();
        fs::write(&note, serde_json::to_vec(&record)?)?;
        let half = bed.artifacts(id).join(".new.half");
        fs::create_dir_all(&half)?;
        lift_limit(&bed, &native)?;
        thaw(&bed, &native)?;
        bed.restart()?;
        bed.driver.recover(id, PATIENCE).await?;
        let held = Incarnation(1);
        let then = if asleep {
            Observed::Frozen { held }
        } else {
            Observed::Live { held }
        };
        assert_eq!(settled(&bed, id).await?, then);
        assert_eq!(limit_of(&bed, id), Some(limit.clone()));
        assert!(!half.exists(), "half an artifact is left");
    }
    goes_on(&bed, id, "it runs on").await?;
    bed.driver.delete(&bed.effect(id, 9, 1)).await?;
    assert_eq!(bed.left(), Vec::<String>::new());
    Ok(())
}

/// The gateway dies between the artifact's name and the end of the compute.
#[tokio::test]
async fn a_compute_whose_memory_is_on_disk_does_not_run_on() -> Outcome {
    let Some(runsc) = runsc() else { return Ok(()) };
    let mut bed = Bed::on(&runsc, COUNTING).await?;
    let id = sandbox();
    counting(&bed, id).await?;
    bed.driver
        .suspend(&bed.effect(id, 2, 1), Depth::Checkpoint)
        .await?;
    let first = bed
        .artifacts(id)
        .join(bed.effect(id, 2, 1).key.native_name());
    bed.driver
        .resume(
            &bed.effect(id, 3, 2),
            Depth::Checkpoint,
            &Default::default(),
            &credentials(id, 2),
        )
        .await?;
    goes_on(&bed, id, "it goes on").await?;
    // What the disk shows at that moment: halted compute, its note, and an artifact of it.
    bed.driver
        .suspend(&bed.effect(id, 4, 2), Depth::Freeze)
        .await?;
    let count = bed.number(id, "count");
    let second = bed.effect(id, 5, 2);
    let folder = bed.artifacts(id).join(second.key.native_name());
    fs::rename(first, &folder)?;
    let path = folder.join("manifest.json");
    let mut manifest: Value = serde_json::from_slice(&fs::read(&path)?)?;
    manifest["head"]["belongs"]["name"] = second.key.native_name().into();
    manifest["head"]["belongs"]["generation"] = 2.into();
    fs::write(&path, serde_json::to_vec(&manifest)?)?;
    let note = bed.sandbox_dir(id).join("compute.json");
    let mut record: Value = serde_json::from_slice(&fs::read(&note)?)?;
    record["saving"] = serde_json::json!({ "limit": null });
    record["asleep"] = false.into();
    fs::write(&note, serde_json::to_vec(&record)?)?;
    thaw(&bed, record["native"].as_str().unwrap_or_default())?;

    bed.restart()?;
    bed.driver.recover(id, PATIENCE).await?;
    let held = Incarnation(2);
    assert_eq!(settled(&bed, id).await?, Observed::Frozen { held });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(bed.number(id, "count"), count, "it ran on");
    let taken = bed.driver.suspend(&second, Depth::Checkpoint).await?;
    assert_eq!(taken.compute, Compute::Absent);
    assert!(taken.size_bytes > 0);
    assert_eq!(settled(&bed, id).await?, Observed::Absent);
    bed.driver.delete(&bed.effect(id, 9, 2)).await?;
    assert_eq!(bed.left(), Vec::<String>::new());
    Ok(())
}

fn lift_limit(bed: &Bed, native: &str) -> Outcome {
    let v1 = Path::new("/sys/fs/cgroup/memory/overwinter");
    let v2 = Path::new("/sys/fs/cgroup/overwinter");
    for (root, file, text) in [
        (v1, "memory.limit_in_bytes", "-1"),
        (v2, "memory.max", "max"),
    ] {
        let file = root.join(&bed.config.gateway_id).join(native).join(file);
        if file.exists() {
            fs::write(file, text)?;
        }
    }
    Ok(())
}

fn thaw(bed: &Bed, native: &str) -> Outcome {
    let v1 = Path::new("/sys/fs/cgroup/freezer/overwinter");
    let v2 = Path::new("/sys/fs/cgroup/overwinter");
    for (root, file, text) in [(v1, "freezer.state", "THAWED"), (v2, "cgroup.freeze", "0")] {
        let file = root.join(&bed.config.gateway_id).join(native).join(file);
        if file.exists() {
            fs::write(file, text)?;
        }
    }
    Ok(())
}
