//! What is there of a sandbox: its container as the daemon shows it, beside the receipt of what was
//! started in it.

use std::sync::atomic::Ordering;

use bollard::models::{ContainerInspectResponse, ContainerStateStatusEnum};
use overwinter_lifecycle::ids::{Incarnation, SandboxId};
use overwinter_lifecycle::steps::Observed;

use crate::container::{GATEWAY, name_of};
use crate::driver::{Entry, Shared, set_seen};
use crate::error::DockerError;
use crate::receipt::Receipt;

/// A container, in the daemon's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Container {
    pub(crate) id: String,
    pub(crate) state: State,
    /// When it was started last; not a time when it never was.
    pub(crate) started: String,
    pub(crate) exit_code: i64,
    /// Why the last start failed, where it did.
    pub(crate) error: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Made, or ended.
    Still,
    Running,
    Paused,
    /// The daemon is about to start or remove it.
    Moving,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    Nothing,
    /// No compute of the gateway's: it ended, was never started, or somebody else has started it.
    Remains(Container),
    /// What an effect has started runs, or stands still.
    Running(Running),
    Moving(Container),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Running {
    pub(crate) container: Container,
    pub(crate) receipt: Receipt,
    pub(crate) paused: bool,
}

impl Look {
    pub(crate) const fn container(&self) -> Option<&Container> {
        match self {
            Self::Nothing => None,
            Self::Remains(container)
            | Self::Moving(container)
            | Self::Running(Running { container, .. }) => Some(container),
        }
    }

    pub(crate) const fn observed(&self) -> Observed {
        match self {
            Self::Nothing => Observed::Absent,
            Self::Remains(_) => Observed::Stopped,
            Self::Moving(_) => Observed::InTransition,
            Self::Running(running) => {
                let held = running.receipt.held;
                if running.paused {
                    Observed::Frozen { held }
                } else {
                    Observed::Live { held }
                }
            }
        }
    }

    /// From the daemon's answer and the receipt. Pure.
    pub(crate) fn of(container: Container, receipt: Option<Receipt>, boot_id: &str) -> Self {
        let paused = match container.state {
            State::Still => return Self::Remains(container),
            State::Moving => return Self::Moving(container),
            State::Running => false,
            State::Paused => true,
        };
        match receipt {
            Some(receipt) if receipt.is_of(&container, boot_id) => Self::Running(Running {
                container,
                receipt,
                paused,
            }),
            Some(_) | None => Self::Remains(container),
        }
    }
}

impl Container {
    pub(crate) fn read(answer: ContainerInspectResponse) -> Self {
        let state = answer.state.unwrap_or_default();
        Self {
            id: answer.id.unwrap_or_default(),
            state: State::of(state.status, state.running, state.paused),
            started: state.started_at.unwrap_or_default(),
            exit_code: state.exit_code.unwrap_or_default(),
            error: state.error.unwrap_or_default(),
        }
    }
}

impl State {
    fn of(
        status: Option<ContainerStateStatusEnum>,
        running: Option<bool>,
        paused: Option<bool>,
    ) -> Self {
        match status {
            Some(ContainerStateStatusEnum::RUNNING) => Self::Running,
            Some(ContainerStateStatusEnum::PAUSED) => Self::Paused,
            Some(
                ContainerStateStatusEnum::RESTARTING
                | ContainerStateStatusEnum::REMOVING
                | ContainerStateStatusEnum::STOPPING,
            ) => Self::Moving,
            Some(
                ContainerStateStatusEnum::CREATED
                | ContainerStateStatusEnum::EXITED
                | ContainerStateStatusEnum::DEAD,
            ) => Self::Still,
            // A word that is not known: the two older flags are always there.
            Some(ContainerStateStatusEnum::EMPTY) | None => match (running, paused) {
                (_, Some(true)) => Self::Paused,
                (Some(true), _) => Self::Running,
                _ => Self::Still,
            },
        }
    }
}

impl Shared {
    /// Asks the daemon, by the name that the sandbox's container has.
    pub(crate) async fn look(&self, sandbox: SandboxId) -> Result<Look, DockerError> {
        let Some(answer) = self.engine.inspect(&name_of(sandbox)).await? else {
            return Ok(Look::Nothing);
        };
        let labels = answer.config.as_ref().and_then(|it| it.labels.as_ref());
        let gateway = labels.and_then(|labels| labels.get(GATEWAY));
        if gateway != Some(&self.config.gateway_id) {
            return Err(DockerError::NotOurs {
                name: name_of(sandbox),
                gateway: gateway.cloned().unwrap_or_else(|| "(none)".to_owned()),
            });
        }
        let receipt = Receipt::read(&self.home.sandbox(sandbox))?;
        Ok(Look::of(Container::read(answer), receipt, &self.boot_id))
    }

