//! Plans that come from a seed, and what a large backend costs.

use std::time::Instant;

use super::*;

#[tokio::test]
async fn one_seed_gives_one_history_and_every_dial_turns() {
    let dials = Dials {
        reject: 100,
        missing: 100,
        unknown: 100,
        delay: 100,
        delay_reply: 100,
        lose_reply: 100,
        act_late_fenced: 100,
        act_late_unfenced: 100,
        act_late_locked: 100,
        crash_before: 100,
        crash_after: 100,
        lock_held: 100,
        stale: 100,
        empty: 100,
        in_transition: 100,
        never_attach: 100,
        attach_late: 100,
        old_credentials: 100,
        agent_dies: 100,
        agent_hangs: 100,
        agent_lies: 100,
        longest: MINUTE,
    };
    let history = |seed| {
        let plan = Seeded {
            seed,
            dials: dials.clone(),
        };
        let mut faults = Vec::new();
        for kind in CallKind::ALL {
            for nth in 1..200 {
                faults.push(plan.decide(&CallSite {
                    kind,
                    sandbox: Some(SandboxId(Uuid::from_u128(9))),
                    nth,
                }));
            }
        }
        faults
    };
    assert_eq!(history(1), history(1));
    assert_ne!(history(1), history(2));
    let mut kinds: Vec<_> = history(1)
        .iter()
        .flatten()
        .map(|fault| match fault {
            // Each error and each lateness is a dial of its own.
            Fault::Fail(error) => format!("{error:?}"),
            Fault::ActLate { late, .. } => format!("{late:?}"),
            Fault::Crash(point) => format!("{point:?}"),
            other => format!("{:?}", std::mem::discriminant(other)),
        })
        .collect();
    kinds.sort();
    kinds.dedup();
    assert_eq!(kinds.len(), 21, "{kinds:#?}");
}

#[tokio::test]
async fn it_is_cheap_and_presumes_a_hundred_thousand_sandboxes_for_nothing() {
    let world = SimWorld::new(SimConfig {
        presume_storage: true,
        ..SimConfig::default()
    });
    let port = TestPort::new();
    let driver = SimDriver::new(world.clone(), port.clone());
    let before = Instant::now();
    for n in 0..2000u64 {
        let id = SandboxId(Uuid::from_u128(u128::from(n)));
        let ctx = |fence, incarnation| EffectContext {
            key: EffectKey {
                sandbox: id,
                fence: Fence(fence),
                serial: Serial(1),
            },
            incarnation: Incarnation(incarnation),
            deadline: MINUTE,
            options: overwinter_driver::EffectOptions::default(),
        };
        let credentials = |incarnation| Credentials {
            sandbox: id,
            incarnation: Incarnation(incarnation),
            token: Token(format!("{incarnation}")),
        };
        port.issue(&credentials(1), false);
        driver
            .start(&ctx(1, 1), &Bed::spec(), &credentials(1))
            .await
            .unwrap();
        let agent = port.attached(id, Incarnation(1)).await;
        agent.detach().await.unwrap();
        let frozen = driver.suspend(&ctx(2, 1), Depth::Freeze).await.unwrap();
        port.issue(&credentials(2), true);
        driver
            .resume(
                &ctx(3, 2),
                Depth::Freeze,
                &frozen.reference,
                &credentials(2),
            )
            .await
            .unwrap();
        driver.suspend(&ctx(4, 2), Depth::Stop).await.unwrap();
        // The port looks at all who are attached; that is not what is measured.
        port.forget(id);
    }
    // Two pairs each. A gateway is to do 1,000 pairs a second on two cores; this may cost it less
    // than half of that, even in a debug build on a busy machine.
    let pairs = before.elapsed() / 4000;
    assert!(pairs < Duration::from_micros(900), "{pairs:?} a pair");
    let untouched = SandboxId(Uuid::from_u128(u128::MAX));
    assert!(driver.observe(untouched).await.unwrap().storage);
    world.assert_sound();
}
