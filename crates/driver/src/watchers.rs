//! Who wants to know that compute has changed.

use std::sync::{Mutex, PoisonError};

use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};

use crate::types::Changed;

/// Nothing is lost while one listens slowly.
#[derive(Debug, Default)]
pub struct Watchers(Mutex<Vec<UnboundedSender<Changed>>>);

impl Watchers {
    /// Somebody more who is told, until the receiver is dropped.
    pub fn add(&self) -> UnboundedReceiver<Changed> {
        let (sender, receiver) = unbounded();
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(sender);
        receiver
    }

    /// Whoever does not listen any more is forgotten.
    pub fn tell(&self, changed: Changed) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|sender| sender.unbounded_send(changed).is_ok());
    }
}
