//! One exec stream between a client and a process.
//!
//! It goes on by offset where the connection to the supervisor was lost and the sandbox is Ready
//! again: after a restart of the supervisor's connection, or a suspend that did not happen. Where the
//! sandbox has gone to sleep it ends with `SANDBOX_SUSPENDED`, the process id and the offsets, and
//! the client attaches again after the resume. The process itself runs on whatever becomes of the
//! stream.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use buffa::MessageField;
use connectrpc::{ConnectError, ErrorCode};
use futures::{Stream, StreamExt};
use overwinter_api::{supervisor as wire, v1};
use overwinter_driver::AgentError;
use overwinter_lifecycle::Phase;
use overwinter_lifecycle::admission::call::CallRefused;
use overwinter_lifecycle::ids::SandboxId;
use tokio::sync::{Notify, mpsc};

use super::process;
use crate::api::ApiError;
use crate::reconciler::Reconciler;
use crate::sessions::Admission;

/// Messages in flight in each direction; output waits in the supervisor beyond that.
const IN_FLIGHT: usize = 16;
/// Bytes of stdin that the supervisor has not acknowledged.
const UNACKNOWLEDGED: usize = 1 << 20;
/// How long a stream waits for its sandbox to be usable again.
const REOPEN_TIME: Duration = Duration::from_secs(60);

/// After which a stream that broke off on a connection that goes on is opened on it again.
const SAME_AGAIN: Duration = Duration::from_millis(100);

/// How the stream begins.
pub enum Opening {
    Start {
        process_id: String,
        process: wire::ProcessSpec,
    },
    Attach(wire::ExecAttach),
}

/// Where it stands: all that is needed to go on over another connection.
struct Progress {
    process_id: String,
    stdout: u64,
    stderr: u64,
    stdin_taken: u64,
    /// The client has been told that it is there.
    started: bool,
    /// Sent and not acknowledged.
    pending: VecDeque<wire::StdinData>,
    pending_bytes: usize,
}

