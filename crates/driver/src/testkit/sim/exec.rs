//! One exec stream: output and acknowledgements by offset, until the exit.

use std::sync::Arc;

use futures::future::AbortHandle;
use futures::stream::BoxStream;
use futures::{StreamExt as _, TryStreamExt as _};
use overwinter_api::supervisor as wire;
use tokio::sync::watch;
use wire::__buffa::oneof::exec_request::Message as Request;
use wire::__buffa::oneof::exec_response::Message as Response;

use super::files::refused;
use super::guest::{Connection, Guest};
use super::process::{Process, Streams};
use crate::agent::{AgentError, AgentResult, AgentStream, RefusedKind};

const PIECE: usize = 64 << 10;

struct Attached {
    changes: watch::Receiver<Streams>,
    process: Arc<Process>,
    connection: Arc<Connection>,
    started: bool,
    ended: bool,
    output: u64,
    acknowledged: u64,
    feeder: AbortHandle,
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.feeder.abort();
    }
}

/// The stream begins when its first message has come, as one over a wire does.
pub(super) fn exec(
    guest: Arc<Guest>,
    connection: Arc<Connection>,
    input: BoxStream<'static, wire::ExecRequest>,
) -> AgentStream<wire::ExecResponse> {
    futures::stream::once(attach(guest, connection, input))
        .map_ok(|attached| {
            futures::stream::try_unfold(attached, |mut attached| async move {
                let message = attached.next().await?;
                Ok(message.map(|message| {
                    let message = wire::ExecResponse {
                        message: Some(message),
                    };
                    (message, attached)
                }))
            })
        })
        .try_flatten()
        .boxed()
}

async fn attach(
    guest: Arc<Guest>,
    connection: Arc<Connection>,
    mut input: BoxStream<'static, wire::ExecRequest>,
) -> AgentResult<Attached> {
    let first = tokio::select! {
        biased;
        first = input.next() => first.and_then(|it| it.message),
        () = connection.closed() => return Err(AgentError::Gone),
    };
    let (process, output) = match first {
        Some(Request::Start(start)) => (guest.start(*start)?, 0),
        Some(Request::Attach(attach)) => (guest.process(&attach.process_id)?, attach.stdout_offset),
        Some(Request::Stdin(_) | Request::Resize(_) | Request::Signal(_)) | None => {
            return Err(refused(
                RefusedKind::InvalidArgument,
                "INVALID_ARGUMENT",
                "the first message starts a process or attaches to one",
            ));
        }
    };
    let feeder = guest.spawn(feed(guest.clone(), process.clone(), input));
    let changes = process.streams.subscribe();
    let acknowledged = changes.borrow().taken;
    Ok(Attached {
        changes,
        process,
        connection,
        started: false,
        ended: false,
        output,
        acknowledged,
        feeder,
    })
}

async fn feed(
    guest: Arc<Guest>,
    process: Arc<Process>,
    mut input: BoxStream<'static, wire::ExecRequest>,
) {
    while let Some(request) = input.next().await {
        match request.message {
            Some(Request::Stdin(stdin)) => process.feed(&stdin),
            Some(Request::Signal(signal)) => guest.signal(&process, signal),
            Some(Request::Start(_) | Request::Attach(_) | Request::Resize(_)) | None => {}
        }
    }
}

impl Attached {
    async fn next(&mut self) -> AgentResult<Option<Response>> {
        if self.ended {
            return Ok(None);
        }
        loop {
            if self.connection.is_closed() {
                return Err(AgentError::Gone);
            }
            if let Some(message) = self.ready() {
                return Ok(Some(message));
            }
            tokio::select! {
                biased;
                changed = self.changes.changed() => changed.map_err(|_| AgentError::Gone)?,
                () = self.connection.closed() => return Err(AgentError::Gone),
            }
        }
    }

    fn ready(&mut self) -> Option<Response> {
        let streams = self.changes.borrow_and_update();
        self.output = self.output.clamp(streams.oldest(), streams.written());
        if !self.started {
            self.started = true;
            return Some(Response::from(wire::ExecStarted {
                process_id: self.process.id().to_owned(),
                stdout_offset: self.output,
                stderr_offset: 0,
                stdin_offset: streams.taken,
            }));
        }
        if self.output < streams.written() {
            let mut data = streams.from(self.output);
            data.truncate(PIECE);
            let offset = self.output;
            self.output += data.len() as u64;
            return Some(Response::from(wire::OutputData {
                stderr: false,
                offset,
                data,
            }));
        }
        if self.acknowledged < streams.taken {
            self.acknowledged = streams.taken;
            return Some(Response::from(wire::StdinAck {
                offset: streams.taken,
            }));
        }
        let exit = streams.exit.clone()?;
        self.ended = true;
        Some(Response::from(exit))
    }
}
