//! How jobs reach the [`Core`]: at once, or through a queue and a thread that commits together
//! what has queued up while the last commit was on its way to the disk.
//!
//! Where there is a thread and it has nothing to do, the caller is the writer: there is nobody to commit
//! together with, and two threads that wake each other would cost as much as the commit.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::mpsc;
use tokio::task::block_in_place;

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
    thread: Option<Thread>,
}

struct Thread {
    queue: mpsc::Sender<Job>,
    handle: JoinHandle<()>,
    /// Jobs that it was given and has not answered.
    given: Arc<AtomicUsize>,
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
                let given = Arc::<AtomicUsize>::default();
                let (shared, taken) = (Arc::clone(&core), Arc::clone(&given));
                let handle = thread::Builder::new()
                    .name("store-writer".to_owned())
                    .spawn(move || serve(&shared, jobs, &taken))
                    .map_err(|error| StoreError::io("store-writer".as_ref(), &error))?;
                Some(Thread {
                    queue,
                    handle,
                    given,
                })
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
            Some(thread) => match self.at_once(thread, job) {
                Ok(()) => Ok(()),
                Err(job) => {
                    // One whose caller goes away while it waits for a place is never taken.
                    let place = thread.queue.reserve().await;
                    let place = place.map_err(|_| StoreError::Closed)?;
                    thread.given.fetch_add(1, Ordering::AcqRel);
                    place.send(*job);
                    Ok(())
                }
            },
        }
    }

    /// Runs a job here and now if the thread has none. Its runtime's other tasks go on elsewhere
    /// meanwhile; where they cannot, the job is given back.
    fn at_once(&self, thread: &Thread, job: Job) -> Result<(), Box<Job>> {
        let can_block = Handle::try_current()
            .is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::MultiThread);
        if !can_block || thread.given.load(Ordering::Acquire) > 0 {
            return Err(Box::new(job));
        }
        // Somebody else may have been as quick. After a panic the thread knows what to do.
        let Ok(mut core) = self.core.try_lock() else {
            return Err(Box::new(job));
        };
        block_in_place(|| core.run(vec![job]));
        Ok(())
    }

    /// The connection that writes, between two batches: for a store in memory, which has no other.
    pub(crate) fn core(&self) -> MutexGuard<'_, Core> {
        lock(&self.core)
    }
}

impl Drop for Writer {
    /// Waits for the thread, so that the database is closed when the store is gone.
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            drop(thread.queue);
            // A writer that panicked has closed its queue: its callers know.
            drop(thread.handle.join());
        }
    }
}

fn serve(core: &Mutex<Core>, mut jobs: mpsc::Receiver<Job>, given: &AtomicUsize) {
    while let Some(first) = jobs.blocking_recv() {
        let mut batch = vec![first];
        while batch.len() < BATCH
            && let Ok(job) = jobs.try_recv()
        {
            batch.push(job);
        }
        let answered = batch.len();
        lock(core).run(batch);
        given.fetch_sub(answered, Ordering::AcqRel);
    }
}

/// A panic inside a transaction leaves it unfinished, and SQLite rolls it back: what is durable is
/// sound whoever held the lock.
fn lock(core: &Mutex<Core>) -> MutexGuard<'_, Core> {
    core.lock().unwrap_or_else(PoisonError::into_inner)
}
