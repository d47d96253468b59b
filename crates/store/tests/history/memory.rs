//! What is promised of memory on disk, held against what the store says.

use std::collections::BTreeSet;

use overwinter_lifecycle::ids::EffectKey;
use overwinter_lifecycle::operation::{EffectKind, Verb};
use overwinter_lifecycle::record::{Debt, DebtKind, Desired, Retained, RetainedStatus, Sandbox};
use overwinter_lifecycle::{Depth, Phase};
use overwinter_store::Receipt;

use crate::answers::{ARTIFACT_BYTES, Answers, artifact_of};

#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// Artifacts that were removed.
    paid: BTreeSet<EffectKey>,
    /// Those that a record retained, and does not any more.
    given_up: BTreeSet<EffectKey>,
}

impl Memory {
    pub(crate) fn paid(&mut self, debt: &Debt) {
        if debt.kind == DebtKind::Artifact {
            assert!(self.paid.insert(debt.key), "{debt:?} is owed again");
        }
    }

    /// What is given up is not taken up again, and what is discarded is not offered again.
    pub(crate) fn check_change(&mut self, before: &Sandbox, after: &Sandbox) {
        let (old, new) = (artifact_of(before), artifact_of(after));
        if old != new {
            self.given_up.extend(old);
        }
        let again = new.is_some_and(|key| self.given_up.contains(&key));
        assert!(!again, "given up once: {after:?}");
        if let (Some(op), Some(status)) = (&after.running, status(after))
            && matches!(op.verb, Verb::Resume { .. } | Verb::Start)
        {
            let cold = op.cold || op.verb == Verb::Start;
            let right = if cold {
                RetainedStatus::Discarding
            } else {
                RetainedStatus::BeingConsumed(op.id)
            };
            assert_eq!(status, right, "{after:?}");
        }
        let discards = |sandbox: &Sandbox| status(sandbox) == Some(RetainedStatus::Discarding);
        let kept = new.is_some() && old == new;
        assert!(!(kept && discards(before)) || discards(after), "{after:?}");
    }

    /// Whatever an effect may have written is retained, or owed, or that effect is under way; where it
    /// was owed it is removed once. A delete removes all of it.
    pub(crate) fn check_owners(&self, sandbox: &Sandbox, receipts: &[Receipt], debts: &[Debt]) {
        if sandbox.desired == Desired::Deleted {
            return;
        }
        let writes = EffectKind::Suspend(Depth::Checkpoint).as_str();
        let under_way = sandbox.running.as_ref().and_then(|op| op.intent_key());
        let owed = debts.iter().filter(|debt| debt.kind == DebtKind::Artifact);
        let owed: Vec<_> = owed.map(|debt| debt.key).collect();
        let may_be = receipts.iter().filter(|receipt| receipt.kind == writes);
        let may_be: BTreeSet<_> = may_be.map(|receipt| receipt.key).collect();
        for key in &may_be {
            let owners = [
                artifact_of(sandbox) == Some(*key),
                under_way == Some(*key),
                owed.contains(key),
                self.paid.contains(key),
            ];
            let owners = owners.into_iter().filter(|owns| *owns).count();
            assert_eq!(owners, 1, "{key:?} of {sandbox:?}, {debts:?}");
        }
        let known = artifact_of(sandbox).into_iter().chain(owed);
        assert!(
            known.into_iter().all(|key| may_be.contains(&key)),
            "{debts:?}"
        );
    }

    /// Where nothing is at work: what it sleeps with is whole by the record, and nothing ran on it.
    pub(crate) fn check_rest(&self, sandbox: &Sandbox, answers: &Answers) {
        let Phase::Suspended(depth) = sandbox.phase() else {
            return;
        };
        let retained = sandbox.retained.as_ref().unwrap();
        assert_eq!(retained.status, RetainedStatus::Available, "{sandbox:?}");
        assert_eq!(retained.generation, sandbox.generation, "{sandbox:?}");
        let Retained {
            lost,
            artifact,
            size_bytes,
            ..
        } = retained;
        match depth {
            Depth::Freeze => assert_eq!((lost, artifact), (&None, &None), "{sandbox:?}"),
            Depth::Checkpoint => {
                assert_eq!((lost, *size_bytes), (&None, ARTIFACT_BYTES), "{sandbox:?}");
                let key = artifact.expect("what holds its memory");
                assert!(!answers.restored.contains(&key), "it was used: {sandbox:?}");
            }
            Depth::Stop => {
                assert!(lost.is_none_or(|lost| lost.keeps_memory()), "{sandbox:?}");
                assert_eq!((artifact, *size_bytes), (&None, 0), "{sandbox:?}");
            }
        }
    }
}

fn status(sandbox: &Sandbox) -> Option<RetainedStatus> {
    sandbox.retained.as_ref().map(|it| it.status)
}
