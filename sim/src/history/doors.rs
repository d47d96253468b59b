//! The services of one gateway, called as any client calls them, without a socket.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use buffa::Message as _;
use buffa_types::google::protobuf::Duration as WireDuration;
use connectrpc::client::{ClientConfig, ServiceTransport};
use connectrpc::{ConnectError, ConnectRpcService, ErrorCode, Router};
use futures::StreamExt as _;
use futures::channel::oneshot;
use overwinter_api::rpc::ErrorInfo;
use overwinter_api::v1;
use overwinter_gateway::api::Api;
use overwinter_gateway::server::{self, ServerError};
use overwinter_lifecycle::Depth;
use overwinter_lifecycle::ids::SandboxId;
use overwinter_store::AcceptError;
use v1::__buffa::oneof::{file_path, read_file_response, sandbox_ref, write_file_request};

type Door = ServiceTransport<ConnectRpcService<Router>>;

#[derive(Clone)]
pub(crate) struct Doors {
    api: Api,
    pub sandboxes: v1::SandboxServiceClient<Door>,
    processes: v1::ProcessServiceClient<Door>,
    files: v1::FileServiceClient<Door>,
}

/// How a client names a sandbox.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    Name(String),
    Id(SandboxId),
}

impl Target {
    fn wire(&self) -> v1::SandboxRef {
        let by = match self {
            Self::Name(name) => sandbox_ref::By::Name(name.clone()),
            Self::Id(id) => sandbox_ref::By::Id(id.to_string()),
        };
        v1::SandboxRef { by: Some(by) }
    }
}

/// A verb with its parameters.
#[derive(Clone, Debug)]
pub(crate) enum Verb {
    Create(String),
    Suspend(Target, v1::Depth),
    Resume(Target, bool),
    Start(Target),
    Delete(Target),
}

impl Verb {
    /// The same verb with another parameter, if it has one.
    pub(crate) fn otherwise(&self) -> Option<Self> {
        match self {
            Self::Create(name) => Some(Self::Create(format!("{name}-too"))),
            Self::Suspend(target, v1::Depth::DEPTH_STOP) => {
                Some(Self::Suspend(target.clone(), v1::Depth::DEPTH_FREEZE))
            }
            Self::Suspend(target, _) => Some(Self::Suspend(target.clone(), v1::Depth::DEPTH_STOP)),
            Self::Resume(target, fallback) => Some(Self::Resume(target.clone(), !fallback)),
            Self::Start(_) | Self::Delete(_) => None,
        }
    }

    /// Whether an operation is what was asked for.
    pub(crate) fn is_in(&self, operation: &v1::Operation) -> bool {
        let has = |key, value: &str| operation.parameters.get(key).is_some_and(|it| it == value);
        let (kind, same) = match self {
            Self::Create(_) => (v1::OperationKind::OPERATION_KIND_CREATE, true),
            Self::Suspend(_, depth) => (
                v1::OperationKind::OPERATION_KIND_SUSPEND,
                match depth {
                    v1::Depth::DEPTH_FREEZE => has("depth", "freeze"),
                    v1::Depth::DEPTH_CHECKPOINT => has("depth", "checkpoint"),
                    v1::Depth::DEPTH_STOP => has("depth", "stop"),
                    // Whoever names none is content with any.
                    v1::Depth::DEPTH_UNSPECIFIED => true,
                },
            ),
            Self::Resume(_, fallback) => (
                v1::OperationKind::OPERATION_KIND_RESUME,
                has("restart_if_restore_fails", &fallback.to_string()),
            ),
            Self::Start(_) => (v1::OperationKind::OPERATION_KIND_START, true),
            Self::Delete(_) => (
                v1::OperationKind::OPERATION_KIND_DELETE,
                has("abandon", "false"),
            ),
        };
        same && operation.kind == kind
    }
}

/// How a process has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exit {
    pub code: i32,
    /// A suspension ended it.
    pub by_suspension: bool,
}

/// The reason of the error's `google.rpc.ErrorInfo`.
pub(crate) fn reason(error: &ConnectError) -> Option<String> {
    error.details.iter().find_map(|detail| {
        let name = detail.type_url.rsplit('/').next()?;
        let value = detail.value.as_deref()?;
        let bytes = (STANDARD_NO_PAD.decode(value))
            .or_else(|_| STANDARD.decode(value))
            .ok()?;
        let info = ErrorInfo::decode_from_slice(&bytes).ok()?;
        (name == "google.rpc.ErrorInfo").then_some(info.reason)
    })
}

/// Who asks, under which key, and how long for.
pub(crate) struct Ask {
    pub requester: String,
    pub key: String,
    pub wait: Duration,
}

fn path(path: &str) -> v1::FilePath {
    v1::FilePath {
        by: Some(file_path::By::Text(path.to_owned())),
    }
}

impl Doors {
    pub(crate) fn open(api: &Api) -> Result<Self, ServerError> {
        let door = ServiceTransport::new(server::rpc(api)?);
        let config = ClientConfig::new(http_uri());
        Ok(Self {
            api: api.clone(),
            sandboxes: v1::SandboxServiceClient::new(door.clone(), config.clone()),
            processes: v1::ProcessServiceClient::new(door.clone(), config.clone()),
            files: v1::FileServiceClient::new(door, config),
        })
    }

