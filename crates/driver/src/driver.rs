//! The trait.
//!
//! **At most once.** An effect comes with its [`EffectKey`](crate::EffectContext::key), whose receipt
//! is durable before the call. A driver carries out one key at most once and refuses smaller ones
//! with [`DriverError::Fenced`]. Called again with the newest key, it first looks at what the earlier
//! call left, and goes on from there: what is done is not done twice.
//!
//! **One at a time.** A driver holds a per-sandbox lock over each effect whose descriptor every
//! runtime subprocess inherits, so that after the gateway's death the effect is over exactly when
//! the lock is free. [`Driver::recover`] takes it before anything else is asked.

use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;
use overwinter_lifecycle::ids::SandboxId;
use tokio::sync::watch;

use crate::attach::Credentials;
use crate::error::DriverError;
use crate::types::{
    Changed, ComputeSpec, Debt, Depth, Description, DriverReference, EffectContext, Effected,
    Found, ImageProgress, Observation, PinnedImage,
};

/// An adapter to one backend. Provided methods answer `Unsupported`, so that a new one breaks no
/// implementor.
#[async_trait]
pub trait Driver: Send + Sync + 'static {
    /// What it is and can do, found out now.
    async fn describe(&self) -> Description;

    /// Resolves an image to what it is now, and to what it runs by itself. No effect on any sandbox; may fill a cache.
    ///
    /// # Errors
    /// `Missing` when it is not there, `Rejected` when it cannot be used.
    async fn pin(&self, image: &str) -> Result<PinnedImage, DriverError>;

    /// The same, and tells how it goes. Each value that is sent says that something has moved, and gives it
    /// time to go on; a future that is dropped ends the fetching. Without an own one nothing is told.
    ///
    /// # Errors
    /// As of [`Self::pin`].
    async fn pin_telling(
        &self,
        image: &str,
        _progress: &watch::Sender<ImageProgress>,
    ) -> Result<PinnedImage, DriverError> {
        self.pin(image).await
    }

    /// Whether a suspend at `depth` could be carried out now. No effect. Rejects while another effect
    /// of this sandbox is under way: the agent lets go after this, and whatever gave it new
    /// credentials then would bring it back.
    ///
    /// # Errors
    /// `Rejected` or `Unsupported` with the reason.
    async fn prepare(&self, sandbox: SandboxId, depth: Depth) -> Result<(), DriverError>;

    /// Makes storage and compute. The storage's first generation is `ctx.incarnation`'s.
    ///
    /// # Errors
    /// All but `Unknown` promise that no compute is there.
    async fn create(
        &self,
        ctx: &EffectContext,
        spec: &ComputeSpec,
        credentials: &Credentials,
    ) -> Result<Effected, DriverError>;

    /// Starts new compute on the storage that is there.
    ///
    /// # Errors
    /// All but `Unknown` promise that no compute is there.
    async fn start(
        &self,
        ctx: &EffectContext,
        spec: &ComputeSpec,
        credentials: &Credentials,
    ) -> Result<Effected, DriverError>;

    /// Releases compute as `depth` says; confirmed by looking. `stop` on compute that is frozen,
    /// partly made or not there at all ends in absence all the same, and syncs the storage.
    /// `checkpoint` on compute that is frozen runs no user code. The artifact's name is derived from
    /// the key, so that its caller can owe it (`Debt::artifact`) whether it was answered or not.
    ///
    /// # Errors
    /// All but `Unknown` promise that the compute is as it was. `Missing`: it is gone, and this key
    /// has written no artifact that is whole.
    async fn suspend(&self, ctx: &EffectContext, depth: Depth) -> Result<Effected, DriverError>;

    /// Brings back memory (`freeze`, `checkpoint`). The credentials are in place, and the socket is
    /// bound, before anything inside runs.
    ///
    /// # Errors
    /// All but `Unknown` and `Missing` promise that nothing ran. `Missing`: what held the memory is
    /// gone, or this key has restored it and what ran has ended. `Unusable`: an artifact that cannot
    /// be restored, and why.
    async fn resume(
        &self,
        ctx: &EffectContext,
        depth: Depth,
        reference: &DriverReference,
        credentials: &Credentials,
    ) -> Result<Effected, DriverError>;

    /// New credentials for live compute.
    ///
    /// # Errors
    /// `Missing` when no compute is there.
    async fn reattach(
        &self,
        ctx: &EffectContext,
        credentials: &Credentials,
    ) -> Result<Effected, DriverError>;

    /// Removes compute, storage, artifacts and secrets, in whatever state they are. Idempotent.
    ///
    /// # Errors
    /// Any; what is left is found by the next call.
    async fn delete(&self, ctx: &EffectContext) -> Result<Effected, DriverError>;

    /// Removes exactly what the debt names. Idempotent, and never fenced.
    ///
    /// # Errors
    /// Any; it is tried again.
    async fn discard(&self, debt: &Debt) -> Result<(), DriverError>;

    /// Looks. Never wakes anything.
    ///
    /// # Errors
    /// `Unknown` when it cannot be told now; absence is an answer, never an error.
    async fn observe(&self, sandbox: SandboxId) -> Result<Observation, DriverError>;

    /// Every compute there that carries a gateway's label.
    ///
    /// # Errors
    /// `Unknown` when the backend does not answer: that is not an empty list.
    async fn list(&self) -> Result<Vec<Found>, DriverError>;

    /// Ends and other changes as they happen. A hint: what is so, tells [`Self::observe`].
    fn watch(&self) -> BoxStream<'static, Changed>;

    /// After a restart of the gateway: takes the sandbox's lock, past `patience` kills its holder,
    /// and clears away what a half-done effect left that no observation would count. Then, for live
    /// compute, opens the way for its supervisor again.
    ///
    /// # Errors
    /// `Unknown` when the lock could not be had.
    async fn recover(&self, sandbox: SandboxId, patience: Duration) -> Result<(), DriverError>;

    /// Bytes of storage and artifacts, where that is cheap to know.
    ///
    /// # Errors
    /// `Unsupported` where it is not.
    async fn usage(&self, _sandbox: SandboxId) -> Result<u64, DriverError> {
        Err(DriverError::Unsupported(
            "the size of a sandbox's storage".to_owned(),
        ))
    }
}
