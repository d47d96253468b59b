//! How jobs reach the [`Core`]: at once, or through a queue and a thread that commits together
//! what has queued up while the last commit was on its way to the disk.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use tokio::sync::mpsc;

use crate::core::{Core, Job};
use crate::{PaceHook, StoreError, WriterKind};

/// Jobs in one commit at most: bounds how long the first of them waits for the last.
const BATCH: usize = 256;
/// Jobs in the queue; whoever comes later waits for a place.
const QUEUE: usize = 1024;

pub(crate) struct Writer {
    core: Arc<Mutex<Core>>,
    /// Inline.
    pace: Option<PaceHook>,
    thread: Option<(mpsc::Sender<Job>, JoinHandle<()>)>,
}

impl Writer {
    pub(crate) fn new(
        kind: WriterKind,
        core: Core,
        pace: Option<PaceHook>,
    ) -> Result<Self, StoreError> {
        let core = Arc::new(Mutex::new(core));
        let thread = match kind {
            WriterKind::Inline => None,
            WriterKind::Thread => {
                let (queue, jobs) = mpsc::channel(QUEUE);
                let shared = Arc::clone(&core);
                let handle = thread::Builder::new()
                    .name("store-writer".to_owned())
                    .spawn(move || serve(&shared, jobs))
                    .map_err(|error| StoreError::io("store-writer".as_ref(), &error))?;
                Some((queue, handle))
            }
        };
        Ok(Self { core, pace, thread })
    }

    /// Hands a job over; its answer comes by its own channel.
    pub(crate) async fn submit(&self, job: Job) -> Result<(), StoreError> {
        match &self.thread {
            None => {
                if let Some(pace) = &self.pace {
                    pace(job.label).await;
                }
                lock(&self.core).run(vec![job]);
                Ok(())
            }
            Some((queue, _)) => queue.send(job).await.map_err(|_| StoreError::Closed),
        }
    }

    /// The connection that writes, between two batches: for a store in memory, which has no other.
    pub(crate) fn core(&self) -> MutexGuard<'_, Core> {
        lock(&self.core)
    }
}

impl Drop for Writer {
    /// Waits for the thread, so that the database is closed when the store is gone.
    fn drop(&mut self) {
        if let Some((queue, handle)) = self.thread.take() {
            drop(queue);
            // A writer that panicked has closed its queue: its callers know.
            drop(handle.join());
        }
    }
}

fn serve(core: &Mutex<Core>, mut jobs: mpsc::Receiver<Job>) {
    while let Some(first) = jobs.blocking_recv() {
        let mut batch = vec![first];
        while batch.len() < BATCH
            && let Ok(job) = jobs.try_recv()
        {
            batch.push(job);
        }
        lock(core).run(batch);
    }
}

/// A panic inside a transaction leaves it unfinished, and SQLite rolls it back: what is durable is
/// sound whoever held the lock.
fn lock(core: &Mutex<Core>) -> MutexGuard<'_, Core> {
    core.lock().unwrap_or_else(PoisonError::into_inner)
}
