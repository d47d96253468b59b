//! A PID 1 that has been taken over: it is tenant code with authority over its own sandbox alone.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, ensure};
use overwinter_client::{Depth, Phase};
use tokio::task::JoinSet;

use crate::dial::Stolen;
use crate::liar::{CODE, LIES, Lie, Told, attach, idle};
use crate::stage::{MEMORY, PATIENCE, Stage};

/// For an attacker to have attacked.
const WHILE: Duration = Duration::from_secs(3);
/// Of them at once.
const CROWD: usize = 100;
/// Their own clocks for what a supervisor must answer, so that a silent one costs a test no minute.
const DEADLINES: &str = "[deadlines]\nattach_ms = 5000\nagent_ms = 2000\n";

/// A gateway whose sandboxes from now on have a PID 1 that does nothing; the neighbour has its own.
async fn open() -> anyhow::Result<Option<Stage>> {
    if !cfg!(target_arch = "x86_64") {
        eprintln!("SKIPPED a lying supervisor: its PID 1 is written for x86-64");
        return Ok(None);
    }
    let mut stage = Stage::open_with(DEADLINES).await?;
    let idle = idle(stage.gateway.folder())?;
    stage.gateway.stop().await?;
    stage.gateway.set_supervisor(idle);
    stage.gateway.set_config(DEADLINES)?;
    stage.gateway.run().await?;
    stage.unharmed("a restart").await?;
    Ok(Some(stage))
}

