//! What is interrupted: a verb, on a runtime, and the state that it finds.

use anyhow::{bail, ensure};
use overwinter_client::{Accepted, Achieved, Client, Outcome, Phase, Sandbox, reason};

/// Counts in memory alone, under a word that this life of it has made up; shows both again and again.
/// In gVisor a process costs milliseconds, so there are few of them.
pub(crate) const COUNTER: &str = "word=$(head -c 16 /dev/urandom | md5sum | cut -c1-32); n=0; while true; do n=$((n+1)); \
    echo $word $n end > /tmp/count; usleep 100000; done";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Runtime {
    Runc,
    Gvisor,
}

/// Those that are interrupted. The client's own may have more one day, and then no match would be whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Depth {
    Freeze,
    Checkpoint,
    Stop,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum State {
    Ready,
    Asleep(Depth),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Act {
    Create,
    Suspend(Depth),
    /// A suspend of what sleeps already, from one depth to another.
    Deepen(Depth, Depth),
    Resume(Depth),
    Start(Depth),
    Delete(State),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Scenario {
    pub(crate) runtime: Runtime,
    pub(crate) act: Act,
}

use Act::{Create, Deepen, Delete, Resume, Start, Suspend};
use Depth::{Checkpoint, Freeze, Stop};

impl Depth {
    const ALL: [Self; 3] = [Freeze, Checkpoint, Stop];

    /// As a suspend asks for it.
    pub(crate) const fn asked(self) -> overwinter_client::Depth {
        match self {
            Self::Freeze => overwinter_client::Depth::Freeze,
            Self::Checkpoint => overwinter_client::Depth::Checkpoint,
            Self::Stop => overwinter_client::Depth::Stop,
        }
    }

    /// None: the sandbox does not sleep, or at none of these.
    pub(crate) fn of(sandbox: &Sandbox) -> Option<Self> {
        let depth = sandbox.depth()?;
        Self::ALL.into_iter().find(|it| it.asked() == depth)
    }

    fn as_str(self) -> &'static str {
        self.asked().as_str()
    }
}

impl Runtime {
    /// As a create asks for it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Runc => "runc",
            Self::Gvisor => "runsc",
        }
    }

    pub(crate) const fn depths(self) -> &'static [Depth] {
        match self {
            Self::Runc => &[Freeze, Stop],
            Self::Gvisor => &[Freeze, Checkpoint, Stop],
        }
    }

    /// Milliseconds into an effect: while the runtime sets up, in its middle, and about when it is done.
    pub(crate) const fn into_an_effect(self) -> [u64; 3] {
        match self {
            Self::Runc => [5, 20, 40],
            Self::Gvisor => [20, 100, 300],
        }
    }

    /// Everything that can be interrupted.
    pub(crate) fn scenarios(self) -> Vec<Scenario> {
        let depths = self.depths();
        let deeper = |from: &Depth| {
            let from = *from;
            let to = depths.iter().skip_while(move |to| **to != from).skip(1);
            to.map(move |to| Deepen(from, *to))
        };
        let mut acts = vec![Create, Delete(State::Ready)];
        acts.extend(depths.iter().map(|depth| Suspend(*depth)));
        acts.extend(depths.iter().flat_map(deeper));
        acts.extend(depths.iter().map(|depth| Resume(*depth)));
        acts.extend(depths.iter().map(|depth| Start(*depth)));
        acts.extend(depths.iter().map(|depth| Delete(State::Asleep(*depth))));
        let on = |act| Scenario { runtime: self, act };
        acts.into_iter().map(on).collect()
    }
}

