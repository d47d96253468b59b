//! Which supervisor is let in, and what it must prove. A pure function of the record, so that a
//! gateway that takes an operation over awaits exactly what the one before it did.
//!
//! ```text
//!   nothing runs, awake      the same attach again
//!   suspend                  the same again: it redials, or is asked back when the suspend is undone
//!   suspend of a sleeper     nobody: deepening wakes nothing
//!   resume of memory         a new attach that knows the secret of the last one
//!   cold start, create       a new attach, any secret
//!   delete                   nobody
//! ```

use overwinter_lifecycle::operation::{EffectKind, Operation, Verb};
use overwinter_lifecycle::record::Sandbox;

use crate::sessions::{Expected, Proof};

/// None: whoever knocks is refused.
pub(super) fn expected(sandbox: &Sandbox) -> Option<Expected> {
    let proof = match &sandbox.running {
        Some(operation) => proof_within(sandbox, operation)?,
        // Frozen compute does not knock, and nothing that wakes by itself has any authority.
        // Nor has one that came too late to keep its sandbox from failing: the resume that asks for
        // it issues new credentials.
        None if sandbox.retained.is_some()
            || sandbox.failure.is_some()
            || !sandbox.compute.may_exist() =>
        {
            return None;
        }
        None => same(sandbox),
    };
    Some(Expected {
        incarnation: sandbox.issued,
        proof,
    })
}

fn proof_within(sandbox: &Sandbox, operation: &Operation) -> Option<Proof> {
    match operation.verb {
        Verb::Suspend { .. } => sandbox.retained.is_none().then(|| same(sandbox)),
        Verb::Create => Some(Proof::Fresh),
        Verb::Resume { .. } | Verb::Start => match operation.intent?.effect {
            EffectKind::Create | EffectKind::Start => Some(Proof::Fresh),
            EffectKind::Resume(_) | EffectKind::Reattach => Some(kept(sandbox)),
            // What was there before is being ended.
            EffectKind::Suspend(_) | EffectKind::Delete => None,
        },
        Verb::Delete { .. } => None,
    }
}

/// Without a secret it never attached: there is none to know.
fn same(sandbox: &Sandbox) -> Proof {
    sandbox.secret.map_or(Proof::Fresh, Proof::Same)
}

fn kept(sandbox: &Sandbox) -> Proof {
    sandbox.secret.map_or(Proof::Fresh, Proof::Kept)
}

#[cfg(test)]
mod tests {
    use overwinter_lifecycle::ids::{Fence, Incarnation, Millis, OperationId, SandboxId, Serial};
    use overwinter_lifecycle::operation::{Intent, Step};
    use overwinter_lifecycle::record::{Compute, DriverReference, Retained, RetainedStatus};
    use overwinter_lifecycle::recording::SecretHash;
    use overwinter_lifecycle::{Depth, Name};
    use uuid::Uuid;

    use super::*;

    const SECRET: SecretHash = SecretHash([5; 32]);
    const ID: SandboxId = SandboxId(Uuid::from_u128(7));

    fn awake() -> Sandbox {
        let name = Name::parse("box").unwrap();
        let (spec, config) = (Default::default(), Default::default());
        Sandbox {
            issued: Incarnation(4),
            fence: Fence(9),
            compute: Compute::Live {
                held: Incarnation(2),
            },
            secret: Some(SECRET),
            ..Sandbox::new(ID, "tenant", name, spec, config, Millis(0))
        }
    }

    fn asleep(depth: Depth) -> Sandbox {
        let mut sandbox = awake();
        sandbox.retained = Some(Retained {
            depth,
            status: RetainedStatus::Available,
            reference: DriverReference::default(),
            generation: sandbox.generation,
            size_bytes: 0,
            since: Millis(0),
            expires_at: None,
            lost: None,
            quiesced: true,
            artifact: None,
            reclaimed: None,
        });
        sandbox
    }

    /// As a gateway finds it that takes the operation over.
    fn taken_over(mut sandbox: Sandbox, verb: Verb, effect: Option<EffectKind>) -> Sandbox {
        let id = OperationId(Uuid::from_u128(8));
        let mut operation = Operation::new(id, ID, verb, "test", Millis(0));
        operation.attempt = 2;
        operation.step = Step::Begun;
        if let Some(effect) = effect {
            operation.step = Step::Intent;
            operation.intent = Some(Intent {
                serial: Serial(1),
                effect,
            });
        }
        sandbox.running = Some(operation);
        sandbox
    }

    fn proof(sandbox: &Sandbox) -> Option<Proof> {
        let expected = expected(sandbox)?;
        assert_eq!(expected.incarnation, sandbox.issued);
        Some(expected.proof)
    }

    #[test]
    fn a_suspend_that_is_taken_over_awaits_the_supervisor_that_was_there() {
        let suspend = Verb::Suspend {
            depth: Depth::Freeze,
            idle: false,
            reclaim: false,
        };
        for effect in [
            None,
            Some(EffectKind::Suspend(Depth::Freeze)),
            Some(EffectKind::Reattach),
        ] {
            let sandbox = taken_over(awake(), suspend, effect);
            assert_eq!(proof(&sandbox), Some(Proof::Same(SECRET)), "{effect:?}");
        }
        let deeper = taken_over(asleep(Depth::Freeze), suspend, None);
        assert_eq!(proof(&deeper), None);
    }

    #[test]
    fn only_memory_that_is_restored_must_know_the_last_secret() {
        let resume = Verb::Resume {
            fallback: false,
            prefetch: false,
        };
        let thaw = EffectKind::Resume(Depth::Freeze);
        let memory = taken_over(asleep(Depth::Freeze), resume, Some(thaw));
        assert_eq!(proof(&memory), Some(Proof::Kept(SECRET)));
        let cold = taken_over(asleep(Depth::Stop), resume, Some(EffectKind::Start));
        assert_eq!(proof(&cold), Some(Proof::Fresh));
        let ending = EffectKind::Suspend(Depth::Stop);
        let ended_first = taken_over(asleep(Depth::Freeze), Verb::Start, Some(ending));
        assert_eq!(proof(&ended_first), None);
    }

    #[test]
    fn who_sleeps_or_is_deleted_lets_nobody_in() {
        assert_eq!(proof(&awake()), Some(Proof::Same(SECRET)));
        assert_eq!(proof(&asleep(Depth::Freeze)), None);
        let delete = Verb::Delete { abandon: false };
        let deleted = taken_over(awake(), delete, Some(EffectKind::Delete));
        assert_eq!(proof(&deleted), None);
    }
}