/// Makes a sandbox with a liar in it; its lies go on in `lying`.
async fn liar(
    stage: &Stage,
    name: &str,
    lie: Lie,
    of_another: &str,
    told: &Arc<Told>,
    lying: &mut JoinSet<()>,
) -> anyhow::Result<()> {
    // Made in quiet, as PID 1 is before it is taken over: what is tried is the attack.
    let image = stage.gateway.image.name();
    let create = stage.client.create().name(name).image(image);
    let sandbox = create.accept().await?.sandbox();
    // Whoever attacks from inside has it before it runs; from here it is waited for.
    let stolen = tokio::time::timeout(PATIENCE * 3, Stolen::awaited(stage, &sandbox));
    let stolen = stolen.await.context("it gets no credentials")??;
    let (of_another, told, name) = (of_another.to_owned(), Arc::clone(told), name.to_owned());
    lying.spawn(async move {
        // Again and again, as often as it is let in.
        let mut before = String::new();
        loop {
            let ended = attach(&stolen, lie, &of_another, &told).await;
            let ended = format!("{ended:?}");
            if ended != before {
                println!("{name}: {ended}");
                before = ended;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    });
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lying_supervisor_harms_its_own_sandbox_alone() -> anyhow::Result<()> {
    let Some(stage) = open().await? else {
        return Ok(());
    };
    let command = ["sleep", "600"];
    let honest = stage.client.command("neighbour", command).start().await?;
    let told = Arc::new(Told::default());
    let mut lying = JoinSet::new();
    for lie in LIES {
        let name = format!("liar-{lie:?}").to_lowercase();
        liar(&stage, &name, lie, &honest.process_id, &told, &mut lying).await?;
    }
    told.begin.send_replace(true);
    // What it says of a call goes to whoever asked it, and to nobody else: a result or an error,
    // and no call lasts longer than it is waited for.
    let mut asked = JoinSet::new();
    for lie in LIES {
        let (client, name) = (stage.client.clone(), format!("liar-{lie:?}").to_lowercase());
        asked.spawn(async move {
            let command = client.command(name.as_str(), ["echo", "well"]);
            let ran = tokio::time::timeout(WHILE, command.run()).await;
            (lie, ran.map(|ran| ran.map(|ran| ran.stdout.len())))
        });
        let (client, name) = (stage.client.clone(), format!("liar-{lie:?}").to_lowercase());
        asked.spawn(async move {
            let listed =
                tokio::time::timeout(WHILE, async { client.files(name.as_str()).list("/").await });
            (
                lie,
                listed.await.map(|listed| listed.map(|listed| listed.len())),
            )
        });
    }
    while let Some(answered) = asked.join_next().await {
        let (lie, answer) = answered?;
        println!("{lie:?}: {answer:?}");
    }
    stage.unharmed("liars").await?;
    ensure!(told.bytes.load(Ordering::Relaxed) > 1 << 20, "{told:?}");
    ensure!(
        told.attached.load(Ordering::Relaxed) >= LIES.len() as u64,
        "{told:?}"
    );

    // Of the neighbour's process nothing was believed.
    let now = stage
        .client
        .process("neighbour", honest.process_id.as_str())
        .await?;
    ensure!(now.running && now.command == ["sleep", "600"], "{now:?}");
    // What a liar says of its own is a claim, of which so much is kept.
    let invented = stage.client.processes("liar-invents").await;
    if let Ok(invented) = invented {
        ensure!(invented.len() <= 2_000, "{} processes", invented.len());
    }
    let said = stage
        .gateway
        .say(["process", "list", "liar-invents"])
        .await?;
    ensure!(
        !said.out.contains('\x1b') && !said.err.contains('\x1b'),
        "{said:?}"
    );
    ensure!(
        said.code != 0 || said.out.contains(&CODE.to_string()),
        "{said:?}"
    );

    // A suspend that a liar has a say in ends in time, one way or another; a delete always.
    let mut ending = JoinSet::new();
    for lie in LIES {
        let (client, name) = (stage.client.clone(), format!("liar-{lie:?}").to_lowercase());
        ending.spawn(async move {
            let slept = client
                .suspend(name.as_str())
                .depth(Depth::Stop)
                .wait()
                .await;
            let is = client.get(name.as_str()).await?.phase();
            ensure!(
                matches!(
                    is,
                    Phase::Suspended | Phase::Ready | Phase::Failed | Phase::Creating
                ),
                "{lie:?} is {is:?} after {slept:?}"
            );
            client.delete(name.as_str()).wait().await?;
            anyhow::Ok(())
        });
    }
    while let Some(ended) = ending.join_next().await {
        ended??;
    }
    lying.abort_all();
    stage.unharmed("the end of the liars").await?;
    stage.close().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_liars_at_once_cost_the_gateway_little() -> anyhow::Result<()> {
    let Some(stage) = open().await? else {
        return Ok(());
    };
    let told = Arc::new(Told::default());
    let mut lying = JoinSet::new();
    let before = stage.memory("VmHWM:")?;
    for number in 0..CROWD {
        // Those that ask for most memory, and each of the others.
        let lie = match number % 4 {
            0 | 1 => Lie::Unfinished,
            2 => Lie::Invents,
            _ => LIES[number / 4 % LIES.len()],
        };
        let name = format!("liar-{number}");
        liar(&stage, &name, lie, "no id", &told, &mut lying)
            .await
            .with_context(|| format!("{lie:?}"))?;
    }
    let quiet = stage.memory("VmHWM:")?;
    stage.unharmed("a crowd that waits").await?;
    told.begin.send_replace(true);
    for _ in 0..3 {
        tokio::time::sleep(WHILE / 3).await;
        stage.unharmed("a crowd of liars").await?;
    }
    let peak = stage.memory("VmHWM:")?;
    println!(
        "{CROWD} hostile supervisors, {} connections, {} MiB told: the gateway held {} MiB at most, {} MiB before, {} MiB while they were honest",
        told.attached.load(Ordering::Relaxed),
        told.bytes.load(Ordering::Relaxed) >> 20,
        peak >> 20,
        before >> 20,
        quiet >> 20,
    );
    ensure!(
        told.attached.load(Ordering::Relaxed) >= CROWD as u64,
        "{told:?}"
    );
    ensure!(peak < MEMORY, "{} MiB", peak >> 20);
    stage.unharmed("a crowd of liars").await?;
    lying.abort_all();
    stage.close().await
}
