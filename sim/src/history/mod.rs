//! Deterministic simulation of the gateway: its real reconciler, admission, recovery, sessions, data
//! plane, API and store, on one thread, against a simulated backend and virtual time.
//!
//! ```text
//!   seed ─► clients ─► doors ─► the gateway (one life after another) ─► the backend's world
//!             │                   │ every commit       │ every call          ▲
//!             ▼                   ▼                    ▼                     │
//!           model ◄── checks ── records              faults, crashes ── mishaps
//! ```
//!
//! | module | its one idea |
//! |---|---|
//! | `time` | virtual time |
//! | `life` | one life of a gateway |
//! | `client`, `calls`, `doors` | who asks, what it does inside, and how |
//! | `faults`, `crashes` (at any of `points`), `mishaps`, `disk`, `power` | what goes wrong |
//! | `checks`, `ends`, `finale` | what must be so: after each commit, at the end of an operation and at the end |
//! | [`invariant`] | by name |
//! | [`many`] | many seeds, on all cores |
//! | `watch` | what must be so as time goes by |
//! | `trace`, [`coverage`] | what has happened, as a hash and as counts |

mod calls;
mod checks;
mod client;
pub mod coverage;
mod crashes;
mod disk;
mod doors;
mod ends;
mod faults;
mod finale;
pub mod invariant;
mod life;
pub mod many;
mod mishaps;
#[cfg(feature = "mutants")]
pub mod mutants;
mod panics;
mod points;
mod power;
pub mod profile;
mod stage;
mod time;
mod trace;
mod watch;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use futures::stream::FuturesUnordered;
use overwinter_driver::testkit::sim::{checkpoint_mode, freeze_mode, stop_mode};
use overwinter_driver::testkit::{Dice, Looked, SimConfig, SimWorld};
use overwinter_driver::{Found, Observed, SuspensionMode};
use overwinter_lifecycle::ids::SandboxId;
use overwinter_store::Identity;
use uuid::Uuid;

use coverage::Coverage;
use crashes::Crashes;
use disk::Disk;
use faults::{Plan, Records};
use invariant::{Invariant, Violation};
use life::{End, FOREIGN, Lives, Nursery, Purpose, SeededIds};
use power::Power;
use profile::Profile;
use stage::{Model, Stage};
use time::VirtualTime;
use trace::Trace;

/// What a history was.
pub struct Told {
    pub hash: String,
    pub events: u64,
    pub crashes: u32,
    pub sandboxes: usize,
    /// Virtual.
    pub took: std::time::Duration,
    pub violation: Option<Violation>,
    /// The last events before a violation.
    pub last: String,
    pub coverage: Coverage,
}

/// The faults that these profiles dial.
#[must_use]
pub fn dialled(profiles: &[Profile]) -> Vec<String> {
    profiles.iter().flat_map(faults::dialled).collect()
}

/// The history of one seed.
///
/// # Errors
/// When there is no place for its records.
pub fn run(seed: u64, profile: &Profile, print: bool) -> std::io::Result<Told> {
    // Its records must not depend on a disk's speed, and are many small commits.
    let shm = std::path::Path::new("/dev/shm");
    let folder = if shm.is_dir() {
        tempfile::tempdir_in(shm)?
    } else {
        tempfile::tempdir()?
    };
    panics::keep();
    let told = of(seed, profile, print, folder.path());
    panics::keep_no_more();
    Ok(told)
}

