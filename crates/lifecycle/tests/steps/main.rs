//! The steps against a small model of the world: random verbs that arrive at any moment, and for each
//! action a random outcome that a driver or a supervisor could honestly give, lost replies, damaged
//! memory and sudden deaths among them. Whatever comes, every operation ends, what the record then says is
//! what is there, and memory is used once, or given up by name and owed.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod create;
mod history;
mod luck;
mod promises;
mod world;

use history::History;
use overwinter_lifecycle::admission::Request;
use overwinter_lifecycle::operation::{Achieved, Outcome};
use overwinter_lifecycle::record::Desired;
use overwinter_lifecycle::{Depth, Phase};
use proptest::prelude::*;
use proptest::test_runner::RngAlgorithm;
use world::Health;

fn request() -> impl Strategy<Value = Request> {
    let depth = prop_oneof![
        2 => Just(Some(Depth::Freeze)),
        3 => Just(Some(Depth::Checkpoint)),
        2 => Just(Some(Depth::Stop)),
        1 => Just(None),
    ];
    prop_oneof![
        7 => (depth, prop::bool::weighted(0.1))
            .prop_map(|(depth, idle)| Request::Suspend {
                depth,
                idle,
                reclaim: depth == Some(Depth::Freeze) && !idle,
            }),
        5 => any::<bool>().prop_map(|fallback| Request::Resume { fallback, prefetch: false }),
        1 => Just(Request::Start),
        1 => any::<bool>().prop_map(|abandon| Request::Delete { abandon }),
    ]
}

/// All sorts of luck, mostly good or not; or one sort that does not end: a backend that always fails
/// in the same way. (From 248 on it is the gateway that never lives to the next step.)
fn dice() -> impl Strategy<Value = Vec<u8>> {
    let mostly_good = prop_oneof![3 => 0..128_u8, 1 => 180_u8..];
    prop_oneof![
        2 => prop::collection::vec(any::<u8>(), 0..400),
        2 => prop::collection::vec(mostly_good, 0..400),
        1 => (0..248_u8).prop_map(|die| vec![die; 1_000]),
    ]
}

fn see_through(requests: Vec<Request>, dice: Vec<u8>) {
    let mut history = History::new(requests, dice);
    history.settle();
    while let Some(request) = history.requests.pop_front() {
        history.rest();
        history.ask(request);
        history.settle();
    }
    history.rest();
    // Once faults stop:
    history.backend.dice.dice.clear();
    memory_comes_back(&mut history);
    // There is a way out that keeps the storage, and one that ends it all. The first to try it may
    // only be told what is to be removed before anything starts.
    for _ in 0..2 {
        history.pay();
        if history.sandbox.desired != Desired::Deleted {
            history.ask(Request::Resume {
                fallback: true,
                prefetch: false,
            });
            history.settle();
        }
    }
    let phase = history.sandbox.phase();
    let is_out = matches!(phase, Phase::Ready | Phase::Deleting | Phase::Tombstone);
    assert!(is_out, "no way out: {:?}", history.sandbox);
    history.ask(Request::Delete { abandon: false });
    history.settle();
    assert_eq!(history.sandbox.phase(), Phase::Tombstone);
}

/// Memory that is offered and there is brought back, and told as such.
fn memory_comes_back(history: &mut History) {
    history.pay();
    let native = match history.sandbox.phase() {
        Phase::Suspended(Depth::Freeze) => history.backend.world.compute,
        Phase::Suspended(Depth::Checkpoint) => {
            let key = luck::artifact_of(&history.sandbox);
            let artifact = key.and_then(|key| history.backend.world.artifact(key));
            let whole = artifact.filter(|artifact| artifact.health == Health::Whole);
            whole.map(|artifact| artifact.native)
        }
        Phase::Suspended(Depth::Stop)
        | Phase::Creating
        | Phase::Ready
        | Phase::Suspending(_)
        | Phase::Resuming
        | Phase::Failed
        | Phase::Deleting
        | Phase::Tombstone => None,
    };
    let Some(native) = native else { return };
    history.ask(Request::Resume {
        fallback: false,
        prefetch: false,
    });
    history.settle();
    assert_eq!(
        history.sandbox.phase(),
        Phase::Ready,
        "{:?}",
        history.sandbox
    );
    let outcome = history.last.as_ref().and_then(|op| op.outcome.as_ref());
    let Some(Outcome::Succeeded { achieved, .. }) = outcome else {
        panic!("{outcome:?}")
    };
    // What never was Ready has its main process still to start.
    assert_eq!(*achieved == Achieved::Memory, native.was_ready);
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 20_000,
        failure_persistence: None,
        // Most of the time is spent on the dice, otherwise.
        rng_algorithm: RngAlgorithm::XorShift,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_operation_ends_and_the_record_tells_the_truth(
        requests in prop::collection::vec(request(), 1..10),
        dice in dice(),
    ) {
        see_through(requests, dice);
    }
}
