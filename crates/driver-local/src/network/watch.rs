//! This host's addresses change, and those of a sandbox that runs are to stay closed.
//!
//! ```text
//! follow ─ wait for a change ─ read ─ close what is new ─┐
//!   ▲                                                    │
//!   ├────────────────────────────────────────────────────┘
//!   └── again ◄── what failed: no new network ── for longer than [`PATIENCE`]: none at all
//! ```
//!
//! What cannot be followed is not guessed at: no sandbox gets a network then, and after a while those
//! that have one lose it.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::JoinHandle;

use super::own;
use crate::driver::blocking;
use crate::error::{At, LocalError};
use crate::host::Host;

/// For how long an address that this host gets may not be seen before networks are cut.
const PATIENCE: Duration = Duration::from_secs(5);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Follows this host's addresses until it is dropped.
#[derive(Debug)]
pub(crate) struct Watch(JoinHandle<()>);

impl Watch {
    /// Within a tokio runtime. Where it fails at once, no network is offered when this returns.
    pub(crate) fn start(host: &Arc<Host>) -> Self {
        let (changes, failing) = match open() {
            Ok(changes) => (Some(changes), None),
            Err(error) => (None, Some(Failing::after(None, host, error))),
        };
        // The driver outlives its watch, so that it is not held by it.
        Self(tokio::spawn(follow(Arc::downgrade(host), changes, failing)))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

type Changes = AsyncFd<OwnedFd>;

fn open() -> Result<Changes, LocalError> {
    let socket = own::changes().at("following", SUBJECT.as_ref())?;
    // SAFETY: an OwnedFd gives the same open descriptor for as long as it lives.
    let socket = unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE) };
    socket.at("following", SUBJECT.as_ref())
}

const SUBJECT: &str = "the addresses of this host";

async fn follow(host: Weak<Host>, mut changes: Option<Changes>, mut failing: Option<Failing>) {
    loop {
        if let Some(failing) = &failing {
            tokio::time::sleep(failing.pause).await;
        }
        let Some(now) = host.upgrade() else { return };
        let followed = match changes.take().map_or_else(open, Ok) {
            Ok(socket) => renew(socket, now, &mut failing).await,
            Err(error) => Err(error),
        };
        match followed {
            Ok(socket) => changes = Some(socket),
            // Whatever it was, what comes meanwhile is read as a whole, with a new socket.
            Err(error) => match host.upgrade() {
                Some(now) => failing = Some(Failing::after(failing, &now, error)),
                None => return,
            },
        }
    }
}

/// Closes what is there, and waits for more.
async fn renew(
    changes: Changes,
    host: Arc<Host>,
    failing: &mut Option<Failing>,
) -> Result<Changes, LocalError> {
    let its = Arc::clone(&host);
    blocking(move || its.networks.renew()).await?;
    if failing.take().is_some() {
        host.networks.set_unfollowed(None);
        tracing::info!("{SUBJECT} are followed again");
    }
    drop(host);
    changed(&changes).await?;
    Ok(changes)
}

/// Waits until something of this host's own has come.
async fn changed(socket: &Changes) -> Result<(), LocalError> {
    loop {
        let readable = socket.readable().await;
        let mut ready = readable.at("following", SUBJECT.as_ref())?;
        let came = own::drain(socket.get_ref()).at("following", SUBJECT.as_ref())?;
        ready.clear_ready();
        if came {
            return Ok(());
        }
    }
}

/// It cannot be followed what this host gets.
#[derive(Clone, Copy, Debug)]
struct Failing {
    since: Instant,
    /// Before it is tried again.
    pause: Duration,
    /// Nothing is let out any more.
    cut: bool,
}

impl Failing {
    /// What is so after one more failure.
    fn next(before: Option<Self>, now: Instant) -> Self {
        match before {
            None => Self {
                since: now,
                pause: FIRST_PAUSE,
                cut: false,
            },
            Some(before) => Self {
                since: before.since,
                pause: (before.pause * 2).min(LONGEST_PAUSE),
                cut: now.duration_since(before.since) >= PATIENCE,
            },
        }
    }

    /// Sees to it that nothing is let out that should not be, and says so.
    fn after(before: Option<Self>, host: &Host, error: LocalError) -> Self {
        let next = Self::next(before, Instant::now());
        let error = Arc::new(error);
        host.networks.set_unfollowed(Some(Arc::clone(&error)));
        if before.is_none() {
            tracing::error!(%error, "{SUBJECT} cannot be followed: no sandbox gets the network `internet`");
        }
        if next.cut {
            // Again each time: one may have been about to start.
            let networks = host.networks.cut_all();
            if before.is_none_or(|before| !before.cut) {
                tracing::error!(%error, networks, "{SUBJECT} cannot be followed: the networks of sandboxes are cut");
            }
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_cut_once_patience_is_over_and_it_is_tried_ever_more_slowly() {
        let begun = Instant::now();
        let mut failing = Failing::next(None, begun);
        assert!(!failing.cut);
        let mut now = begun;
        for _ in 0..20 {
            now += failing.pause;
            failing = Failing::next(Some(failing), now);
            assert_eq!(failing.cut, now - begun >= PATIENCE);
            assert!(failing.pause <= LONGEST_PAUSE);
        }
        assert!(failing.cut);
    }
}
