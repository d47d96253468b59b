//! The verbs against each other: delete in every phase, a suspend turned back, keys that are used
//! again.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use overwinter_client::{Achieved, Code, Depth, Disposition, Outcome, Phase, Policy, SandboxRef};
use overwinter_tests::Gateway;
use overwinter_tests::compute::Compute;

use crate::{create, refused, settled, sh, suspend, until, with_sandbox};

/// Waits until an operation of the sandbox has begun and shows this phase.
async fn in_phase(gateway: &Gateway, name: &str, phase: Phase) -> anyhow::Result<()> {
    until(&gateway.client(), name, phase).await.map(drop)
}

#[tokio::test]
async fn delete_is_carried_out_in_every_phase() -> anyhow::Result<()> {
    let gateway = Gateway::start().await?;
    let client = gateway.client();
    let slow = || {
        Policy::new()
            .pre_suspend_hook(["sleep", "2"])
            .hook_timeout(Duration::from_secs(20))
    };
    let phases = [
        Phase::Creating,
        Phase::Ready,
        Phase::Suspending,
        Phase::Suspended,
        Phase::Resuming,
        Phase::Failed,
        Phase::Deleting,
    ];
    for phase in phases {
        let name = phase.as_str();
        let new = client.create().name(name).image(gateway.image.name());
        if phase == Phase::Creating {
            new.accept().await?;
        } else if phase == Phase::Suspending {
            new.policy(slow()).wait().await?;
        } else {
            new.wait().await?;
        }
        let id = client.get(name).await?.id().to_owned();
        match phase {
            Phase::Suspending => drop(client.suspend(name).accept().await?),
            Phase::Suspended => drop(suspend(&client, name, Depth::Freeze).await?),
            Phase::Resuming => {
                suspend(&client, name, Depth::Stop).await?;
                client.resume(name).accept().await?;
            }
            Phase::Failed => {
                Compute::of(&id)?.kill()?;
                in_phase(&gateway, name, Phase::Failed).await?;
            }
            Phase::Deleting => drop(client.delete(name).accept().await?),
            _ => {}
        }
        let seen = client.get(SandboxRef::from(&id)).await?.phase();
        ensure!(seen == phase, "it is {seen:?}, not {phase:?}");
        let began = Instant::now();
        let done = client.delete(SandboxRef::from(&id)).wait().await?;
        ensure!(
            done.sandbox.phase() == Phase::Tombstone,
            "{phase:?}: {:?}",
            done.sandbox.phase()
        );
        // It takes over at the next boundary: a hook that runs is waited for, its deadline is not.
        ensure!(
            began.elapsed() < Duration::from_secs(8),
            "{phase:?} took {:?}",
            began.elapsed()
        );
        ensure!(Compute::of(&id).is_err(), "compute of {phase:?} is left");
        // The name is free.
        create(&gateway, name).await?;
        client.delete(name).wait().await?;
        refused(client.get(name).await, Code::NotFound, "SANDBOX_NOT_FOUND")?;
    }
    ensure!(settled(&client).await?.is_empty());
    gateway.end().await
}

#[tokio::test]
async fn a_suspend_is_turned_back_by_a_resume_and_all_that_ran_runs_on() -> anyhow::Result<()> {
    let gateway = Gateway::start().await?;
    let client = gateway.client();
    let policy = Policy::new()
        .pre_suspend_hook(["sleep", "2"])
        .hook_timeout(Duration::from_secs(20));
    client
        .create()
        .name("box")
        .image(gateway.image.name())
        .policy(policy)
        .wait()
        .await?;
    let counter = client.command("box", ["sleep", "600"]).start().await?;
    let before = client.get("box").await?;
    for depth in [Depth::Freeze, Depth::Stop] {
        let suspend = client.suspend("box").depth(depth).accept().await?;
        let joined = client.suspend("box").depth(depth).accept().await?;
        ensure!(
            joined.disposition() == Disposition::Joined,
            "{:?}",
            joined.disposition()
        );
        let refusal = client.command("box", ["true"]).run().await;
        refused(refusal, Code::Unavailable, "SANDBOX_SUSPENDING")?;
        let began = Instant::now();
        let resumed = client.resume("box").wait().await?;
        // At once, and not after the hook that runs already.
        ensure!(
            began.elapsed() < Duration::from_millis(1_500),
            "it took {:?}",
            began.elapsed()
        );
        ensure!(
            resumed.disposition == Disposition::TurnedBack,
            "{:?}",
            resumed.disposition
        );
        ensure!(
            resumed.sandbox.phase() == Phase::Ready,
            "{:?}",
            resumed.sandbox.phase()
        );
        let id = suspend.operation().context("no operation")?.id().to_owned();
        let ended = client.wait_operation(&id, None).await?;
        ensure!(
            matches!(ended.outcome(), Some(Outcome::TurnedBack { .. })),
            "{ended:?}"
        );
        refused(ended.achieved(), Code::Aborted, "OPERATION_TURNED_BACK")?;
        // The same compute, the same process, and a sandbox that can be used at once.
        ensure!(sh(&client, "box", "echo here").await? == "here\n");
        let process = client.process("box", &counter.process_id).await?;
        ensure!(process.running && process.pid == counter.pid, "{process:?}");
        let now = client.get("box").await?;
        ensure!(
            now.raw().incarnation_issued == before.raw().incarnation_issued,
            "{now:?}"
        );
    }
    gateway.end().await
}