fn of(seed: u64, profile: &Profile, print: bool, folder: &std::path::Path) -> Told {
    let time = VirtualTime::default();
    let trace = Trace::new(time.clone(), print);
    let coverage = Coverage::default();
    let records = Records::default();
    let power = Power::new(seed, profile.mishaps.power, folder, records.clone());
    let crashes = Crashes::new(
        seed,
        profile.crashes,
        time.clone(),
        trace.clone(),
        coverage.clone(),
        power.clone(),
    );
    let plan = Arc::new(Plan::new(
        seed,
        profile,
        trace.clone(),
        coverage.clone(),
        crashes.clone(),
        records.clone(),
    ));
    let identity = identity(seed);
    let nursery = Nursery::new(time.clone());
    let dying = crashes.clone();
    let world = SimWorld::new(SimConfig {
        gateway: identity.gateway.to_string(),
        seed,
        clock: Arc::new(time.clone()),
        spawn: Arc::new(nursery.clone()),
        faults: plan.clone(),
        second_is_violation: !profile.backend_lies(),
        modes: [freeze_mode(), checkpoint_mode(), stop_mode()]
            .map(|mode| SuspensionMode {
                lost_request_life: profile.lost_request_life,
                ..mode
            })
            .into(),
        on_crash: Arc::new(move |site, point| {
            dying.die(&format_args!("{point:?} {:?}", site.kind));
        }),
        ..SimConfig::default()
    });
    world.add_foreign(Found {
        gateway: Some("another".to_owned()),
        sandbox: Some(SandboxId(Uuid::from_u128(7))),
        birth: None,
        native_name: FOREIGN.to_owned(),
        observed: Observed::Unknown,
    });
    let disk = Disk::new(seed, profile.mishaps.full > 0, coverage.clone());
    let stage = Rc::new(Stage {
        profile: profile.clone(),
        time: time.clone(),
        trace,
        coverage,
        crashes,
        plan,
        records,
        world,
        disk,
        power,
        ends_in_this_life: Dice::new(&[seed, 13]).next().is_multiple_of(2),
        disk_trouble: Cell::default(),
        life: Cell::default(),
        up_since: Cell::default(),
        dice: RefCell::new(Dice::new(&[seed, 1])),
        model: RefCell::new(Model::default()),
        violation: RefCell::new(None),
        steps_left: Cell::new(profile.steps),
    });
    let mut lives = Lives {
        stage: stage.clone(),
        folder,
        identity,
        ids: SeededIds::new(seed, time.clone()),
        nursery,
        tasks: FuturesUnordered::new(),
    };
    if through_chaos(&mut lives) == End::Done && !stage.ends_in_this_life {
        stage.faults_end();
        let end = lives.live(Purpose::Finale);
        if end == End::Crashed {
            stage.violate(
                Invariant::EveryOperationEnds,
                "a crash without crashes".to_owned(),
            );
        }
    }
    tell(&stage)
}

fn through_chaos(lives: &mut Lives<'_>) -> End {
    loop {
        match lives.live(Purpose::Chaos) {
            End::Crashed => match lives.stage.power.comes_back() {
                Ok(false) => {}
                Ok(true) => lives.stage.power_was_lost(),
                Err(error) => {
                    let how = format!("the disk after a power loss: {error}");
                    lives.stage.violate(Invariant::AlwaysStarts, how);
                    return End::Violated;
                }
            },
            end @ (End::Done | End::Violated) => return end,
        }
    }
}

fn identity(seed: u64) -> Identity {
    let mut dice = Dice::new(&[seed, 7]);
    let mut key = [0; 32];
    for piece in key.chunks_mut(8) {
        piece.copy_from_slice(&dice.next().to_le_bytes());
    }
    let gateway = (u128::from(dice.next()) << 64) | u128::from(dice.next());
    Identity {
        gateway: Uuid::from_u128(gateway),
        key,
    }
}

/// What the backend and the panic hook have looked at all the time.
fn watched(stage: &Stage) {
    let of = |looked| stage.world.times(looked);
    for (invariant, times) in [
        (Invariant::NeverTwo, of(Looked::Start)),
        (Invariant::NoStaleWrite, of(Looked::Write)),
        (Invariant::DetachedBeforeFrozen, of(Looked::Freeze)),
        (Invariant::OldCredentialsRefused, of(Looked::OldCredentials)),
        (Invariant::LostIsWaitedFor, of(Looked::Unfenced)),
        (Invariant::NoPanic, stage.life.get().into()),
    ] {
        stage.coverage.tested_times(invariant.name(), times);
    }
}

fn tell(stage: &Stage) -> Told {
    watched(stage);
    Told {
        hash: stage.trace.hash(),
        events: stage.trace.events(),
        crashes: stage.crashes.count(),
        sandboxes: stage.model.borrow().told.seen.len(),
        took: stage.time.now(),
        violation: stage.violation.borrow().clone(),
        last: stage.trace.last(),
        coverage: stage.coverage.clone(),
    }
}
