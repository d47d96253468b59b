//! What is really there: a backend with its storage and compute, and the effects that reach it.
//!
//! It keeps the driver's contract (`crates/driver`) and no more: one key is carried out once, a
//! smaller key is refused, a refusal promises that nothing happened. Two sorts of backend differ in
//! what protects them from an effect that is still on its way when its caller has given up.

use overwinter_lifecycle::Depth;
use overwinter_lifecycle::ids::{Fence, Incarnation, Serial};
use overwinter_lifecycle::operation::EffectKind;
use overwinter_lifecycle::record::Compute;
use overwinter_lifecycle::steps::Observed;

use super::flaw::Flaw;
use super::invariant::{Invariant, Violation};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// A runtime on this host. Whoever carries out an effect holds the sandbox's lock: while one is
    /// on its way nothing else happens and nothing can be observed. It starts whatever it is asked
    /// to start: that no second compute comes to be is the lifecycle's merit alone.
    Locked,
    /// A remote backend that compares keys, and has no lock: what is on its way is not seen by an
    /// observation and lands after a retry, or after a delete. It does not start beside compute
    /// that it finds.
    Fenced,
}

/// An effect's key on this sandbox; compared as a tuple.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub fence: Fence,
    pub serial: Serial,
}

/// An effect as it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sent {
    pub effect: EffectKind,
    pub key: Key,
    /// What it gives credentials for.
    pub incarnation: Incarnation,
    /// A suspend that is undone gives the same incarnation its credentials again.
    pub undoing: bool,
    /// What the record says that its memory was written by.
    pub artifact: Option<Key>,
}

/// One compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Native {
    /// The effect that made its memory, however often that was restored since.
    pub made_by: Key,
    /// The effect that restored it last.
    pub restored_by: Option<Key>,
    pub held: Incarnation,
    /// What its supervisor can prove.
    pub credentials: Incarnation,
    pub frozen: bool,
    /// Its supervisor refuses new work.
    pub quiesced: bool,
    /// Its supervisor has let go, and waits for new credentials.
    pub detached: bool,
    /// Its processes were ended.
    pub terminated: bool,
    pub main_started: bool,
}

/// Memory on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Artifact {
    pub written_by: Key,
    /// As it was.
    pub native: Native,
    pub health: Health,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Health {
    Whole,
    Damaged,
    /// A restore was refused for it.
    KnownDamaged,
}

/// What is there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct World {
    pub storage: bool,
    /// In the order in which they were written.
    pub artifacts: Vec<Artifact>,
    /// Two, so that a second can be seen.
    pub computes: [Option<Native>; 2],
    /// What a stop has left behind of its compute.
    pub leftover: Leftover,
    /// The newest key, and whether it is settled: carried out, or refused for good.
    pub newest: Option<(Key, bool)>,
    /// Sent, not answered, and still to land.
    pub flying: Option<Sent>,
    /// The newest incarnation that credentials were given for, and by which key.
    pub given: (Incarnation, Key),
    /// Something ran since memory was last retained.
    pub ran: bool,
}

/// What is left of compute that has ended and could not be removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Leftover {
    #[default]
    Nothing,
    /// No answer has told of it: the driver looks for remains before it starts anything.
    Untold,
    /// It is a debt, and the lifecycle's to respect: nothing may be started beside it.
    Told,
}

/// What a driver answers.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// What is so now.
    Done(Compute),
    /// Surely nothing happened.
    Refused,
    /// Nothing is there any more that could be suspended or restored.
    Missing,
    /// The artifact is not what was written.
    Damaged,
    /// Another's compute is in the way.
    Unknown,
}

impl World {
    pub fn compute(&self) -> Option<&Native> {
        self.computes.iter().flatten().next()
    }

    fn compute_mut(&mut self) -> Option<&mut Native> {
        self.computes.iter_mut().flatten().next()
    }

    /// The one that a supervisor runs in now.
    pub fn live_mut(&mut self) -> Option<&mut Native> {
        self.compute_mut().filter(|native| !native.frozen)
    }

