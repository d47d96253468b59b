//! One cell: drive a sandbox to its state, ask for the verb, end the gateway at the point, start it
//! again, and see that nothing was lost.

use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use overwinter_client::{Achieved, Client, Code, Phase, raw};
use overwinter_tests::{Gateway, watcher};

use super::scenario::{Act, Depth, Runtime, Scenario, State, create, has_lost_memory};
use super::trace::Trace;

/// How long the gateway may take to reach the point and end itself.
const DEATH: Duration = Duration::from_secs(20);
/// How long whatever was interrupted may take to end, and any verb after it.
const END: Duration = Duration::from_secs(30);
/// Points that a successor comes to before it is killed as well: it has done its first step.
const RECOVERING: usize = 2;
/// In the gateway's folder: the point at which it is to end itself.
pub(crate) const DIE_AT: &str = "die-at";
const WORKSPACE: &str = "/workspace/blob";
const ROOT: &str = "/root/blob";

/// Where the gateway ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kill {
    /// It kills itself there.
    At(String),
    /// It kills itself there, and its successor is killed in the middle of taking over.
    Twice(String),
    /// It is killed from outside, so long after it came to this point.
    After(String, Duration),
}

/// A sandbox as it was before the verb.
struct Before {
    id: String,
    blob: Vec<u8>,
    life: Life,
    issued: u64,
}

/// One life of the main process.
struct Life {
    process_id: String,
    pid: i32,
    word: String,
    count: u64,
}

/// Runs the verb to its end and answers with every point that it came to.
pub(crate) async fn learn(
    gateway: &mut Gateway,
    scenario: Scenario,
    name: &str,
) -> anyhow::Result<Vec<String>> {
    let before = drive_to(gateway, scenario, name).await?;
    gateway.kill().await?;
    let mut trace = Trace::of(gateway)?;
    gateway.run().await?;
    if scenario.before() == Some(State::Ready) {
        attached(&gateway.client(), name).await?;
    }
    ask(gateway, scenario, name, &before).await?;
    let end = format!("{}.", scenario.verb());
    let points = trace
        .up_to(|point| point.starts_with(&end) && point.ends_with(".record_end:after"))
        .await?;
    gateway.kill().await?;
    trace.stop(gateway);
    gateway.run().await?;
    check(gateway, scenario, name, before, true).await?;
    Ok(points)
}

