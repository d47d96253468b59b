//! Who waits for an operation to end. In memory: a client that was cut off asks again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use overwinter_lifecycle::ids::OperationId;
use overwinter_lifecycle::operation::Operation;
use tokio::sync::oneshot;

type Senders = HashMap<OperationId, Vec<oneshot::Sender<Arc<Operation>>>>;

#[derive(Clone, Default)]
pub struct Waiters {
    senders: Arc<Mutex<Senders>>,
}

impl Waiters {
    /// Call this before looking whether it has ended, so that no end falls between.
    #[must_use]
    pub fn wait(&self, id: OperationId) -> oneshot::Receiver<Arc<Operation>> {
        let (sender, receiver) = oneshot::channel();
        let mut senders = self.senders.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = senders.entry(id).or_default();
        // Those that went away are cleared by those that come.
        waiting.retain(|sender| !sender.is_closed());
        waiting.push(sender);
        receiver
    }

    /// Tells all who wait.
    pub fn ended(&self, operations: Vec<Operation>) {
        for operation in operations {
            let waiting = {
                let mut senders = self.senders.lock().unwrap_or_else(PoisonError::into_inner);
                senders.remove(&operation.id)
            };
            if let Some(waiting) = waiting {
                let operation = Arc::new(operation);
                for sender in waiting {
                    // One that does not wait any more needs no answer.
                    let _ = sender.send(operation.clone());
                }
            }
        }
    }

    /// Forgets `id` where nobody waits any more.
    pub fn forget(&self, id: OperationId) {
        let mut senders = self.senders.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(waiting) = senders.get_mut(&id) {
            waiting.retain(|sender| !sender.is_closed());
            if waiting.is_empty() {
                senders.remove(&id);
            }
        }
    }
}