struct Shared {
    progress: Mutex<Progress>,
    acknowledged: Notify,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

type Out = mpsc::Sender<Result<v1::ExecResponse, ConnectError>>;

/// Carries it to its end in a task of its own; the answer is what the client reads.
pub fn carry(
    reconciler: Reconciler,
    sandbox: SandboxId,
    admission: Admission,
    opening: Opening,
    requests: impl Stream<Item = Result<v1::ExecRequest, ConnectError>> + Send + Unpin + 'static,
) -> mpsc::Receiver<Result<v1::ExecResponse, ConnectError>> {
    let (out, answers) = mpsc::channel(IN_FLIGHT);
    let (process_id, stdout, stderr) = match &opening {
        Opening::Start { process_id, .. } => (process_id.clone(), 0, 0),
        Opening::Attach(attach) => (
            attach.process_id.clone(),
            attach.stdout_offset,
            attach.stderr_offset,
        ),
    };
    let shared = Arc::new(Shared {
        progress: Mutex::new(Progress {
            process_id,
            stdout,
            stderr,
            stdin_taken: 0,
            started: false,
            pending: VecDeque::new(),
            pending_bytes: 0,
        }),
        acknowledged: Notify::new(),
    });
    tokio::spawn(run(
        reconciler, sandbox, admission, opening, requests, shared, out,
    ));
    answers
}

async fn run(
    reconciler: Reconciler,
    sandbox: SandboxId,
    mut admission: Admission,
    opening: Opening,
    mut requests: impl Stream<Item = Result<v1::ExecRequest, ConnectError>> + Send + Unpin + 'static,
    shared: Arc<Shared>,
    out: Out,
) {
    let mut first = match opening {
        Opening::Start {
            process_id,
            process,
        } => wire::exec_request::Message::from(wire::ExecStart {
            process_id,
            process: MessageField::some(process),
        }),
        Opening::Attach(attach) => attach.into(),
    };
    let opening = first.clone();
    loop {
        let end = tokio::select! {
            biased;
            // The client has gone away: the process runs on.
            () = out.closed() => return,
            end = connection(&reconciler, &mut admission, first, &mut requests, &shared, &out) => end,
        };
        match end {
            End::Finished => return,
            End::Failed(error) => {
                let _ = out.send(Err(ApiError::from(error).into())).await;
                return;
            }
            End::Refused(error) => {
                let _ = out.send(Err(error)).await;
                return;
            }
            End::Lost => {}
        }
        // A call hears of the end of its connection before the slot does. Given the same session
        // again it would end at once, and so on, without ever letting anybody else run.
        let (slot, lost) = (admission.slot().clone(), admission.session.number);
        drop(admission);
        let _ = reconciler.ports.within(SAME_AGAIN, slot.left(lost)).await;
        let reopened = tokio::select! {
            biased;
            () = out.closed() => return,
            reopened = reopen(&reconciler, sandbox) => reopened,
        };
        match reopened {
            Ok(again) => admission = again,
            Err(error) => {
                let error = {
                    let progress = shared.lock();
                    error
                        .with("process_id", &progress.process_id)
                        .with("stdout_offset", progress.stdout)
                        .with("stderr_offset", progress.stderr)
                };
                let _ = out.send(Err(error.into())).await;
                return;
            }
        }
        first = {
            let progress = shared.lock();
            if !progress.started {
                // It may never have arrived. Where it has, the same start again is an attach.
                opening.clone()
            } else {
                wire::ExecAttach {
                    process_id: progress.process_id.clone(),
                    stdout_offset: progress.stdout,
                    stderr_offset: progress.stderr,
                }
                .into()
            }
        };
    }
}

enum End {
    /// The exit was passed on, or the client has ended it.
    Finished,
    Failed(AgentError),
    /// The client has sent what is no request, or has gone away.
    Refused(ConnectError),
    /// The connection to the supervisor has ended.
    Lost,
}

/// The stream over one connection.
async fn connection(
    reconciler: &Reconciler,
    admission: &mut Admission,
    first: wire::exec_request::Message,
    requests: &mut (impl Stream<Item = Result<v1::ExecRequest, ConnectError>> + Send + Unpin),
    shared: &Shared,
    out: &Out,
) -> End {
    let (input, inputs) = mpsc::channel::<wire::ExecRequest>(IN_FLIGHT);
    let request = |message| wire::ExecRequest {
        message: Some(message),
    };
    let opening = futures::stream::iter([request(first)]);
    let inputs = opening.chain(futures::stream::unfold(inputs, async |mut inputs| {
        inputs.recv().await.map(|next| (next, inputs))
    }));
    let agent = admission.session.agent.clone();
    let incarnation = admission.session.incarnation;
    let opened = async {
        let mut responses = agent.exec(inputs.boxed()).await?;
        // Its first answer, which comes at once, says that it has arrived: a suspend waits for that.
        let first = responses.next().await;
        Ok((first, responses))
    };
    // What comes after it may take as long as the process does.
    let patience = Duration::from_millis(reconciler.deadlines.agent_ms);
    let (first, responses) = match reconciler.ports.within(patience, opened).await {
        Ok(Ok(opened)) => opened,
        Ok(Err(AgentError::Gone)) => return End::Lost,
        Ok(Err(error)) => return End::Failed(error),
        Err(_) => return End::Failed(AgentError::TimedOut),
    };
    admission.entered();
    let responses = futures::stream::iter(first).chain(responses).boxed();
    let forward = Forward {
        incarnation: incarnation.0,
        shared,
        out,
    };
    tokio::select! {
        biased;
        end = forward.answers(responses) => end,
        end = feed(requests, input, shared) => end,
    }
}

/// From the client to the supervisor. Ends only with the client.
async fn feed(
    requests: &mut (impl Stream<Item = Result<v1::ExecRequest, ConnectError>> + Send + Unpin),
    input: mpsc::Sender<wire::ExecRequest>,
    shared: &Shared,
) -> End {
    // What an earlier connection took with it.
    let pending: Vec<_> = shared.lock().pending.iter().cloned().collect();
    for data in pending {
        let message = wire::ExecRequest {
            message: Some(data.into()),
        };
        if input.send(message).await.is_err() {
            return std::future::pending().await;
        }
    }
    loop {
        while shared.lock().pending_bytes > UNACKNOWLEDGED {
            let acknowledged = shared.acknowledged.notified();
            if shared.lock().pending_bytes > UNACKNOWLEDGED {
                acknowledged.await;
            }
        }
        let message = match requests.next().await {
            Some(Ok(request)) => match request.message {
                Some(v1::exec_request::Message::Stdin(data)) => {
                    let data = wire::StdinData {
                        offset: data.offset,
                        data: data.data,
                        eof: data.eof,
                    };
                    let mut progress = shared.lock();
                    progress.pending_bytes += data.data.len();
                    progress.pending.push_back(data.clone());
                    data.into()
                }
                Some(v1::exec_request::Message::Resize(size)) => process::window(&size).into(),
                Some(v1::exec_request::Message::Signal(signal)) => {
                    wire::exec_request::Message::Signal(signal)
                }
                // A second beginning means nothing.
                Some(
                    v1::exec_request::Message::Start(_) | v1::exec_request::Message::Attach(_),
                )
                | None => continue,
            },
            // The client has no more to say and reads on.
            None => return std::future::pending().await,
            Some(Err(error)) => return End::Refused(error),
        };
        if input
            .send(wire::ExecRequest {
                message: Some(message),
            })
            .await
            .is_err()
        {
            // The other direction knows why.
            return std::future::pending().await;
        }
    }
}

/// From the supervisor to the client.
struct Forward<'a> {
    incarnation: u64,
    shared: &'a Shared,
    out: &'a Out,
}

