//! What each effect does, all at once: waiting and losing is the driver's part.

use std::cmp::Ordering;
use std::sync::Arc;

use overwinter_lifecycle::ids::{EffectKey, Incarnation};

use super::guest::{Guest, Run};
use super::seen::{Landing, Looked, Violation};
use super::storage::Storage;
use super::world::{Artifact, Executed, Native, SimWorld, State};
use crate::attach::Credentials;
use crate::error::{DriverError, Unusable};
use crate::testkit::fault::{CallKind, Late};
use crate::types::{
    Changed, ComputeSpec, Debt, DebtKind, Depth, DriverReference, EffectContext, Effected,
};

const FORMAT: u32 = 1;

/// An effect with all that it needs, so that it can also happen later.
#[derive(Clone, Debug)]
pub(super) enum Effect {
    Create(ComputeSpec, Credentials),
    Start(ComputeSpec, Credentials),
    Suspend(Depth),
    Resume(Depth, DriverReference, Credentials),
    Reattach(Credentials),
    Delete,
}

/// What is so now, and whose agent is to present itself.
pub(super) struct Applied {
    pub(super) effected: Effected,
    pub(super) present: Option<Arc<Guest>>,
}

impl Effect {
    pub(super) const fn kind(&self) -> CallKind {
        match self {
            Self::Create(..) => CallKind::Create,
            Self::Start(..) => CallKind::Start,
            Self::Suspend(_) => CallKind::Suspend,
            Self::Resume(..) => CallKind::Resume,
            Self::Reattach(_) => CallKind::Reattach,
            Self::Delete => CallKind::Delete,
        }
    }

    const fn depth(&self) -> Option<Depth> {
        match self {
            Self::Suspend(depth) | Self::Resume(depth, ..) => Some(*depth),
            Self::Create(..) | Self::Start(..) | Self::Reattach(_) | Self::Delete => None,
        }
    }

