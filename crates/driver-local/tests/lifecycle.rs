//! The life of a sandbox on the real host, through the trait.

mod common;

use std::fs;
use std::time::Duration;

use common::{Bed, Outcome, cannot_run, credentials, sandbox, until};
use futures::StreamExt;
use overwinter_driver::{Compute, Depth, Driver, DriverError, Observed};
use overwinter_lifecycle::ids::Incarnation;

/// Counts into a file of the workspace, and leaves a file in the root layer.
const COUNTING: &str = "id -u > /workspace/uid; touch /kept; n=0; \
    while true; do n=$((n+1)); echo $n > /workspace/.n; cat /workspace/.n > /workspace/count; sleep 0.02; done";

const LIVE: fn(u64) -> Compute = |held| Compute::Live {
    held: Incarnation(held),
};

#[tokio::test]
async fn memory_stands_still_while_frozen_and_storage_outlives_a_stop() -> Outcome {
    if cannot_run().is_some() {
        return Ok(());
    }
    let bed = Bed::new(COUNTING).await?;
    let id = sandbox();
    assert_eq!(bed.observed(id).await?, Observed::Absent);

    let made = bed
        .driver
        .create(&bed.effect(id, 1, 1), &bed.spec(), &credentials(id, 1))
        .await?;
    assert_eq!(made.compute, LIVE(1));
    assert_eq!(
        bed.observed(id).await?,
        Observed::Live {
            held: Incarnation(1)
        }
    );
    let count = bed.sandbox_dir(id).join("workspace/count");
    let read = || {
        fs::read_to_string(&count)
            .unwrap_or_default()
            .trim()
            .parse::<u64>()
            .unwrap_or(0)
    };
    until("it counts", || read() > 1).await?;
    assert_eq!(
        fs::read_to_string(bed.sandbox_dir(id).join("workspace/uid"))?.trim(),
        "65535"
    );

    let frozen = bed
        .driver
        .suspend(&bed.effect(id, 2, 1), Depth::Freeze)
        .await?;
    assert_eq!(
        frozen.compute,
        Compute::Frozen {
            held: Incarnation(1)
        }
    );
    assert_eq!(
        bed.observed(id).await?,
        Observed::Frozen {
            held: Incarnation(1)
        }
    );
    let stood = read();
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(read(), stood);

    let resumed = bed
        .driver
        .resume(
            &bed.effect(id, 3, 2),
            Depth::Freeze,
            &frozen.reference,
            &credentials(id, 2),
        )
        .await?;
    assert_eq!(resumed.compute, LIVE(1));
    until("it goes on counting", || read() > stood).await?;

    let stopped = bed
        .driver
        .suspend(&bed.effect(id, 4, 2), Depth::Stop)
        .await?;
    assert_eq!(stopped.compute, Compute::Absent);
    assert!(
        stopped
            .remarks
            .iter()
            .any(|remark| remark.starts_with("sync="))
    );
    let seen = bed.driver.observe(id).await?;
    assert_eq!((seen.observed, seen.storage), (Observed::Absent, true));
    assert!(
        bed.driver
            .list()
            .await?
            .iter()
            .all(|found| found.sandbox != Some(id))
    );

    fs::remove_file(&count)?;
    let started = bed
        .driver
        .start(&bed.effect(id, 5, 3), &bed.spec(), &credentials(id, 3))
        .await?;
    assert_eq!(started.compute, LIVE(3));
    until("the root layer is there again and it counts anew", || {
        bed.sandbox_dir(id).join("root/upper/kept").exists() && read() > 0
    })
    .await?;
    let listed = bed.driver.list().await?;
    let found = listed
        .iter()
        .find(|found| found.sandbox == Some(id))
        .ok_or("not listed")?;
    assert_eq!(
        found.observed,
        Observed::Live {
            held: Incarnation(3)
        }
    );
    assert_eq!(found.gateway.as_ref(), Some(&bed.config.gateway_id));

    bed.driver.delete(&bed.effect(id, 6, 3)).await?;
    bed.driver.delete(&bed.effect(id, 7, 3)).await?;
    let seen = bed.driver.observe(id).await?;
    assert_eq!((seen.observed, seen.storage), (Observed::Absent, false));
    assert_eq!(bed.left(), Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn frozen_compute_ends_without_running_and_deleting_it_leaves_nothing() -> Outcome {
    if cannot_run().is_some() {
        return Ok(());
    }
    let bed = Bed::new(COUNTING).await?;
    let (a, b) = (sandbox(), sandbox());
    for id in [a, b] {
        bed.driver
            .create(&bed.effect(id, 1, 1), &bed.spec(), &credentials(id, 1))
            .await?;
        bed.driver
            .suspend(&bed.effect(id, 2, 1), Depth::Freeze)
            .await?;
    }
    let stopped = bed
        .driver
        .suspend(&bed.effect(a, 3, 1), Depth::Stop)
        .await?;
    assert_eq!(stopped.compute, Compute::Absent);
    assert!(bed.sandbox_dir(a).join("workspace").is_dir());
    for id in [a, b] {
        bed.driver.delete(&bed.effect(id, 4, 1)).await?;
    }
    assert_eq!(bed.left(), Vec::<String>::new());
    Ok(())
}

/// PID 1 ends first, and with it all others; but they are thawed together, so that each must have its
/// end before it by then. With more of them than CPUs some would run for a while.
#[tokio::test]
async fn not_one_program_of_a_frozen_compute_runs_as_it_ends() -> Outcome {
    const MANY: &str = "for i in 1 2 3 4 5 6 7 8; do \
        (exec 9>> /workspace/busy; while true; do echo x >&9; done) & done; wait";
    if cannot_run().is_some() {
        return Ok(());
    }
    let bed = Bed::new(MANY).await?;
    for deeper in [Some(Depth::Stop), None] {
        let id = sandbox();
        bed.driver
            .create(&bed.effect(id, 1, 1), &bed.spec(), &credentials(id, 1))
            .await?;
        let busy = bed.sandbox_dir(id).join("workspace/busy");
        // The bytes survive a delete in what is open.
        until("they are busy", || {
            fs::metadata(&busy).is_ok_and(|it| it.len() > 100)
        })
        .await?;
        let written = fs::File::open(&busy)?;
        bed.driver
            .suspend(&bed.effect(id, 2, 1), Depth::Freeze)
            .await?;
        let frozen = written.metadata()?.len();
        if let Some(depth) = deeper {
            bed.driver.suspend(&bed.effect(id, 3, 1), depth).await?;
            assert_eq!(written.metadata()?.len(), frozen, "something ran");
        }
        bed.driver.delete(&bed.effect(id, 4, 1)).await?;
        assert_eq!(written.metadata()?.len(), frozen, "something ran");
    }
    assert_eq!(bed.left(), Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn an_end_behind_our_back_is_told_and_seen() -> Outcome {
    if cannot_run().is_some() {
        return Ok(());
    }
    let bed = Bed::new("sleep 0.3; exit 3").await?;
    let id = sandbox();
    let mut changes = bed.driver.watch();
    bed.driver
        .create(&bed.effect(id, 1, 1), &bed.spec(), &credentials(id, 1))
        .await?;
    let changed = tokio::time::timeout(Duration::from_secs(5), changes.next())
        .await?
        .ok_or("no change")?;
    assert_eq!((changed.sandbox, changed.held), (id, Incarnation(1)));
    let seen = bed.driver.observe(id).await?;
    assert_eq!((seen.observed, seen.storage), (Observed::Stopped, true));
    // What was promised at a freeze is gone: said as a fact, with the storage intact.
    let frozen = bed
        .driver
        .suspend(&bed.effect(id, 2, 1), Depth::Freeze)
        .await?;
    assert_eq!(frozen.compute, Compute::Absent);
    bed.driver.delete(&bed.effect(id, 3, 1)).await?;
    assert_eq!(bed.left(), Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn a_smaller_key_is_fenced_and_the_same_one_is_carried_out_once() -> Outcome {
    if cannot_run().is_some() {
        return Ok(());
    }
    let mut bed = Bed::new(COUNTING).await?;
    let id = sandbox();
    let create = bed.effect(id, 1, 1);
    bed.driver
        .create(&create, &bed.spec(), &credentials(id, 1))
        .await?;
    let again = bed
        .driver
        .create(&create, &bed.spec(), &credentials(id, 1))
        .await?;
    assert_eq!(again.compute, LIVE(1));
    assert_eq!(
        bed.driver
            .list()
            .await?
            .iter()
            .filter(|found| found.sandbox == Some(id))
            .count(),
        1
    );

    bed.driver
        .suspend(&bed.effect(id, 5, 1), Depth::Stop)
        .await?;
    // A restart does not make it forget: the ledger remembers.
    bed.restart()?;
    let late = bed
        .driver
        .create(&create, &bed.spec(), &credentials(id, 1))
        .await;
    assert_eq!(late.err(), Some(DriverError::Fenced));
    assert_eq!(bed.observed(id).await?, Observed::Absent);
    bed.driver.delete(&bed.effect(id, 6, 1)).await?;
    Ok(())
}

#[tokio::test]
async fn who_forks_without_end_is_frozen_all_the_same() -> Outcome {
    if cannot_run().is_some() {
        return Ok(());
    }
    let forking = "while true; do (true; true) | cat; done & \
        while true; do (true) & true; wait; done";
    let bed = Bed::new(forking).await?;
    let id = sandbox();
    bed.driver
        .create(&bed.effect(id, 1, 1), &bed.spec(), &credentials(id, 1))
        .await?;
    for cycle in 1..=100 {
        let frozen = bed
            .driver
            .suspend(&bed.effect(id, 2 * cycle, cycle), Depth::Freeze)
            .await?;
        bed.driver
            .resume(
                &bed.effect(id, 2 * cycle + 1, cycle + 1),
                Depth::Freeze,
                &frozen.reference,
                &credentials(id, cycle + 1),
            )
            .await?;
    }
    bed.driver.delete(&bed.effect(id, 1000, 200)).await?;
    assert_eq!(bed.left(), Vec::<String>::new());
    Ok(())
}

/// What the profile closes, seen from inside as far as busybox can ask for it.
const LOCKED_IN: &str = "unshare -U true; echo $? >> /workspace/seen; \
    mount -t tmpfs none /tmp; echo $? >> /workspace/seen; \
    mknod /workspace/disk b 254 0; echo $? >> /workspace/seen; \
    echo x > /run/overwinter/x; echo $? >> /workspace/seen; \
    cat /etc/hostname >> /workspace/seen; ls /sys/class/net >> /workspace/seen; \
    touch /workspace/done; while true; do sleep 3600; done";

#[tokio::test]
async fn what_is_closed_is_closed_inside() -> Outcome {
    if cannot_run().is_some() {
        return Ok(());
    }
    let bed = Bed::new(LOCKED_IN).await?;
    let id = sandbox();
    bed.driver
        .create(&bed.effect(id, 1, 1), &bed.spec(), &credentials(id, 1))
        .await?;
    let workspace = bed.sandbox_dir(id).join("workspace");
    until("it has tried", || workspace.join("done").exists()).await?;
    let seen = fs::read_to_string(workspace.join("seen"))?;
    assert_eq!(seen, "1\n1\n1\n1\nwinter\nlo\n");
    bed.driver.delete(&bed.effect(id, 2, 1)).await?;
    Ok(())
}
