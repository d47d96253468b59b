//! Where the world's own work runs: what a backend does by itself goes on when its gateway dies, so a
//! harness that kills a gateway with its runtime runs it elsewhere.

use futures::future::{AbortHandle, BoxFuture, abortable};

/// Runs the tasks of a simulated backend.
pub trait Spawn: Send + Sync + 'static {
    fn spawn(&self, task: BoxFuture<'static, ()>);
}

/// On the runtime of whoever calls.
#[derive(Clone, Copy, Debug, Default)]
pub struct TokioSpawn;

impl Spawn for TokioSpawn {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        tokio::spawn(task);
    }
}

/// A task that can be ended.
pub(super) fn spawn(
    on: &dyn Spawn,
    task: impl Future<Output = ()> + Send + 'static,
) -> AbortHandle {
    let (task, handle) = abortable(task);
    on.spawn(Box::pin(async move {
        // Ended early or not: nobody waits for it.
        let _ = task.await;
    }));
    handle
}
