//! The life of a sandbox on gVisor, through the trait.

mod common;

use std::fs;
use std::time::Duration;

use common::{Bed, Outcome, credentials, runsc, sandbox, until};
use overwinter_driver::{Compute, Depth, Driver, DriverError, DriverReference, Observed, Unusable};
use overwinter_lifecycle::ids::{Incarnation, SandboxId};

/// Counts in a shell's memory, and tells each number; says what it was born with, and what the root
/// layer holds. The memory is some MiB of what cannot be packed and some of what can.
const COUNTING: &str = "touch /kept; head -c 8000000 /dev/urandom > /dev/shm/noise; \
    dd if=/dev/zero of=/dev/shm/nothing bs=1M count=8 2> /dev/null; \
    born=$(cat /dev/urandom | head -c 9 | od -An -tu4 | tr -d ' \\n' | head -c 8); n=0; \
    exec 9>> /open; \
    while true; do n=$((n+1)); echo line >&9; echo $n > /workspace/.n; mv /workspace/.n /workspace/count; \
    date +%s > /workspace/.c; mv /workspace/.c /workspace/clock; \
    cat /run/overwinter/incarnation > /workspace/.i; mv /workspace/.i /workspace/incarnation; \
    echo 1$born > /workspace/.b; mv /workspace/.b /workspace/born; \
    [ -e /kept ] && echo $n > /workspace/.s; mv /workspace/.s /workspace/seen; sleep 0.02; done";

const LIVE: fn(u64) -> Compute = |held| Compute::Live {
    held: Incarnation(held),
};

/// It writes one number after the other: between two of the same nothing ran.
async fn stands_still(bed: &Bed, id: SandboxId) -> u64 {
    let before = bed.number(id, "count");
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(bed.number(id, "count"), before, "it runs");
    before
}

async fn counting(bed: &Bed, id: SandboxId) -> Outcome {
    bed.driver
        .create(&bed.effect(id, 1, 1), &bed.spec(), &credentials(id, 1))
        .await?;
    until("it counts", || bed.number(id, "count") > 2).await
}

