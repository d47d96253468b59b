//! What happens behind the gateway's back.

use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use overwinter_lifecycle::ids::SandboxId;

use super::power;
use super::profile::Mishaps;
use super::stage::Stage;

const BETWEEN: Duration = Duration::from_secs(2);
const TROUBLE: Duration = Duration::from_secs(20);
/// Longer than any owner may go on.
const OUTAGE: Duration = Duration::from_secs(200);

const KILL: &str = "Mishap kill";
const RECONNECT: &str = "Mishap reconnect";
const ROT: &str = "Mishap rot";
const REBOOT: &str = "Mishap reboot";
const JUMP: &str = "Mishap jump";
const FULL: &str = "Mishap full";
const SLOW: &str = "Mishap slow";
const OUTAGE_BEGINS: &str = "Mishap outage";

/// Those that these dials lead to.
pub(crate) fn dialled(mishaps: Mishaps) -> impl Iterator<Item = &'static str> {
    let all = [
        (mishaps.kill, KILL),
        (mishaps.reconnect, RECONNECT),
        (mishaps.rot, ROT),
        (mishaps.reboot, REBOOT),
        (mishaps.jump, JUMP),
        (mishaps.full, FULL),
        (mishaps.slow, SLOW),
        (mishaps.outage, OUTAGE_BEGINS),
        (mishaps.power, power::LOST),
    ];
    all.into_iter()
        .filter(|(dial, _)| *dial > 0)
        .map(|(_, name)| name)
}

/// One after the other, for as long as the gateway lives.
pub(crate) async fn run(stage: Rc<Stage>) {
    let mishaps = stage.profile.mishaps;
    loop {
        stage.a_while(BETWEEN).await;
        if stage.chance(mishaps.kill.into())
            && let Some(id) = any(&stage)
        {
            let killed = stage.world.kill(id);
            stage.trace.note(format_args!("mishap kill {id}: {killed}"));
            stage.met(KILL, killed.then_some(id));
        }
        if stage.chance(mishaps.reconnect.into())
            && let Some(id) = any(&stage)
        {
            let dials = stage.world.reconnect(id);
            *stage.model.borrow_mut().broken.entry(id).or_default() += 1;
            stage
                .trace
                .note(format_args!("mishap reconnect {id}: {dials}"));
            stage.met(RECONNECT, dials.then_some(id));
        }
        if stage.chance(mishaps.rot.into())
            && let Some(id) = any(&stage)
        {
            let rotten = if stage.chance(500) {
                stage.world.damage_artifact(id)
            } else {
                stage.world.lose_artifact(id)
            };
            stage
                .trace
                .note(format_args!("mishap rot {id}: {rotten:?}"));
            stage.met(ROT, rotten.is_some().then_some(id));
            stage.model.borrow_mut().rotten.extend(rotten);
        }
        if stage.chance(mishaps.reboot.into()) {
            stage.trace.note(format_args!("mishap reboot"));
            stage.world.reboot();
            everywhere(&stage, REBOOT);
        }
        if stage.chance(mishaps.jump.into()) {
            let hours = i64::try_from(stage.roll(49)).unwrap_or(0) - 24;
            stage.trace.note(format_args!("mishap jump {hours} h"));
            stage.time.jump(hours * 3_600_000);
            everywhere(&stage, JUMP);
            let by = Duration::from_secs(hours.unsigned_abs() * 3_600);
            let mut model = stage.model.borrow_mut();
            model.jumped += by;
            if hours > 0 {
                model.skipped += by;
            }
        }
        if stage.chance(mishaps.full.into()) {
            everywhere(&stage, FULL);
            trouble(&stage, &stage.disk.full, "full").await;
        }
        if stage.chance(mishaps.slow.into()) {
            everywhere(&stage, SLOW);
            trouble(&stage, &stage.disk.slow, "slow").await;
        }
        if stage.chance(mishaps.outage.into()) {
            stage.trace.note(format_args!("mishap outage"));
            everywhere(&stage, OUTAGE_BEGINS);
            stage.plan.outage(true);
            stage.sleep(OUTAGE).await;
            stage.plan.outage(false);
        }
    }
}

/// With the disk of the records.
async fn trouble(stage: &Stage, which: &AtomicBool, what: &str) {
    stage.trace.note(format_args!("mishap {what}"));
    stage
        .disk_trouble
        .set(stage.disk_trouble.get() + TROUBLE * 2);
    which.store(true, Ordering::Relaxed);
    stage.a_while(TROUBLE).await;
    which.store(false, Ordering::Relaxed);
}

/// It meets them all.
fn everywhere(stage: &Stage, what: &str) {
    let all: Vec<SandboxId> = stage.model.borrow().told.names.values().copied().collect();
    for id in all {
        stage.met(what, Some(id));
    }
}

fn any(stage: &Stage) -> Option<SandboxId> {
    let model = stage.model.borrow();
    let nth = usize::try_from(stage.roll(model.told.names.len() as u64)).unwrap_or(0);
    model.told.names.values().nth(nth).copied()
}
