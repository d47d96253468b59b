//! Who takes part, and how they ask: again and again until an answer comes, as any client must whose
//! gateway may be killed at any moment.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use overwinter_client::{Accepted, Client, Code, Error, Operation, Outcome, Sandbox};
use tokio::time::Instant;

use crate::ledger::Ledger;
use crate::report::Report;

/// How long anything may take, kills and all, before it counts as stuck.
const STUCK: Duration = Duration::from_secs(90);
/// Between two calls of a gateway that does not answer: nothing tells that it listens again.
const PAUSE: Duration = Duration::from_millis(20);

/// A runtime that can write memory to disk.
pub(crate) const RUNSC: &str = "runsc";

/// Everything that clients and killers share.
pub(crate) struct Stage {
    pub(crate) client: Client,
    pub(crate) image: String,
    /// What sandboxes are made to run on.
    pub(crate) runtimes: Vec<&'static str>,
    pub(crate) clients: usize,
    pub(crate) report: Report,
    /// A place holds a sandbox from its create until its delete has been asked for.
    places: Mutex<Vec<Option<Arc<Ledger>>>>,
    /// Everything that there ever was.
    all: Mutex<Vec<Arc<Ledger>>>,
}

/// What came of asking.
pub(crate) enum Answer<T> {
    Done(T),
    /// By the gateway, or its operation ended otherwise.
    Refused(Error),
}

impl Stage {
    pub(crate) fn new(
        client: Client,
        image: String,
        runtimes: Vec<&'static str>,
        clients: usize,
        places: usize,
    ) -> Self {
        Self {
            client,
            image,
            report: Report::new(),
            runtimes,
            clients,
            places: Mutex::new(vec![None; places]),
            all: Mutex::default(),
        }
    }

    pub(crate) fn place(&self, at: usize) -> Option<Arc<Ledger>> {
        let places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        places.get(at).cloned().flatten()
    }

    /// A sandbox that was made. Answers whether it has a place of its own.
    pub(crate) fn take(&self, at: usize, ledger: &Arc<Ledger>) -> bool {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(Arc::clone(ledger));
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        match places.get_mut(at) {
            Some(place @ None) => {
                *place = Some(Arc::clone(ledger));
                true
            }
            Some(Some(_)) | None => false,
        }
    }

    pub(crate) fn leave(&self, at: usize, ledger: &Arc<Ledger>) {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = places.get_mut(at)
            && place
                .as_ref()
                .is_some_and(|there| Arc::ptr_eq(there, ledger))
        {
            *place = None;
        }
    }

    pub(crate) fn all(&self) -> Vec<Arc<Ledger>> {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.clone()
    }

    /// Asks until an answer comes. None: the run is over, or it is stuck, which is told.
    pub(crate) async fn until_answered<T, F>(
        &self,
        what: &'static str,
        ask: impl FnMut() -> F,
    ) -> Option<Answer<T>>
    where
        F: Future<Output = overwinter_client::Result<T>>,
    {
        self.until_answered_of(what, "", ask).await
    }

    /// As [`until_answered`](Self::until_answered); `of`: what it is asked of, where that is known.
    async fn until_answered_of<T, F>(
        &self,
        what: &'static str,
        of: &str,
        mut ask: impl FnMut() -> F,
    ) -> Option<Answer<T>>
    where
        F: Future<Output = overwinter_client::Result<T>>,
    {
        let until = Instant::now() + STUCK;
        loop {
            match tokio::time::timeout_at(until, ask()).await {
                Err(_) => {
                    self.report.broken(format!("{what} is stuck {of}"));
                    return None;
                }
                Ok(Ok(answer)) => return Some(Answer::Done(answer)),
                Ok(Err(error)) if error.is_transport() => {
                    if self.report.over.is_cancelled() {
                        return None;
                    }
                    if Instant::now() >= until {
                        self.report
                            .broken(format!("{what}: nobody answers: {error}"));
                        return None;
                    }
                    tokio::time::sleep(PAUSE).await;
                }
                Ok(Err(error)) => {
                    self.judge(what, &error);
                    self.report.did(what, error.reason().to_owned());
                    return Some(Answer::Refused(error));
                }
            }
        }
    }

    /// Asks for a verb and waits until its operation has ended, whatever becomes of the gateway. None:
    /// refused, or told already.
    pub(crate) async fn verb<F>(
        &self,
        what: &'static str,
        ask: impl FnMut() -> F,
    ) -> Option<Result<Ended, Error>>
    where
        F: Future<Output = overwinter_client::Result<Accepted>>,
    {
        let accepted = match self.until_answered(what, ask).await? {
            Answer::Done(accepted) => accepted,
            Answer::Refused(error) => return Some(Err(error)),
        };
        let Some(operation) = accepted.operation() else {
            self.report.did(what, "nothing to do");
            return Some(Ok(Ended {
                operation: None,
                sandbox: accepted.sandbox(),
            }));
        };
        let id = operation.id().to_owned();
        let ended = self
            .until_answered_of(what, &format!("in operation {id}"), || {
                self.client.wait_operation(&id, Some(STUCK))
            })
            .await?;
        let operation = match ended {
            Answer::Done(operation) => operation,
            Answer::Refused(error) => return Some(Err(error)),
        };
        match operation.outcome() {
            None => {
                self.report.broken(format!(
                    "{what} goes on for ever: operation {id}, at {}",
                    operation.step()
                ));
                return None;
            }
            Some(Outcome::Failed { reason, .. }) => self.report.did(what, reason.to_owned()),
            Some(_) => self.report.did(what, "ended"),
        }
        Some(Ok(Ended {
            operation: Some(operation),
            sandbox: accepted.sandbox(),
        }))
    }

    /// An error must say what is so; one that blames the gateway itself is a fault of its.
    pub(crate) fn judge(&self, what: &str, error: &Error) {
        if !error.is_transport()
            && matches!(
                error.code(),
                Code::Internal | Code::DataLoss | Code::Unknown
            )
        {
            let (code, reason) = (error.code(), error.reason());
            self.report
                .broken(format!("{what}: {code:?} {reason}: {error}"));
        }
    }
}

/// A verb that was accepted, and is over.
pub(crate) struct Ended {
    /// None: there was nothing to do.
    pub(crate) operation: Option<Operation>,
    /// As the verb was accepted.
    pub(crate) sandbox: Sandbox,
}
