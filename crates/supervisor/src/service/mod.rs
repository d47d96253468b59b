//! What the gateway can ask, over the connection that was dialled from here. Each method checks,
//! hands over to the part that does it, and puts the answer in its wire form.

mod exec;
mod file;
mod suspension;

use std::sync::Arc;

use connectrpc::{
    ConnectError, InboundStream, RequestContext, Response, ServiceRequest, ServiceResult,
    ServiceStream,
};
use futures::Stream;
use overwinter_api::supervisor as wire;
use tokio::sync::watch;

use crate::config::Config;
use crate::credentials::Own;
use crate::error::Refusal;
use crate::gate::Gate;
use crate::process::Table;

/// The newest protocol that this supervisor speaks.
const PROTOCOL: u32 = 1;

/// What outlives every connection.
pub(crate) struct Sandbox {
    pub config: Config,
    pub own: Arc<Own>,
    pub table: Arc<Table>,
    pub gate: Arc<Gate>,
}

impl Sandbox {
    /// A sandbox in which nothing runs yet.
    pub(crate) fn new(config: Config, own: Own) -> Arc<Self> {
        let workspace = config.workspace.to_string_lossy().into_owned();
        Arc::new(Self {
            table: Table::new(own.clone(), workspace, config.image.clone()),
            own: Arc::new(own),
            gate: Gate::new(),
            config,
        })
    }
}

/// The service on one connection.
pub(crate) struct Service {
    sandbox: Arc<Sandbox>,
    /// Set by Detach: the streams of this connection end, and it closes.
    detach: watch::Sender<bool>,
}

impl Service {
    /// For a new connection; `detach` tells its owner to close it.
    pub(crate) fn new(sandbox: Arc<Sandbox>, detach: watch::Sender<bool>) -> Self {
        Self { sandbox, detach }
    }

    fn detached(&self) -> watch::Receiver<bool> {
        self.detach.subscribe()
    }
}

fn ok<T>(outcome: Result<T, Refusal>) -> ServiceResult<T> {
    match outcome {
        Ok(body) => Response::ok(body),
        Err(refusal) => Err(ConnectError::from(refusal)),
    }
}

/// A stream, or one that ends at once with the refusal. As an error of the call itself its details
/// would be lost on gRPC, where `connectrpc` sends them with the trailers of a stream alone.
fn stream_or_refusal<T: Send + 'static>(
    outcome: Result<impl Stream<Item = Result<T, ConnectError>> + Send + 'static, Refusal>,
) -> ServiceStream<T> {
    match outcome {
        Ok(stream) => Box::pin(stream),
        Err(refusal) => Box::pin(futures::stream::iter([Err(ConnectError::from(refusal))])),
    }
}

// The trait asks for anything that encodes as the answer; naming the answer is the point.
#[allow(refining_impl_trait)]
impl wire::SupervisorService for Service {
    async fn get_info(
        &self,
        _context: RequestContext,
        _request: ServiceRequest<'_, wire::GetInfoRequest>,
    ) -> ServiceResult<wire::GetInfoResponse> {
        Response::ok(wire::GetInfoResponse {
            version: env!("CARGO_PKG_VERSION").into(),
            protocol: PROTOCOL,
            quiesced: self.sandbox.gate.is_closed(),
            live_processes: self.sandbox.table.live().len() as u32,
        })
    }

    async fn exec(
        &self,
        _context: RequestContext,
        requests: InboundStream<wire::ExecRequest>,
    ) -> ServiceResult<ServiceStream<wire::ExecResponse>> {
        Response::ok(stream_or_refusal(self.exec_stream(requests).await))
    }

    async fn start_process(
        &self,
        _context: RequestContext,
        request: ServiceRequest<'_, wire::StartProcessRequest>,
    ) -> ServiceResult<wire::StartProcessResponse> {
        ok(self.start_in_background(request.to_owned_message()).await)
    }

    async fn signal_process(
        &self,
        _context: RequestContext,
        request: ServiceRequest<'_, wire::SignalProcessRequest>,
    ) -> ServiceResult<wire::SignalProcessResponse> {
        let process = self.sandbox.table.get(request.process_id)?;
        process.signal(request.signal)?;
        Response::ok(wire::SignalProcessResponse::default())
    }

