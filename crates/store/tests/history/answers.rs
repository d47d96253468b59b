//! What the world answers to an action: anything at all, but for one thing that no driver says, which is
//! that memory which it has restored never ran.

use std::collections::BTreeSet;

use overwinter_lifecycle::ids::EffectKey;
use overwinter_lifecycle::operation::EffectKind;
use overwinter_lifecycle::record::{Compute, Debt, DebtKind, DriverReference, Sandbox};
use overwinter_lifecycle::steps::{Action, Effected, Event, Observed};
use overwinter_lifecycle::{Depth, Fault, Reason};

use crate::support::fault;

/// Of an artifact, once it is written; less than the memory that it is of.
pub(crate) const ARTIFACT_BYTES: u64 = 48 << 20;

/// The worst luck that there is.
pub(crate) const WORST: u8 = 11;

/// What was restored.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    pub(crate) restored: BTreeSet<EffectKey>,
}

impl Answers {
    pub(crate) fn event(&mut self, sandbox: &Sandbox, action: &Action, luck: u8) -> Event {
        let held = sandbox.issued;
        match (action, luck) {
            (Action::Call { effect, .. }, _) => self.call(sandbox, *effect, luck),
            (Action::Observe { .. }, 11) => Event::Observed(Observed::InTransition),
            (Action::Observe { .. }, 10) => Event::Observed(Observed::Stopped),
            (Action::Observe { .. }, 9) => Event::Observed(Observed::Unknown),
            (Action::Observe { .. }, 6..) => Event::Observed(Observed::Live { held }),
            (Action::Observe { .. }, 4..) => Event::Observed(Observed::Frozen { held }),
            (Action::Observe { .. }, _) => Event::Observed(Observed::Absent),
            (Action::Attach { .. }, 8) => Event::AttachTimeout,
            (Action::Attach { .. }, 9..) => Event::ComputeGone,
            (Action::Attach { .. }, _) => Event::Attached,
            (Action::Pin, 8..) => Event::Refused(fault()),
            (Action::Pin, _) => Event::Pinned("sha256:0".into()),
            (
                Action::Prepare(_)
                | Action::Quiesce
                | Action::Unquiesce(_)
                | Action::Detach
                | Action::Terminate
                | Action::LiftQuiesce { .. }
                | Action::StartMain { .. }
                | Action::Hook { .. }
                | Action::Record(_),
                luck,
            ) => match luck {
                9.. => Event::Unreachable,
                8 => Event::Refused(fault()),
                _ => Event::Done,
            },
        }
    }

    fn call(&mut self, sandbox: &Sandbox, effect: EffectKind, luck: u8) -> Event {
        let artifact = artifact_of(sandbox);
        let restores = effect == EffectKind::Resume(Depth::Checkpoint);
        let was_restored = artifact.is_some_and(|key| self.restored.contains(&key));
        let refused = |reason| Event::Refused(Fault::new(reason, "as the test wants it"));
        match (luck, restores) {
            (7.., true) if was_restored => refused(Reason::RetainedLost),
            (11, true) => refused(Reason::ArtifactDamaged),
            (10, true) => refused(Reason::RuntimeChanged),
            (10.., false) => refused(Reason::RetainedLost),
            // It may have happened.
            (9, true) => {
                self.restored.extend(artifact);
                Event::Unknown(fault())
            }
            (8.., _) => Event::Unknown(fault()),
            (7, _) => Event::Refused(fault()),
            (_, true) => {
                self.restored.extend(artifact);
                effected(sandbox, effect, luck)
            }
            (_, false) => effected(sandbox, effect, luck),
        }
    }
}

pub(crate) fn artifact_of(sandbox: &Sandbox) -> Option<EffectKey> {
    sandbox.retained.as_ref().and_then(|it| it.artifact)
}

fn effected(sandbox: &Sandbox, effect: EffectKind, luck: u8) -> Event {
    let held = sandbox.issued;
    let written = effect == EffectKind::Suspend(Depth::Checkpoint);
    Event::Effected(Effected {
        compute: match effect {
            EffectKind::Create
            | EffectKind::Start
            | EffectKind::Resume(_)
            | EffectKind::Reattach => Compute::Live { held },
            EffectKind::Suspend(Depth::Freeze) => Compute::Frozen { held },
            EffectKind::Suspend(Depth::Checkpoint | Depth::Stop) | EffectKind::Delete => {
                Compute::Absent
            }
        },
        reference: DriverReference::default(),
        size_bytes: if written { ARTIFACT_BYTES } else { 0 },
        leftovers: leftovers(sandbox, effect, luck),
        remarks: Vec::new(),
        reclaimed: None,
    })
}

fn leftovers(sandbox: &Sandbox, effect: EffectKind, luck: u8) -> Vec<Debt> {
    let key = sandbox.running.as_ref().and_then(|op| op.intent_key());
    match (effect, luck, key) {
        (EffectKind::Suspend(Depth::Stop), 5..=6, Some(key)) => vec![Debt {
            key,
            kind: DebtKind::Compute,
            reference: key.native_name(),
        }],
        _ => Vec::new(),
    }
}
