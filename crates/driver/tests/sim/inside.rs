//! Faults of whoever is inside, and what outlives the host.

use super::*;

#[tokio::test(start_paused = true)]
async fn an_agent_stays_away_or_comes_late_or_with_what_it_had_before() {
    let bed = Bed::new();
    bed.script
        .at(CallKind::Attach, 1, Fault::NeverAttach)
        .at(CallKind::Attach, 2, Fault::AttachLate(MINUTE / 6))
        .at(CallKind::Attach, 3, Fault::OldCredentials);
    bed.create().await.unwrap();
    let before = tokio::time::Instant::now();
    bed.driver.recover(bed.id, MINUTE).await.unwrap();
    let agent = bed.agent(1).await;
    assert_eq!(before.elapsed(), MINUTE / 6);
    agent.detach().await.unwrap();
    bed.port.forget(bed.id);
    let credentials = bed.credentials(2);
    bed.port.issue(&credentials, true);
    let ctx = bed.ctx(2, 2);
    bed.driver.reattach(&ctx, &credentials).await.unwrap();
    bed.agent(2).await.list_processes().await.unwrap();
    assert_eq!(bed.port.refusals(), [(bed.id, AttachRefused::Revoked)]);
    bed.check();
}

#[tokio::test(start_paused = true)]
async fn an_agent_lies_hangs_and_dies() {
    let bed = Bed::new();
    bed.script
        .at(CallKind::Quiesce, 1, Fault::AgentLies)
        .at(CallKind::Terminate, 1, Fault::AgentLies)
        .at(CallKind::Terminate, 2, Fault::AgentHangs)
        .at(CallKind::Terminate, 3, Fault::AgentDies);
    bed.create().await.unwrap();
    let agent = bed.agent(1).await;
    let sleep = |id: &str| overwinter_api::supervisor::ExecStart {
        process_id: id.into(),
        process: overwinter_api::supervisor::ProcessSpec {
            command: vec!["sleep".into(), "1000000".into()],
            ..Default::default()
        }
        .into(),
    };
    agent.start_process(sleep("one")).await.unwrap();
    agent.quiesce(Vec::new(), MINUTE).await.unwrap();
    // It said that it would refuse this.
    agent.start_process(sleep("two")).await.unwrap();
    let results = agent.terminate(MINUTE).await.unwrap();
    assert!(results.iter().all(|it| it.process_id != "one"));
    assert!(agent.get_process("one".into()).await.unwrap().running);
    tokio::time::timeout(MINUTE, agent.terminate(MINUTE))
        .await
        .expect_err("it hangs");
    let gone = agent.terminate(MINUTE).await;
    assert_eq!(gone, Err(AgentError::Gone));
    agent.gone().await;
    assert_eq!(bed.observed().await, Observed::Absent);
    bed.check();
}

#[tokio::test(start_paused = true)]
async fn a_second_main_process_in_one_compute_is_caught() {
    let bed = Bed::new();
    bed.create().await.unwrap();
    let agent = bed.agent(1).await;
    let main = |id: &str, command: &str| overwinter_api::supervisor::ExecStart {
        process_id: id.into(),
        process: overwinter_api::supervisor::ProcessSpec {
            command: vec![command.into(), "1000000".into()],
            main: true,
            ..Default::default()
        }
        .into(),
    };
    agent.start_process(main("one", "sleep")).await.unwrap();
    // Asked for again: the same one.
    agent.start_process(main("one", "sleep")).await.unwrap();
    let other = agent.start_process(main("one", "exit")).await;
    assert!(matches!(
        other,
        Err(AgentError::Refused {
            kind: overwinter_driver::agent::RefusedKind::AlreadyExists,
            ..
        })
    ));
    assert_eq!(bed.world.violations(), []);
    agent.start_process(main("two", "sleep")).await.unwrap();
    assert_eq!(bed.world.violations(), [Violation::TwoMains(bed.id)]);
}

#[tokio::test(start_paused = true)]
async fn resident_memory_does_not_outlive_the_host_and_an_artifact_does_unless_it_is_lost() {
    let bed = Bed::new();
    bed.create().await.unwrap();
    let boot = bed.driver.observe(bed.id).await.unwrap().boot_id;
    bed.agent(1).await.detach().await.unwrap();
    let ctx = bed.ctx(2, 1);
    let kept = bed.driver.suspend(&ctx, Depth::Checkpoint).await.unwrap();
    bed.world.reboot();
    assert_ne!(bed.driver.observe(bed.id).await.unwrap().boot_id, boot);
    let credentials = bed.credentials(2);
    bed.port.issue(&credentials, true);
    let (ctx, depth) = (bed.ctx(3, 2), Depth::Checkpoint);
    let resume = bed
        .driver
        .resume(&ctx, depth, &kept.reference, &credentials);
    let restored = resume.await.unwrap();
    let held = Incarnation(2);
    assert_eq!(restored.compute, Compute::Live { held });
    bed.agent(2).await.detach().await.unwrap();
    let ctx = bed.ctx(4, 2);
    bed.driver.suspend(&ctx, Depth::Freeze).await.unwrap();
    bed.world.reboot();
    let (ctx, credentials) = (bed.ctx(5, 3), bed.credentials(3));
    let thaw = bed
        .driver
        .resume(&ctx, Depth::Freeze, &kept.reference, &credentials);
    let missing = thaw.await;
    assert!(
        matches!(missing, Err(DriverError::Missing(_))),
        "{missing:?}"
    );
    // The artifact was consumed: it is not restored a second time.
    let ctx = bed.ctx(6, 4);
    let restore = bed
        .driver
        .resume(&ctx, depth, &kept.reference, &credentials);
    let rejected = restore.await;
    assert!(
        matches!(
            rejected,
            Err(DriverError::Unusable {
                why: Unusable::Stale,
                ..
            })
        ),
        "{rejected:?}"
    );
    bed.check();
}
