//! Made, used, listed, removed.

use overwinter_lifecycle::operation::EffectKind;

use super::subject::{read, run, write};
use super::{Backend, Subject};
use crate::error::DriverError;
use crate::types::{Depth, Observed};

pub async fn modes_are_described_with_facts_that_can_be_true<B: Backend>(backend: &B) {
    let description = backend.driver().describe().await;
    assert!(!description.name.is_empty() && !description.version.is_empty());
    for depth in Depth::ALL {
        let here = description.modes.iter().filter(|it| it.depth == depth);
        let not_here = description.unavailable.iter().filter(|it| it.0 == depth);
        assert_eq!(here.count() + not_here.count(), 1, "{depth}: either or");
    }
    for mode in &description.modes {
        let depth = mode.depth;
        assert!(mode.preserves.workspace, "{depth}: the workspace always");
        assert!(mode.releases.cpu, "{depth}: asleep is no CPU");
        assert!(mode.survives.gateway_restart, "{depth}");
        assert_eq!(mode.preserves.memory, depth.keeps_memory(), "{depth}");
        assert_eq!(mode.preserves.processes, depth.keeps_memory(), "{depth}");
        if depth == Depth::Freeze {
            assert!(!mode.survives.power_loss, "resident memory never does");
        }
        if mode.survives.power_loss {
            assert!(mode.survives.host_reboot, "{depth}");
        }
    }
}

pub async fn a_missing_image_is_missing_and_changes_nothing<B: Backend>(backend: &B) {
    let pinned = backend.driver().pin("conformance-no-such-image").await;
    assert!(matches!(pinned, Err(DriverError::Missing(_))), "{pinned:?}");
    assert_eq!(backend.leftovers().await, Vec::<String>::new());
}

pub async fn created_attached_used_and_deleted_without_a_trace<B: Backend>(backend: &B) {
    let (mut subject, agent) = Subject::created(backend).await;
    let held = subject.issued;
    let observation = subject.observe().await;
    assert_eq!(observation.observed, Observed::Live { held });
    assert!(observation.storage && !observation.boot_id.is_empty());
    assert_eq!(run(&agent, &["true"]).await, 0);
    assert_eq!(run(&agent, &["false"]).await, 1);
    assert_eq!(run(&agent, &["conformance-no-such-program"]).await, 127);
    write(&agent, "/workspace/it", b"works").await;
    assert_eq!(read(&agent, "/workspace/it").await, b"works");

    subject.delete().await;
    agent.gone().await;
    let observation = subject.observe().await;
    assert_eq!(observation.observed, Observed::Absent);
    assert!(!observation.storage);
    assert_eq!(backend.leftovers().await, Vec::<String>::new());
    // Idempotent, by the same operation's retry or a later one.
    subject.delete().await;
    assert_eq!(backend.leftovers().await, Vec::<String>::new());
}

pub async fn a_create_that_failed_half_way_leaves_nothing<B: Backend>(backend: &B) {
    let image = backend.vanished_image().await;
    let mut subject = Subject::with_image(backend, image);
    let (ctx, credentials) = subject.next_incarnation(EffectKind::Create);
    let driver = backend.driver();
    let failed = driver.create(&ctx, &subject.spec, &credentials).await;
    let failed = failed.expect_err("it has no image");
    assert!(failed.surely_no_effect(), "{failed:?}");
    assert_eq!(subject.observe().await.observed, Observed::Absent);
    subject.delete().await;
    assert_eq!(subject.observe().await.observed, Observed::Absent);
    assert_eq!(backend.leftovers().await, Vec::<String>::new());
}

pub async fn what_was_never_made_is_absent_and_can_be_deleted<B: Backend>(backend: &B) {
    let mut subject = Subject::new(backend).await;
    let observation = subject.observe().await;
    assert_eq!(observation.observed, Observed::Absent);
    subject.delete().await;
    assert_eq!(backend.leftovers().await, Vec::<String>::new());
}

pub async fn a_listing_shows_ours_with_its_labels<B: Backend>(backend: &B) {
    let (mut first, _) = Subject::created(backend).await;
    let (mut second, agent) = Subject::created(backend).await;
    let birth = second.issued;
    second.suspend(Depth::Stop, &agent).await;
    second.start().await;
    let found = backend.driver().list().await.expect("list");
    for (subject, birth) in [(&first, birth), (&second, second.issued)] {
        let ours: Vec<_> = found
            .iter()
            .filter(|it| it.sandbox == Some(subject.id))
            .collect();
        let [one] = ours[..] else {
            panic!("one compute, and not {ours:?}");
        };
        assert!(one.gateway.is_some() && !one.native_name.is_empty());
        assert_eq!(one.birth, Some(birth));
        assert_eq!(one.observed, Observed::Live { held: birth });
    }
    first.delete().await;
    second.delete().await;
    let left = backend.driver().list().await.expect("list");
    let ours =
        |it: &&crate::types::Found| it.sandbox == Some(first.id) || it.sandbox == Some(second.id);
    assert_eq!(left.iter().filter(ours).count(), 0, "{left:?}");
}
