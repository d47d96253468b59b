//! Carrying out one action: a call of the driver or of whoever is inside, within its deadline, and
//! what came of it as an event of the pure core. Nothing is decided here.

use std::sync::Arc;
use std::time::Duration;

use overwinter_api::supervisor as wire;
use overwinter_driver::agent::RefusedKind;
use overwinter_driver::{
    Agent, AgentError, ComputeSpec, Driver, DriverError, EffectContext, EffectOptions, PinnedImage,
};
use overwinter_lifecycle::ids::{Incarnation, SandboxId};
use overwinter_lifecycle::operation::{EffectKind, Operation, Verb};
use overwinter_lifecycle::record::Sandbox;
use overwinter_lifecycle::steps::{Action, Event, Observed};
use overwinter_lifecycle::{Fault, Reason};
use uuid::Uuid;

use super::Reconciler;
use super::expect::expected;
use super::fault::{fault, refusal};
use super::owner::Owned;
use crate::dataplane::process;
use crate::sessions::{Session, Slot};

/// How long a supervisor that should be there is waited for before a suspend goes on without it.
const REDIAL_TIME: Duration = Duration::from_secs(3);

/// The id of the main process of compute that was started with that incarnation. Of the compute and
/// not of the operation: however many ask for it to be started, there is one.
fn main_process(sandbox: SandboxId, held: Incarnation) -> Uuid {
    Uuid::new_v5(&sandbox.0, format!("main {held}").as_bytes())
}

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

    async fn quiesce(&self, sandbox: &Sandbox, op: &Operation, slot: &Arc<Slot>) -> Event {
        // A call that hangs on its way in must not keep it awake for ever: past the deadline the
        // supervisor's own gate refuses it.
        let entered = Duration::from_millis(op.deadlines.agent_ms);
        let _ = self.ports.within(entered, slot.close_gate()).await;
        if matches!(op.verb, Verb::Suspend { idle: true, .. }) && self.is_used(sandbox.id) {
            return Event::Refused(Fault::new(
                Reason::NotIdle,
                "it was used just as it was to be put to sleep",
            ));
        }
        let policy = &sandbox.config.policy;
        let hook = policy.pre_suspend_hook.clone();
        let hook_time = policy.hook_timeout();
        let patience = Duration::from_millis(op.deadlines.agent_ms) + hook_time;
        // Out of Failed nobody was let in until now.
        if !slot.is_expecting(sandbox.issued)
            && let Some(expected) = expected(sandbox)
        {
            slot.expect(expected);
        }
        let Some(session) = self.reach(sandbox, slot).await else {
            return Event::Unreachable;
        };
        let asked = session.agent.quiesce(hook, hook_time);
        match self.ports.within(patience, asked).await {
            Ok(Ok(response)) => match response.hook.as_option() {
                Some(exit) if exit.code != 0 => Event::Refused(Fault::new(
                    Reason::HookFailed,
                    match exit.error.as_str() {
                        "" => format!("the pre-suspend hook ended with {}", exit.code),
                        why => format!("the pre-suspend hook ended with {}: {why}", exit.code),
                    },
                )),
                Some(_) | None => Event::Done,
            },
            Ok(Err(AgentError::Refused { message, .. })) => {
                Event::Refused(Fault::new(Reason::HookFailed, message))
            }
            Ok(Err(AgentError::Gone | AgentError::TimedOut)) | Err(_) => Event::Unreachable,
        }
    }

    /// The session, or the one that comes: after a restart of the gateway, or in the middle of a
    /// redial, the supervisor is on its way. Not waited for where its compute is gone.
    async fn reach(&self, sandbox: &Sandbox, slot: &Arc<Slot>) -> Option<Session> {
        let driver = self.driver_of(sandbox)?;
        let seen = slot.compute_changes();
        let gone = async {
            if !is_gone(driver, sandbox.id).await {
                until_gone(driver, sandbox.id, slot, seen).await;
            }
        };
        let attached = async {
            tokio::select! {
                biased;
                session = slot.attached(sandbox.issued) => Some(session),
                () = gone => None,
            }
        };
        self.ports.within(REDIAL_TIME, attached).await.ok()?
    }

    /// The gate opens when the end is recorded.
    async fn unquiesce(&self, sandbox: &Sandbox, op: &Operation, slot: &Arc<Slot>) -> Event {
        // One that redials is told when it is there, or by the hub when it comes later still.
        let _ = self.reach(sandbox, slot).await;
        let unquiesce = |agent: Arc<dyn Agent>| async move { agent.unquiesce().await };
        let mut told = self.ask(op, slot, unquiesce).await;
        if told.is_err()
            && let Some(silent) = slot.session()
        {
            // One that goes on quiesced refuses every call from here on. It dials again, and is told
            // then.
            silent.agent.hang_up();
            let again = slot.next_session(sandbox.issued, silent.number);
            let _ = self.ports.within(REDIAL_TIME, again).await;
            told = self.ask(op, slot, unquiesce).await;
        }
        match told {
            Ok(()) => Event::Done,
            Err(event) => event,
        }
    }

    async fn detach(&self, owned: &mut Owned, op: &Operation, slot: &Arc<Slot>) -> Event {
        match self
            .ask(op, slot, |agent| async move { agent.detach().await })
            .await
        {
            // What ends them later, while nobody can ask, ends these.
            Ok(live) => {
                owned
                    .exits
                    .extend(live.iter().filter_map(|id| process::running(id)));
                Event::Done
            }
            Err(event) => event,
        }
    }

    async fn terminate(&self, owned: &mut Owned, op: &Operation, slot: &Arc<Slot>) -> Event {
        let grace = owned.sandbox.config.policy.stop_grace();
        let patience = Duration::from_millis(op.deadlines.agent_ms) + grace;
        let Some(session) = self.reach(&owned.sandbox, slot).await else {
            return Event::Unreachable;
        };
        match self
            .ports
            .within(patience, session.agent.terminate(grace))
            .await
        {
            Ok(Ok(results)) => {
                owned
                    .exits
                    .extend(results.iter().filter_map(process::ended));
                Event::Done
            }
            Ok(Err(error)) => {
                tracing::warn!(%error, "its processes could not be asked to end");
                Event::Unreachable
            }
            Err(_) => Event::Unreachable,
        }
    }

    /// A call of the session that is there, within the operation's deadline for such calls. What it
    /// fails with is what there is to tell.
    async fn ask<T, F>(
        &self,
        op: &Operation,
        slot: &Arc<Slot>,
        call: impl FnOnce(Arc<dyn Agent>) -> F + Send,
    ) -> Result<T, Event>
    where
        F: Future<Output = Result<T, AgentError>> + Send,
    {
        let session = slot.session().ok_or(Event::Unreachable)?;
        let patience = Duration::from_millis(op.deadlines.agent_ms);
        match self.ports.within(patience, call(session.agent)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => {
                tracing::warn!(%error, "the supervisor did not do as asked");
                Err(Event::Unreachable)
            }
            Err(_) => Err(Event::Unreachable),
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

    async fn start_main(
        &self,
        owned: &mut Owned,
        op: &Operation,
        slot: &Arc<Slot>,
        held: Incarnation,
    ) -> Event {
        let sandbox = &owned.sandbox;
        let main = main_process(sandbox.id, held).to_string();
        let start = wire::ExecStart {
            process_id: main.clone(),
            process: wire::ProcessSpec {
                command: sandbox.spec.main.clone(),
                env: sandbox.config.env.clone().into_iter().collect(),
                main: true,
                ..Default::default()
            }
            .into(),
        };
        let started = self
            .ask(op, slot, |agent| async move {
                match agent.start_process(start).await {
                    // Started by an operation before this one, with what the environment was.
                    Err(AgentError::Refused {
                        kind: RefusedKind::AlreadyExists,
                        ..
                    }) => agent.get_process(main).await,
                    answer => answer,
                }
            })
            .await;
        match started {
            Ok(info) => {
                owned.exits.extend(process::learnt(&info));
                Event::Done
            }
            Err(Event::Unreachable) => {
                Event::DoneWith("the main process could not be started".to_owned())
            }
            Err(event) => event,
        }
    }

    async fn hook(&self, sandbox: &Sandbox, op: &Operation, slot: &Arc<Slot>) -> Event {
        let policy = &sandbox.config.policy;
        let Some(session) = slot.session() else {
            return Event::Unreachable;
        };
        let hook = wire::ProcessSpec {
            command: policy.post_resume_hook.clone(),
            env: sandbox.config.env.clone().into_iter().collect(),
            ..Default::default()
        };
        let id = self.ports.ids.next().to_string();
        let patience = policy.hook_timeout() + Duration::from_millis(op.deadlines.agent_ms);
        match self
            .ports
            .within(patience, process::run(&session.agent, id, hook))
            .await
        {
            Ok(Ok(exit)) if exit.code == 0 => Event::Done,
            Ok(Ok(exit)) => {
                Event::DoneWith(format!("the post-resume hook ended with {}", exit.code))
            }
            Ok(Err(error)) => Event::DoneWith(format!("the post-resume hook: {error}")),
            Err(_) => Event::DoneWith("the post-resume hook ran out of time".to_owned()),
        }
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
async fn until_gone(driver: &Arc<dyn Driver>, id: SandboxId, slot: &Slot, mut seen: u64) {
    loop {
        seen = slot.compute_changed(seen).await;
        if is_gone(driver, id).await {
            return;
        }
    }
}

async fn is_gone(driver: &Arc<dyn Driver>, id: SandboxId) -> bool {
    let look = driver.observe(id).await;
    look.is_ok_and(|look| matches!(look.observed, Observed::Absent | Observed::Stopped))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_main_process_is_of_its_compute_alone() {
        let (one, other) = (SandboxId(Uuid::from_u128(1)), SandboxId(Uuid::from_u128(2)));
        let main = main_process(one, Incarnation(3));
        assert_eq!(main, main_process(one, Incarnation(3)));
        assert_ne!(main, main_process(one, Incarnation(4)));
        assert_ne!(main, main_process(other, Incarnation(3)));
    }
}
