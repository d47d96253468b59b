//! Virtual time: it stands still while anything can run, and then goes to the next timer. One clock
//! for the gateway, the backend and the clients, which outlives every life of the gateway.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures::future::BoxFuture;
use overwinter_driver::testkit;

/// 2030-01-01, so that a wall time is not taken for a monotonic one.
const EPOCH_MS: i64 = 1_893_456_000_000;

/// See the module. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct VirtualTime(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    now: Duration,
    jumped_ms: i64,
    timers: BTreeMap<(Duration, u64), Waker>,
    given: u64,
    root: Option<Waker>,
    /// Nothing can run and no timer is set.
    stuck: bool,
}

impl VirtualTime {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now(&self) -> Duration {
        self.lock().now
    }

    pub(crate) fn wall_ms(&self) -> i64 {
        let inner = self.lock();
        let since = i64::try_from(inner.now.as_millis()).unwrap_or(i64::MAX);
        EPOCH_MS + since + inner.jumped_ms
    }

    /// Somebody sets the machine's clock.
    pub(crate) fn jump(&self, ms: i64) {
        self.lock().jumped_ms += ms;
    }

    pub(crate) fn sleep(&self, time: Duration) -> Sleep {
        let mut inner = self.lock();
        inner.given += 1;
        Sleep {
            key: (inner.now.saturating_add(time), inner.given),
            time: self.clone(),
        }
    }

    /// Who is to be woken when something has happened that is no timer.
    pub(crate) fn set_root(&self, root: &Waker) {
        let mut inner = self.lock();
        if !inner
            .root
            .as_ref()
            .is_some_and(|known| known.will_wake(root))
        {
            inner.root = Some(root.clone());
        }
    }

    pub(crate) fn wake_root(&self) {
        let root = self.lock().root.clone();
        if let Some(root) = root {
            root.wake();
        }
    }

    pub(crate) fn is_stuck(&self) -> bool {
        self.lock().stuck
    }

    /// Nothing can run: on to the next timer. One at a time, in the order in which they were set, so
    /// that what is due together is not done together.
    pub(crate) fn advance(&self) {
        let woken = {
            let mut inner = self.lock();
            match inner.timers.pop_first() {
                Some(((at, _), waker)) => {
                    inner.now = inner.now.max(at);
                    Some(waker)
                }
                None => {
                    inner.stuck = true;
                    inner.root.clone()
                }
            }
        };
        if let Some(waker) = woken {
            waker.wake();
        }
    }
}

/// Until its time has come.
pub(crate) struct Sleep {
    key: (Duration, u64),
    time: VirtualTime,
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut inner = self.time.lock();
        if inner.now >= self.key.0 {
            inner.timers.remove(&self.key);
            return Poll::Ready(());
        }
        inner.timers.insert(self.key, cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        let waker = self.time.lock().timers.remove(&self.key);
        drop(waker);
    }
}

impl testkit::Clock for VirtualTime {
    fn now(&self) -> Duration {
        Self::now(self)
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(Self::sleep(self, duration))
    }
}