    pub fn end_all(&mut self) {
        self.computes = [None, None];
    }

    pub fn observed(&self) -> Observed {
        match self.compute() {
            None => Observed::Absent,
            Some(native) if native.frozen => Observed::Frozen { held: native.held },
            Some(native) => Observed::Live { held: native.held },
        }
    }

    /// Carries out `sent`, at most once.
    pub fn carry_out(
        &mut self,
        sent: Sent,
        backend: Backend,
        flaw: Option<Flaw>,
    ) -> Result<Reply, Violation> {
        let fenced = flaw != Some(Flaw::DriverSkipsTheFence);
        if fenced && self.newest.is_some_and(|(newest, _)| sent.key < newest) {
            return Ok(Reply::Refused);
        }
        let again = self.newest == Some((sent.key, true));
        let reply = self.act(sent, again, backend)?;
        let done = again || matches!(reply, Reply::Done(_));
        if self.newest.is_none_or(|(newest, _)| newest <= sent.key) {
            self.newest = Some((sent.key, done));
        }
        Ok(reply)
    }

    /// A refusal settles its key: what of it is still on its way does not happen.
    pub fn refuse(&mut self, key: Key) {
        for artifact in &mut self.artifacts {
            if artifact.health == Health::KnownDamaged {
                artifact.health = Health::Damaged;
            }
        }
        if self.newest.is_none_or(|(newest, _)| newest <= key) {
            self.newest = Some((key, true));
        }
    }

    /// The refusal was heard.
    pub fn tell_damage(&mut self) {
        for artifact in &mut self.artifacts {
            if artifact.health == Health::Damaged {
                artifact.health = Health::KnownDamaged;
            }
        }
    }

    fn act(&mut self, sent: Sent, again: bool, backend: Backend) -> Result<Reply, Violation> {
        match sent.effect {
            EffectKind::Create | EffectKind::Start if again => {
                let Some(native) = self
                    .computes
                    .iter()
                    .flatten()
                    .find(|it| it.made_by == sent.key)
                else {
                    return Ok(Reply::Refused);
                };
                return Ok(Reply::Done(Compute::Live { held: native.held }));
            }
            EffectKind::Create if self.storage => return Ok(Reply::Refused),
            EffectKind::Start if !self.storage => return Ok(Reply::Refused),
            EffectKind::Create | EffectKind::Start => {
                if self.compute().is_some() && backend == Backend::Fenced {
                    return Ok(Reply::Unknown);
                }
                self.storage = true;
                self.make(sent)?;
            }
            EffectKind::Suspend(Depth::Freeze) => {
                if let Some(native) = self.live_mut() {
                    let detached = native.detached;
                    native.frozen = true;
                    self.ran = false;
                    has_let_go(detached, sent)?;
                }
            }
            EffectKind::Suspend(Depth::Checkpoint) => return self.write(sent),
            EffectKind::Suspend(Depth::Stop) => self.end_all(),
            EffectKind::Resume(Depth::Checkpoint) => return self.restore(sent, again, backend),
            EffectKind::Resume(Depth::Freeze) => {
                if self.compute().is_none() {
                    return Ok(Reply::Missing);
                }
                self.give(sent)?;
                self.ran = true;
                if let Some(native) = self.compute_mut() {
                    native.frozen = false;
                }
            }
            EffectKind::Reattach => {
                if self.compute().is_none() {
                    return Ok(Reply::Refused);
                }
                self.give(sent)?;
            }
            EffectKind::Delete => {
                self.end_all();
                self.leftover = Leftover::Nothing;
                self.artifacts.clear();
                self.storage = false;
            }
            // That is a start.
            EffectKind::Resume(Depth::Stop) => return Ok(Reply::Refused),
        }
        Ok(Reply::Done(self.observed().compute()))
    }

