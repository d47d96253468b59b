//! What the gateway takes from the world, injected so that one seed can give one history: the clock,
//! ids, how much it does at once, and the crash points of the tests.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use overwinter_lifecycle::ids::{Millis, OperationId, SandboxId};
use uuid::Uuid;

/// Wall time for what is stored, monotonic time for what is waited for.
#[async_trait]
pub trait Clock: Send + Sync + 'static {
    fn wall(&self) -> Millis;
    /// Since some fixed moment; never goes back.
    fn monotonic(&self) -> Duration;
    async fn sleep(&self, time: Duration);
}

/// The machine's clocks.
#[derive(Debug)]
pub struct SystemClock {
    start: std::time::Instant,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self {
            start: std::time::Instant::now(),
        }
    }
}

#[async_trait]
impl Clock for SystemClock {
    fn wall(&self) -> Millis {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Millis(since.map_or(0, |since| {
            i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
        }))
    }

    fn monotonic(&self) -> Duration {
        self.start.elapsed()
    }

    async fn sleep(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }
}

/// Where ids come from.
pub trait Ids: Send + Sync + 'static {
    /// A UUIDv7 of the clock's time.
    fn next(&self) -> Uuid;

    fn sandbox(&self) -> SandboxId {
        SandboxId(self.next())
    }

    fn operation(&self) -> OperationId {
        OperationId(self.next())
    }
}

#[derive(Debug, Default)]
pub struct RandomIds;

impl Ids for RandomIds {
    fn next(&self) -> Uuid {
        Uuid::now_v7()
    }
}

/// Where a test may end the process: before and after each durable write and each effect. Off
/// unless asked for at start.
pub trait CrashPoints: Send + Sync + 'static {
    /// `what`: `<verb>.<depth>.<action>`; `side`: `before` or `after`.
    fn reached(&self, what: &dyn std::fmt::Display, side: &'static str);
}

/// Everything together; cheap to clone.
#[derive(Clone)]
pub struct Ports {
    pub clock: Arc<dyn Clock>,
    pub ids: Arc<dyn Ids>,
    pub crash: Option<Arc<dyn CrashPoints>>,
    /// Of sandboxes whose operations have something to do; what waits for a backend is not counted.
    pub owners_at_once: usize,
}

/// For each processor. Fewer leave too little to commit together, more only hold calls up.
const OWNERS: usize = 4;

impl Default for Ports {
    fn default() -> Self {
        Self {
            clock: Arc::new(SystemClock::default()),
            ids: Arc::new(RandomIds),
            crash: None,
            owners_at_once: OWNERS * std::thread::available_parallelism().map_or(1, usize::from),
        }
    }
}

impl Ports {
    /// Runs `work` unless the time passes first.
    ///
    /// # Errors
    /// [`Elapsed`] when it has passed.
    pub async fn within<T>(
        &self,
        time: Duration,
        work: impl Future<Output = T>,
    ) -> Result<T, Elapsed> {
        tokio::select! {
            biased;
            done = work => Ok(done),
            () = self.clock.sleep(time) => Err(Elapsed),
        }
    }
}

/// The time has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the time has passed")]
pub struct Elapsed;