    /// The same. A container of another gateway that has the name is none of the sandbox's: a daemon gives a
    /// name once, so the sandbox has none.
    pub(crate) async fn look_for_own(&self, sandbox: SandboxId) -> Result<Look, DockerError> {
        match self.look(sandbox).await {
            Err(DockerError::NotOurs { .. }) => Ok(Look::Nothing),
            other => other,
        }
    }

    /// What the last effect has left so, where the daemon's events are followed and none has told of anything
    /// else. Enough for a request that the daemon refuses unless it stands still, or runs, as `paused` says:
    /// whoever asks looks when it refuses, and of an end just before the request its event tells.
    pub(crate) fn seen(&self, entry: &Entry, paused: bool) -> Option<Running> {
        if !self.following.load(Ordering::Acquire) {
            return None;
        }
        let live = entry.live();
        let seen = live.as_ref()?.seen.as_ref()?;
        (seen.paused == paused).then(|| seen.clone())
    }

    /// The same, or by a look. For an effect.
    pub(crate) async fn seen_or_running(
        &self,
        entry: &Entry,
        sandbox: SandboxId,
        paused: bool,
    ) -> Result<Option<Running>, DockerError> {
        if let Some(seen) = self.seen(entry, paused) {
            return Ok(Some(seen));
        }
        let running = self.running(sandbox).await?;
        if let Some(running) = &running {
            set_seen(entry, running);
        }
        Ok(running)
    }

    /// What an effect has started, if it is there.
    pub(crate) async fn running(&self, sandbox: SandboxId) -> Result<Option<Running>, DockerError> {
        Ok(match self.look(sandbox).await? {
            Look::Running(running) => Some(running),
            Look::Nothing | Look::Remains(_) | Look::Moving(_) => None,
        })
    }
}

/// An incarnation as a label has it.
pub(crate) fn incarnation(text: &str) -> Option<Incarnation> {
    text.parse().ok().map(Incarnation)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOT: &str = "this boot";

    fn container(state: State, started: &str) -> Container {
        Container {
            id: "one".to_owned(),
            state,
            started: started.to_owned(),
            exit_code: 0,
            error: String::new(),
        }
    }

    fn receipt(started: Option<&str>) -> Receipt {
        Receipt {
            effect: "effect".to_owned(),
            held: Incarnation(3),
            container: "one".to_owned(),
            before: "monday".to_owned(),
            started: started.map(str::to_owned),
            boot_id: BOOT.to_owned(),
        }
    }

    fn observed(container: Container, receipt: Option<Receipt>) -> Observed {
        Look::of(container, receipt, BOOT).observed()
    }

    #[test]
    fn a_start_that_was_seen_is_known_by_its_time() {
        let held = Incarnation(3);
        let seen = || Some(receipt(Some("tuesday")));
        let running = container(State::Running, "tuesday");
        assert_eq!(observed(running, seen()), Observed::Live { held });
        let paused = container(State::Paused, "tuesday");
        assert_eq!(observed(paused, seen()), Observed::Frozen { held });
        let by_another = container(State::Running, "wednesday");
        assert_eq!(observed(by_another, seen()), Observed::Stopped);
    }

    #[test]
    fn a_start_whose_reply_was_lost_is_known_by_the_time_before_it() {
        let held = Incarnation(3);
        let late = container(State::Running, "tuesday");
        assert_eq!(observed(late, Some(receipt(None))), Observed::Live { held });
        let not_yet = container(State::Still, "monday");
        assert_eq!(observed(not_yet, Some(receipt(None))), Observed::Stopped);
        let of_before = container(State::Running, "monday");
        assert_eq!(observed(of_before, Some(receipt(None))), Observed::Stopped);
    }

    #[test]
    fn nothing_is_known_of_another_boot_or_another_container() {
        let running = || container(State::Running, "tuesday");
        let other_boot = Receipt {
            boot_id: "an earlier boot".to_owned(),
            ..receipt(Some("tuesday"))
        };
        assert_eq!(observed(running(), Some(other_boot)), Observed::Stopped);
        let other_container = Receipt {
            container: "another".to_owned(),
            ..receipt(Some("tuesday"))
        };
        assert_eq!(
            observed(running(), Some(other_container)),
            Observed::Stopped
        );
        assert_eq!(observed(running(), None), Observed::Stopped);
    }
}