    async fn list_processes(
        &self,
        _context: RequestContext,
        _request: ServiceRequest<'_, wire::ListProcessesRequest>,
    ) -> ServiceResult<wire::ListProcessesResponse> {
        Response::ok(self.listing())
    }

    async fn get_process(
        &self,
        _context: RequestContext,
        request: ServiceRequest<'_, wire::GetProcessRequest>,
    ) -> ServiceResult<wire::GetProcessResponse> {
        let process = self.sandbox.table.get(request.process_id)?;
        Response::ok(wire::GetProcessResponse {
            process: process.info().into(),
        })
    }

    async fn watch_processes(
        &self,
        _context: RequestContext,
        _request: ServiceRequest<'_, wire::WatchProcessesRequest>,
    ) -> ServiceResult<ServiceStream<wire::ProcessEvent>> {
        Response::stream_ok(self.events())
    }

    async fn read_file(
        &self,
        _context: RequestContext,
        request: ServiceRequest<'_, wire::ReadFileRequest>,
    ) -> ServiceResult<ServiceStream<file::ReadItem>> {
        let content = self.content(request.to_owned_message()).await;
        Response::ok(stream_or_refusal(content))
    }

    async fn write_file(
        &self,
        context: RequestContext,
        requests: InboundStream<wire::WriteFileRequest>,
    ) -> ServiceResult<wire::WriteFileResponse> {
        let aside = context.extensions().get().cloned();
        ok(self.upload(requests, aside).await)
    }

    async fn stat_file(
        &self,
        _context: RequestContext,
        request: ServiceRequest<'_, wire::StatFileRequest>,
    ) -> ServiceResult<wire::StatFileResponse> {
        ok(self.stat(request.to_owned_message()).await)
    }

    async fn list_directory(
        &self,
        _context: RequestContext,
        request: ServiceRequest<'_, wire::ListDirectoryRequest>,
    ) -> ServiceResult<wire::ListDirectoryResponse> {
        ok(self.list(request.to_owned_message()).await)
    }

    async fn make_directory(
        &self,
        _context: RequestContext,
        request: ServiceRequest<'_, wire::MakeDirectoryRequest>,
    ) -> ServiceResult<wire::MakeDirectoryResponse> {
        ok(self.make(request.to_owned_message()).await)
    }

    async fn rename_file(
        &self,
        _context: RequestContext,
        request: ServiceRequest<'_, wire::RenameFileRequest>,
    ) -> ServiceResult<wire::RenameFileResponse> {
        ok(self.rename(request.to_owned_message()).await)
    }

    async fn remove_file(
        &self,
        _context: RequestContext,
        request: ServiceRequest<'_, wire::RemoveFileRequest>,
    ) -> ServiceResult<wire::RemoveFileResponse> {
        ok(self.remove(request.to_owned_message()).await)
    }

    async fn quiesce(
        &self,
        _context: RequestContext,
        request: ServiceRequest<'_, wire::QuiesceRequest>,
    ) -> ServiceResult<wire::QuiesceResponse> {
        let request = request.to_owned_message();
        Response::ok(self.close_gate(request).await)
    }

    async fn unquiesce(
        &self,
        _context: RequestContext,
        _request: ServiceRequest<'_, wire::UnquiesceRequest>,
    ) -> ServiceResult<wire::UnquiesceResponse> {
        self.sandbox.gate.open();
        Response::ok(wire::UnquiesceResponse::default())
    }

    async fn detach(
        &self,
        _context: RequestContext,
        _request: ServiceRequest<'_, wire::DetachRequest>,
    ) -> ServiceResult<wire::DetachResponse> {
        Response::ok(self.leave())
    }

    async fn terminate(
        &self,
        _context: RequestContext,
        request: ServiceRequest<'_, wire::TerminateRequest>,
    ) -> ServiceResult<wire::TerminateResponse> {
        ok(self.end_everything(request.grace_ms).await)
    }
}