#[tokio::test]
async fn a_hook_that_fails_keeps_the_sandbox_awake() -> anyhow::Result<()> {
    let gateway = Gateway::start().await?;
    let client = gateway.client();
    let policy =
        Policy::new().pre_suspend_hook(["sh", "-c", "echo ran >> /workspace/hook; exit 3"]);
    client
        .create()
        .name("box")
        .image(gateway.image.name())
        .policy(policy)
        .wait()
        .await?;
    refused(
        client.suspend("box").wait().await,
        Code::FailedPrecondition,
        "HOOK_FAILED",
    )?;
    ensure!(client.get("box").await?.phase() == Phase::Ready);
    ensure!(sh(&client, "box", "cat /workspace/hook").await? == "ran\n");
    gateway.end().await
}

#[tokio::test]
async fn stop_and_resume_keep_root_and_workspace_for_twenty_cycles() -> anyhow::Result<()> {
    let (gateway, client) = with_sandbox("box").await?;
    let began = client.get("box").await?.raw().disk_generation;
    for cycle in 1..=20 {
        let write = format!(
            "echo {cycle} >> /workspace/log; echo {cycle} >> /root/log; rm -rf /bin/vi; \
             mkdir -p /opt/{cycle}; chown 1000:1000 /opt/{cycle}; ln -sfn {cycle} /opt/last"
        );
        sh(&client, "box", &write).await?;
        suspend(&client, "box", Depth::Stop).await?;
        let done = client.resume("box").wait().await?;
        ensure!(done.achieved == Achieved::Storage, "{:?}", done.achieved);
    }
    let lines: String = (1..=20).map(|cycle| format!("{cycle}\n")).collect();
    ensure!(sh(&client, "box", "cat /workspace/log").await? == lines);
    ensure!(sh(&client, "box", "cat /root/log").await? == lines);
    ensure!(
        sh(
            &client,
            "box",
            "ls -d /opt/*/ | wc -l; readlink /opt/last; stat -c %u:%g /opt/7"
        )
        .await?
            == "21\n20\n1000:1000\n"
    );
    // Removed in the root layer: the image's own does not come back.
    ensure!(sh(&client, "box", "[ ! -e /bin/vi ] && echo gone").await? == "gone\n");
    let ended = client.get("box").await?.raw().disk_generation;
    ensure!(
        ended >= began + 20,
        "the disk's generation went from {began} to {ended}"
    );
    gateway.end().await
}

#[tokio::test]
async fn a_key_replays_its_answer_and_nothing_happens_twice() -> anyhow::Result<()> {
    let (mut gateway, _) = with_sandbox("other").await?;
    let client = gateway.client();
    let new = || {
        client
            .create()
            .name("box")
            .image(gateway.image.name())
            .idempotency_key("create-1")
    };
    let first = new().wait().await?;
    let again = new().wait().await?;
    ensure!(again.sandbox.id() == first.sandbox.id(), "{again:?}");
    let id = |done: &overwinter_client::Done| done.operation.as_ref().map(|it| it.id().to_owned());
    ensure!(
        id(&first).is_some() && id(&again) == id(&first),
        "{again:?}"
    );
    // With another body it is another request.
    let other = client
        .create()
        .name("box-2")
        .image(gateway.image.name())
        .idempotency_key("create-1");
    refused(
        other.wait().await,
        Code::AlreadyExists,
        "IDEMPOTENCY_KEY_REUSED",
    )?;
    // The key of one that failed gives the same failure, and makes nothing anew.
    let broken = || {
        client
            .create()
            .name("broken")
            .image("/no/such/image")
            .idempotency_key("create-2")
    };
    let failure = broken().wait().await.err().context("it worked")?;
    let again = broken().wait().await.err().context("it worked")?;
    ensure!(
        failure.reason() == "IMAGE_UNUSABLE" && again.reason() == failure.reason(),
        "{again:?}"
    );
    ensure!(again.message() == failure.message(), "{again:?}");

    let slept = client
        .suspend("box")
        .depth(Depth::Stop)
        .idempotency_key("suspend-1")
        .wait()
        .await?;
    client.resume("box").wait().await?;
    // Replayed after a restart too: it does not put to sleep what was woken since.
    gateway.kill().await?;
    gateway.run().await?;
    let client = gateway.client();
    let replayed = client
        .suspend("box")
        .depth(Depth::Stop)
        .idempotency_key("suspend-1")
        .wait()
        .await?;
    ensure!(id(&replayed) == id(&slept), "{replayed:?}");
    ensure!(
        client.get("box").await?.phase() == Phase::Ready,
        "a replay has put it to sleep"
    );
    gateway.end().await
}
