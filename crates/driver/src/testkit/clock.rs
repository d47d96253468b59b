//! Time, injected: a simulation turns it by hand.

use std::time::Duration;

use futures::future::BoxFuture;

/// A monotonic clock.
pub trait Clock: Send + Sync + 'static {
    /// Since a start of the clock's own choosing.
    fn now(&self) -> Duration;

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;
}

/// Tokio's, which a test can pause.
#[derive(Clone, Copy, Debug)]
pub struct TokioClock(tokio::time::Instant);

impl Default for TokioClock {
    fn default() -> Self {
        Self(tokio::time::Instant::now())
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }
}
