//! The suspend that idleness asks for. It runs the same steps as any other, and never cuts work: the
//! predicate is evaluated before it is accepted and again when no call can come in any more, and a
//! call that comes in between turns it back.

use overwinter_lifecycle::Depth;
use overwinter_lifecycle::admission::Request;
use overwinter_lifecycle::idle::{IdlePolicy, Use, is_idle};
use overwinter_lifecycle::ids::SandboxId;
use overwinter_lifecycle::operation::Operation;
use overwinter_store::{Accept, AcceptError, Durability};

use super::Reconciler;

impl Reconciler {
    /// Puts a sandbox to sleep because nothing uses it, at `depth` or the depth of its policy. None:
    /// it is in use, or nothing has to be done.
    ///
    /// # Errors
    /// As for a suspend that somebody asks for.
    pub async fn suspend_idle(
        &self,
        id: SandboxId,
        depth: Option<Depth>,
    ) -> Result<Option<Operation>, AcceptError> {
        if self.is_used(id) {
            return Ok(None);
        }
        let accepted = self
            .store
            .accept(Accept {
                sandbox: id,
                request: Request::Suspend {
                    depth,
                    idle: true,
                    reclaim: false,
                },
                operation: self.ports.ids.operation(),
                requester: "gateway: idle".to_owned(),
                deadlines: self.deadlines,
                idempotency: None,
                durability: Durability::Soon,
                now: self.ports.clock.wall(),
            })
            .await?;
        if accepted.begun {
            self.own(accepted.sandbox);
        }
        self.sync_soon();
        Ok(accepted.operation)
    }

    /// Whether a call is open. Processes that nobody is attached to do not count yet: the policy
    /// cannot say so before there is an idle timer.
    pub(super) fn is_used(&self, id: SandboxId) -> bool {
        #[cfg(feature = "mutants")]
        if overwinter_lifecycle::mutant!(IdleCuts) {
            return false;
        }
        let open_calls = self.hub.find(id).map_or(0, |slot| slot.open_calls());
        let now = IdlePolicy {
            timeout_ms: Some(0),
            background_counts: false,
        };
        !is_idle(
            now,
            Use {
                open_calls,
                ..Use::default()
            },
        )
    }
}
