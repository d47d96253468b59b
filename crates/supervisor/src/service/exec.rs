//! Processes: exec streams, starts in the background, and the watch.

use std::sync::Arc;

use connectrpc::{ConnectError, InboundStream};
use futures::{Stream, StreamExt};
use overwinter_api::supervisor as wire;
use overwinter_api::supervisor::__buffa::oneof::exec_request::Message as Ask;
use overwinter_api::supervisor::__buffa::oneof::process_event::Event as WireEvent;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::oneshot;

use super::Service;
use crate::error::Refusal;
use crate::process::{Attachment, Event, Process};

impl Service {
    /// Starts or finds a process and joins it. The stream is the client's view of it and nothing
    /// more: when it goes away, the process goes on.
    pub(super) async fn exec_stream(
        &self,
        mut requests: InboundStream<wire::ExecRequest>,
    ) -> Result<impl Stream<Item = Result<wire::ExecResponse, ConnectError>> + Send + use<>, Refusal>
    {
        let first = match requests.next().await {
            Some(Ok(first)) => first.to_owned_message().message,
            Some(Err(_)) | None => None,
        };
        let (process, offsets) = match first {
            Some(Ask::Start(start)) => (self.start(&start)?, [0, 0]),
            Some(Ask::Attach(attach)) => (
                self.sandbox.table.get(&attach.process_id)?,
                [attach.stdout_offset, attach.stderr_offset],
            ),
            Some(Ask::Stdin(_) | Ask::Resize(_) | Ask::Signal(_)) | None => {
                return Err(Refusal::Invalid(
                    "the first message starts or attaches".into(),
                ));
            }
        };
        let (fail, failure) = oneshot::channel();
        let attachment = Attachment::new(Arc::clone(&process), offsets);
        let input = tokio::spawn(async move {
            if let Err(refusal) = take_input(&process, requests).await {
                // The reader may be gone already.
                let _ = fail.send(refusal);
            }
        });
        let stream = attachment
            .with_input(failure, input.abort_handle())
            .into_stream(self.detached());
        Ok(stream.map(|item| item.map_err(ConnectError::from)))
    }

    fn start(&self, start: &wire::ExecStart) -> Result<Arc<Process>, Refusal> {
        if let Some(known) = self.sandbox.table.existing(start)? {
            return Ok(known);
        }
        self.sandbox.gate.admit()?;
        self.sandbox.table.start(start)
    }

    /// Answers once the program runs, or has failed to.
    pub(super) async fn start_in_background(
        &self,
        request: wire::StartProcessRequest,
    ) -> Result<wire::StartProcessResponse, Refusal> {
        let start = request.start.into_option().unwrap_or_default();
        let process = self.start(&start)?;
        process.settled().await;
        Ok(wire::StartProcessResponse {
            process: process.info().into(),
        })
    }

    pub(super) fn listing(&self) -> wire::ListProcessesResponse {
        let all = self.sandbox.table.all();
        wire::ListProcessesResponse {
            processes: all.iter().map(|process| process.info()).collect(),
        }
    }

    /// The listing, then every event since.
    pub(super) fn events(
        &self,
    ) -> impl Stream<Item = Result<wire::ProcessEvent, ConnectError>> + Send + use<> {
        // Subscribed before the listing is made: nothing falls between the two.
        let events = self.sandbox.table.watch();
        let snapshot = Ok(event(WireEvent::from(self.listing())));
        let detached = self.detached();
        let later = futures::stream::unfold(Some((events, detached)), |state| async move {
            let (mut events, mut detached) = state?;
            let next = tokio::select! {
                next = events.recv() => next,
                _ = detached.wait_for(|detached| *detached) => {
                    return Some((Err(Refusal::Detached), None));
                }
            };
            match next {
                Ok(Event::Started(info)) => Some((
                    Ok(event(WireEvent::Started(Box::new((*info).clone())))),
                    Some((events, detached)),
                )),
                Ok(Event::Exited(exit)) => Some((
                    Ok(event(WireEvent::Exited(Box::new((*exit).clone())))),
                    Some((events, detached)),
                )),
                Err(RecvError::Lagged(_)) => Some((Err(Refusal::WatchLagged), None)),
                Err(RecvError::Closed) => None,
            }
        });
        futures::stream::iter([snapshot])
            .chain(later)
            .map(|item| item.map_err(ConnectError::from))
    }
}

fn event(event: WireEvent) -> wire::ProcessEvent {
    wire::ProcessEvent { event: Some(event) }
}

/// Serves the client's half of an exec stream until it ends. A broken connection is no failure of
/// the process's, and the other half notices it by itself.
async fn take_input(
    process: &Process,
    mut requests: InboundStream<wire::ExecRequest>,
) -> Result<(), Refusal> {
    while let Some(Ok(request)) = requests.next().await {
        match request.to_owned_message().message {
            Some(Ask::Stdin(stdin)) => {
                process
                    .write_stdin(stdin.offset, &stdin.data, stdin.eof)
                    .await?;
            }
            Some(Ask::Resize(size)) => process.resize(size.rows, size.columns),
            // Its end may cross with the signal; the exit is on its way.
            Some(Ask::Signal(signal)) => match process.signal(signal) {
                Ok(()) | Err(Refusal::ProcessEnded(_)) => {}
                Err(refusal) => return Err(refusal),
            },
            Some(Ask::Start(_) | Ask::Attach(_)) => {
                return Err(Refusal::Invalid("a stream starts or attaches once".into()));
            }
            None => {}
        }
    }
    Ok(())
}
