//! SIGKILL, at random moments, of whatever takes part in a sandbox's life.

use std::time::Duration;

use anyhow::Context;
use overwinter_tests::compute::{Compute, NoCompute};
use overwinter_tests::{Gateway, orphans};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::stage::{RUNSC, Stage};

/// On average, between two kills.
const EVERY_MS: u64 = 250;
/// Where memory goes to disk and comes back, which takes a second of a loaded machine.
const EVERY_MS_WITH_DISK: u64 = 700;
/// How long a run of the runtime is waited for.
const LOOK: Duration = Duration::from_millis(500);
/// Into a run of the runtime: it takes some ten milliseconds.
const INTO_MS: u64 = 15;
/// Into one of gVisor's, which takes some hundred.
const INTO_RUNSC_MS: u64 = 200;
/// A successor is killed as well, so soon after it was spawned.
const AGAIN_MS: u64 = 80;

/// A run is so much longer at most.
const LONGER: u64 = 4;

#[derive(Clone, Copy)]
pub(crate) enum Victim {
    Gateway,
    /// The first process inside.
    Supervisor,
    /// Every process inside.
    Compute,
    /// A run of runc: a child of the gateway's.
    Runtime,
}

impl Victim {
    pub(crate) const ALL: [Self; 4] = [
        Self::Gateway,
        Self::Supervisor,
        Self::Compute,
        Self::Runtime,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Gateway => "gateway",
            Self::Supervisor => "supervisor",
            Self::Compute => "compute",
            Self::Runtime => "runtime",
        }
    }
}

/// Kills so many times, each kind alike often, or until the run is over; longer where something was
/// not met yet that a run must meet. The gateway serves at the end.
///
/// # Errors
/// When a gateway does not come back.
pub(crate) async fn kill(
    stage: &Stage,
    gateway: &mut Gateway,
    places: usize,
    times: u64,
    seed: u64,
) -> anyhow::Result<()> {
    let mut chance = StdRng::seed_from_u64(seed);
    let goes_on =
        |kills: u64| kills < times || kills < times * LONGER && !stage.report.unmet().is_empty();
    let every = if stage.runtimes.contains(&RUNSC) {
        EVERY_MS_WITH_DISK
    } else {
        EVERY_MS
    };
    while goes_on(stage.report.kills()) && !stage.report.over.is_cancelled() {
        let pause = Duration::from_millis(chance.random_range(0..2 * every));
        tokio::time::sleep(pause).await;
        let victim = Victim::ALL[chance.random_range(0..Victim::ALL.len())];
        let killed = match victim {
            Victim::Gateway => kill_gateway(gateway, &mut chance).await?,
            Victim::Supervisor | Victim::Compute => {
                let at = chance.random_range(0..places);
                kill_compute(stage, at, matches!(victim, Victim::Compute)).await?
            }
            Victim::Runtime => kill_runtime(stage, gateway, &mut chance).await?,
        };
        for _ in 0..killed {
            stage.report.killed(victim.name());
        }
    }
    Ok(())
}

async fn kill_gateway(gateway: &mut Gateway, chance: &mut StdRng) -> anyhow::Result<u64> {
    let mut killed = 1;
    gateway.kill().await?;
    gateway.spawn()?;
    while chance.random_ratio(1, 4) {
        tokio::time::sleep(Duration::from_millis(chance.random_range(0..AGAIN_MS))).await;
        gateway.kill().await?;
        gateway.spawn()?;
        killed += 1;
    }
    gateway.serving().await?;
    Ok(killed)
}

/// Of the sandbox in that place, where it has any.
async fn kill_compute(stage: &Stage, place: usize, all: bool) -> anyhow::Result<u64> {
    let Some(ledger) = stage.place(place) else {
        return Ok(0);
    };
    let _ending = ledger.ending();
    let id = ledger.id.clone();
    let killed = tokio::task::spawn_blocking(move || {
        let compute = Compute::of(&id)?;
        if all {
            compute.kill_all()
        } else {
            compute.kill()
        }
    });
    match killed.await? {
        Ok(()) => Ok(1),
        // It sleeps without compute, is about to, or has ended meanwhile.
        Err(NoCompute::None | NoCompute::Kernel(_)) => Ok(0),
        Err(error @ (NoCompute::Many(_) | NoCompute::Immortal(_))) => {
            stage.report.broken(format!("{}: {error}", ledger.id));
            Ok(0)
        }
    }
}

/// A run of the runtime, when one is met.
async fn kill_runtime(
    stage: &Stage,
    gateway: &Gateway,
    chance: &mut StdRng,
) -> anyhow::Result<u64> {
    let parent = gateway.pid().context("no gateway runs")?;
    let found = tokio::time::timeout(LOOK, async {
        loop {
            if let Some(pid) = orphans::children_of(parent).into_iter().find(is_runtime) {
                return pid;
            }
            // Nothing tells of another process's children.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    let Ok(pid) = found.await else { return Ok(0) };
    let Some(handle) = Pid::from_raw(pid) else {
        return Ok(0);
    };
    let Ok(handle) = pidfd_open(handle, PidfdFlags::empty()) else {
        return Ok(0);
    };
    // The number may have been given again before it was opened.
    if !is_runtime(&pid) || !orphans::children_of(parent).contains(&pid) {
        return Ok(0);
    }
    // One that restores memory takes it along: nobody knows any more whether it ran.
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let command = String::from_utf8_lossy(&command);
    let all = stage.all();
    let of = all
        .iter()
        .find(|ledger| command.contains(&ledger.id.replace('-', "")));
    let _ending = of.map(|ledger| ledger.ending());
    let into = if command.contains(RUNSC) {
        INTO_RUNSC_MS
    } else {
        INTO_MS
    };
    tokio::time::sleep(Duration::from_millis(chance.random_range(0..into))).await;
    Ok(u64::from(pidfd_send_signal(&handle, Signal::KILL).is_ok()))
}

/// By its program, which the gateway may have copied into memory; its name is that of the descriptor
/// that it was started from.
fn is_runtime(pid: &i32) -> bool {
    std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|program| {
        let program = program.to_string_lossy();
        program.contains("runc") || program.contains(RUNSC) || program.starts_with("/memfd:runtime")
    })
}
