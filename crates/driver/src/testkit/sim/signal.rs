//! A value whose waiters wake in the order in which they began to wait. A `watch` channel spreads them
//! by chance, and one seed would give many histories.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

#[derive(Debug)]
pub(super) struct Signal<T> {
    value: Mutex<T>,
    changed: Notify,
}

impl<T: Copy> Signal<T> {
    pub(super) fn new(value: T) -> Self {
        Self {
            value: Mutex::new(value),
            changed: Notify::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, T> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self) -> T {
        *self.lock()
    }

    pub(super) fn set(&self, value: T) {
        *self.lock() = value;
        self.changed.notify_waiters();
    }

    /// Until it is as `is` says.
    pub(super) async fn until(&self, is: impl Fn(T) -> bool) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Enabled before the look, so that no change falls between.
            changed.as_mut().enable();
            if is(self.get()) {
                return;
            }
            changed.await;
        }
    }
}
