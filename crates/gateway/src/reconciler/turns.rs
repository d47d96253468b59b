//! Whose turn it is: a few owners work at once, and the others wait in line.
//!
//! Fifty suspends that arrive together are no sooner done for all being begun at once: the processors
//! are what they share, and every call into another sandbox would queue behind all fifty, at each of its
//! steps. So there are as many turns as keep the processors busy. A turn is short: whoever is longer at
//! it is waiting for something, a backend or somebody inside, and goes on without.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::ports::{Elapsed, Ports};

/// Some times what a freeze takes; what hangs holds the others up for no longer.
const TURN: Duration = Duration::from_millis(10);

#[derive(Clone, Debug)]
pub(super) struct Turns(Arc<Semaphore>);

impl Turns {
    pub(super) fn new(at_once: usize) -> Self {
        Self(Arc::new(Semaphore::new(at_once)))
    }

    /// Does `work` when its turn comes.
    pub(super) async fn take<T>(&self, ports: &Ports, work: impl Future<Output = T>) -> T {
        // Never closed, so it is always a turn.
        let turn = self.0.acquire().await;
        let mut work = pin!(work);
        match ports.within(TURN, work.as_mut()).await {
            Ok(done) => done,
            Err(Elapsed) => {
                drop(turn);
                work.await
            }
        }
    }
}
