//! One reader of one process: an exec stream, as the sequence of messages that it sends.

use std::sync::Arc;

use futures::Stream as FutureStream;
use overwinter_api::supervisor::__buffa::oneof::exec_response::Message;
use overwinter_api::supervisor::{ExecResponse, ExecStarted, OutputData, StdinAck};
use tokio::sync::{oneshot, watch};
use tokio::task::AbortHandle;

use super::{Process, Reader, Stream};
use crate::error::Refusal;

/// The most that one output message carries.
const OUTPUT_MESSAGE_BYTES: usize = 16 << 10;

/// A reader with its place in both streams. While it lives, the process is not read further than
/// it has room for; dropping it lets go.
pub(crate) struct Attachment {
    process: Arc<Process>,
    reader: u64,
    acknowledged: u64,
    last: Stream,
    phase: Phase,
    input: Option<Input>,
}

/// The other direction of the same stream.
struct Input {
    failure: oneshot::Receiver<Refusal>,
    task: AbortHandle,
}

#[derive(Clone, Copy)]
enum Phase {
    Starting,
    Reading,
    Ended,
}

impl Attachment {
    /// Joins `process` at the given offsets, or at the oldest bytes kept when those are gone.
    pub(crate) fn new(process: Arc<Process>, offsets: [u64; 2]) -> Self {
        let mut state = process.state();
        let reader = state.next_reader;
        state.next_reader += 1;
        let positions = std::array::from_fn(|n| {
            offsets[n].clamp(state.outputs[n].start(), state.outputs[n].end())
        });
        state.readers.push(Reader {
            id: reader,
            positions,
        });
        let acknowledged = state.stdin_taken;
        drop(state);
        Self {
            process,
            reader,
            acknowledged,
            last: Stream::Stderr,
            phase: Phase::Starting,
            input: None,
        }
    }

    /// Ties the task that reads the client's messages to this reader's life; what it fails with
    /// ends the stream.
    pub(crate) fn with_input(
        mut self,
        failure: oneshot::Receiver<Refusal>,
        task: AbortHandle,
    ) -> Self {
        self.input = Some(Input { failure, task });
        self
    }

    /// The messages, until the exit, a failure, or the detach of the connection.
    pub(crate) fn into_stream(
        self,
        detached: watch::Receiver<bool>,
    ) -> impl FutureStream<Item = Result<ExecResponse, Refusal>> + Send {
        futures::stream::unfold((self, detached), |(mut this, mut detached)| async move {
            let item = this.next(&mut detached).await?;
            Some((item, (this, detached)))
        })
    }

    async fn next(
        &mut self,
        detached: &mut watch::Receiver<bool>,
    ) -> Option<Result<ExecResponse, Refusal>> {
        let process = Arc::clone(&self.process);
        loop {
            let changed = process.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            match self.phase {
                Phase::Ended => return None,
                Phase::Starting => {
                    self.phase = Phase::Reading;
                    return Some(Ok(message(self.started())));
                }
                // Looked at first: a flood always has something to tell.
                Phase::Reading if *detached.borrow() => {
                    self.phase = Phase::Ended;
                    return Some(Err(Refusal::Detached));
                }
                Phase::Reading => {
                    if let Some(next) = self.ready() {
                        return Some(Ok(message(next)));
                    }
                }
            }
            tokio::select! {
                () = changed => {}
                failure = input_failure(&mut self.input) => {
                    self.phase = Phase::Ended;
                    return Some(Err(failure));
                }
                _ = detached.wait_for(|detached| *detached) => {
                    self.phase = Phase::Ended;
                    return Some(Err(Refusal::Detached));
                }
            }
        }
    }

    fn started(&self) -> Message {
        let state = self.process.state();
        let positions = position(&state.readers, self.reader);
        Message::from(ExecStarted {
            process_id: self.process.description.id.clone(),
            stdout_offset: positions[0],
            stderr_offset: positions[1],
            stdin_offset: self.acknowledged,
        })
    }

    /// What there is to tell now: acknowledgements before output, output before the exit, the two
    /// streams in turn.
    fn ready(&mut self) -> Option<Message> {
        let mut state = self.process.state();
        if state.stdin_taken > self.acknowledged {
            self.acknowledged = state.stdin_taken;
            return Some(Message::from(StdinAck {
                offset: self.acknowledged,
            }));
        }
        let turns = match self.last {
            Stream::Stdout => [Stream::Stderr, Stream::Stdout],
            Stream::Stderr => [Stream::Stdout, Stream::Stderr],
        };
        let positions = position(&state.readers, self.reader);
        for stream in turns {
            let index = stream as usize;
            let (offset, data) = state.outputs[index].read(positions[index], OUTPUT_MESSAGE_BYTES);
            if data.is_empty() {
                continue;
            }
            let reached = offset + data.len() as u64;
            for reader in state.readers.iter_mut().filter(|r| r.id == self.reader) {
                reader.positions[index] = reached;
            }
            self.last = stream;
            drop(state);
            self.process.room.notify_waiters();
            return Some(Message::from(OutputData {
                stderr: matches!(stream, Stream::Stderr),
                offset,
                data,
            }));
        }
        let exit = state.exit.clone()?;
        self.phase = Phase::Ended;
        Some(Message::from(exit))
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        let mut state = self.process.state();
        state.readers.retain(|reader| reader.id != self.reader);
        drop(state);
        self.process.room.notify_waiters();
        if let Some(input) = &self.input {
            input.task.abort();
        }
    }
}

fn position(readers: &[Reader], id: u64) -> [u64; 2] {
    readers
        .iter()
        .find(|reader| reader.id == id)
        .map_or([0, 0], |reader| reader.positions)
}

/// Pending for ever once the input has ended well.
async fn input_failure(input: &mut Option<Input>) -> Refusal {
    if let Some(open) = input {
        match (&mut open.failure).await {
            Ok(failure) => return failure,
            Err(_closed) => *input = None,
        }
    }
    std::future::pending().await
}

fn message(message: Message) -> ExecResponse {
    ExecResponse {
        message: Some(message),
    }
}