/// Waits until its supervisor has found the gateway that was started: a stop that finds none goes on without
/// it, and comes to fewer points. No event tells a client of it.
async fn attached(client: &Client, name: &str) -> anyhow::Result<()> {
    let until = Instant::now() + END;
    loop {
        match sh(client, name, "true").await {
            Ok(_) => return Ok(()),
            Err(error) if Instant::now() > until => return Err(error),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Runs one cell; an error says what did not hold.
pub(crate) async fn run(
    gateway: &mut Gateway,
    scenario: Scenario,
    kill: &Kill,
    name: &str,
) -> anyhow::Result<()> {
    let before = drive_to(gateway, scenario, name).await?;
    match kill {
        Kill::At(point) => die_at(gateway, scenario, point, name, &before).await?,
        Kill::Twice(point) => {
            die_at(gateway, scenario, point, name, &before).await?;
            let mut trace = Trace::of(gateway)?;
            gateway.spawn()?;
            for _ in 0..RECOVERING {
                trace.next().await.context("nothing is taken over")?;
            }
            gateway.kill().await?;
            trace.stop(gateway);
        }
        Kill::After(point, time) => {
            gateway.kill().await?;
            let mut trace = Trace::of(gateway)?;
            gateway.run().await?;
            let _ = ask(gateway, scenario, name, &before).await;
            trace.up_to(|reached| reached == point).await?;
            tokio::time::sleep(*time).await;
            gateway.kill().await?;
            trace.stop(gateway);
        }
    }
    gateway.run().await?;
    let accepted = match kill {
        Kill::At(point) => !point.starts_with("commit.accept") || point.ends_with(":after"),
        Kill::Twice(_) | Kill::After(..) => true,
    };
    check(gateway, scenario, name, before, accepted).await
}

/// Asks a gateway that ends itself at the point.
async fn die_at(
    gateway: &mut Gateway,
    scenario: Scenario,
    point: &str,
    name: &str,
    before: &Option<Before>,
) -> anyhow::Result<()> {
    let die_at = gateway.folder().join(DIE_AT);
    std::fs::write(&die_at, point)?;
    // Cut off by the death, or answered just before it.
    let _ = ask(gateway, scenario, name, before).await;
    let status = gateway
        .ended(DEATH)
        .await
        .context("the point was not reached")?;
    std::fs::remove_file(&die_at)?;
    ensure!(
        status.signal() == Some(9),
        "the gateway ended with {status}"
    );
    Ok(())
}

/// The sandbox as the verb is to find it; none for a create.
async fn drive_to(
    gateway: &Gateway,
    scenario: Scenario,
    name: &str,
) -> anyhow::Result<Option<Before>> {
    let Some(state) = scenario.before() else {
        return Ok(None);
    };
    let client = gateway.client();
    create(&client, scenario.runtime, name, &gateway.image.name())
        .limit(END)
        .wait()
        .await
        .context("create")?;
    let blob = blob(name);
    write(&client, name, &blob).await?;
    let life = life(&client, name).await?;
    if let State::Asleep(depth) = state {
        client
            .suspend(name)
            .depth(depth.asked())
            .limit(END)
            .wait()
            .await
            .context("suspend")?;
    }
    let sandbox = client.get(name).await?;
    let issued = sandbox.raw().incarnation_issued;
    Ok(Some(Before {
        id: sandbox.id().to_owned(),
        blob,
        life,
        issued,
    }))
}

async fn ask(
    gateway: &Gateway,
    scenario: Scenario,
    name: &str,
    before: &Option<Before>,
) -> overwinter_client::Result<overwinter_client::Accepted> {
    // By its id where it has one: what was deleted is not found by its name any more.
    let sandbox = before.as_ref().map_or(name, |before| &before.id);
    scenario
        .ask(&gateway.client(), sandbox, &gateway.image.name(), name)
        .await
}

/// After the restart. `accepted`: the verb had been made durable.
async fn check(
    gateway: &Gateway,
    scenario: Scenario,
    name: &str,
    before: Option<Before>,
    accepted: bool,
) -> anyhow::Result<()> {
    let client = gateway.client();
    if before.is_none() {
        // The name tells, before the call is repeated, whether the create was accepted.
        let found = match client.get(name).await {
            Ok(_) => true,
            Err(error) if error.code() == Code::NotFound => false,
            Err(error) => return Err(error.into()),
        };
        ensure!(
            found == accepted,
            "accepted: {accepted}, and there: {found}"
        );
    }
    // The same call again: the same operation, or the first that is accepted.
    let again = ask(gateway, scenario, name, &before)
        .await
        .context("the call repeated")?;
    let operation = again
        .operation()
        .context("the repeated call has no operation")?;
    let ended = client.wait_operation(operation.id(), Some(END)).await?;
    ensure!(
        (ended.raw().attempt > 1) <= accepted,
        "attempt {} of what was never accepted",
        ended.raw().attempt
    );
    let outcome = ended
        .outcome()
        .with_context(|| format!("it has not ended: {} at {}", ended.id(), ended.step()))?;
    let id = again.sandbox().id().to_owned();
    let now = match client.get(&id).await {
        Ok(sandbox) => Some(sandbox).filter(|it| it.phase() != Phase::Tombstone),
        Err(error) if error.code() == Code::NotFound => None,
        Err(error) => return Err(error.into()),
    };
    scenario.check_end(outcome, now.as_ref())?;
    let Some(now) = now else {
        return nothing_left(gateway, &id);
    };
    let issued = now.raw().incarnation_issued;
    let raised = match scenario.act {
        Act::Create => 1,
        Act::Resume(_) | Act::Start(_) => before.as_ref().map_or(0, |it| it.issued + 1),
        Act::Suspend(_) | Act::Deepen(..) | Act::Delete(_) => {
            before.as_ref().map_or(0, |it| it.issued)
        }
    };
    ensure!(
        issued == raised,
        "incarnation {issued} was issued, not {raised}"
    );

    if now.phase() == Phase::Suspended {
        let depth = Depth::of(&now).context("it sleeps at no depth")?;
        if let (Depth::Stop, Some(before)) = (depth, &before) {
            ended_by_suspension(&client, &id, &before.life.process_id).await?;
        }
        if has_lost_memory(&now) {
            let start = client.start(id.as_str()).limit(END).wait().await;
            start.context("the start that leads out")?;
        } else {
            wake(&client, &id, depth).await?;
        }
    }
    let kept = scenario.keeps_memory(outcome)?;
    match before {
        Some(before) => {
            same_contents(&client, &id, &before.blob).await?;
            let after = life(&client, &id).await?;
            ensure!(
                after.goes_on(&before.life) == kept,
                "kept: {kept}; process {} of word {} at {}, then {} of {} at {}",
                before.life.pid,
                before.life.word,
                before.life.count,
                after.pid,
                after.word,
                after.count
            );
        }
        None => sleep_and_wake(&client, scenario.runtime, &id, name).await?,
    }
    let newest = client.get(&id).await?.raw().incarnation_issued;
    ensure!(
        newest >= issued,
        "the incarnation fell from {issued} to {newest}"
    );
    client
        .delete(id.as_str())
        .limit(END)
        .wait()
        .await
        .context("the last delete")?;
    nothing_left(gateway, &id)
}

/// What a create has made can be put to sleep at every depth.
async fn sleep_and_wake(
    client: &Client,
    runtime: Runtime,
    id: &str,
    name: &str,
) -> anyhow::Result<()> {
    let blob = blob(name);
    write(client, id, &blob).await?;
    for depth in runtime.depths().iter().copied() {
        let before = life(client, id).await?;
        client
            .suspend(id)
            .depth(depth.asked())
            .limit(END)
            .wait()
            .await
            .context("suspend")?;
        wake(client, id, depth).await?;
        let after = life(client, id).await?;
        ensure!(
            after.goes_on(&before) == (depth != Depth::Stop),
            "after {depth:?}"
        );
        same_contents(client, id, &blob).await?;
    }
    Ok(())
}

async fn wake(client: &Client, id: &str, depth: Depth) -> anyhow::Result<()> {
    let done = client
        .resume(id)
        .limit(END)
        .wait()
        .await
        .context("resume")?;
    let promised = if depth == Depth::Stop {
        Achieved::Storage
    } else {
        Achieved::Memory
    };
    ensure!(
        done.achieved == promised,
        "{:?} came back, not {promised:?}",
        done.achieved
    );
    Ok(())
}

/// A stop ends processes, and says that it was the stop.
async fn ended_by_suspension(client: &Client, id: &str, process: &str) -> anyhow::Result<()> {
    let process = client
        .process(id, process)
        .await
        .context("the result of the main process")?;
    ensure!(!process.running, "it runs while the sandbox sleeps");
    let cause = process.exit.cause.as_known();
    ensure!(
        cause == Some(raw::ExitCause::EXIT_CAUSE_SUSPENSION),
        "it ended by {cause:?}"
    );
    Ok(())
}

/// Its main process: exactly one, alive, and counting.
async fn life(client: &Client, sandbox: &str) -> anyhow::Result<Life> {
    let processes = client.processes(sandbox).await?;
    let mut mains = processes.into_iter().filter(|it| it.main && it.running);
    let main = mains.next().context("no main process runs")?;
    ensure!(mains.next().is_none(), "two main processes run");
    // Whoever lives writes it again; what the last life wrote is gone.
    let script = "rm -f /tmp/count; for i in $(seq 200); do usleep 30000; \
        read word count end < /tmp/count; [ \"$end\" = end ] && break; done 2>/dev/null; echo $word $count";
    let text = sh(client, sandbox, script).await?;
    let (word, count) = text
        .trim()
        .split_once(' ')
        .with_context(|| format!("{text:?}"))?;
    Ok(Life {
        process_id: main.process_id.clone(),
        pid: main.pid,
        word: word.to_owned(),
        count: count.parse()?,
    })
}

impl Life {
    fn goes_on(&self, before: &Self) -> bool {
        self.word == before.word
            && self.pid == before.pid
            && self.process_id == before.process_id
            && self.count >= before.count
    }
}

/// Bytes of the cell's own, the same at each call.
fn blob(name: &str) -> Vec<u8> {
    name.bytes()
        .cycle()
        .take(300_000)
        .enumerate()
        .map(|(at, byte)| byte ^ (at >> 8) as u8)
        .collect()
}

async fn write(client: &Client, sandbox: &str, blob: &[u8]) -> anyhow::Result<()> {
    for path in [WORKSPACE, ROOT] {
        client
            .files(sandbox)
            .write(path)
            .bytes(blob.to_vec())
            .await
            .context(path)?;
    }
    Ok(())
}

async fn same_contents(client: &Client, sandbox: &str, blob: &[u8]) -> anyhow::Result<()> {
    for path in [WORKSPACE, ROOT] {
        let mut read = Vec::new();
        client
            .files(sandbox)
            .read(path)
            .await?
            .copy_to(&mut read)
            .await
            .context(path)?;
        ensure!(read == blob, "{path} is not what was written");
    }
    Ok(())
}

async fn sh(client: &Client, sandbox: &str, script: &str) -> anyhow::Result<String> {
    let ran = client
        .command(sandbox, ["/bin/sh", "-c", script])
        .run()
        .await?;
    ensure!(
        ran.exit.code == 0,
        "{script:?} ended with {}",
        ran.exit.code
    );
    Ok(String::from_utf8(ran.stdout.to_vec())?)
}

fn nothing_left(gateway: &Gateway, id: &str) -> anyhow::Result<()> {
    let left = watcher::traces_of(id, &gateway.data_dir());
    if left.is_empty() {
        Ok(())
    } else {
        bail!("left after the delete:\n  {}", left.join("\n  "))
    }
}
