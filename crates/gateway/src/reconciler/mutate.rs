//! Seeded defects of carrying out an action; see [`overwinter_lifecycle::mutant`].

use overwinter_lifecycle::Depth;
use overwinter_lifecycle::operation::{EffectKind, Operation, Verb};
use overwinter_lifecycle::record::{Compute, Debt, DebtKind, DriverReference};
use overwinter_lifecycle::steps::{Action, Effected, Event, Observed};

use super::Reconciler;
use super::owner::Owned;

impl Reconciler {
    /// [`Self::perform`] with the defect that is chosen, if it is one of these.
    pub(super) async fn perform_wrongly(
        &self,
        owned: &mut Owned,
        op: &Operation,
        action: Action,
    ) -> Event {
        if let Action::Prepare(_) = action
            && overwinter_lifecycle::mutant!(CloseBeforeEffect)
            && let Some(session) = (self.hub.find(owned.sandbox.id)).and_then(|it| it.session())
        {
            session.agent.hang_up();
        }
        if let (Action::Attach { .. }, Verb::Create, Some(key)) =
            (&action, op.verb, op.intent_key())
            && overwinter_lifecycle::mutant!(StorageUnderfoot)
            && let Some(driver) = self.driver_of(&owned.sandbox)
        {
            let storage = Debt {
                key,
                kind: DebtKind::Storage,
                reference: key.sandbox.to_string(),
            };
            // Whether it could is for the invariants to tell.
            drop(driver.discard(&storage).await);
        }
        if let Some(event) = instead(op, &action) {
            return event;
        }
        let called = match action {
            Action::Call { effect, .. } => Some(effect),
            _ => None,
        };
        let event = self.perform(owned, op, action).await;
        match (called, &event) {
            (Some(effect), Event::Unknown(_))
                if overwinter_lifecycle::mutant!(LostReplyIsSuccess) =>
            {
                let held = owned.sandbox.issued;
                Event::Effected(effected(match effect {
                    EffectKind::Create
                    | EffectKind::Start
                    | EffectKind::Resume(_)
                    | EffectKind::Reattach => Compute::Live { held },
                    EffectKind::Suspend(Depth::Freeze) => Compute::Frozen { held },
                    EffectKind::Suspend(Depth::Checkpoint | Depth::Stop) | EffectKind::Delete => {
                        Compute::Absent
                    }
                }))
            }
            _ => event,
        }
    }
}

fn instead(op: &Operation, action: &Action) -> Option<Event> {
    let deletes = matches!(op.verb, Verb::Delete { .. });
    match action {
        Action::Detach if overwinter_lifecycle::mutant!(SkipDetach) => Some(Event::Done),
        Action::Unquiesce(_) | Action::LiftQuiesce { .. }
            if overwinter_lifecycle::mutant!(StaysQuiesced) =>
        {
            Some(Event::Done)
        }
        Action::Attach { .. } if overwinter_lifecycle::mutant!(ReadyWithoutAttach) => {
            Some(Event::Attached)
        }
        Action::Call { .. } if deletes && overwinter_lifecycle::mutant!(DeleteNotDone) => {
            Some(Event::Effected(effected(Compute::Absent)))
        }
        Action::Observe { .. } if deletes && overwinter_lifecycle::mutant!(DeleteNotDone) => {
            Some(Event::Observed(Observed::Absent))
        }
        _ => None,
    }
}

fn effected(compute: Compute) -> Effected {
    Effected {
        compute,
        reference: DriverReference::default(),
        size_bytes: 0,
        leftovers: Vec::new(),
        remarks: Vec::new(),
        reclaimed: None,
    }
}
