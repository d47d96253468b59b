//! The small form of the simulation: one seed is one history, and a few hold.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use overwinter_sim::history::profile::Profile;
use overwinter_sim::history::{Told, run};

fn sound(profile: &Profile, seed: u64) -> Told {
    let told = run(seed, profile, false).unwrap();
    if let Some(violation) = &told.violation {
        panic!(
            "{}seed {seed}: {violation}\nagain: overwinter-sim --profile {} --steps {} --seed {seed} --trace",
            told.last, profile.name, profile.steps
        );
    }
    told
}

#[test]
fn one_seed_gives_one_history_bit_for_bit() {
    for profile in Profile::all() {
        let profile = Profile {
            steps: 150,
            ..profile
        };
        let mut before = String::new();
        for seed in 5..9 {
            let (first, second) = (sound(&profile, seed), sound(&profile, seed));
            assert_eq!((&first.hash, first.events), (&second.hash, second.events));
            assert_ne!(before, first.hash, "the seed changes nothing");
            before = first.hash;
        }
    }
}

#[test]
fn a_gateway_that_dies_again_and_again_keeps_its_promises() {
    let crashes: u32 = (0..12)
        .map(|seed| sound(&Profile::crashes(), seed).crashes)
        .sum();
    assert!(crashes > 50, "only {crashes} crashes");
}

#[test]
fn little_room_and_a_backend_far_away_keep_them_too() {
    for seed in 0..3 {
        sound(&Profile::tight(), seed);
        sound(&Profile::remote(), seed);
        sound(&Profile::unfenced(), seed);
    }
}

#[test]
fn a_crowd_keeps_its_promises() {
    let told = sound(&Profile::crowd(), 1);
    assert!(told.sandboxes >= 80, "only {} sandboxes", told.sandboxes);
}
