//! The gateway is killed (SIGKILL, a process of its own) at moments all over a checkpoint and a restore.
//! There is the old truth or the new one: it lives on, or its memory is on disk, whole; and memory
//! that may have run is never used again.

mod common;

use std::env;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{Bed, Outcome, Receipts, credentials, open, runsc, sandbox, until};
use overwinter_driver::{Depth, Driver, DriverReference, Observed};
use overwinter_lifecycle::ids::{EffectKey, Fence, Incarnation, SandboxId, Serial};

const COUNTING: &str = "n=0; head -c 30000000 /dev/urandom > /dev/shm/noise; while true; do n=$((n+1)); \
    echo $n > /workspace/.n; mv /workspace/.n /workspace/count; sleep 0.02; done";
const PATIENCE: Duration = Duration::from_secs(10);
/// What the process that is killed is told.
const TOLD: &str = "OVERWINTER_TEST_EFFECT";

/// One effect, in the process that is killed; nothing in the run of all tests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_gateway_that_is_killed() -> Outcome {
    let Ok(told) = env::var(TOLD) else {
        return Ok(());
    };
    let (mut config, id, fence, incarnation, verb) = read(&told)?;
    config.init_args = Some(["/bin/sh", "-c", COUNTING].map(str::to_owned).to_vec());
    let receipts = std::sync::Arc::new(Receipts::default());
    let key = EffectKey {
        sandbox: id,
        fence: Fence(fence),
        serial: Serial(1),
    };
    receipts.record(key);
    let ctx = overwinter_driver::EffectContext {
        key,
        incarnation: Incarnation(incarnation),
        deadline: Duration::from_secs(20),
        options: overwinter_driver::EffectOptions::default(),
    };
    let (driver, _, _connections) = open(&config, receipts)?;
    driver.recover(id, PATIENCE).await?;
    match verb.as_str() {
        "suspend" => drop(driver.suspend(&ctx, Depth::Checkpoint).await?),
        _ => drop(
            driver
                .resume(
                    &ctx,
                    Depth::Checkpoint,
                    &DriverReference::default(),
                    &credentials(id, incarnation),
                )
                .await?,
        ),
    }
    // Nothing is tidied up.
    std::process::abort();
}

type Told = (
    overwinter_driver_local::LocalConfig,
    SandboxId,
    u64,
    u64,
    String,
);

fn read(told: &str) -> Result<Told, Box<dyn std::error::Error>> {
    let told: serde_json::Value = serde_json::from_str(told)?;
    let text = |name: &str| told[name].as_str().unwrap_or_default().to_owned();
    let number = |name: &str| told[name].as_u64().unwrap_or_default();
    let mut config = overwinter_driver_local::LocalConfig::new(
        text("state").into(),
        common::BUSYBOX.into(),
        text("gateway"),
    );
    config.runtime = text("runtime").into();
    let id = text("sandbox").parse()?;
    Ok((
        config,
        id,
        number("fence"),
        number("incarnation"),
        text("verb"),
    ))
}

/// Starts that process, and kills it after so long.
fn kill_in(
    bed: &Bed,
    id: SandboxId,
    verb: &str,
    fence: u64,
    held: u64,
    after: Duration,
) -> Outcome {
    let told = serde_json::json!({
        "state": bed.config.state_dir, "gateway": bed.config.gateway_id, "runtime": bed.config.runtime,
        "sandbox": id.to_string(), "fence": fence, "incarnation": held, "verb": verb,
    });
    let mut gateway = Command::new(env::current_exe()?)
        .args(["--exact", "the_gateway_that_is_killed"])
        .env(TOLD, told.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    std::thread::sleep(after);
    gateway.kill()?;
    gateway.wait()?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_killed_at_any_moment_loses_no_memory_and_uses_none_twice() -> Outcome {
    let Some(runsc) = runsc() else { return Ok(()) };
    let mut bed = Bed::on(&runsc, COUNTING).await?;
    let id = sandbox();
    bed.driver
        .create(&bed.effect(id, 1, 1), &bed.spec(), &credentials(id, 1))
        .await?;
    until("it counts", || bed.number(id, "count") > 2).await?;
    let (mut fence, mut held) = (1, 1);
    let mut outcomes = std::collections::BTreeMap::<String, u32>::new();
    for round in 0..12u64 {
        let after = Duration::from_millis(120 + 110 * round);
        fence += 1;
        bed.effect(id, fence, held);
        kill_in(&bed, id, "suspend", fence, held, after)?;
        bed.restart()?;
        bed.driver.recover(id, PATIENCE).await?;
        let before = bed.number(id, "count");
        let seen = bed.observed(id).await?;
        *outcomes
            .entry(format!("suspend: {}", word(&seen)))
            .or_default() += 1;
        match seen {
            Observed::Live { .. } => {
                until("it runs on", || bed.number(id, "count") > before).await?;
            }
            // What the next gateway does: the same effect again, or its end.
            Observed::Frozen { .. } | Observed::Absent => {}
            other => return Err(format!("{after:?}: {other:?}").into()),
        }
        let ctx = bed.effect(id, fence, held);
        let taken = bed.driver.suspend(&ctx, Depth::Checkpoint).await?;
        assert_eq!(bed.observed(id).await?, Observed::Absent);
        assert!(taken.size_bytes > 20_000_000, "{taken:?}");
        let count = bed.number(id, "count");

        fence += 1;
        held += 1;
        bed.effect(id, fence, held);
        kill_in(&bed, id, "resume", fence, held, after)?;
        bed.restart()?;
        bed.driver.recover(id, PATIENCE).await?;
        let seen = bed.observed(id).await?;
        let known = DriverReference::default();
        match seen {
            Observed::Live { .. } => {}
            Observed::Absent => {
                let ctx = bed.effect(id, fence, held);
                let own = credentials(id, held);
                let driver = &bed.driver;
                let again = driver.resume(&ctx, Depth::Checkpoint, &known, &own).await;
                if let Err(refused) = again {
                    // It may have run, for as short as it was.
                    assert!(refused.surely_no_effect(), "{refused:?}");
                    *outcomes.entry("resume: lost".to_owned()).or_default() += 1;
                    fence += 1;
                    held += 1;
                    let ctx = bed.effect(id, fence, held);
                    bed.driver
                        .start(&ctx, &bed.spec(), &credentials(id, held))
                        .await?;
                    until("it counts anew", || bed.number(id, "count") != count).await?;
                    until("it is whole", || bed.number(id, "count") > 2).await?;
                    continue;
                }
            }
            other => return Err(format!("{after:?}: {other:?}").into()),
        }
        *outcomes
            .entry(format!("resume: {}", word(&seen)))
            .or_default() += 1;
        until("its memory goes on", || bed.number(id, "count") > count).await?;
        let ours = |found: &&overwinter_driver::Found| found.sandbox == Some(id);
        assert_eq!(bed.driver.list().await?.iter().filter(ours).count(), 1);
    }
    eprintln!("{outcomes:?}");
    assert!(
        outcomes.len() > 2,
        "all were killed at the same moment: {outcomes:?}"
    );
    bed.driver.delete(&bed.effect(id, 999, 999)).await?;
    assert_eq!(bed.left(), Vec::<String>::new());
    Ok(())
}

const fn word(observed: &Observed) -> &'static str {
    match observed {
        Observed::Absent => "absent",
        Observed::Stopped => "stopped",
        Observed::Live { .. } => "live",
        Observed::Frozen { .. } => "frozen",
        Observed::InTransition => "in transition",
        Observed::Unknown => "unknown",
    }
}