#[tokio::test]
async fn memory_goes_on_over_a_checkpoint_and_so_does_what_was_written() -> Outcome {
    let Some(runsc) = runsc() else { return Ok(()) };
    let bed = Bed::on(&runsc, COUNTING).await?;
    let description = bed.driver.describe().await;
    for depth in Depth::ALL {
        assert!(
            description.mode(depth).is_some(),
            "{depth} must be offered here"
        );
    }
    let id = sandbox();
    counting(&bed, id).await?;
    let born = bed.number(id, "born");
    assert!(born > 0);

    let (mut count, mut last) = (0, String::new());
    for cycle in 1..=2 {
        bed.driver.prepare(id, Depth::Checkpoint).await?;
        let taken = bed
            .driver
            .suspend(&bed.effect(id, 2 * cycle, cycle), Depth::Checkpoint)
            .await?;
        assert_eq!(taken.compute, Compute::Absent);
        let seen = bed.driver.observe(id).await?;
        assert_eq!((seen.observed, seen.storage), (Observed::Absent, true));
        count = stands_still(&bed, id).await;
        assert_eq!(bed.number(id, "incarnation"), cycle);
        tokio::time::sleep(Duration::from_secs(2)).await;
        // The noise is there, the zeros are not; and all of it is what is said.
        assert!(
            (8_000_000..40_000_000).contains(&taken.size_bytes),
            "{}",
            taken.size_bytes
        );
        let name = bed.effect(id, 2 * cycle, cycle).key.native_name();
        let image = fs::metadata(bed.artifacts(id).join(&name).join("image"))?;
        assert_eq!(image.len(), taken.size_bytes);
        let reference = taken.reference.clone();
        // The same key again is the same artifact.
        let again = bed
            .driver
            .suspend(&bed.effect(id, 2 * cycle, cycle), Depth::Checkpoint)
            .await?;
        assert_eq!(
            (again.reference, again.size_bytes),
            (taken.reference, taken.size_bytes)
        );

        let resumed = bed
            .driver
            .resume(
                &bed.effect(id, 2 * cycle + 1, cycle + 1),
                Depth::Checkpoint,
                &reference,
                &credentials(id, cycle + 1),
            )
            .await?;
        assert_eq!(resumed.compute, LIVE(cycle + 1));
        until("it goes on counting", || {
            bed.number(id, "count") > count + 2
        })
        .await?;
        assert_eq!(bed.number(id, "born"), born, "another memory");
        // It can tell that it slept, and what time it is.
        assert_eq!(bed.number(id, "incarnation"), cycle + 1);
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
        assert!(
            bed.number(id, "clock").abs_diff(now.as_secs()) <= 1,
            "its clock is behind"
        );
        until("it sees its root layer", || {
            bed.number(id, "seen") > count + 2
        })
        .await?;
        let [owed] = &resumed.leftovers[..] else {
            return Err(format!("one artifact is owed: {:?}", resumed.leftovers).into());
        };
        last = owed.reference.clone();
        bed.driver.discard(owed).await?;
        bed.driver.discard(owed).await?;
        assert_eq!(fs::read_dir(bed.artifacts(id))?.count(), 0);
    }
    assert!(count > 2 && last.starts_with(&id.0.simple().to_string()));
    // Not a line that a program has written is missing, though its file was never closed.
    let lines = fs::read_to_string(bed.sandbox_dir(id).join("root/upper/open"))?;
    let (lines, seen) = (lines.lines().count() as u64, bed.number(id, "count"));
    assert!(lines + 1 >= seen, "{lines} of {seen}");

    bed.driver.delete(&bed.effect(id, 9, 9)).await?;
    assert_eq!(bed.left(), Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn it_sleeps_deeper_without_running_and_keeps_what_was_written() -> Outcome {
    let Some(runsc) = runsc() else { return Ok(()) };
    let bed = Bed::on(&runsc, COUNTING).await?;
    let (a, b) = (sandbox(), sandbox());
    for id in [a, b] {
        counting(&bed, id).await?;
        let frozen = bed
            .driver
            .suspend(&bed.effect(id, 2, 1), Depth::Freeze)
            .await?;
        let held = Incarnation(1);
        assert_eq!(frozen.compute, Compute::Frozen { held });
    }
    let (first, second) = (stands_still(&bed, a).await, stands_still(&bed, b).await);

    let taken = bed
        .driver
        .suspend(&bed.effect(a, 3, 1), Depth::Checkpoint)
        .await?;
    assert_eq!(taken.compute, Compute::Absent);
    assert_eq!(bed.number(a, "count"), first, "it ran on its way");
    for id in [a, b] {
        let stopped = bed
            .driver
            .suspend(&bed.effect(id, 4, 1), Depth::Stop)
            .await?;
        assert_eq!(stopped.compute, Compute::Absent);
        // What it was deepened from is owed, and removed as a debt.
        assert_eq!(stopped.leftovers.len(), usize::from(id == a));
        for debt in &stopped.leftovers {
            bed.driver.discard(debt).await?;
        }
    }
    assert_eq!(
        (bed.number(a, "count"), bed.number(b, "count")),
        (first, second)
    );
    for (id, count) in [(a, first), (b, second)] {
        assert!(bed.sandbox_dir(id).join("root/upper/kept").exists());
        let lines = fs::read_to_string(bed.sandbox_dir(id).join("root/upper/open"))?;
        assert!(lines.lines().count() as u64 + 1 >= count, "lines are lost");
        bed.driver
            .start(&bed.effect(id, 5, 2), &bed.spec(), &credentials(id, 2))
            .await?;
        until("it counts anew", || bed.number(id, "count") > 0).await?;
        bed.driver.delete(&bed.effect(id, 6, 2)).await?;
    }
    assert_eq!(bed.left(), Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn a_sandbox_may_name_its_runtime_and_what_it_cannot_do_is_said() -> Outcome {
    let Some(runsc) = runsc() else { return Ok(()) };
    let mut bed = Bed::new(COUNTING).await?;
    bed.config.also = vec![runsc];
    bed.restart()?;
    let (a, b) = (sandbox(), sandbox());
    let mut spec = bed.spec();
    spec.runtime = "runsc".to_owned();
    bed.driver
        .create(&bed.effect(a, 1, 1), &spec, &credentials(a, 1))
        .await?;
    counting(&bed, b).await?;
    until("it counts", || bed.number(a, "count") > 2).await?;
    bed.driver
        .suspend(&bed.effect(a, 2, 1), Depth::Checkpoint)
        .await?;
    // The default runs on, and says why it cannot.
    for refused in [
        bed.driver.prepare(b, Depth::Checkpoint).await.err(),
        bed.driver
            .suspend(&bed.effect(b, 2, 1), Depth::Checkpoint)
            .await
            .err(),
    ] {
        let Some(DriverError::Rejected(why)) = refused else {
            return Err(format!("{refused:?}").into());
        };
        assert!(why.contains("runsc"), "{why}");
    }
    let count = bed.number(b, "count");
    until("it runs on", || bed.number(b, "count") > count).await?;
    spec.runtime = "nothing-like-it".to_owned();
    let unknown = bed
        .driver
        .create(&bed.effect(sandbox(), 1, 1), &spec, &credentials(a, 1))
        .await;
    assert!(
        matches!(unknown, Err(DriverError::Unsupported(_))),
        "{unknown:?}"
    );

    // Where it was taken away: its storage is there, and it says what is missing.
    bed.config.also = Vec::new();
    bed.restart()?;
    let description = bed.driver.describe().await;
    let [(Depth::Checkpoint, why)] = &description.unavailable[..] else {
        return Err(format!("{:?}", description.unavailable).into());
    };
    assert!(why.contains("runsc"), "{why}");
    let resumed = bed
        .driver
        .resume(
            &bed.effect(a, 3, 2),
            Depth::Checkpoint,
            &DriverReference::default(),
            &credentials(a, 2),
        )
        .await;
    assert!(
        matches!(
            resumed,
            Err(DriverError::Unusable {
                why: Unusable::OtherBuild,
                ..
            })
        ),
        "{resumed:?}"
    );
    for id in [a, b] {
        bed.driver.delete(&bed.effect(id, 4, 2)).await?;
    }
    assert_eq!(bed.left(), Vec::<String>::new());
    Ok(())
}