    pub(crate) async fn verb(
        &self,
        verb: &Verb,
        ask: &Ask,
    ) -> Result<v1::OperationResponse, ConnectError> {
        let options = v1::WriteOptions {
            idempotency_key: ask.key.clone(),
            requester: ask.requester.clone(),
            wait: WireDuration {
                seconds: i64::try_from(ask.wait.as_secs()).unwrap_or(i64::MAX),
                nanos: i32::try_from(ask.wait.subsec_nanos()).unwrap_or(0),
                ..Default::default()
            }
            .into(),
        };
        let options = options.into();
        let door = &self.sandboxes;
        let answer = match verb {
            Verb::Create(name) => {
                let spec = v1::SandboxSpec {
                    image: "image".to_owned(),
                    ..Default::default()
                };
                door.create_sandbox(v1::CreateSandboxRequest {
                    name: name.clone(),
                    spec: spec.into(),
                    options,
                    ..Default::default()
                })
                .await?
            }
            Verb::Suspend(target, depth) => {
                door.suspend_sandbox(v1::SuspendSandboxRequest {
                    sandbox: target.wire().into(),
                    depth: (*depth).into(),
                    options,
                    reclaim: false,
                })
                .await?
            }
            Verb::Resume(target, fallback) => {
                door.resume_sandbox(v1::ResumeSandboxRequest {
                    sandbox: target.wire().into(),
                    restart_if_restore_fails: *fallback,
                    options,
                    prefetch: false,
                })
                .await?
            }
            Verb::Start(target) => {
                door.start_sandbox(v1::StartSandboxRequest {
                    sandbox: target.wire().into(),
                    options,
                })
                .await?
            }
            Verb::Delete(target) => {
                door.delete_sandbox(v1::DeleteSandboxRequest {
                    sandbox: target.wire().into(),
                    abandon: false,
                    options,
                })
                .await?
            }
        };
        Ok(answer.into_owned())
    }

    /// What an idle timer asks for, which no client can. Whether it was let in.
    pub(crate) async fn suspend_idle(
        &self,
        id: SandboxId,
        depth: Depth,
    ) -> Result<bool, AcceptError> {
        let suspend = self.api.reconciler.suspend_idle(id, Some(depth)).await?;
        Ok(suspend.is_some())
    }

    pub(crate) async fn get(&self, target: &Target) -> Result<v1::Sandbox, ConnectError> {
        let request = v1::GetSandboxRequest {
            sandbox: target.wire().into(),
        };
        let answer = self.sandboxes.get_sandbox(request).await?.into_owned();
        let nothing = || ConnectError::new(ErrorCode::Internal, "no sandbox in the answer");
        answer.sandbox.into_option().ok_or_else(nothing)
    }

    pub(crate) async fn list(&self) -> Result<usize, ConnectError> {
        let request = v1::ListSandboxesRequest::default();
        let answer = self.sandboxes.list_sandboxes(request).await?.into_owned();
        Ok(answer.sandboxes.len())
    }

    /// Held open before its data, until it may go on.
    pub(crate) async fn write(
        &self,
        target: &Target,
        to: &str,
        data: &str,
        go_on: oneshot::Receiver<()>,
    ) -> Result<(), ConnectError> {
        let start = v1::WriteFileStart {
            sandbox: target.wire().into(),
            path: path(to).into(),
            ..Default::default()
        };
        let data = bytes::Bytes::copy_from_slice(data.as_bytes());
        let first = futures::stream::iter([write_file_request::Message::from(start)]);
        let data = futures::stream::once(async move {
            // Whoever would let it go on may have gone away.
            let _ = go_on.await;
            write_file_request::Message::Data(data)
        });
        let end = futures::stream::iter([v1::WriteFileEnd::default().into()]);
        let messages = first.chain(data).chain(end);
        let messages = messages.map(|message| v1::WriteFileRequest {
            message: Some(message),
        });
        self.files.write_file(messages).await.map(|_| ())
    }

    /// `open`: what is done when its first message is there, and before the next is taken.
    pub(crate) async fn read(
        &self,
        target: &Target,
        from: &str,
        open: impl Future<Output = ()>,
    ) -> Result<String, ConnectError> {
        let request = v1::ReadFileRequest {
            sandbox: target.wire().into(),
            path: path(from).into(),
            ..Default::default()
        };
        let mut stream = self.files.read_file(request).await?;
        let mut data = Vec::new();
        let mut open = Some(open);
        while let Some(message) = stream.message().await? {
            let message: v1::ReadFileResponse = message.to_owned_message();
            if let Some(read_file_response::Message::Data(piece)) = message.message {
                data.extend_from_slice(&piece);
            }
            if let Some(open) = open.take() {
                open.await;
            }
        }
        Ok(String::from_utf8_lossy(&data).into_owned())
    }

    pub(crate) async fn run(
        &self,
        target: &Target,
        process_id: String,
        command: &[&str],
    ) -> Result<Exit, ConnectError> {
        let request = v1::RunProcessRequest {
            start: start(target, process_id, command).into(),
            ..Default::default()
        };
        let answer = self.processes.run_process(request).await?.into_owned();
        let exit = answer.exit.as_option();
        Ok(Exit {
            code: exit.map_or(-1, |exit| exit.code),
            by_suspension: exit.is_some_and(|exit| exit.cause == v1::ExitCause::Suspension),
        })
    }

    pub(crate) async fn start(
        &self,
        target: &Target,
        process_id: String,
        command: &[&str],
    ) -> Result<(), ConnectError> {
        let request = v1::StartProcessRequest {
            start: start(target, process_id, command).into(),
        };
        self.processes.start_process(request).await.map(|_| ())
    }
}

fn start(target: &Target, process_id: String, command: &[&str]) -> v1::ExecStart {
    let process = v1::ProcessSpec {
        command: command.iter().map(|word| (*word).to_owned()).collect(),
        ..Default::default()
    };
    v1::ExecStart {
        sandbox: target.wire().into(),
        process_id,
        process: process.into(),
    }
}

fn http_uri() -> http::Uri {
    http::Uri::from_static("http://overwinter")
}
