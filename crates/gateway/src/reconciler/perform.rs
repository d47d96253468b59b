//! Carrying out one action: a call of the driver or of whoever is inside, within its deadline, and
//! what came of it as an event of the pure core. Nothing is decided here.

use std::sync::Arc;
use std::time::Duration;

use overwinter_driver::{
    ComputeSpec, Driver, DriverError, EffectContext, EffectOptions, PinnedImage,
};
use overwinter_lifecycle::ids::SandboxId;
use overwinter_lifecycle::operation::{EffectKind, Operation, Verb};
use overwinter_lifecycle::record::Sandbox;
use overwinter_lifecycle::steps::{Action, Event, Observed};
use overwinter_lifecycle::{Fault, Reason};

use super::Reconciler;
use super::expect::expected;
use super::fault::{fault, refusal};
use super::owner::Owned;
use crate::sessions::Slot;

impl Reconciler {
    pub(super) async fn perform(&self, owned: &mut Owned, op: &Operation, action: Action) -> Event {
        let Some(driver) = self.driver_of(&owned.sandbox).cloned() else {
            return Event::Refused(Fault::new(
                Reason::Unsupported,
                format!("this gateway has no driver {:?}", owned.sandbox.spec.driver),
            ));
        };
        let slot = self.hub.slot(owned.sandbox.id, owned.sandbox.name.as_str());
        match action {
            Action::Prepare(depth) => {
                // Not after the supervisor has let go: new credentials that arrive then bring it back.
                if let Some(stopping) = self.wait_for_lost(&owned.sandbox, op, &slot).await {
                    return Event::Stopped(stopping);
                }
                match self
                    .in_time(op, driver.prepare(owned.sandbox.id, depth))
                    .await
                {
                    Ok(()) => Event::Done,
                    Err(error) => Event::Refused(fault(error)),
                }
            }
            Action::Quiesce => {
                let quiesce = self.quiesce(&owned.sandbox, op, &slot);
                self.unless_stopped(owned.sandbox.id, &slot, quiesce).await
            }
            Action::Unquiesce(_) | Action::LiftQuiesce { .. } => {
                self.unquiesce(&owned.sandbox, op, &slot).await
            }
            Action::Detach => self.detach(owned, op, &slot).await,
            Action::Terminate => {
                let id = owned.sandbox.id;
                self.unless_stopped(id, &slot, self.terminate(owned, op, &slot))
                    .await
            }
            Action::Pin => self.image(&driver, owned, op, &slot).await,
            Action::Call { effect, again } => {
                if again && let Some(stopping) = self.pause(owned, &slot).await {
                    return Event::Stopped(stopping);
                }
                if let Some(stopping) = self.wait_for_lost(&owned.sandbox, op, &slot).await {
                    return Event::Stopped(stopping);
                }
                let event = self.call(&driver, &owned.sandbox, op, &slot, effect).await;
                self.note_request(owned, op, &event);
                event
            }
            Action::Observe { after, .. } => self.observe(&driver, owned, op, after, &slot).await,
            Action::Attach { .. } => {
                let attach = self.attach(&driver, &owned.sandbox, op, &slot);
                self.unless_stopped(owned.sandbox.id, &slot, attach).await
            }
            Action::StartMain { held, .. } => self.start_main(owned, op, &slot, held).await,
            Action::Hook { .. } => {
                let hook = self.hook(&owned.sandbox, op, &slot);
                self.unless_stopped(owned.sandbox.id, &slot, hook).await
            }
            // The owner records; it does not perform.
            Action::Record(_) => Event::Recorded,
        }
    }

    /// What waits for user code or for a supervisor, and no longer than until the operation is to
    /// stop: a resume that turns a suspend back, and a delete of anything, go on at once and not after
    /// a hook, a grace or a deadline.
    async fn unless_stopped(
        &self,
        sandbox: SandboxId,
        slot: &Arc<Slot>,
        action: impl Future<Output = Event>,
    ) -> Event {
        tokio::select! {
            biased;
            event = action => event,
            stopping = self.stopping(sandbox, slot) => Event::Stopped(stopping),
        }
    }

    /// A question to the driver, which has no effect whether it is answered or not.
    async fn in_time<T>(
        &self,
        op: &Operation,
        question: impl Future<Output = Result<T, DriverError>>,
    ) -> Result<T, DriverError> {
        let patience = Duration::from_millis(op.deadlines.effect_ms);
        let late =
            || DriverError::Rejected(format!("the driver did not answer within {patience:?}"));
        self.ports
            .within(patience, question)
            .await
            .unwrap_or_else(|_| Err(late()))
    }