impl Forward<'_> {
    async fn answers(
        &self,
        mut responses: overwinter_driver::agent::AgentStream<wire::ExecResponse>,
    ) -> End {
        loop {
            let message = match responses.next().await {
                Some(Ok(response)) => response.message,
                Some(Err(AgentError::Gone)) | None => return End::Lost,
                Some(Err(error)) => return End::Failed(error),
            };
            let (message, exited) = match message {
                Some(wire::exec_response::Message::Exited(exit)) => {
                    (Some(process::exit(&exit).into()), true)
                }
                Some(message) => (self.translate(message), false),
                None => (None, false),
            };
            if let Some(message) = message {
                let response = v1::ExecResponse {
                    message: Some(message),
                };
                if self.out.send(Ok(response)).await.is_err() {
                    return End::Finished;
                }
            }
            if exited {
                return End::Finished;
            }
        }
    }

    fn translate(
        &self,
        message: wire::exec_response::Message,
    ) -> Option<v1::exec_response::Message> {
        let mut progress = self.shared.lock();
        match message {
            wire::exec_response::Message::Started(at) => {
                progress.stdout = at.stdout_offset;
                progress.stderr = at.stderr_offset;
                self.acknowledge(&mut progress, at.stdin_offset);
                let started = v1::ExecStarted {
                    process_id: at.process_id,
                    incarnation: self.incarnation,
                    stdout_offset: at.stdout_offset,
                    stderr_offset: at.stderr_offset,
                    stdin_offset: at.stdin_offset,
                };
                let first = !std::mem::replace(&mut progress.started, true);
                first.then(|| started.into())
            }
            wire::exec_response::Message::Output(output) => {
                let end = output.offset + output.data.len() as u64;
                if output.stderr {
                    progress.stderr = end;
                } else {
                    progress.stdout = end;
                }
                Some(
                    v1::OutputData {
                        stderr: output.stderr,
                        offset: output.offset,
                        data: output.data,
                    }
                    .into(),
                )
            }
            wire::exec_response::Message::StdinAck(ack) => {
                self.acknowledge(&mut progress, ack.offset);
                Some(v1::StdinAck { offset: ack.offset }.into())
            }
            // Ends the stream; handled by the caller.
            wire::exec_response::Message::Exited(exit) => Some(process::exit(&exit).into()),
        }
    }

    fn acknowledge(&self, progress: &mut Progress, taken: u64) {
        progress.stdin_taken = progress.stdin_taken.max(taken);
        while let Some(front) = progress.pending.front() {
            let end = front.offset + front.data.len() as u64;
            // An end of input is kept until the process has ended: it takes no bytes to acknowledge.
            if front.eof || end > progress.stdin_taken {
                break;
            }
            let bytes = front.data.len();
            progress.pending.pop_front();
            progress.pending_bytes -= bytes;
        }
        self.shared.acknowledged.notify_waiters();
    }
}

/// Waits until the sandbox is usable again, or says why it is not.
async fn reopen(reconciler: &Reconciler, sandbox: SandboxId) -> Result<Admission, ApiError> {
    let waited = reconciler
        .ports
        .within(REOPEN_TIME, async {
            loop {
                let Some(slot) = reconciler.hub.find(sandbox) else {
                    return Err(why_not(reconciler, sandbox).await);
                };
                if !slot.usable().await {
                    return Err(why_not(reconciler, sandbox).await);
                }
                if let Some(admission) = slot.admit(reconciler.ports.clock.monotonic()) {
                    return Ok(admission);
                }
            }
        })
        .await;
    match waited {
        Ok(answer) => answer,
        Err(_) => Err(AgentError::Gone.into()),
    }
}

async fn why_not(reconciler: &Reconciler, sandbox: SandboxId) -> ApiError {
    let phase = match reconciler.store.get(sandbox).await {
        Ok(Some(sandbox)) => sandbox.phase(),
        Ok(None) => Phase::Tombstone,
        Err(error) => return error.into(),
    };
    let refused = match phase {
        Phase::Failed => CallRefused::Failed,
        Phase::Deleting | Phase::Tombstone => CallRefused::Deleting,
        // It sleeps, or slept and has been woken by somebody already.
        Phase::Creating
        | Phase::Ready
        | Phase::Suspending(_)
        | Phase::Suspended(_)
        | Phase::Resuming => CallRefused::Suspended,
    };
    ApiError::new(
        ErrorCode::Aborted,
        refused.code(),
        refused.to_string(),
        refused.next(),
    )
}
