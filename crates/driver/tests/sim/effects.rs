//! Faults of effects and of looks at them.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_failure_has_no_effect_and_a_lost_reply_has_its_effect_once() {
    let bed = Bed::new();
    let refused = DriverError::Rejected("no".into());
    bed.script
        .at(CallKind::Create, 1, Fault::Fail(refused.clone()))
        .at(CallKind::Create, 2, Fault::LoseReply);
    assert_eq!(bed.create().await, Err(refused));
    assert_eq!(bed.observed().await, Observed::Absent);
    assert!(is_unknown(&bed.create().await));
    assert_eq!(bed.observed().await, LIVE);
    let agent = bed.agent(1).await;
    // The retry finds what the lost one has made.
    let again = bed.create().await.unwrap();
    assert_eq!(again.compute, LIVE.compute());
    agent.list_processes().await.unwrap();
    assert_eq!(bed.port.refusals(), []);
    bed.check();
}

#[tokio::test(start_paused = true)]
async fn delays_come_before_or_after_the_effect_and_hold_the_lock() {
    let bed = Bed::new();
    bed.script
        .at(CallKind::Create, 1, Fault::Delay(MINUTE / 2))
        .at(CallKind::Suspend, 1, Fault::DelayReply(MINUTE / 2));
    let (created, meanwhile) = tokio::join!(bed.create(), async {
        tokio::time::sleep(MINUTE / 4).await;
        bed.observed().await
    });
    created.unwrap();
    assert_eq!(meanwhile, Observed::InTransition);
    let (stopped, meanwhile) = tokio::join!(bed.stop(2), async {
        tokio::time::sleep(MINUTE / 4).await;
        bed.observed().await
    });
    stopped.unwrap();
    assert_eq!(meanwhile, Observed::Absent);
    bed.check();
}

#[tokio::test(start_paused = true)]
async fn a_late_effect_that_was_overtaken_does_not_happen() {
    let bed = Bed::new();
    let late = |late| Fault::ActLate {
        after: MINUTE,
        late,
    };
    bed.script.at(CallKind::Create, 1, late(Late::Fenced)).at(
        CallKind::Start,
        1,
        late(Late::Fenced),
    );
    assert!(is_unknown(&bed.create().await));
    assert_eq!(bed.observed().await, Observed::Absent);
    // The retry under the same key comes first; then there is nothing left to do.
    bed.create().await.unwrap();
    tokio::time::sleep(MINUTE * 2).await;
    assert_eq!(bed.observed().await, LIVE);
    bed.stop(2).await.unwrap();
    assert!(is_unknown(&bed.start(3, 2).await));
    bed.driver.delete(&bed.ctx(4, 2)).await.unwrap();
    tokio::time::sleep(MINUTE * 2).await;
    assert_eq!(bed.observed().await, Observed::Absent);
    assert_eq!(bed.world.leftovers(), Vec::<String>::new());
    bed.check();
}

#[tokio::test(start_paused = true)]
async fn a_late_effect_that_has_the_lock_is_waited_for_or_killed() {
    let bed = Bed::new();
    let late = Fault::ActLate {
        after: MINUTE / 2,
        late: Late::Locked,
    };
    bed.script
        .at(CallKind::Create, 1, late.clone())
        .at(CallKind::Suspend, 1, late);
    assert!(is_unknown(&bed.create().await));
    assert_eq!(bed.observed().await, Observed::InTransition);
    bed.driver.recover(bed.id, MINUTE).await.unwrap();
    assert_eq!(bed.observed().await, LIVE);
    assert!(is_unknown(&bed.stop(2).await));
    // Past its patience, recovery kills the holder: the stop never happens.
    let patience = Duration::from_secs(1);
    bed.driver.recover(bed.id, patience).await.unwrap();
    tokio::time::sleep(MINUTE).await;
    assert_eq!(bed.observed().await, LIVE);
    bed.check();
}

#[tokio::test(start_paused = true)]
async fn a_late_effect_that_nothing_holds_back_is_caught_by_the_ledger() {
    let bed = Bed::new();
    bed.script.at(
        CallKind::Start,
        1,
        Fault::ActLate {
            after: MINUTE,
            late: Late::Unfenced,
        },
    );
    bed.create().await.unwrap();
    bed.stop(2).await.unwrap();
    assert!(is_unknown(&bed.start(3, 2).await));
    bed.start(4, 3).await.unwrap();
    tokio::time::sleep(MINUTE * 2).await;
    assert_eq!(bed.world.violations(), [Violation::TwoLive(bed.id)]);
    assert_eq!(bed.script.unused(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_somebody_holds_costs_at_most_the_deadline() {
    let bed = Bed::new();
    bed.script
        .at(CallKind::Create, 1, Fault::LockHeld(MINUTE * 2))
        .at(CallKind::Recover, 1, Fault::LockHeld(MINUTE * 2));
    assert!(is_unknown(&bed.create().await));
    assert_eq!(bed.observed().await, Observed::InTransition);
    tokio::time::sleep(MINUTE * 2).await;
    assert_eq!(bed.observed().await, Observed::Absent);
    let recovered = bed.driver.recover(bed.id, Duration::from_secs(1)).await;
    recovered.unwrap();
    bed.create().await.unwrap();
    bed.check();
}

#[tokio::test(start_paused = true)]
async fn a_crash_calls_the_hook_and_never_returns() {
    let bed = Bed::new();
    bed.script
        .at(CallKind::Create, 1, Fault::Crash(CrashPoint::BeforeEffect))
        .at(CallKind::Create, 2, Fault::Crash(CrashPoint::AfterEffect));
    for (point, observed) in [
        (CrashPoint::BeforeEffect, Observed::Absent),
        (CrashPoint::AfterEffect, LIVE),
    ] {
        let dead = tokio::time::timeout(MINUTE, bed.create()).await;
        dead.expect_err("the gateway is dead");
        assert_eq!(bed.crashes.lock().unwrap().last().unwrap().1, point);
        assert_eq!(bed.observed().await, observed);
    }
    // The next gateway: whoever was attached to the dead one comes back with the same secret.
    bed.port.restart();
    let driver = SimDriver::new(bed.world.clone(), bed.port.clone());
    driver.recover(bed.id, MINUTE).await.unwrap();
    bed.agent(1).await.list_processes().await.unwrap();
    assert_eq!(bed.port.refusals(), []);
    bed.check();
}

#[tokio::test(start_paused = true)]
async fn observations_are_stale_empty_unsure_or_fail() {
    let bed = Bed::new();
    let error = DriverError::Unknown("no answer".into());
    bed.script
        .at(CallKind::Observe, 1, Fault::Stale)
        .at(CallKind::Observe, 2, Fault::Empty)
        .at(CallKind::Observe, 3, Fault::InTransition)
        .at(CallKind::Observe, 4, Fault::Fail(error.clone()))
        .at(CallKind::List, 1, Fault::Empty)
        .at(CallKind::List, 2, Fault::Fail(error.clone()));
    bed.create().await.unwrap();
    assert_eq!(bed.observed().await, Observed::Absent);
    let empty = bed.driver.observe(bed.id).await.unwrap();
    assert_eq!((empty.observed, empty.storage), (Observed::Absent, false));
    assert_eq!(bed.observed().await, Observed::InTransition);
    assert_eq!(bed.driver.observe(bed.id).await, Err(error.clone()));
    assert_eq!(bed.observed().await, LIVE);
    assert_eq!(bed.driver.list().await.unwrap(), []);
    assert_eq!(bed.driver.list().await, Err(error));
    assert_eq!(bed.driver.list().await.unwrap().len(), 1);
    bed.check();
}