    /// Its memory goes to disk and its compute ends, in this order and at once.
    fn write(&mut self, sent: Sent) -> Result<Reply, Violation> {
        let Some(native) = self.compute().copied() else {
            let written = (self.artifacts.iter())
                .any(|it| it.written_by == sent.key && it.health == Health::Whole);
            return Ok(if written {
                Reply::Done(Compute::Absent)
            } else {
                Reply::Missing
            });
        };
        // What is frozen had let go, and dials nobody.
        has_let_go(native.detached || native.frozen, sent)?;
        self.artifacts.retain(|it| it.written_by != sent.key);
        self.artifacts.push(Artifact {
            written_by: sent.key,
            native,
            health: Health::Whole,
        });
        self.end_all();
        self.ran = false;
        Ok(Reply::Done(Compute::Absent))
    }

    fn restore(&mut self, sent: Sent, again: bool, backend: Backend) -> Result<Reply, Violation> {
        if again {
            // Not twice: what has ended since is gone.
            let mine = (self.compute()).filter(|native| native.restored_by == Some(sent.key));
            return Ok(match mine {
                Some(native) => Reply::Done(Compute::Live { held: native.held }),
                None => Reply::Missing,
            });
        }
        let mut artifacts = self.artifacts.iter();
        let Some(artifact) = artifacts.find(|it| Some(it.written_by) == sent.artifact) else {
            return Ok(Reply::Missing);
        };
        match artifact.health {
            Health::Whole => {}
            Health::Damaged | Health::KnownDamaged => return Ok(Reply::Damaged),
        }
        let native = artifact.native;
        if self.compute().is_some() && backend == Backend::Fenced {
            return Ok(Reply::Unknown);
        }
        if self.ran {
            return Err(Invariant::ConsumedStaysConsumed
                .broken("memory is restored, and something ran since it was written"));
        }
        self.install(
            sent,
            Native {
                restored_by: Some(sent.key),
                held: sent.incarnation,
                credentials: sent.incarnation,
                frozen: false,
                detached: false,
                ..native
            },
        )?;
        Ok(Reply::Done(Compute::Live {
            held: sent.incarnation,
        }))
    }

    fn install(&mut self, sent: Sent, native: Native) -> Result<(), Violation> {
        if self.compute().is_some() || self.leftover == Leftover::Told {
            return Err(Invariant::OneLiveCompute
                .broken(format!("{} makes a second compute", sent.effect.as_str())));
        }
        self.note_given(sent)?;
        self.ran = true;
        self.leftover = Leftover::Nothing;
        self.computes[0] = Some(native);
        Ok(())
    }

    fn make(&mut self, sent: Sent) -> Result<(), Violation> {
        let native = Native {
            made_by: sent.key,
            restored_by: None,
            held: sent.incarnation,
            credentials: sent.incarnation,
            frozen: false,
            quiesced: false,
            detached: false,
            terminated: false,
            main_started: false,
        };
        self.install(sent, native)
    }

    fn give(&mut self, sent: Sent) -> Result<(), Violation> {
        self.note_given(sent)?;
        if let Some(native) = self.compute_mut() {
            native.credentials = sent.incarnation;
            native.detached = false;
        }
        Ok(())
    }

    /// An incarnation belongs to the effect that it was first given for, and is never given again.
    fn note_given(&mut self, sent: Sent) -> Result<(), Violation> {
        let (newest, by) = self.given;
        if sent.incarnation < newest
            || (sent.incarnation == newest && by != sent.key && !sent.undoing)
        {
            return Err(Invariant::IncarnationsAreNew.broken(format!(
                "{} gives incarnation {} again",
                sent.effect.as_str(),
                sent.incarnation
            )));
        }
        self.given = (sent.incarnation, sent.key);
        Ok(())
    }
}

/// With the connection of its supervisor open, memory cannot be written, and what was sent over it
/// would be lost.
fn has_let_go(detached: bool, sent: Sent) -> Result<(), Violation> {
    if detached {
        return Ok(());
    }
    let how = format!("{} of what is connected", sent.effect.as_str());
    Err(Invariant::SleepersHaveLetGo.broken(how))
}
