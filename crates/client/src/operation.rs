//! Operations: the durable intent behind every verb, and how each ended.

use std::time::{Duration, Instant};

use futures::{Stream, stream};
use overwinter_api::v1;
use v1::__buffa::oneof::outcome::Result as Ended;

use crate::client::{Client, repeatable};
use crate::error::{Code, Error, Result, reason};
use crate::types::Achieved;

/// One call's wait at the gateway; longer waits ask again.
pub(crate) const WAIT_SLICE: Duration = Duration::from_secs(60);
const PAGE: u32 = 100;

/// An operation as it stood when the answer was made. Serialises as the message's canonical JSON.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[serde(transparent)]
pub struct Operation(pub(crate) v1::Operation);

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Outcome<'a> {
    /// It did what it was asked.
    Succeeded(Achieved),
    /// It did not.
    Failed {
        /// The stable reason code.
        reason: &'a str,
        /// What happened.
        message: &'a str,
        /// What to do about it; may be empty.
        next: &'a str,
    },
    /// A newer verb took its place in line.
    Superseded {
        /// That verb's operation.
        by: &'a str,
    },
    /// It was undone before its point of no turning back.
    TurnedBack {
        /// The operation that did it; empty when a call of the data plane did.
        by: &'a str,
    },
}

impl Operation {
    /// Its id.
    pub fn id(&self) -> &str {
        &self.0.id
    }

    /// "waiting", a step's name, or "ended".
    pub fn step(&self) -> &str {
        &self.0.step
    }

    /// How it ended; `None` until it has.
    pub fn outcome(&self) -> Option<Outcome<'_>> {
        Some(match self.0.outcome.as_option()?.result.as_ref()? {
            Ended::Succeeded(it) => Outcome::Succeeded(Achieved::from_message(it.achieved)),
            Ended::Failed(it) => Outcome::Failed {
                reason: &it.reason,
                message: &it.message,
                next: &it.next,
            },
            Ended::Superseded(it) => Outcome::Superseded {
                by: &it.operation_id,
            },
            Ended::TurnedBack(it) => Outcome::TurnedBack {
                by: &it.operation_id,
            },
        })
    }

    /// What may remain after an abandoning delete, and other remarks of one that succeeded.
    pub fn remarks(&self) -> &[String] {
        match self.0.outcome.as_option().map(|it| &it.result) {
            Some(Some(Ended::Succeeded(it))) => &it.remarks,
            _ => &[],
        }
    }

    /// How long each step of one that succeeded took, in order.
    pub fn steps(&self) -> impl Iterator<Item = (&str, Duration)> {
        let timings = match self.0.outcome.as_option().map(|it| &it.result) {
            Some(Some(Ended::Succeeded(it))) => &it.timings[..],
            _ => &[],
        };
        timings.iter().map(|it| {
            let took = (*it.took).clone();
            (
                it.step.as_str(),
                Duration::try_from(took).unwrap_or_default(),
            )
        })
    }

    /// What it achieved, or its end as an error: failed, superseded, turned back.
    ///
    /// # Errors
    /// Also when it has not ended ([`reason::WAIT_TIMEOUT`]).
    pub fn achieved(&self) -> Result<Achieved> {
        let Some(outcome) = self.0.outcome.as_option().and_then(|it| it.result.as_ref()) else {
            return Err(Error::new(
                Code::DeadlineExceeded,
                reason::WAIT_TIMEOUT,
                format!("operation {} goes on, at {}", self.id(), self.step()),
            )
            .with_next(format!("overwinter operation wait {}", self.id())));
        };
        match outcome {
            Ended::Succeeded(it) => Ok(Achieved::from_message(it.achieved)),
            Ended::Failed(it) => Err(Error::operation(it)),
            Ended::Superseded(it) => Err(Error::new(
                Code::Aborted,
                reason::OPERATION_SUPERSEDED,
                format!(
                    "operation {} was superseded by {}",
                    self.id(),
                    it.operation_id
                ),
            )
            .with_next(format!("overwinter operation get {}", it.operation_id))),
            Ended::TurnedBack(it) => Err(Error::new(
                Code::Aborted,
                reason::OPERATION_TURNED_BACK,
                if it.operation_id.is_empty() {
                    "a call that needed the sandbox awake turned the suspend back".to_owned()
                } else {
                    format!("operation {} turned the suspend back", it.operation_id)
                },
            )
            .with_next("suspend it again when it is idle")),
        }
    }

    /// The whole message.
    pub fn raw(&self) -> &v1::Operation {
        &self.0
    }
}

impl Client {
    /// One operation.
    ///
    /// # Errors
    /// `NotFound` when there is none of that id, or it has been forgotten.
    pub async fn operation(&self, id: &str) -> Result<Operation> {
        let request = v1::GetOperationRequest { id: id.to_owned() };
        let answer = repeatable(|| self.rpc.operations.get_operation(request.clone())).await?;
        answer
            .into_owned()
            .operation
            .into_option()
            .map(Operation)
            .ok_or_else(|| Error::protocol("no operation"))
    }

    /// Operations, newest first: of one sandbox (by id) or of all; only those that have not ended
    /// where `unfinished`. Further pages are fetched as the stream is read.
    pub fn operations(
        &self,
        sandbox_id: Option<&str>,
        unfinished: bool,
    ) -> impl Stream<Item = Result<Operation>> + Send + 'static {
        let first = v1::ListOperationsRequest {
            sandbox_id: sandbox_id.unwrap_or_default().to_owned(),
            unfinished,
            page_size: PAGE,
            page_token: String::new(),
        };
        let client = self.clone();
        let pages = stream::try_unfold(Some(first), move |request| {
            let client = client.clone();
            async move {
                let Some(mut request) = request else {
                    return Ok::<_, Error>(None);
                };
                let page = repeatable(|| client.rpc.operations.list_operations(request.clone()))
                    .await?
                    .into_owned();
                request.page_token = page.next_page_token;
                let next = Some(request).filter(|it| !it.page_token.is_empty());
                let items = page.operations.into_iter().map(|it| Ok(Operation(it)));
                Ok(Some((stream::iter(items), next)))
            }
        });
        Box::pin(futures::TryStreamExt::try_flatten(pages))
    }

    /// Waits until the operation has ended, at most `limit` (`None`: as long as it takes), and
    /// answers with it as it then stands: look at [`Operation::outcome`].
    ///
    /// # Errors
    /// As [`operation`](Self::operation).
    pub async fn wait_operation(&self, id: &str, limit: Option<Duration>) -> Result<Operation> {
        let until = limit.map(|limit| Instant::now() + limit);
        loop {
            let left = until.map_or(WAIT_SLICE, |until| {
                until.saturating_duration_since(Instant::now())
            });
            let request = v1::WaitOperationRequest {
                id: id.to_owned(),
                timeout: buffa_types::google::protobuf::Duration::from(left.min(WAIT_SLICE)).into(),
            };
            let answer = repeatable(|| self.rpc.operations.wait_operation(request.clone())).await?;
            let operation = answer
                .into_owned()
                .operation
                .into_option()
                .map(Operation)
                .ok_or_else(|| Error::protocol("no operation"))?;
            if operation.outcome().is_some() || left <= WAIT_SLICE && until.is_some() {
                return Ok(operation);
            }
        }
    }
}
