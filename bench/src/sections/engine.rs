//! Sandboxes as containers, beside the same calls of the daemon's API and of its command; in turns.

use std::time::Instant;

use overwinter_client::{Client, Depth};
use overwinter_driver_docker::Flavor;
use overwinter_driver_docker::testkit::cannot_run;
use tokio::task::JoinSet;

use super::stop::sync_ms;
use super::{Plan, run_true};
use crate::engine::Engine;
use crate::report::{Bound, Report, Row};
use crate::stats::{Samples, Steps};

const BARE: &str = "bare";
const MANY: usize = 50;

/// What a daemon can do.
#[derive(Clone, Copy)]
enum Sleep {
    Pause,
    Stop,
}

impl Sleep {
    const fn depth(self) -> Depth {
        match self {
            Self::Pause => Depth::Freeze,
            Self::Stop => Depth::Stop,
        }
    }
}

#[derive(Default)]
struct Taken {
    down: Samples,
    up: Samples,
    /// Until an exec has answered.
    ready: Samples,
    bare_down: Samples,
    bare_up: Samples,
    steps_down: Steps,
    steps_up: Steps,
}

pub(super) async fn measure(
    flavor: Flavor,
    plan: &Plan,
    report: &mut Report,
) -> anyhow::Result<()> {
    let name = flavor.name();
    if let Some(why) = cannot_run(flavor) {
        eprintln!("{name}: NOT MEASURED: it {why} (make setup)");
        return Ok(());
    }
    let engine = Engine::start(flavor, &plan.folder).await?;
    let client = engine.client();
    let id = engine.create("one").await?;
    engine.bare(BARE).await?;
    execs(&engine, &client, &id, plan, report, name).await?;
    for (sleep, bound, rounds, down, up) in [
        (Sleep::Pause, 1.3, 40, "pause", "unpause"),
        (Sleep::Stop, 1.15, 20, "stop", "start"),
    ] {
        let taken = cycles(&engine, &client, &id, sleep, plan.rounds(rounds)).await?;
        let what = sleep.depth().as_str();
        report.add(
            Row::timed(format!("{name}, {what}: suspend"), &taken.down)
                .beside(format!("the API's {down}"), &taken.bare_down)
                .bound(Bound::RatioAtMost(bound))
                .note(plan.note(&taken.steps_down)),
        );
        report.add(
            Row::timed(format!("{name}, {what}: resume"), &taken.up)
                .beside(format!("the API's {up}"), &taken.bare_up)
                .bound(Bound::RatioAtMost(bound))
                .note(plan.note(&taken.steps_up)),
        );
        report.add(
            Row::timed(
                format!("{name}, {what}: resume until an exec has answered"),
                &taken.ready,
            )
            .beside(format!("the API's {up}"), &taken.bare_up),
        );
    }
    many(&engine, &client, plan, report, name).await?;
    engine.end().await
}

async fn execs(
    engine: &Engine,
    client: &Client,
    id: &str,
    plan: &Plan,
    report: &mut Report,
    name: &str,
) -> anyhow::Result<()> {
    let (mut execs, mut bares) = (Samples::default(), Samples::default());
    for _ in 0..plan.rounds(30) {
        bares.add(engine.command(&["exec", BARE, "/bin/true"])?);
        let began = Instant::now();
        run_true(client, id).await?;
        execs.add(began.elapsed());
    }
    report.add(
        Row::timed(format!("{name}, exec true"), &execs)
            .beside("the command's exec", &bares)
            .bound(Bound::P50AtMost(5.0)),
    );
    Ok(())
}

async fn cycles(
    engine: &Engine,
    client: &Client,
    id: &str,
    sleep: Sleep,
    rounds: usize,
) -> anyhow::Result<Taken> {
    let mut taken = Taken::default();
    for _ in 0..rounds {
        let began = Instant::now();
        let done = client.suspend(id).depth(sleep.depth()).wait().await?;
        let took = began.elapsed().as_secs_f64() * 1e3;
        // The daemon syncs nothing.
        let sync = done.operation.as_ref().and_then(sync_ms).unwrap_or(0.0);
        taken.down.add_ms(took - sync);
        taken.steps_down.add(done.operation.as_ref());
        taken.bare_down.add(match sleep {
            Sleep::Pause => engine.bare_pause(BARE).await?,
            Sleep::Stop => engine.bare_stop(BARE).await?,
        });

        let began = Instant::now();
        let done = client.resume(id).wait().await?;
        taken.up.add(began.elapsed());
        run_true(client, id).await?;
        taken.ready.add(began.elapsed());
        taken.steps_up.add(done.operation.as_ref());
        taken.bare_up.add(match sleep {
            Sleep::Pause => engine.bare_unpause(BARE).await?,
            Sleep::Stop => engine.bare_start(BARE).await?,
        });
    }
    Ok(taken)
}

/// At once, beside the command in a loop.
async fn many(
    engine: &Engine,
    client: &Client,
    plan: &Plan,
    report: &mut Report,
    name: &str,
) -> anyhow::Result<()> {
    let count = plan.rounds(MANY);
    let mut ids = Vec::new();
    let mut bares = Vec::new();
    for number in 0..count {
        ids.push(engine.create(&format!("many-{number}")).await?);
        let bare = format!("bare-{number}");
        engine.bare(&bare).await?;
        bares.push(bare);
    }
    for (down, what, command) in [
        (true, "suspend", ["stop", "--time", "0"].as_slice()),
        (false, "resume", ["start"].as_slice()),
    ] {
        let began = Instant::now();
        let mut going = JoinSet::new();
        for id in ids.iter().cloned() {
            let client = client.clone();
            going.spawn(async move {
                let done = if down {
                    client.suspend(id).depth(Depth::Stop).wait().await
                } else {
                    client.resume(id).wait().await
                };
                done.map(drop)
            });
        }
        while let Some(done) = going.join_next().await {
            done??;
        }
        let all = began.elapsed().as_secs_f64() * 1e3;
        let began = Instant::now();
        for bare in &bares {
            let words: Vec<&str> = command.iter().copied().chain([bare.as_str()]).collect();
            engine.command(&words)?;
        }
        let looped = began.elapsed().as_secs_f64() * 1e3;
        report.add(
            Row::value(format!("{name}, stop: {count} {what}s at once"), "ms", all)
                .beside_value(format!("`{name} {}` in a loop", command[0]), looped),
        );
    }
    Ok(())
}
