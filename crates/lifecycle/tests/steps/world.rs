//! What is really there: storage, compute, memory on disk. It keeps a driver's contract (`crates/driver`)
//! and no more, and panics where it is asked for what must never be asked of it.

use overwinter_lifecycle::Depth;
use overwinter_lifecycle::ids::{DiskGeneration, EffectKey, Incarnation};
use overwinter_lifecycle::operation::EffectKind;
use overwinter_lifecycle::record::{Compute, DebtKind};
use overwinter_lifecycle::recording::SecretHash;
use overwinter_lifecycle::steps::Observed;

/// An effect as it is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(crate) effect: EffectKind,
    pub(crate) key: EffectKey,
    /// What it gives credentials for.
    pub(crate) issued: Incarnation,
    /// A suspend that is undone gives the same incarnation its credentials again.
    pub(crate) undoing: bool,
    pub(crate) generation: DiskGeneration,
    /// What the record says that its memory was written by.
    pub(crate) artifact: Option<EffectKey>,
}

/// What a driver answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// What is so now is to be seen.
    Done,
    /// Surely nothing happened.
    Refused,
    /// Nothing is there any more that could be written or restored.
    Missing,
    /// What is on disk is not what was written.
    Damaged,
}

/// One compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Native {
    /// The effect that made its memory, however often that was restored since.
    pub(crate) made_by: EffectKey,
    pub(crate) restored_by: Option<EffectKey>,
    pub(crate) held: Incarnation,
    pub(crate) credentials: Incarnation,
    pub(crate) frozen: bool,
    /// Its supervisor refuses new work.
    pub(crate) quiesced: bool,
    /// Its supervisor has let go, and waits for new credentials.
    pub(crate) detached: bool,
    pub(crate) terminated: bool,
    /// Its main process was asked for.
    pub(crate) main: bool,
    /// It was Ready since it was made.
    pub(crate) was_ready: bool,
}

impl Native {
    /// What its supervisor proves itself with: of its memory.
    pub(crate) fn secret(&self) -> SecretHash {
        let mut hash = [0; 32];
        hash[..8].copy_from_slice(&self.made_by.fence.0.to_le_bytes());
        hash[8..16].copy_from_slice(&self.made_by.serial.0.to_le_bytes());
        SecretHash(hash)
    }
}

/// Memory on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Artifact {
    pub(crate) key: EffectKey,
    pub(crate) native: Native,
    /// How often something had begun to run when it was written.
    pub(crate) ran: u64,
    pub(crate) health: Health,
    /// It was restored: what is on the disk is not what it belongs to any more.
    pub(crate) restored: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    Whole,
    Damaged,
}

/// What is left of compute that has ended and could not be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Remains {
    pub(crate) key: EffectKey,
    /// It is a debt. Until then the driver removes it itself before it starts anything.
    pub(crate) told: bool,
}

#[derive(Debug, Default)]
pub(crate) struct World {
    pub(crate) storage: bool,
    pub(crate) compute: Option<Native>,
    pub(crate) artifacts: Vec<Artifact>,
    pub(crate) remains: Option<Remains>,
    /// The newest effect, and whether it was carried out.
    newest: Option<(EffectKey, EffectKind, bool)>,
    /// The newest incarnation that credentials were given for, and by which effect.
    given: Option<(Incarnation, EffectKey)>,
    /// How often something has begun to run, and on which state of the disk last.
    ran: u64,
    ran_on: Option<(DiskGeneration, EffectKey)>,
    pub(crate) abandoned: bool,
}

impl World {
    pub(crate) fn observed(&self) -> Observed {
        match self.compute {
            None => Observed::Absent,
            Some(native) if native.frozen => Observed::Frozen { held: native.held },
            Some(native) => Observed::Live { held: native.held },
        }
    }

    pub(crate) fn compute(&self) -> Compute {
        self.observed().compute()
    }

    pub(crate) fn live(&mut self) -> Option<&mut Native> {
        self.compute.as_mut().filter(|native| !native.frozen)
    }

    pub(crate) fn artifact(&self, key: EffectKey) -> Option<&Artifact> {
        self.artifacts.iter().find(|artifact| artifact.key == key)
    }

    /// Whether nothing has run since it was written.
    pub(crate) const fn is_untouched(&self, artifact: &Artifact) -> bool {
        !artifact.restored && artifact.ran == self.ran
    }

    pub(crate) fn is_done(&self, key: EffectKey) -> bool {
        self.newest
            .is_some_and(|(newest, _, done)| newest == key && done)
    }

    /// A request has arrived. Its key is the newest, or the same effect once more.
    pub(crate) fn arrived(&mut self, sent: Sent) {
        if let Some((newest, effect, _)) = self.newest {
            let fits = sent.key > newest || (sent.key == newest && sent.effect == effect);
            assert!(fits, "{sent:?} comes after {effect:?} of {newest:?}");
        }
        let done = self.is_done(sent.key);
        self.newest = Some((sent.key, sent.effect, done));
    }

    /// Carries it out, at most once.
    pub(crate) fn carry_out(&mut self, sent: Sent) -> Reply {
        self.arrived(sent);
        let again = self.is_done(sent.key);
        let reply = self.act(sent, again);
        self.newest = Some((sent.key, sent.effect, again || reply == Reply::Done));
        reply
    }