    /// # Errors
    /// `Unsupported`, before anything is counted or waited for.
    pub(super) fn check(&self, world: &SimWorld) -> Result<(), DriverError> {
        match self.depth() {
            Some(depth) if world.config.mode(depth).is_none() => {
                Err(DriverError::Unsupported(format!("suspending at {depth}")))
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// Carries it out, at most once.
pub(super) fn apply(
    world: &Arc<SimWorld>,
    state: &mut State,
    ctx: &EffectContext,
    effect: &Effect,
    late: Option<Late>,
) -> Result<Applied, DriverError> {
    let fenced = late != Some(Late::Unfenced);
    let newest = state.newest;
    if late.is_some() {
        world.landed(ctx.sandbox(), landing(state, ctx.key));
    }
    if !fenced {
        world.tested(Looked::Unfenced);
    }
    let overtaken = newest.is_some_and(|newest| ctx.key < newest.key);
    if fenced && overtaken {
        return Err(DriverError::Fenced);
    }
    // What has come meanwhile was to wait for as long as this one could.
    if overtaken && newest.is_some_and(|newest| newest.kind != effect.kind()) {
        world.violate(Violation::Overtaken(ctx.key));
    }
    // Only a sandbox of an earlier life has storage before its first effect here.
    if newest.is_none() && world.config.presume_storage && !matches!(effect, Effect::Create(..)) {
        state.storage = Some(Arc::new(Storage::new(Incarnation(0))));
    }
    // What compares no keys does not know what it has done.
    let again = fenced && newest.is_some_and(|newest| newest.key == ctx.key && newest.done);
    // Nobody is given credentials once more by what was done already.
    if again && late == Some(Late::Fenced) {
        return Err(DriverError::Fenced);
    }
    state.before = Some(world.observation(state));
    let mut hand = Hand {
        world,
        state,
        key: ctx.key,
        incarnation: ctx.incarnation,
        again,
        late,
    };
    let result = hand.carry_out(effect);
    let done = result.is_ok() || again;
    if newest.is_none_or(|newest| newest.key <= ctx.key) {
        let (key, kind) = (ctx.key, effect.kind());
        state.newest = Some(Executed { key, kind, done });
    }
    result
}

fn landing(state: &State, key: EffectKey) -> Landing {
    match state
        .newest
        .map(|newest| (newest.key.cmp(&key), newest.done))
    {
        Some((Ordering::Greater, _)) if state.storage.is_none() => Landing::AfterDelete,
        Some((Ordering::Greater, _)) => Landing::AfterNewer,
        Some((Ordering::Equal, true)) => Landing::AfterRetry,
        Some((Ordering::Equal, false) | (Ordering::Less, _)) | None => Landing::First,
    }
}

struct Hand<'a> {
    world: &'a Arc<SimWorld>,
    state: &'a mut State,
    key: EffectKey,
    incarnation: Incarnation,
    /// This key was carried out already.
    again: bool,
    late: Option<Late>,
}

impl Hand<'_> {
    fn carry_out(&mut self, effect: &Effect) -> Result<Applied, DriverError> {
        match effect {
            Effect::Create(spec, credentials) => self.create(spec, credentials),
            Effect::Start(spec, credentials) => self.start(spec, credentials),
            Effect::Suspend(Depth::Freeze) => Ok(self.freeze()),
            Effect::Suspend(Depth::Checkpoint) => self.checkpoint(),
            Effect::Suspend(Depth::Stop) => Ok(self.stop()),
            Effect::Resume(Depth::Freeze, _, credentials) => self.thaw(credentials),
            Effect::Resume(Depth::Checkpoint, reference, credentials) => {
                self.restore(reference, credentials)
            }
            Effect::Resume(Depth::Stop, ..) => Err(DriverError::Unsupported(
                "a resume from storage alone: that is a start".to_owned(),
            )),
            Effect::Reattach(credentials) => self.reattach(credentials),
            Effect::Delete => Ok(self.delete()),
        }
    }

    /// What is so now.
    fn now(&self) -> Effected {
        Effected {
            compute: self.state.observed().compute(),
            reference: DriverReference::default(),
            size_bytes: 0,
            leftovers: Vec::new(),
            remarks: Vec::new(),
            reclaimed: None,
        }
    }

    fn done(&self) -> Applied {
        Applied {
            effected: self.now(),
            present: None,
        }
    }

    fn create(
        &mut self,
        spec: &ComputeSpec,
        credentials: &Credentials,
    ) -> Result<Applied, DriverError> {
        if self.again {
            let live = self.still_there(credentials);
            if live.is_err() {
                self.drop_storage();
            }
            return live;
        }
        self.check_image(spec)?;
        if self.state.storage.is_some() && self.late != Some(Late::Unfenced) {
            return Err(DriverError::Rejected("its storage is there".to_owned()));
        }
        self.drop_storage();
        let storage = Arc::new(Storage::new(self.incarnation));
        self.state.storage = Some(storage.clone());
        self.new_compute(storage, credentials)
    }

    fn start(
        &mut self,
        spec: &ComputeSpec,
        credentials: &Credentials,
    ) -> Result<Applied, DriverError> {
        if self.again {
            return self.still_there(credentials);
        }
        self.check_image(spec)?;
        let storage = self.storage()?;
        self.leave_artifact();
        self.new_compute(storage, credentials)
    }

    /// This key's compute, started before. It is not started twice: what has ended since is gone.
    fn still_there(&self, credentials: &Credentials) -> Result<Applied, DriverError> {
        match &self.state.compute {
            Some(native) if native.name == self.key.native_name() => {
                Ok(self.with_credentials(&native.guest, credentials))
            }
            Some(_) | None => Err(DriverError::Missing(
                "the compute that this effect made has ended".to_owned(),
            )),
        }
    }

    fn check_image(&self, spec: &ComputeSpec) -> Result<(), DriverError> {
        if self.world.has_image(&spec.image.image) {
            Ok(())
        } else {
            Err(DriverError::Missing(format!(
                "no image {}",
                spec.image.image
            )))
        }
    }

    fn storage(&self) -> Result<Arc<Storage>, DriverError> {
        let storage = self.state.storage.clone();
        storage.ok_or_else(|| DriverError::Missing("its storage is not there".to_owned()))
    }

    fn new_compute(
        &mut self,
        storage: Arc<Storage>,
        credentials: &Credentials,
    ) -> Result<Applied, DriverError> {
        self.make_room()?;
        storage.tree().generation = self.incarnation;
        let guest = Guest::new(self.world, self.key.sandbox, storage, credentials);
        self.install(guest.clone());
        Ok(Applied {
            effected: self.now(),
            present: Some(guest),
        })
    }

    /// No second compute, ever.
    fn make_room(&mut self) -> Result<(), DriverError> {
        self.world.tested(Looked::Start);
        let Some(native) = &self.state.compute else {
            return Ok(());
        };
        let unfenced = self.late == Some(Late::Unfenced);
        if unfenced || self.world.config.second_is_violation {
            self.world.violate(Violation::TwoLive(self.key.sandbox));
        }
        if unfenced {
            // A backend that does whatever arrives does this as well.
            native.guest.end();
            self.state.compute = None;
            return Ok(());
        }
        // Not a refusal: that would say that no compute is there.
        Err(DriverError::Unknown(
            "compute of an earlier effect is there".to_owned(),
        ))
    }

    fn install(&mut self, guest: Arc<Guest>) {
        // What compares no keys gives a name again when its compute has ended.
        if self.late != Some(Late::Unfenced) {
            self.world.name_given(self.key);
        }
        self.state.compute = Some(Native {
            name: self.key.native_name(),
            held: self.incarnation,
            guest,
        });
    }

    fn with_credentials(&self, guest: &Arc<Guest>, credentials: &Credentials) -> Applied {
        // Under the tree's lock: no write may see the one without the other.
        let mut tree = guest.storage.tree();
        let presents = guest.give(credentials, self.world.config.seed);
        tree.generation = credentials.incarnation;
        drop(tree);
        Applied {
            effected: self.now(),
            present: presents.then(|| guest.clone()),
        }
    }

    fn freeze(&self) -> Applied {
        if let Some(native) = &self.state.compute
            && native.guest.is_running()
            && !self.again
        {
            native.guest.freeze();
        }
        self.done()
    }

    fn thaw(&self, credentials: &Credentials) -> Result<Applied, DriverError> {
        let Some(native) = &self.state.compute else {
            return Err(DriverError::Missing(
                "the frozen compute is gone".to_owned(),
            ));
        };
        let guest = &native.guest;
        // The credentials are in place before anything runs.
        let mut applied = self.with_credentials(guest, credentials);
        guest.thaw(credentials.incarnation);
        applied.effected = self.now();
        Ok(applied)
    }

    fn reattach(&self, credentials: &Credentials) -> Result<Applied, DriverError> {
        match &self.state.compute {
            None => Err(DriverError::Missing("no compute is there".to_owned())),
            Some(native) => match native.guest.state() {
                Run::Running => Ok(self.with_credentials(&native.guest, credentials)),
                Run::Frozen => Err(DriverError::Rejected("it is frozen".to_owned())),
                Run::Ended => Err(DriverError::Missing("no compute is there".to_owned())),
            },
        }
    }

    fn checkpoint(&mut self) -> Result<Applied, DriverError> {
        if let Some(native) = self.state.compute.take() {
            let artifact = Artifact {
                name: self.key.native_name(),
                generation: native.guest.generation(),
                guest: native.guest.clone(),
                consumed: false,
                damaged: false,
            };
            if native.guest.is_running() {
                native.guest.freeze();
            }
            self.leave_artifact();
            self.state.artifacts.push(artifact);
            self.ended(&native);
            let mut applied = self.done();
            applied.effected.reference = self.reference();
            applied.effected.size_bytes = native.guest.storage.bytes().max(4096);
            return Ok(applied);
        }
        let name = self.key.native_name();
        let written = self.state.artifacts.iter().find(|it| it.name == name);
        let Some(artifact) = written else {
            return Err(DriverError::Missing("no compute is there".to_owned()));
        };
        let size_bytes = artifact.guest.storage.bytes().max(4096);
        let mut applied = self.done();
        applied.effected.reference = self.reference();
        applied.effected.size_bytes = size_bytes;
        Ok(applied)
    }

    fn reference(&self) -> DriverReference {
        DriverReference {
            driver: self.world.config.name.clone(),
            format: FORMAT,
            location: String::new(),
            data: self.key.native_name().into_bytes(),
        }
    }

    fn restore(
        &mut self,
        reference: &DriverReference,
        credentials: &Credentials,
    ) -> Result<Applied, DriverError> {
        if self.again {
            return self.still_there(credentials);
        }
        let missing = || DriverError::Missing("the artifact is gone".to_owned());
        if reference.format != FORMAT || reference.driver != self.world.config.name {
            return Err(DriverError::Unusable {
                why: Unusable::Foreign,
                message: "another driver wrote the artifact".to_owned(),
            });
        }
        let mut artifacts = self.state.artifacts.iter();
        let artifact = artifacts.find(|it| it.name.as_bytes() == reference.data);
        let artifact = artifact.cloned().ok_or_else(missing)?;
        if artifact.damaged {
            return Err(DriverError::Unusable {
                why: Unusable::Damaged,
                message: "the artifact is damaged".to_owned(),
            });
        }
        let storage = self.storage()?;
        if artifact.consumed || storage.tree().generation != artifact.generation {
            return Err(DriverError::Unusable {
                why: Unusable::Stale,
                message: "the artifact is of another state of the disk".to_owned(),
            });
        }
        self.make_room()?;
        self.install(artifact.guest.clone());
        let mut applied = self.with_credentials(&artifact.guest, credentials);
        artifact.guest.thaw(credentials.incarnation);
        self.leave_artifact();
        applied.effected = self.now();
        Ok(applied)
    }

    fn stop(&mut self) -> Applied {
        if let Some(native) = self.state.compute.take() {
            native.guest.end();
            self.ended(&native);
        }
        let keeps_root = self.world.config.mode(Depth::Stop);
        if let (Some(storage), Some(false)) = (
            &self.state.storage,
            keeps_root.map(|mode| mode.preserves.root),
        ) {
            storage.lose_root();
        }
        self.leave_artifact();
        self.done()
    }

    fn delete(&mut self) -> Applied {
        if let Some(native) = self.state.compute.take() {
            native.guest.end();
            self.ended(&native);
        }
        for artifact in self.state.artifacts.drain(..) {
            artifact.guest.end();
        }
        self.drop_storage();
        self.done()
    }

    fn ended(&self, native: &Native) {
        self.world.changed(Changed {
            sandbox: self.key.sandbox,
            held: native.held,
        });
    }

    fn drop_storage(&mut self) {
        if let Some(storage) = self.state.storage.take() {
            storage.tree().gone = true;
        }
    }

    /// What was written of its memory is of no more use. Its bytes stay until they are discarded.
    fn leave_artifact(&mut self) {
        for artifact in &mut self.state.artifacts {
            artifact.consumed = true;
        }
    }
}

/// Removes exactly what is named.
pub(super) fn discard(world: &SimWorld, state: &mut State, debt: &Debt) {
    match debt.kind {
        DebtKind::Artifact => {
            state.artifacts.retain(|it| it.name != debt.reference);
        }
        DebtKind::Compute => {
            if let Some(native) = state.compute.take_if(|it| it.name == debt.reference) {
                native.guest.end();
                world.changed(Changed {
                    sandbox: debt.key.sandbox,
                    held: native.held,
                });
            }
        }
        DebtKind::Storage => {
            if debt.reference == debt.key.sandbox.to_string()
                && let Some(storage) = state.storage.take()
            {
                storage.tree().gone = true;
            }
        }
    }
}
