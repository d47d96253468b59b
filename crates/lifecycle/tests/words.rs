//! The words that users and programs read: each one once, stable, and read back.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::HashSet;

use overwinter_lifecycle::admission::call::CallRefused;
use overwinter_lifecycle::idle::WhyAwake;
use overwinter_lifecycle::ids::{EffectKey, Fence, Millis, OperationId, SandboxId, Serial};
use overwinter_lifecycle::mutant::{Mutant, is_on};
use overwinter_lifecycle::operation::{EffectKind, Step, Verb};
use overwinter_lifecycle::record::Compute;
use overwinter_lifecycle::steps::Observed;
use overwinter_lifecycle::{BadName, Depth, Fault, Name, NoSuchDepth, Phase, Reason};
use uuid::Uuid;

#[track_caller]
fn distinct<'a>(words: impl IntoIterator<Item = &'a str>) {
    let mut seen = HashSet::new();
    for word in words {
        assert!(
            !word.is_empty() && seen.insert(word),
            "{word:?} twice, or empty"
        );
    }
}

#[test]
fn every_reason_has_a_code_of_its_own_and_says_what_to_do() {
    distinct(Reason::ALL.iter().map(|reason| reason.code()));
    assert!(Reason::ALL.iter().all(|reason| !reason.next().is_empty()));
    assert_eq!(Fault::new(Reason::NotIdle, "in use").to_string(), "in use");
    let refused = [
        CallRefused::Creating,
        CallRefused::Suspending,
        CallRefused::Suspended,
        CallRefused::Resuming,
        CallRefused::Failed,
        CallRefused::Deleting,
    ];
    distinct(refused.iter().map(|refused| refused.code()));
    assert!(refused.iter().all(|refused| !refused.next().is_empty()));
    assert!(
        refused
            .iter()
            .all(|refused| refused.to_string().starts_with("the sandbox"))
    );
}

#[test]
fn phases_verbs_steps_and_effects_have_names_of_their_own() {
    let freeze = Depth::Freeze;
    let phases = [
        Phase::Creating,
        Phase::Ready,
        Phase::Suspending(freeze),
        Phase::Suspended(freeze),
        Phase::Resuming,
        Phase::Failed,
        Phase::Deleting,
        Phase::Tombstone,
    ];
    distinct(phases.iter().map(|phase| phase.as_str()));
    assert!(
        phases
            .iter()
            .all(|phase| phase.to_string() == phase.as_str())
    );
    let verbs = [
        Verb::Create,
        Verb::Suspend {
            depth: freeze,
            idle: true,
            reclaim: false,
        },
        Verb::Resume {
            fallback: false,
            prefetch: false,
        },
        Verb::Start,
        Verb::Delete { abandon: false },
    ];
    distinct(verbs.iter().map(|verb| verb.as_str()));
    distinct(Step::ALL.iter().map(|step| step.as_str()));
    let of_depths = Depth::ALL
        .into_iter()
        .flat_map(|depth| [EffectKind::Suspend(depth), EffectKind::Resume(depth)]);
    let effects = [
        EffectKind::Create,
        EffectKind::Start,
        EffectKind::Reattach,
        EffectKind::Delete,
    ];
    let effects: Vec<_> = of_depths.chain(effects).collect();
    distinct(effects.iter().map(|effect| effect.as_str()));
    let why = [
        WhyAwake::NeverSleeps,
        WhyAwake::OpenCalls,
        WhyAwake::RunningProcesses,
        WhyAwake::UsedRecently,
    ];
    distinct(why.iter().map(|why| why.as_str()));
}

#[test]
fn a_depth_is_read_as_it_is_written() {
    for depth in Depth::ALL {
        assert_eq!(depth.to_string().parse(), Ok(depth));
    }
    let error = "hibernate".parse::<Depth>().unwrap_err();
    assert_eq!(error, NoSuchDepth("hibernate".to_owned()));
    assert!(error.to_string().contains("freeze, checkpoint, stop"));
}

#[test]
fn ids_and_keys_are_read_as_they_are_written() {
    let id = SandboxId(Uuid::from_u128(7));
    assert_eq!(id.to_string().parse(), Ok(id));
    assert!("7".parse::<OperationId>().is_err());
    let key = EffectKey {
        sandbox: id,
        fence: Fence(3).next(),
        serial: Serial(1),
    };
    assert_eq!(key.native_name(), format!("{}-4-1", id.0.simple()));
    assert_eq!(Millis::default(), Millis(0));
}

#[test]
fn a_name_is_read_as_it_is_written() {
    let name = Name::try_from("web-1".to_owned()).unwrap();
    assert_eq!(
        (name.as_str(), name.to_string()),
        ("web-1", "web-1".to_owned())
    );
    assert_eq!(String::from(name), "web-1");
    let bad = Name::try_from("-".to_owned()).unwrap_err();
    assert_eq!(
        (bad.clone(), bad.to_string().is_empty()),
        (BadName::Hyphen, false)
    );
    for bad in [BadName::Length(0), BadName::Character('W'), BadName::Uuid] {
        assert!(!bad.to_string().is_empty());
    }
}

/// What only looks like it may still change by a request whose reply was lost.
#[test]
fn what_is_seen_shows_an_effect_or_does_not() {
    let held = overwinter_lifecycle::ids::Incarnation(1);
    let (live, frozen) = (Observed::Live { held }, Observed::Frozen { held });
    let gone: &[Observed] = &[Observed::Absent, Observed::Stopped];
    let all = [
        Observed::Absent,
        Observed::Stopped,
        live,
        frozen,
        Observed::InTransition,
        Observed::Unknown,
    ];
    for (effect, by) in [
        (EffectKind::Create, &[live][..]),
        (EffectKind::Start, &[live]),
        (EffectKind::Resume(Depth::Freeze), &[live]),
        (EffectKind::Suspend(Depth::Freeze), &[frozen]),
        (EffectKind::Suspend(Depth::Checkpoint), gone),
        (EffectKind::Suspend(Depth::Stop), gone),
        (EffectKind::Delete, gone),
        // New credentials cannot be seen.
        (EffectKind::Reattach, &[]),
    ] {
        for seen in all {
            assert_eq!(
                seen.shows(effect),
                by.contains(&seen),
                "{seen:?} of {effect:?}"
            );
        }
    }
}

/// The seeded defects have names to be called by, and nothing is wrong that nobody has chosen.
#[test]
fn a_mutant_has_a_name_and_is_off() {
    distinct(Mutant::ALL.iter().map(|mutant| mutant.name()));
    assert!(Mutant::ALL.iter().all(|mutant| !is_on(*mutant)));
}

/// Four different answers; the two that cannot tell are one in the record.
#[test]
fn an_observation_is_recorded_as_what_it_says() {
    let held = overwinter_lifecycle::ids::Incarnation(1);
    for (observed, compute) in [
        (Observed::Absent, Compute::Absent),
        (Observed::Stopped, Compute::Absent),
        (Observed::Live { held }, Compute::Live { held }),
        (Observed::Frozen { held }, Compute::Frozen { held }),
        (Observed::InTransition, Compute::Unknown),
        (Observed::Unknown, Compute::Unknown),
    ] {
        assert_eq!(observed.compute(), compute);
    }
}
