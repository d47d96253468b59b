//! The agent at the other end of an accepted connection.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use connectrpc::client::{BidiRecvHalf, ClientConfig, ServerStream};
use connectrpc::{ConnectError, Protocol};
use futures::StreamExt as _;
use futures::stream::BoxStream;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use overwinter_api::content::{self, Aside, DivertedBody};
use overwinter_api::supervisor as wire;
use tokio::io::AsyncWriteExt as _;
use tokio::task::AbortHandle;
use wire::__buffa::oneof::{read_file_response, write_file_request};
use wire::__buffa::view;

use super::budget::{Budgeted, Metered};
use super::error::from_wire;
use super::handshake::SWITCHING;
use super::link::{Link, LinkIo};
use super::transport::Transport;
use crate::agent::{Agent, AgentError, AgentResult, AgentStream, RefusedKind};
use crate::attach::Io;

/// Small for a stream and large for the connection: a reader that stands still must cost only
/// itself, so the connection's window has room for 64 streams that are full.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 64 << 20;
/// Fewer, larger frames: a file's contents come in messages of up to 1 MiB.
const FRAME: u32 = 1 << 20;
const SEND_BUFFER: usize = 2 << 20;
/// A listing of a large folder comes as one message. Headers are the supervisor's, so a few.
const MAX_MESSAGE: usize = 16 << 20;
/// An answer that says no more than that it was done, or what one file is.
const SMALL_MESSAGE: usize = 64 << 10;
const MAX_HEADER_LIST: u32 = 16 << 10;

type Client<T> = wire::SupervisorServiceClient<T>;

/// A supervisor that has attached. Dropping it closes the connection once its open streams have
/// ended.
pub struct SupervisorAgent {
    client: Client<Budgeted<Transport>>,
    /// For calls whose answers are small.
    small: Client<Budgeted<Transport>>,
    transport: Transport,
}

impl std::fmt::Debug for SupervisorAgent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SupervisorAgent")
            .field("link", &self.transport.link)
            .finish_non_exhaustive()
    }
}