    async fn call(
        &self,
        driver: &Arc<dyn Driver>,
        sandbox: &Sandbox,
        op: &Operation,
        slot: &Arc<Slot>,
        effect: EffectKind,
    ) -> Event {
        let Some(key) = op.intent_key() else {
            return Event::Refused(Fault::new(
                Reason::DriverRejected,
                "no effect without a recorded intent",
            ));
        };
        let ctx = EffectContext {
            key,
            incarnation: if overwinter_lifecycle::mutant!(OtherIncarnation) {
                sandbox.issued.next()
            } else {
                sandbox.issued
            },
            deadline: Duration::from_millis(op.deadlines.effect_ms),
            options: options_of(op.verb),
        };
        let credentials = self.hub.issue(sandbox.id, sandbox.issued);
        // Before the driver acts: the supervisor may be quicker than the driver's answer.
        // Not again at a retry: it may have attached in between, and its token is used then.
        if let Some(expected) = expected(sandbox)
            && !slot.is_expecting(sandbox.issued)
        {
            slot.expect(expected);
        }
        let spec = compute_spec(sandbox);
        let answer = async {
            match effect {
                EffectKind::Create => driver.create(&ctx, &spec, &credentials).await,
                EffectKind::Start => driver.start(&ctx, &spec, &credentials).await,
                EffectKind::Suspend(depth) => driver.suspend(&ctx, depth).await,
                EffectKind::Resume(depth) => {
                    let reference = sandbox
                        .retained
                        .as_ref()
                        .map(|retained| retained.reference.clone())
                        .unwrap_or_default();
                    driver.resume(&ctx, depth, &reference, &credentials).await
                }
                EffectKind::Reattach => driver.reattach(&ctx, &credentials).await,
                EffectKind::Delete => driver.delete(&ctx).await,
            }
        };
        // The driver keeps its own deadline; this one is for a driver that does not.
        match self
            .ports
            .within(ctx.deadline + Duration::from_secs(5), answer)
            .await
        {
            Ok(Ok(effected)) => Event::Effected(effected),
            Ok(Err(error @ DriverError::Unknown(_))) => {
                tracing::warn!(effect = effect.as_str(), %error, "outcome unknown");
                Event::Unknown(fault(error))
            }
            Ok(Err(error)) => {
                tracing::warn!(effect = effect.as_str(), %error, "refused");
                Event::Refused(refusal(effect, error))
            }
            Err(_) => Event::Unknown(Fault::new(
                Reason::DriverTimeout,
                format!("the driver did not answer within {:?}", ctx.deadline),
            )),
        }
    }

    /// Waits for the supervisor, and no longer than its compute lives.
    async fn attach(
        &self,
        driver: &Arc<dyn Driver>,
        sandbox: &Sandbox,
        op: &Operation,
        slot: &Arc<Slot>,
    ) -> Event {
        let patience = Duration::from_millis(op.deadlines.attach_ms);
        let attached = async {
            tokio::select! {
                biased;
                session = slot.attached(sandbox.issued) => {
                    drop(session);
                    Event::Attached
                }
                () = until_gone(driver, sandbox.id, slot, 0) => Event::ComputeGone,
            }
        };
        self.ports
            .within(patience, attached)
            .await
            .unwrap_or(Event::AttachTimeout)
    }
}

const fn options_of(verb: Verb) -> EffectOptions {
    let (reclaim, prefetch, new_root) = match verb {
        Verb::Suspend { reclaim, .. } => (reclaim, false, false),
        // What it slept on is to be there, unless it may be started anew.
        Verb::Resume { prefetch, fallback } => (false, prefetch, fallback),
        Verb::Start => (false, false, true),
        Verb::Create | Verb::Delete { .. } => (false, false, false),
    };
    EffectOptions {
        reclaim,
        prefetch,
        new_root,
    }
}

pub(super) fn compute_spec(sandbox: &Sandbox) -> ComputeSpec {
    ComputeSpec {
        name: sandbox.name.as_str().to_owned(),
        image: PinnedImage {
            image: sandbox.spec.image.clone(),
            digest: sandbox.spec.image_digest.clone().unwrap_or_default(),
            main: Vec::new(),
        },
        resources: sandbox.spec.resources,
        network: sandbox.spec.network.clone(),
        runtime: sandbox.spec.runtime.clone(),
    }
}

/// Waits until the compute is seen to be gone, looking at each hint newer than `seen`.
pub(super) async fn until_gone(
    driver: &Arc<dyn Driver>,
    id: SandboxId,
    slot: &Slot,
    mut seen: u64,
) {
    loop {
        seen = slot.compute_changed(seen).await;
        if is_gone(driver, id).await {
            return;
        }
    }
}

pub(super) async fn is_gone(driver: &Arc<dyn Driver>, id: SandboxId) -> bool {
    let look = driver.observe(id).await;
    look.is_ok_and(|look| matches!(look.observed, Observed::Absent | Observed::Stopped))
}
