//! The daemon's events, turned into hints that a sandbox's compute has changed.
//!
//! One stream carries all. When it ends, the daemon has gone or is another: the client is thrown away.
//! Once a daemon answers, all that should be there is looked at, whatever is not as it was is told of
//! once more, and the stream begins at a time before that look: what happens in between is in both.
//! What is so is never taken from an event.
//!
//! A start that no effect waits for is looked at, and ended unless it is what the newest start has left.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime};

use bollard::models::EventMessage;
use futures::StreamExt;
use overwinter_driver::Changed;
use overwinter_lifecycle::ids::SandboxId;

use crate::container::{GATEWAY, SANDBOX};
use crate::driver::Shared;
use crate::error::DockerError;
use crate::look::{Look, State};

/// Between two attempts to reach a daemon that is away; nothing tells when it is back.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Follows the daemon until the driver is gone.
pub(crate) async fn follow(driver: Weak<Shared>) {
    let mut pause = FIRST_PAUSE;
    loop {
        let Some(shared) = driver.upgrade() else {
            return;
        };
        match open(&shared).await {
            Ok(events) => {
                shared.following.store(true, Ordering::Release);
                drop(shared);
                let begun = Instant::now();
                listen(&driver, events).await;
                if let Some(shared) = driver.upgrade() {
                    shared.following.store(false, Ordering::Release);
                    shared.engine.disconnect();
                    tracing::warn!("the daemon's events have ended");
                }
                // One that ends as soon as it begins is not asked for without end.
                if begun.elapsed() > LONGEST_PAUSE {
                    pause = FIRST_PAUSE;
                    continue;
                }
            }
            Err(error) => {
                tracing::debug!(%error, "the daemon's events cannot be had");
                shared.engine.disconnect();
            }
        }
        tokio::time::sleep(pause).await;
        pause = LONGEST_PAUSE.min(pause * 2);
    }
}

type Events = futures::stream::BoxStream<'static, Result<EventMessage, DockerError>>;

/// A look at all that should be there, and then a stream of what has happened since before it.
async fn open(shared: &Arc<Shared>) -> Result<Events, DockerError> {
    // The daemon's clock is this host's.
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let since = since.unwrap_or_default().as_secs();
    for (sandbox, live) in shared.turns.lives(|live| live.run) {
        match shared.look(sandbox).await? {
            Look::Running(now) if now.receipt.held == live.held && now.paused == live.paused => {}
            Look::Remains(now) if matches!(now.state, State::Running | State::Paused) => {
                tokio::spawn(unasked(Arc::clone(shared), sandbox));
            }
            Look::Running(_) | Look::Remains(_) | Look::Nothing | Look::Moving(_) => {
                tell(shared, sandbox);
            }
        }
    }
    let label = format!("{GATEWAY}={}", shared.config.gateway_id);
    shared.engine.events(&label, since).await
}

/// Until the stream ends.
async fn listen(driver: &Weak<Shared>, mut events: Events) {
    while let Some(Ok(event)) = events.next().await {
        let attributes = event.actor.and_then(|actor| actor.attributes);
        let sandbox = sandbox(attributes.unwrap_or_default());
        let (Some(sandbox), Some(action)) = (sandbox, event.action) else {
            continue;
        };
        let Some(shared) = driver.upgrade() else {
            return;
        };
        // A pause that an effect of ours has asked for is told of by its answer. An end never
        // is: who ends it forgets it first.
        match kind(&action) {
            Kind::End => tell(&shared, sandbox),
            Kind::Change { paused } if !shared.turns.is_busy(sandbox) => {
                // Of what an effect has done it may be told late.
                if shared.turns.live(sandbox, |live| live.run.paused) != Some(paused) {
                    tell(&shared, sandbox);
                }
            }
            // Of what was stopped, nothing can be started; what no effect here has started is left alone.
            Kind::Start if !shared.turns.is_busy(sandbox) && is_known(&shared, sandbox) => {
                tokio::spawn(unasked(shared, sandbox));
            }
            Kind::Change { .. } | Kind::Start | Kind::Nothing => {}
        }
    }
}

/// A start that no effect of ours waits for: somebody else's, or one whose call was given up long ago.
async fn unasked(shared: Arc<Shared>, sandbox: SandboxId) {
    match shared.end_unasked(sandbox).await {
        // Who has looked meanwhile has seen a transition.
        Ok(true) => tell(&shared, sandbox),
        Ok(false) => {}
        Err(error) => {
            tracing::warn!(%sandbox, %error, "a start that nobody waits for could not be looked at");
            tell(&shared, sandbox);
        }
    }
}

fn is_known(shared: &Shared, sandbox: SandboxId) -> bool {
    shared.turns.live(sandbox, |_| ()).is_some()
}

enum Kind {
    End,
    Change { paused: bool },
    Start,
    Nothing,
}

fn kind(action: &str) -> Kind {
    match action {
        "die" | "destroy" | "remove" => Kind::End,
        "start" => Kind::Start,
        "pause" => Kind::Change { paused: true },
        "unpause" => Kind::Change { paused: false },
        _ => Kind::Nothing,
    }
}

fn sandbox(mut attributes: HashMap<String, String>) -> Option<SandboxId> {
    attributes.remove(SANDBOX)?.parse().ok()
}

/// What was seen of it does not count any more; who has to do with it is to look.
fn tell(shared: &Shared, sandbox: SandboxId) {
    let Some(held) = shared.turns.live(sandbox, |live| live.run.held) else {
        return;
    };
    if let Some(live) = &mut *shared.turns.entry(sandbox).live() {
        live.seen = None;
    }
    shared.watchers.tell(Changed { sandbox, held });
}
