//! A supervisor of a few lines, served as the real one is: a dial, an upgrade, then HTTP/2 with the
//! roles turned.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use connectrpc::{
    ConnectError, ConnectRpcService, ErrorCode, ErrorDetail, InboundStream, RequestContext,
    Response, Router, ServiceRequest, ServiceResult, ServiceStream,
};
use futures::StreamExt as _;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use overwinter_api::rpc::ErrorInfo;
use overwinter_api::supervisor as wire;
use overwinter_driver::session::{self, SupervisorAgent};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, DuplexStream, ReadBuf};
use tokio::sync::{Notify, watch};
use wire::__buffa::oneof::{exec_request, read_file_response, write_file_request};

#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Leave {
    #[default]
    Gracefully,
    Abruptly,
}

#[derive(Clone, Default)]
pub(crate) struct Fake(Arc<Shared>);

#[derive(Default)]
struct Shared {
    files: Mutex<HashMap<Vec<u8>, Vec<u8>>>,
    exec_ended: Notify,
    terminate_called: Notify,
    detached: Notify,
    detach_answered: Notify,
    hung_up: watch::Sender<bool>,
    leave: Mutex<Leave>,
}

impl Fake {
    pub(crate) async fn exec_ended(&self) {
        self.0.exec_ended.notified().await;
    }

    pub(crate) async fn terminate_called(&self) {
        self.0.terminate_called.notified().await;
    }

    pub(crate) async fn detach_answered(&self) {
        self.0.detach_answered.notified().await;
    }

    pub(crate) fn leave_when_detached(&self, leave: Leave) {
        *self.0.leave.lock().unwrap() = leave;
    }

    /// Closes the socket.
    pub(crate) fn hang_up(&self) {
        self.0.hung_up.send_replace(true);
    }

    /// Attaches by the steps of a supervisor and of the gateway.
    pub(crate) async fn attach(&self) -> Arc<SupervisorAgent> {
        let (ours, theirs) = tokio::io::duplex(1 << 20);
        let fake = self.clone();
        tokio::spawn(fake.serve(theirs));
        session::accept(Box::new(ours)).await.unwrap()
    }

    async fn serve(self, mut io: DuplexStream) {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(io.read_u8().await.unwrap());
        }
        assert!(head.starts_with(b"HTTP/1.1 101 "));
        let service = wire::SupervisorServiceExt::register(Arc::new(self.clone()), Router::new());
        let service = TowerToHyperService::new(ConnectRpcService::new(service));
        let socket = Socket(Arc::new(Mutex::new(Some(io))));
        let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .serve_connection(TokioIo::new(socket.clone()), service);
        tokio::pin!(connection);
        let mut hung_up = self.0.hung_up.subscribe();
        let hung_up = hung_up.wait_for(|it| *it);
        tokio::pin!(hung_up);
        let mut over = false;
        loop {
            tokio::select! {
                _ = &mut connection, if !over => over = true,
                () = self.0.detached.notified() => {
                    if let Leave::Gracefully = *self.0.leave.lock().unwrap() {
                        connection.as_mut().graceful_shutdown();
                    }
                }
                _ = &mut hung_up => break,
            }
        }
        socket.0.lock().unwrap().take();
    }
}

