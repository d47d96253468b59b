//! The API: the services of `proto/overwinter/v1`, in the core's terms.
//!
//! | module | its one idea |
//! |---|---|
//! | [`sandboxes`] | the verbs |
//! | `records` | reading records, updating what is no lifecycle |
//! | [`operations`], [`processes`], [`files`], [`gateway`] | the other services |
//! | `checks` | what may be asked for |
//! | [`convert`] | records as messages |
//! | [`error`] | errors with a code, a reason and what to do next |

mod checks;
pub mod convert;
pub mod error;
pub mod files;
pub mod gateway;
mod modes;
pub mod operations;
pub mod processes;
mod records;
pub mod sandboxes;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use overwinter_api::v1;
use overwinter_driver::AgentError;
use overwinter_driver::agent::AgentResult;
use overwinter_lifecycle::Name;
use overwinter_lifecycle::ids::{OperationId, SandboxId};
use overwinter_lifecycle::operation::{Operation, Step};
use overwinter_lifecycle::record::Sandbox;
use uuid::Uuid;

pub use error::ApiError;

use crate::dataplane::admit::Target;
use crate::reconciler::Reconciler;

/// The only tenant until there are accounts; every record and look-up names it already.
pub const TENANT: &str = "default";

/// What every service shares. Cheap to clone.
#[derive(Clone)]
pub struct Api {
    pub reconciler: Reconciler,
    draining: Arc<AtomicBool>,
}

impl Api {
    #[must_use]
    pub fn new(reconciler: Reconciler) -> Self {
        Self {
            reconciler,
            draining: Arc::default(),
        }
    }

    /// # Errors
    /// While draining, nothing new is taken.
    pub fn check_admission(&self) -> Result<(), ApiError> {
        if self.is_draining() {
            Err(ApiError::draining())
        } else {
            Ok(())
        }
    }

    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    pub fn start_draining(&self) {
        self.draining.store(true, Ordering::Release);
    }

    pub(crate) fn target(by: Option<v1::SandboxRef>) -> Result<(Target, String), ApiError> {
        match by.and_then(|reference| reference.by) {
            Some(v1::sandbox_ref::By::Id(id)) => {
                let target = Uuid::parse_str(&id).map(SandboxId).map(Target::Id);
                Ok((target.map_err(|_| ApiError::no_such_sandbox(&id))?, id))
            }
            Some(v1::sandbox_ref::By::Name(name)) => {
                let target = Name::parse(&name).map(Target::Name);
                Ok((target.map_err(|_| ApiError::no_such_sandbox(&name))?, name))
            }
            None => Err(ApiError::invalid("sandbox: neither id nor name is given")),
        }
    }

    /// The record that a request names; a tombstone only by its id.
    pub(crate) async fn sandbox(&self, by: Option<v1::SandboxRef>) -> Result<Sandbox, ApiError> {
        let (target, named) = Self::target(by)?;
        self.reconciler
            .resolve(TENANT, &target)
            .await?
            .ok_or_else(|| ApiError::no_such_sandbox(&named))
    }

    /// The same, without a look at the store where it is awake.
    pub(crate) async fn awake(
        &self,
        by: Option<v1::SandboxRef>,
    ) -> Result<(Option<Arc<crate::sessions::Slot>>, SandboxId), ApiError> {
        let (target, named) = Self::target(by)?;
        let hub = &self.reconciler.hub;
        let slot = match &target {
            Target::Id(id) => hub.find(*id),
            Target::Name(name) => hub.find_by_name(name.as_str()),
        };
        if let Some(slot) = slot.filter(|slot| slot.gate_is_open()) {
            let id = slot.id;
            return Ok((Some(slot), id));
        }
        let sandbox = self
            .reconciler
            .resolve(TENANT, &target)
            .await?
            .ok_or_else(|| ApiError::no_such_sandbox(&named))?;
        Ok((None, sandbox.id))
    }

    /// A call of a supervisor whose answer comes at once: one that does not answer is told, and not
    /// waited for without end.
    pub(crate) async fn asked<T>(
        &self,
        call: impl Future<Output = AgentResult<T>>,
    ) -> Result<T, ApiError> {
        self.asked_within(self.patience(), call).await
    }

    /// For one call of a supervisor.
    pub(crate) fn patience(&self) -> Duration {
        Duration::from_millis(self.reconciler.deadlines.agent_ms)
    }

    pub(crate) async fn asked_within<T>(
        &self,
        patience: Duration,
        call: impl Future<Output = AgentResult<T>>,
    ) -> Result<T, ApiError> {
        match self.reconciler.ports.within(patience, call).await {
            Ok(answer) => Ok(answer?),
            Err(_) => Err(AgentError::TimedOut.into()),
        }
    }

    /// Waits for an operation's end, at most so long; then as it stands.
    pub(crate) async fn wait(
        &self,
        operation: Operation,
        time: Duration,
    ) -> Result<Operation, ApiError> {
        if operation.step == Step::Ended || time.is_zero() {
            return Ok(operation);
        }
        let id = operation.id;
        let ended = self.reconciler.waiters.wait(id);
        // It may have ended before anybody waited.
        let now = self.operation(id).await?.unwrap_or(operation);
        if now.step == Step::Ended {
            self.reconciler.waiters.forget(id);
            return Ok(now);
        }
        match self.reconciler.ports.within(time, ended).await {
            Ok(Ok(operation)) => Ok(Arc::unwrap_or_clone(operation)),
            Ok(Err(_)) | Err(_) => {
                self.reconciler.waiters.forget(id);
                Ok(self.operation(id).await?.unwrap_or(now))
            }
        }
    }

    pub(crate) async fn operation(&self, id: OperationId) -> Result<Option<Operation>, ApiError> {
        Ok(self.reconciler.store.operation(id).await?)
    }
}
