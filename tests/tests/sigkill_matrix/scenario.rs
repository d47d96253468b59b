//! What is interrupted: a verb, and the state that it finds.

use anyhow::{bail, ensure};
use overwinter_client::{Accepted, Achieved, Client, Depth, Outcome, Phase, Sandbox, reason};

/// Counts in memory alone, under a word that this life of it has made up; shows both twenty
/// times a second.
pub(crate) const COUNTER: &str = "word=$(cat /proc/sys/kernel/random/uuid); n=0; while true; do n=$((n+1)); \
    echo $word $n > /tmp/count.new; mv /tmp/count.new /tmp/count; usleep 50000; done";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum State {
    Ready,
    Asleep(Depth),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scenario {
    Create,
    Suspend(Depth),
    Resume(Depth),
    Start(Depth),
    Delete(State),
}

use Scenario::{Create, Delete, Resume, Start, Suspend};

impl Scenario {
    pub(crate) const ALL: [Self; 10] = [
        Create,
        Suspend(Depth::Freeze),
        Suspend(Depth::Stop),
        Resume(Depth::Freeze),
        Resume(Depth::Stop),
        Start(Depth::Freeze),
        Start(Depth::Stop),
        Delete(State::Ready),
        Delete(State::Asleep(Depth::Freeze)),
        Delete(State::Asleep(Depth::Stop)),
    ];

    pub(crate) const fn verb(self) -> &'static str {
        match self {
            Create => "create",
            Suspend(_) => "suspend",
            Resume(_) => "resume",
            Start(_) => "start",
            Delete(_) => "delete",
        }
    }

    /// The head of its column.
    pub(crate) fn title(self) -> String {
        match self {
            Create => "create".to_owned(),
            Suspend(depth) => format!("suspend {}", depth.as_str()),
            Resume(depth) => format!("resume {}", depth.as_str()),
            Start(depth) => format!("start {}", depth.as_str()),
            Delete(State::Ready) => "delete ready".to_owned(),
            Delete(State::Asleep(depth)) => format!("delete {}", depth.as_str()),
        }
    }

    /// None: nothing is there before.
    pub(crate) const fn before(self) -> Option<State> {
        match self {
            Create => None,
            Suspend(_) => Some(State::Ready),
            Resume(depth) | Start(depth) => Some(State::Asleep(depth)),
            Delete(state) => Some(state),
        }
    }

    /// The effects that the matrix must come to, by the names of their points.
    pub(crate) const fn effects(self) -> &'static [&'static str] {
        match self {
            Create => &["create.any.create"],
            Suspend(Depth::Freeze) => &["suspend.freeze.suspend_freeze"],
            Suspend(_) => &["suspend.stop.suspend_stop"],
            Resume(Depth::Freeze) => &["resume.any.resume_freeze"],
            Resume(_) => &["resume.any.start"],
            Start(Depth::Freeze) => &["start.any.suspend_stop", "start.any.start"],
            Start(_) => &["start.any.start"],
            Delete(_) => &["delete.any.delete"],
        }
    }

    /// The commits that the matrix must come to.
    pub(crate) const fn commits(self) -> &'static [&'static str] {
        match self {
            Create => &["commit.accept_create", "commit.intent", "commit.end"],
            Suspend(Depth::Stop) => &[
                "commit.accept",
                "commit.intent",
                "commit.terminated",
                "commit.end",
            ],
            Suspend(_) | Start(Depth::Freeze) => &["commit.accept", "commit.intent", "commit.end"],
            // Begun with their intent.
            Resume(_) | Start(_) | Delete(_) => &["commit.accept", "commit.end"],
        }
    }

    /// Asks for it. Repeated under the same key it is the same call.
    pub(crate) async fn ask(
        self,
        client: &Client,
        sandbox: &str,
        image: &str,
        key: &str,
    ) -> overwinter_client::Result<Accepted> {
        match self {
            Create => {
                create(client, sandbox, image)
                    .idempotency_key(key)
                    .accept()
                    .await
            }
            Suspend(depth) => {
                client
                    .suspend(sandbox)
                    .depth(depth)
                    .idempotency_key(key)
                    .accept()
                    .await
            }
            Resume(_) => client.resume(sandbox).idempotency_key(key).accept().await,
            Start(_) => client.start(sandbox).idempotency_key(key).accept().await,
            Delete(_) => client.delete(sandbox).idempotency_key(key).accept().await,
        }
    }

    /// Whether it may end so.
    pub(crate) fn check_end(
        self,
        outcome: Outcome<'_>,
        now: Option<&Sandbox>,
    ) -> anyhow::Result<()> {
        let phase = now.map_or(Phase::Tombstone, Sandbox::phase);
        let depth = now.and_then(Sandbox::depth);
        let fits = match (self, outcome) {
            (Create, Outcome::Succeeded(Achieved::Done)) => phase == Phase::Ready,
            (Suspend(asked), Outcome::Succeeded(_)) => {
                phase == Phase::Suspended && depth == Some(asked)
            }
            // Undone: its processes run on.
            (
                Suspend(Depth::Freeze),
                Outcome::Failed {
                    reason: reason::SUSPEND_ABORTED,
                    ..
                },
            ) => phase == Phase::Ready,
            (Resume(Depth::Freeze), Outcome::Succeeded(Achieved::Memory))
            | (Resume(Depth::Stop) | Start(_), Outcome::Succeeded(Achieved::Storage)) => {
                phase == Phase::Ready
            }
            (Delete(_), Outcome::Succeeded(_)) => phase == Phase::Tombstone,
            _ => false,
        };
        ensure!(
            fits,
            "it ended {outcome:?}, and the sandbox is {} ({depth:?}, failure {:?})",
            phase.as_str(),
            now.and_then(Sandbox::failure)
        );
        Ok(())
    }

    /// Whether the processes of before live on, when it ended so.
    pub(crate) fn keeps_memory(self, outcome: Outcome<'_>) -> anyhow::Result<bool> {
        Ok(match (self, outcome) {
            (Suspend(Depth::Freeze), _) | (Resume(Depth::Freeze), _) => true,
            (Create | Suspend(_) | Resume(_) | Start(_), _) => false,
            (Delete(_), outcome) => bail!("nothing is left after {outcome:?}"),
        })
    }
}

pub(crate) fn create(client: &Client, name: &str, image: &str) -> overwinter_client::Create {
    client
        .create()
        .name(name)
        .image(image)
        .main(["/bin/sh", "-c", COUNTER])
}
