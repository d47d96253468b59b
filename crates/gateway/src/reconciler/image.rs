//! Images that are being resolved, which may mean fetched: as long as something moves, however long it
//! takes, and what moves is there to be read.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use overwinter_driver::{Driver, DriverError, ImageProgress};
use overwinter_lifecycle::ids::OperationId;
use overwinter_lifecycle::operation::Operation;
use overwinter_lifecycle::steps::{Event, Pinned};
use overwinter_lifecycle::{Fault, Reason};
use tokio::sync::watch;

use super::Reconciler;
use super::fault::fault;
use super::owner::Owned;
use crate::sessions::Slot;

/// How far each has come. In memory: after a restart it is fetched anew.
#[derive(Clone, Default)]
pub(crate) struct Fetching {
    known: Arc<Mutex<HashMap<OperationId, ImageProgress>>>,
}

impl Fetching {
    /// None: nothing is fetched for it now.
    pub(crate) fn of(&self, id: OperationId) -> Option<ImageProgress> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&id).copied()
    }

    fn note(&self, id: OperationId, progress: ImageProgress) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(id, progress);
    }
}

/// Forgets it, also where the owner ends in the middle.
struct Forget<'a>(&'a Fetching, OperationId);

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        let known = &self.0.known;
        let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
        known.remove(&self.1);
    }
}

impl Reconciler {
    /// Not after a delete. The time that it takes is not the operation's: there is as much as ever for
    /// what follows.
    pub(super) async fn image(
        &self,
        driver: &Arc<dyn Driver>,
        owned: &mut Owned,
        op: &Operation,
        slot: &Arc<Slot>,
    ) -> Event {
        let began = self.ports.clock.monotonic();
        let event = tokio::select! {
            biased;
            event = self.pin(driver, &owned.sandbox.spec.image, op) => event,
            stopping = self.stopping(owned.sandbox.id, slot) => Event::Stopped(stopping),
        };
        owned.times.deadline += self.since(began);
        event
    }

    async fn pin(&self, driver: &Arc<dyn Driver>, image: &str, op: &Operation) -> Event {
        let patience = Duration::from_millis(op.deadlines.effect_ms);
        let (telling, mut told) = watch::channel(ImageProgress::default());
        let mut pinned = pin!(driver.pin_telling(image, &telling));
        let _forget = Forget(&self.fetching, op.id);
        let answer = loop {
            let step = async {
                tokio::select! {
                    biased;
                    answer = &mut pinned => Some(answer),
                    // The sender outlives this.
                    _ = told.changed() => None,
                }
            };
            match self.ports.within(patience, step).await {
                Ok(Some(answer)) => break answer,
                Ok(None) => {
                    let progress = *told.borrow_and_update();
                    self.fetching.note(op.id, progress);
                }
                Err(_) => break Err(late(patience, self.fetching.of(op.id))),
            }
        };
        match answer {
            Ok(pinned) => Event::Pinned(Pinned {
                digest: pinned.digest,
                main: pinned.main,
            }),
            Err(error) => Event::Refused(Fault {
                reason: Reason::ImageUnusable,
                ..fault(error)
            }),
        }
    }
}

fn late(patience: Duration, progress: Option<ImageProgress>) -> DriverError {
    DriverError::Rejected(match progress {
        None => format!("the driver did not answer within {patience:?}"),
        Some(progress) => format!(
            "nothing more of the image came within {patience:?}, after {}",
            said(progress)
        ),
    })
}

/// In words.
pub(crate) fn said(progress: ImageProgress) -> String {
    let ImageProgress {
        layers_done,
        layers,
        bytes,
    } = progress;
    let (whole, tenth) = (bytes / 1_000_000, bytes % 1_000_000 / 100_000);
    format!("{layers_done} of {layers} layers, {whole}.{tenth} MB fetched")
}
