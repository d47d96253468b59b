//! What is asked of whoever is inside, within its deadline, and what came of it as an event of the pure
//! core.

use std::sync::Arc;
use std::time::Duration;

use overwinter_api::supervisor as wire;
use overwinter_driver::agent::RefusedKind;
use overwinter_driver::{Agent, AgentError};
use overwinter_lifecycle::ids::{Incarnation, SandboxId};
use overwinter_lifecycle::operation::{Operation, Verb};
use overwinter_lifecycle::record::Sandbox;
use overwinter_lifecycle::steps::Event;
use overwinter_lifecycle::{Fault, Reason};
use uuid::Uuid;

use super::Reconciler;
use super::expect::expected;
use super::owner::Owned;
use super::perform::{is_gone, until_gone};
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
    pub(super) async fn quiesce(
        &self,
        sandbox: &Sandbox,
        op: &Operation,
        slot: &Arc<Slot>,
    ) -> Event {
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
    pub(super) async fn unquiesce(
        &self,
        sandbox: &Sandbox,
        op: &Operation,
        slot: &Arc<Slot>,
    ) -> Event {
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

    pub(super) async fn detach(
        &self,
        owned: &mut Owned,
        op: &Operation,
        slot: &Arc<Slot>,
    ) -> Event {
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

    pub(super) async fn terminate(
        &self,
        owned: &mut Owned,
        op: &Operation,
        slot: &Arc<Slot>,
    ) -> Event {
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

    pub(super) async fn start_main(
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

    pub(super) async fn hook(&self, sandbox: &Sandbox, op: &Operation, slot: &Arc<Slot>) -> Event {
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
