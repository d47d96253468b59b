//! A gateway that has no file descriptor left, or one, or a few: what it cannot look at is not gone.
//! Whoever believed so would start a second compute beside the first.

mod common;

use std::fs::File;
use std::path::Path;

use common::{Bed, Outcome, cannot_run, credentials, runsc, sandbox, until};
use overwinter_driver::{Depth, Driver, DriverError, Observed};
use overwinter_lifecycle::ids::{Incarnation, SandboxId};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const COUNTING: &str = "n=0; while true; do n=$((n+1)); echo $n > /workspace/.n; \
    mv /workspace/.n /workspace/count; sleep 0.02; done";
const LIVE: Observed = Observed::Live {
    held: Incarnation(1),
};
/// More than any call here holds at one time.
const ENOUGH: usize = 24;

/// This process as long as it has only so many descriptors to open. Each test is a process of its own.
struct Short {
    before: Rlimit,
    held: Vec<File>,
}

impl Short {
    fn of(free: usize) -> Result<Self, Box<dyn std::error::Error>> {
        let before = getrlimit(Resource::Nofile);
        let highest = std::fs::read_dir("/proc/self/fd")?
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u64>().ok())
            .max()
            .ok_or("no descriptor is open")?;
        let limit = Rlimit {
            current: Some(highest + 1 + ENOUGH as u64),
            maximum: before.maximum,
        };
        let mut short = Self {
            before,
            held: Vec::new(),
        };
        setrlimit(Resource::Nofile, limit)?;
        while let Ok(file) = File::open("/dev/null") {
            short.held.push(file);
        }
        short.held.truncate(short.held.len() - free);
        Ok(short)
    }
}

impl Drop for Short {
    fn drop(&mut self) {
        setrlimit(Resource::Nofile, self.before).expect("the limit of before");
    }
}

async fn counting(bed: &Bed, id: SandboxId, fence: u64) -> Outcome {
    let (ctx, credentials) = (bed.effect(id, fence, 1), credentials(id, 1));
    bed.driver.create(&ctx, &bed.spec(), &credentials).await?;
    until("it counts", || bed.number(id, "count") > 2).await
}

/// With so many descriptors: what is seen is what is so, or that it cannot be seen.
async fn told_rightly(bed: &Bed, id: SandboxId) -> Outcome {
    let mut seen = 0;
    for free in 0..=ENOUGH {
        let short = Short::of(free)?;
        let observed = bed.driver.observe(id).await;
        let listed = bed.driver.list().await;
        drop(short);
        match observed {
            Ok(observation) if observation.observed == LIVE => seen += 1,
            Ok(observation) => {
                let unknown = observation.observed == Observed::Unknown;
                assert!(unknown, "{free} descriptors: {observation:?}");
            }
            Err(DriverError::Unknown(_) | DriverError::Rejected(_)) => {}
            Err(other) => panic!("{free} descriptors: {other:?}"),
        }
        if let Ok(listed) = listed {
            let found = listed.iter().find(|found| found.sandbox == Some(id));
            let found = found.map(|found| found.observed);
            assert_eq!(
                found,
                Some(LIVE),
                "{free} descriptors: the list leaves it out"
            );
        }
    }
    assert!(seen > 0, "it was never seen");
    Ok(())
}

/// A suspend with so many descriptors: where it says that it is done, nothing lives.
async fn ends_rightly(bed: &Bed, depth: Depth) -> Outcome {
    let mut done = 0;
    for free in (0..=ENOUGH).step_by(2) {
        let id = sandbox();
        counting(bed, id, 1).await?;
        let ctx = bed.effect(id, 2, 1);
        let short = Short::of(free)?;
        let suspended = bed.driver.suspend(&ctx, depth).await;
        drop(short);
        match suspended {
            Ok(_) => {
                done += 1;
                let listed = bed.driver.list().await?;
                let found = listed.iter().find(|found| found.sandbox == Some(id));
                assert!(found.is_none(), "{free} descriptors: {found:?} is left");
            }
            // It goes on, or has ended: whoever looks with descriptors sees which.
            Err(error) => match bed.observed(id).await? {
                LIVE => {
                    let count = bed.number(id, "count");
                    until("it goes on", || bed.number(id, "count") > count).await?;
                }
                Observed::Stopped | Observed::Absent => {
                    let listed = bed.driver.list().await?;
                    let lives = listed.iter().any(|found| {
                        found.sandbox == Some(id) && !matches!(found.observed, Observed::Stopped)
                    });
                    assert!(!lives, "{free} descriptors: {error}: {listed:?}");
                }
                other => panic!("{free} descriptors: {error}, and then {other:?}"),
            },
        }
        bed.driver.delete(&bed.effect(id, 3, 3)).await?;
    }
    assert!(done > 0, "none came to its end");
    Ok(())
}

async fn holds(runtime: &Path, depth: Depth) -> Outcome {
    let bed = Bed::on(runtime, COUNTING).await?;
    let id = sandbox();
    counting(&bed, id, 1).await?;
    told_rightly(&bed, id).await?;
    bed.driver.delete(&bed.effect(id, 2, 2)).await?;
    ends_rightly(&bed, depth).await?;
    assert_eq!(bed.left(), Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn a_gateway_without_descriptors_takes_nothing_for_gone() -> Outcome {
    if cannot_run().is_some() {
        return Ok(());
    }
    holds(Path::new("runc"), Depth::Stop).await
}

#[tokio::test]
async fn nor_on_gvisor() -> Outcome {
    let Some(runsc) = runsc() else { return Ok(()) };
    holds(&runsc, Depth::Checkpoint).await
}