impl Scenario {
    pub(crate) const fn verb(self) -> &'static str {
        match self.act {
            Create => "create",
            Suspend(_) | Deepen(..) => "suspend",
            Resume(_) => "resume",
            Start(_) => "start",
            Delete(_) => "delete",
        }
    }

    /// The head of its column.
    pub(crate) fn title(self) -> String {
        match self.act {
            Create => "create".to_owned(),
            Suspend(depth) => format!("suspend {}", depth.as_str()),
            Deepen(from, to) => format!("{} to {}", from.as_str(), to.as_str()),
            Resume(depth) => format!("resume {}", depth.as_str()),
            Start(depth) => format!("start {}", depth.as_str()),
            Delete(State::Ready) => "delete ready".to_owned(),
            Delete(State::Asleep(depth)) => format!("delete {}", depth.as_str()),
        }
    }

    /// With its runtime.
    pub(crate) fn label(self) -> String {
        format!("{} {}", self.runtime.name(), self.title())
    }

    /// None: nothing is there before.
    pub(crate) const fn before(self) -> Option<State> {
        match self.act {
            Create => None,
            Suspend(_) => Some(State::Ready),
            Deepen(depth, _) | Resume(depth) | Start(depth) => Some(State::Asleep(depth)),
            Delete(state) => Some(state),
        }
    }

    /// The effects that the matrix must come to, by the names of their points.
    pub(crate) const fn effects(self) -> &'static [&'static str] {
        match self.act {
            Create => &["create.any.create"],
            Suspend(Freeze) => &["suspend.freeze.suspend_freeze"],
            Suspend(Checkpoint) | Deepen(_, Checkpoint) => {
                &["suspend.checkpoint.suspend_checkpoint"]
            }
            Suspend(Stop) | Deepen(_, Freeze | Stop) => &["suspend.stop.suspend_stop"],
            Resume(Freeze) => &["resume.any.resume_freeze"],
            Resume(Checkpoint) => &["resume.any.resume_checkpoint"],
            Resume(Stop) => &["resume.any.start"],
            Start(Freeze) => &["start.any.suspend_stop", "start.any.start"],
            Start(Checkpoint | Stop) => &["start.any.start"],
            Delete(State::Ready | State::Asleep(_)) => &["delete.any.delete"],
        }
    }

    /// The commits that the matrix must come to.
    pub(crate) const fn commits(self) -> &'static [&'static str] {
        match self.act {
            Create => &["commit.accept_create", "commit.intent", "commit.end"],
            Suspend(Stop) => &[
                "commit.accept",
                "commit.intent",
                "commit.terminated",
                "commit.end",
            ],
            Suspend(Freeze | Checkpoint) | Deepen(_, _) | Start(Freeze) => {
                &["commit.accept", "commit.intent", "commit.end"]
            }
            // Begun with their intent.
            Resume(Freeze | Checkpoint | Stop) | Start(Checkpoint | Stop) | Delete(_) => {
                &["commit.accept", "commit.end"]
            }
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
        match self.act {
            Create => {
                create(client, self.runtime, sandbox, image)
                    .idempotency_key(key)
                    .accept()
                    .await
            }
            Suspend(depth) | Deepen(_, depth) => {
                client
                    .suspend(sandbox)
                    .depth(depth.asked())
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
        let depth = now.and_then(Depth::of);
        let asleep_at = |at| phase == Phase::Suspended && depth == Some(at);
        let is_ready = phase == Phase::Ready;
        let brought = |what| is_ready && outcome == Outcome::Succeeded(what);
        let succeeded = matches!(outcome, Outcome::Succeeded(_));
        let failed = matches!(outcome, Outcome::Failed { .. });
        let aborted = matches!(
            outcome,
            Outcome::Failed {
                reason: reason::SUSPEND_ABORTED,
                ..
            }
        );
        let fits = match self.act {
            Create => brought(Achieved::Done),
            // Undone: its processes run on.
            Suspend(Freeze | Checkpoint) if aborted => is_ready,
            Suspend(asked) => succeeded && asleep_at(asked),
            // Undone: it sleeps on as it did.
            Deepen(from, Checkpoint) if failed => asleep_at(from),
            Deepen(_, asked) => succeeded && asleep_at(asked),
            Resume(Freeze) => brought(Achieved::Memory),
            // The restore was cut where its memory may have run: that is never used again, and said so.
            Resume(Checkpoint) if failed => asleep_at(Stop) && now.is_some_and(has_lost_memory),
            Resume(Checkpoint) => brought(Achieved::Memory),
            Resume(Stop) | Start(Freeze | Checkpoint | Stop) => brought(Achieved::Storage),
            Delete(State::Ready | State::Asleep(_)) => succeeded && phase == Phase::Tombstone,
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
        Ok(match self.act {
            Resume(Checkpoint) if matches!(outcome, Outcome::Failed { .. }) => false,
            Suspend(depth) | Deepen(_, depth) | Resume(depth) => depth != Stop,
            Create | Start(_) => false,
            Delete(_) => bail!("nothing is left after {outcome:?}"),
        })
    }
}

/// Memory that was promised is gone, and the record says so.
pub(crate) fn has_lost_memory(sandbox: &Sandbox) -> bool {
    sandbox.lost().is_some()
}

pub(crate) fn create(
    client: &Client,
    runtime: Runtime,
    name: &str,
    image: &str,
) -> overwinter_client::Create {
    client
        .create()
        .name(name)
        .image(image)
        .runtime(runtime.name())
        .main(["/bin/sh", "-c", COUNTER])
}