    fn act(&mut self, sent: Sent, again: bool) -> Reply {
        match sent.effect {
            // One key makes one compute, and no second one where that has ended.
            EffectKind::Create | EffectKind::Start if again => match self.compute {
                Some(native) if native.made_by == sent.key => Reply::Done,
                Some(_) | None => Reply::Refused,
            },
            EffectKind::Create | EffectKind::Start => {
                assert_eq!(self.storage, sent.effect == EffectKind::Start, "{sent:?}");
                self.storage = true;
                self.install(
                    sent,
                    Native {
                        made_by: sent.key,
                        restored_by: None,
                        held: sent.issued,
                        credentials: sent.issued,
                        frozen: false,
                        quiesced: false,
                        detached: false,
                        terminated: false,
                        main: false,
                        was_ready: false,
                    },
                )
            }
            EffectKind::Suspend(Depth::Freeze) => {
                if let Some(native) = self.live() {
                    assert!(native.detached, "{sent:?} of what is connected");
                    native.frozen = true;
                }
                Reply::Done
            }
            EffectKind::Suspend(Depth::Checkpoint) => self.write(sent),
            EffectKind::Suspend(Depth::Stop) => {
                self.compute = None;
                Reply::Done
            }
            EffectKind::Resume(Depth::Checkpoint) => self.restore(sent, again),
            EffectKind::Resume(Depth::Freeze) => {
                let Some(native) = self.compute else {
                    return Reply::Missing;
                };
                self.give(sent);
                if native.frozen {
                    self.runs(sent);
                }
                self.compute.as_mut().expect("it is there").frozen = false;
                Reply::Done
            }
            EffectKind::Reattach => {
                if self.compute.is_none() {
                    return Reply::Refused;
                }
                self.give(sent);
                Reply::Done
            }
            EffectKind::Delete => {
                self.storage = false;
                self.compute = None;
                self.artifacts.clear();
                self.remains = None;
                Reply::Done
            }
            EffectKind::Resume(Depth::Stop) => panic!("that is a start"),
        }
    }

    /// Its memory goes to disk and its compute ends, in this order and at once.
    fn write(&mut self, sent: Sent) -> Reply {
        let Some(native) = self.compute else {
            return match self.artifact(sent.key) {
                Some(_) => Reply::Done,
                None => Reply::Missing,
            };
        };
        let has_let_go = native.detached || native.frozen;
        assert!(has_let_go, "{sent:?} of what is connected");
        self.artifacts.retain(|artifact| artifact.key != sent.key);
        self.artifacts.push(Artifact {
            key: sent.key,
            native,
            ran: self.ran,
            health: Health::Whole,
            restored: false,
        });
        self.compute = None;
        Reply::Done
    }

    fn restore(&mut self, sent: Sent, again: bool) -> Reply {
        if again {
            // Not twice: what has ended since is gone.
            return match self.compute {
                Some(native) if native.restored_by == Some(sent.key) => Reply::Done,
                Some(_) | None => Reply::Missing,
            };
        }
        let ran = self.ran;
        let mut artifacts = self.artifacts.iter_mut();
        let named = |artifact: &&mut Artifact| Some(artifact.key) == sent.artifact;
        let Some(artifact) = artifacts.find(named) else {
            return Reply::Missing;
        };
        match artifact.health {
            Health::Whole => {}
            Health::Damaged => return Reply::Damaged,
        }
        let fresh = !artifact.restored && artifact.ran == ran;
        assert!(fresh, "{sent:?} of memory that something ran on");
        artifact.restored = true;
        let native = Native {
            restored_by: Some(sent.key),
            held: sent.issued,
            credentials: sent.issued,
            frozen: false,
            detached: false,
            ..artifact.native
        };
        self.install(sent, native)
    }

    fn install(&mut self, sent: Sent, native: Native) -> Reply {
        assert_eq!(self.compute, None, "{sent:?} makes a second compute");
        let owed = self.remains.is_some_and(|remains| remains.told);
        assert!(!owed, "{sent:?} beside what is still to be removed");
        self.remains = None;
        self.give(sent);
        self.runs(sent);
        self.compute = Some(native);
        Reply::Done
    }

    /// The disk is another from here on, and has another number.
    fn runs(&mut self, sent: Sent) {
        if let Some((generation, _)) = self.ran_on {
            assert!(
                sent.generation > generation,
                "{sent:?} runs on {generation}"
            );
        }
        self.ran += 1;
        self.ran_on = Some((sent.generation, sent.key));
    }

    /// An incarnation belongs to the effect that it was first given for.
    fn give(&mut self, sent: Sent) {
        if let Some((newest, by)) = self.given {
            let is_its_own = sent.issued == newest && (by == sent.key || sent.undoing);
            let fits = sent.issued > newest || is_its_own;
            assert!(fits, "{sent:?} gives the incarnation of {by:?} again");
        }
        self.given = Some((sent.issued, sent.key));
        if let Some(native) = &mut self.compute {
            native.credentials = sent.issued;
            native.detached = false;
        }
    }

    /// Something happens to what is on disk.
    pub(crate) fn damage(&mut self) {
        for artifact in &mut self.artifacts {
            artifact.health = Health::Damaged;
        }
    }

    pub(crate) fn pay(&mut self, key: EffectKey, kind: DebtKind) {
        match kind {
            DebtKind::Compute => self.remains = self.remains.filter(|it| it.key != key),
            DebtKind::Artifact => self.artifacts.retain(|it| it.key != key),
            DebtKind::Storage => self.storage = false,
        }
    }
}