/// Stays open until it is taken out, whatever HTTP/2 does with it.
#[derive(Clone)]
struct Socket(Arc<Mutex<Option<DuplexStream>>>);

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut *self.0.lock().unwrap() {
            Some(io) => Pin::new(io).poll_read(cx, buf),
            None => Poll::Ready(Ok(())),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut *self.0.lock().unwrap() {
            Some(io) => Pin::new(io).poll_write(cx, data),
            None => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

fn not_found() -> ConnectError {
    let info = ErrorInfo {
        reason: "FILE_NOT_FOUND".into(),
        domain: "overwinter".into(),
        ..Default::default()
    };
    ConnectError::new(ErrorCode::NotFound, "no such file")
        .with_detail(ErrorDetail::from_message("google.rpc.ErrorInfo", &info))
}

/// Calls that no test makes: a supervisor of another version.
macro_rules! unimplemented_calls {
    ($($call:ident: $request:ident => $response:ident),* $(,)?) => {
        $(async fn $call(
            &self,
            _: RequestContext,
            _: ServiceRequest<'_, wire::$request>,
        ) -> ServiceResult<wire::$response> {
            Err(ConnectError::unimplemented(""))
        })*
    };
}

struct Ended(Arc<Shared>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.exec_ended.notify_one();
    }
}

impl wire::SupervisorService for Fake {
    async fn exec(
        &self,
        _: RequestContext,
        requests: InboundStream<wire::ExecRequest>,
    ) -> ServiceResult<ServiceStream<wire::ExecResponse>> {
        let ended = Ended(self.0.clone());
        let exit = wire::ExitResult {
            code: 7,
            ..Default::default()
        };
        let output = requests
            .filter_map(async |request| {
                let message = match request.ok()?.to_owned_message().message? {
                    exec_request::Message::Start(_) => wire::ExecStarted::default().into(),
                    exec_request::Message::Stdin(stdin) => wire::OutputData {
                        data: stdin.data,
                        ..Default::default()
                    }
                    .into(),
                    exec_request::Message::Attach(_)
                    | exec_request::Message::Resize(_)
                    | exec_request::Message::Signal(_) => return None,
                };
                Some(Ok(wire::ExecResponse {
                    message: Some(message),
                }))
            })
            .chain(futures::stream::iter([Ok(wire::ExecResponse {
                message: Some(exit.into()),
            })]))
            .inspect(move |_| {
                let _ = &ended;
            });
        Response::ok(Box::pin(output))
    }

    async fn watch_processes(
        &self,
        _: RequestContext,
        _: ServiceRequest<'_, wire::WatchProcessesRequest>,
    ) -> ServiceResult<ServiceStream<wire::ProcessEvent>> {
        Err(ConnectError::unimplemented(""))
    }

    async fn read_file(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, wire::ReadFileRequest>,
    ) -> ServiceResult<ServiceStream<wire::ReadFileResponse>> {
        let path = request.to_owned_message().path.to_vec();
        let files = self.0.files.lock().unwrap();
        let contents = files.get(&path).cloned().ok_or_else(not_found)?;
        let info = wire::FileInfo {
            size: contents.len() as u64,
            ..Default::default()
        };
        let mut messages = vec![read_file_response::Message::from(info)];
        for piece in contents.chunks(1 << 20) {
            messages.push(read_file_response::Message::Data(
                bytes::Bytes::copy_from_slice(piece),
            ));
        }
        let messages = messages.into_iter().map(|message| {
            Ok(wire::ReadFileResponse {
                message: Some(message),
            })
        });
        Response::ok(Box::pin(futures::stream::iter(messages)))
    }

    async fn write_file(
        &self,
        _: RequestContext,
        mut requests: InboundStream<wire::WriteFileRequest>,
    ) -> ServiceResult<wire::WriteFileResponse> {
        let mut path = Vec::new();
        let mut contents = Vec::new();
        while let Some(request) = requests.next().await {
            match request?.to_owned_message().message {
                Some(write_file_request::Message::Start(start)) => path = start.path.to_vec(),
                Some(write_file_request::Message::Data(data)) => contents.extend_from_slice(&data),
                Some(write_file_request::Message::End(_)) => {
                    let size = contents.len() as u64;
                    self.0.files.lock().unwrap().insert(path, contents);
                    let info = wire::FileInfo {
                        size,
                        ..Default::default()
                    };
                    return Response::ok(wire::WriteFileResponse { info: info.into() });
                }
                None => {}
            }
        }
        let info = ErrorInfo {
            reason: "UPLOAD_BROKEN".into(),
            ..Default::default()
        };
        Err(ConnectError::new(ErrorCode::Aborted, "no end")
            .with_detail(ErrorDetail::from_message("google.rpc.ErrorInfo", &info)))
    }

    async fn stat_file(
        &self,
        _: RequestContext,
        _: ServiceRequest<'_, wire::StatFileRequest>,
    ) -> ServiceResult<wire::StatFileResponse> {
        Err(not_found())
    }

    async fn detach(
        &self,
        _: RequestContext,
        _: ServiceRequest<'_, wire::DetachRequest>,
    ) -> ServiceResult<wire::DetachResponse> {
        self.0.detached.notify_one();
        self.0.detach_answered.notify_one();
        Response::ok(wire::DetachResponse {
            live_process_ids: vec!["p".into()],
        })
    }

    async fn terminate(
        &self,
        _: RequestContext,
        _: ServiceRequest<'_, wire::TerminateRequest>,
    ) -> ServiceResult<wire::TerminateResponse> {
        self.0.terminate_called.notify_one();
        std::future::pending().await
    }

    unimplemented_calls! {
        get_info: GetInfoRequest => GetInfoResponse,
        start_process: StartProcessRequest => StartProcessResponse,
        signal_process: SignalProcessRequest => SignalProcessResponse,
        list_processes: ListProcessesRequest => ListProcessesResponse,
        get_process: GetProcessRequest => GetProcessResponse,
        list_directory: ListDirectoryRequest => ListDirectoryResponse,
        make_directory: MakeDirectoryRequest => MakeDirectoryResponse,
        rename_file: RenameFileRequest => RenameFileResponse,
        remove_file: RemoveFileRequest => RemoveFileResponse,
        quiesce: QuiesceRequest => QuiesceResponse,
        unquiesce: UnquiesceRequest => UnquiesceResponse,
    }
}