/// Writes the 101 and turns the roles: from here on the supervisor serves.
///
/// No keep-alive: while a sandbox is frozen its peer answers nothing, and that is no fault.
///
/// # Errors
/// [`AgentError::Gone`]: the connection ended meanwhile. The deadline is the caller's.
pub async fn accept(mut io: Box<dyn Io>) -> Result<Arc<SupervisorAgent>, AgentError> {
    io.write_all(SWITCHING)
        .await
        .map_err(|_| AgentError::Gone)?;
    let link = Link::new();
    let (sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .adaptive_window(false)
        .max_frame_size(FRAME)
        .max_send_buf_size(SEND_BUFFER)
        .max_header_list_size(MAX_HEADER_LIST)
        .handshake(TokioIo::new(LinkIo::new(io, link.clone())))
        .await
        .map_err(|_| AgentError::Gone)?;
    let transport = Transport::new(sender, connection, link);
    Ok(Arc::new(SupervisorAgent {
        client: Client::new(Budgeted(transport.clone()), config(MAX_MESSAGE)),
        small: Client::new(Budgeted(transport.clone()), config(SMALL_MESSAGE)),
        transport,
    }))
}

/// gRPC: the connection is HTTP/2 and both ends are ours, so nothing is gained by more.
fn config(max_message: usize) -> ClientConfig {
    ClientConfig::new(http::Uri::from_static("http://supervisor"))
        .with_protocol(Protocol::Grpc)
        .with_default_max_message_size(max_message)
}

impl SupervisorAgent {
    fn error(&self, error: ConnectError) -> AgentError {
        from_wire(&self.transport, error)
    }
}

/// An answer that leaves out what it must have.
fn incomplete(what: &str) -> AgentError {
    AgentError::Refused {
        kind: RefusedKind::Internal,
        reason: String::new(),
        message: format!("the supervisor's answer has no {what}"),
    }
}

/// Ends the task when the stream that it feeds is dropped. Both halves must go for the call to be
/// cancelled, and the sender may be waiting for a window that never opens.
struct Feeder(AbortHandle);

impl Drop for Feeder {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct ExecOutput {
    receiver: BidiRecvHalf<Metered<Incoming>, view::ExecResponseView<'static>>,
    transport: Transport,
    _feeder: Feeder,
}

/// Messages until the end or the first error, which is the last item.
macro_rules! messages {
    ($state:expr, $stream:ident) => {
        futures::stream::unfold(Some($state), |state| async move {
            let mut state = state?;
            match state.$stream.message().await {
                Ok(Some(message)) => Some((Ok(message.to_owned_message()), Some(state))),
                Ok(None) => None,
                Err(error) => Some((Err(from_wire(&state.transport, error)), None)),
            }
        })
        .boxed()
    };
}

struct Download {
    stream: ServerStream<Metered<DivertedBody<Incoming>>, view::ReadFileResponseView<'static>>,
    transport: Transport,
}

struct Events {
    stream: ServerStream<Metered<Incoming>, view::ProcessEventView<'static>>,
    transport: Transport,
}

#[async_trait]
impl Agent for SupervisorAgent {
    async fn exec(
        &self,
        mut input: BoxStream<'static, wire::ExecRequest>,
    ) -> AgentResult<AgentStream<wire::ExecResponse>> {
        let call = self.client.exec().await.map_err(|e| self.error(e))?;
        let (mut sender, receiver) = call.into_split();
        let feeder = tokio::spawn(async move {
            while let Some(request) = input.next().await {
                // Why it failed is told by the receiving half.
                if sender.send(request).await.is_err() {
                    return;
                }
            }
        });
        let state = ExecOutput {
            receiver,
            transport: self.transport.clone(),
            _feeder: Feeder(feeder.abort_handle()),
        };
        Ok(messages!(state, receiver))
    }

    async fn start_process(&self, start: wire::ExecStart) -> AgentResult<wire::ProcessInfo> {
        let request = wire::StartProcessRequest {
            start: start.into(),
        };
        let answer = self.client.start_process(request).await;
        let answer = answer.map_err(|e| self.error(e))?.into_owned();
        answer
            .process
            .into_option()
            .ok_or_else(|| incomplete("process"))
    }

    async fn signal_process(&self, process_id: String, signal: i32) -> AgentResult<()> {
        let request = wire::SignalProcessRequest { process_id, signal };
        let answer = self.small.signal_process(request).await;
        answer.map(drop).map_err(|e| self.error(e))
    }

    async fn list_processes(&self) -> AgentResult<Vec<wire::ProcessInfo>> {
        let request = wire::ListProcessesRequest::default();
        let answer = self.client.list_processes(request).await;
        Ok(answer.map_err(|e| self.error(e))?.into_owned().processes)
    }

    async fn get_process(&self, process_id: String) -> AgentResult<wire::ProcessInfo> {
        let request = wire::GetProcessRequest { process_id };
        let answer = self.client.get_process(request).await;
        let answer = answer.map_err(|e| self.error(e))?.into_owned();
        answer
            .process
            .into_option()
            .ok_or_else(|| incomplete("process"))
    }

    async fn watch_processes(&self) -> AgentResult<AgentStream<wire::ProcessEvent>> {
        let request = wire::WatchProcessesRequest::default();
        let stream = self.client.watch_processes(request).await;
        let state = Events {
            stream: stream.map_err(|e| self.error(e))?,
            transport: self.transport.clone(),
        };
        Ok(messages!(state, stream))
    }

    async fn read_file(
        &self,
        request: wire::ReadFileRequest,
    ) -> AgentResult<AgentStream<wire::ReadFileResponse>> {
        let aside = Aside::default();
        let transport = content::Download {
            transport: self.transport.clone(),
            aside: aside.clone(),
            max_message: MAX_MESSAGE,
        };
        let stream = Client::new(Budgeted(transport), config(MAX_MESSAGE))
            .read_file(request)
            .await;
        let state = Download {
            stream: stream.map_err(|e| self.error(e))?,
            transport: self.transport.clone(),
        };
        let messages = messages!(state, stream);
        Ok(messages
            .map(move |message| {
                let mut message: wire::ReadFileResponse = message?;
                if message.message.is_none() {
                    message.message = aside.pop().map(read_file_response::Message::Data);
                }
                Ok(message)
            })
            .boxed())
    }

    async fn write_file(
        &self,
        input: BoxStream<'static, wire::WriteFileRequest>,
    ) -> AgentResult<wire::FileInfo> {
        let parts = input.map(|request| {
            Ok(match request.message {
                Some(write_file_request::Message::Data(data)) => content::Part::Data(data),
                Some(_) | None => content::Part::Message(content::enveloped(&request)),
            })
        });
        let transport = content::Upload::new(self.transport.clone(), parts);
        let answer = Client::new(transport, config(SMALL_MESSAGE))
            .write_file(futures::stream::empty())
            .await;
        let answer = answer.map_err(|e| self.error(e))?.into_owned();
        answer.info.into_option().ok_or_else(|| incomplete("info"))
    }

    async fn stat_file(&self, request: wire::StatFileRequest) -> AgentResult<wire::FileInfo> {
        let answer = self.small.stat_file(request).await;
        let answer = answer.map_err(|e| self.error(e))?.into_owned();
        answer.info.into_option().ok_or_else(|| incomplete("info"))
    }

    async fn list_directory(
        &self,
        request: wire::ListDirectoryRequest,
    ) -> AgentResult<Vec<wire::FileInfo>> {
        let answer = self.client.list_directory(request).await;
        Ok(answer.map_err(|e| self.error(e))?.into_owned().entries)
    }

    async fn make_directory(&self, request: wire::MakeDirectoryRequest) -> AgentResult<()> {
        let answer = self.small.make_directory(request).await;
        answer.map(drop).map_err(|e| self.error(e))
    }

    async fn rename_file(&self, request: wire::RenameFileRequest) -> AgentResult<()> {
        let answer = self.small.rename_file(request).await;
        answer.map(drop).map_err(|e| self.error(e))
    }

    async fn remove_file(&self, request: wire::RemoveFileRequest) -> AgentResult<()> {
        let answer = self.small.remove_file(request).await;
        answer.map(drop).map_err(|e| self.error(e))
    }

    async fn quiesce(
        &self,
        hook: Vec<String>,
        hook_timeout: Duration,
    ) -> AgentResult<wire::QuiesceResponse> {
        let request = wire::QuiesceRequest {
            hook,
            hook_timeout_ms: millis(hook_timeout),
        };
        let answer = self.client.quiesce(request).await;
        Ok(answer.map_err(|e| self.error(e))?.into_owned())
    }

    async fn unquiesce(&self) -> AgentResult<()> {
        let request = wire::UnquiesceRequest::default();
        let answer = self.small.unquiesce(request).await;
        answer.map(drop).map_err(|e| self.error(e))
    }

    /// Returns only when end of file was read: then the supervisor holds no descriptor of it.
    async fn detach(&self) -> AgentResult<Vec<String>> {
        let request = wire::DetachRequest::default();
        let answer = self.client.detach(request).await;
        let answer = answer.map_err(|e| self.error(e))?.into_owned();
        if self.transport.link.end_of_file().await {
            Ok(answer.live_process_ids)
        } else {
            Err(AgentError::TimedOut)
        }
    }

    async fn terminate(&self, grace: Duration) -> AgentResult<Vec<wire::ExitResult>> {
        let request = wire::TerminateRequest {
            grace_ms: millis(grace),
        };
        let answer = self.client.terminate(request).await;
        Ok(answer.map_err(|e| self.error(e))?.into_owned().results)
    }

    async fn gone(&self) {
        self.transport.link.gone().await;
    }

    fn hang_up(&self) {
        self.transport.link.hang_up();
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
