//! Processes inside sandboxes.

use buffa::MessageField;
use bytes::{Bytes, BytesMut};
use connectrpc::{
    ConnectError, Encodable, InboundStream, RequestContext, Response, ServiceRequest,
    ServiceResult, ServiceStream,
};
use futures::{StreamExt, stream};
use overwinter_api::{supervisor as wire, v1};
use overwinter_lifecycle::Phase;
use overwinter_lifecycle::ids::SandboxId;
use overwinter_lifecycle::record::Sandbox;
use uuid::Uuid;

use super::{Api, ApiError};
use crate::dataplane::exec::{self, Opening};
use crate::dataplane::process;
use crate::sessions::Admission;

/// Of each of stdout and stderr, in a `RunProcess` answer.
const OUTPUT_KEPT: usize = 1 << 20;

impl Api {
    async fn admit(
        &self,
        sandbox: Option<v1::SandboxRef>,
        kind: &'static str,
    ) -> Result<(SandboxId, Admission), ApiError> {
        self.check_admission()?;
        let (slot, id) = self.awake(sandbox).await?;
        Ok((id, self.reconciler.admit_call(slot, id, kind).await?))
    }

    /// A start with its id made up where there is none, and the sandbox's own environment beneath.
    async fn opening(
        &self,
        id: SandboxId,
        process_id: String,
        spec: Option<v1::ProcessSpec>,
    ) -> Result<(String, wire::ProcessSpec), ApiError> {
        let spec = spec.ok_or_else(|| ApiError::invalid("process is missing"))?;
        if spec.command.is_empty() {
            return Err(ApiError::invalid("process.command is empty"));
        }
        let process_id = if process_id.is_empty() {
            self.reconciler.ports.ids.next().to_string()
        } else {
            Uuid::parse_str(&process_id)
                .map_err(|_| ApiError::invalid("process_id: not a UUID"))?
                .to_string()
        };
        let env = match self.reconciler.store.get(id).await? {
            Some(sandbox) => sandbox.config.env.into_iter().collect(),
            None => Vec::new(),
        };
        Ok((process_id, process::spec(spec, &env)))
    }
}

impl v1::ProcessService for Api {
    async fn exec(
        &self,
        _ctx: RequestContext,
        requests: InboundStream<v1::ExecRequest>,
    ) -> ServiceResult<ServiceStream<impl Encodable<v1::ExecResponse> + Send + use<>>> {
        let mut requests = requests.map(|item| item.map(|item| item.to_owned_message()));
        let first = match requests.next().await {
            Some(first) => first?.message,
            None => None,
        };
        let (id, admission, opening) = match first {
            Some(v1::exec_request::Message::Start(start)) => {
                let (id, admission) = self.admit(start.sandbox.into_option(), "exec").await?;
                let (process_id, process) = self
                    .opening(id, start.process_id, start.process.into_option())
                    .await?;
                (
                    id,
                    admission,
                    Opening::Start {
                        process_id,
                        process,
                    },
                )
            }
            Some(v1::exec_request::Message::Attach(attach)) => {
                let (id, admission) = self.admit(attach.sandbox.into_option(), "attach").await?;
                let attach = wire::ExecAttach {
                    process_id: attach.process_id,
                    stdout_offset: attach.stdout_offset,
                    stderr_offset: attach.stderr_offset,
                };
                (id, admission, Opening::Attach(attach))
            }
            Some(
                v1::exec_request::Message::Stdin(_)
                | v1::exec_request::Message::Resize(_)
                | v1::exec_request::Message::Signal(_),
            )
            | None => {
                return Err(ApiError::invalid("the first message is a start or an attach").into());
            }
        };
        let answers = exec::carry(self.reconciler.clone(), id, admission, opening, requests);
        let answers = stream::unfold(answers, async |mut answers| {
            answers.recv().await.map(|next| (next, answers))
        });
        Response::ok(answers.boxed())
    }

    async fn start_process<'a>(
        &'a self,
        _ctx: RequestContext,
        request: ServiceRequest<'_, v1::StartProcessRequest>,
    ) -> ServiceResult<impl Encodable<v1::StartProcessResponse> + Send + use<'a>> {
        let start = request
            .to_owned_message()
            .start
            .into_option()
            .ok_or_else(|| ApiError::invalid("start is missing"))?;
        let (id, admission) = self
            .admit(start.sandbox.into_option(), "start_process")
            .await?;
        let (process_id, process) = self
            .opening(id, start.process_id, start.process.into_option())
            .await?;
        let start = wire::ExecStart {
            process_id,
            process: MessageField::some(process),
        };
        let info = self
            .asked(admission.session.agent.start_process(start))
            .await?;
        let process = MessageField::some(process::info(&info));
        Response::ok(v1::StartProcessResponse { process })
    }

    async fn run_process<'a>(
        &'a self,
        _ctx: RequestContext,
        request: ServiceRequest<'_, v1::RunProcessRequest>,
    ) -> ServiceResult<impl Encodable<v1::RunProcessResponse> + Send + use<'a>> {
        let request = request.to_owned_message();
        let start = request
            .start
            .into_option()
            .ok_or_else(|| ApiError::invalid("start is missing"))?;
        let (id, admission) = self
            .admit(start.sandbox.into_option(), "run_process")
            .await?;
        let (process_id, mut process) = self
            .opening(id, start.process_id, start.process.into_option())
            .await?;
        process.stdin = !request.stdin.is_empty();
        let input = stdin_of(request.stdin);
        let opening = Opening::Start {
            process_id,
            process,
        };
        let mut answers = exec::carry(
            self.reconciler.clone(),
            id,
            admission,
            opening,
            input.boxed(),
        );
        Response::ok(collect(&mut answers).await?)
    }

    async fn signal_process<'a>(
        &'a self,
        _ctx: RequestContext,
        request: ServiceRequest<'_, v1::SignalProcessRequest>,
    ) -> ServiceResult<impl Encodable<v1::SignalProcessResponse> + Send + use<'a>> {
        let request = request.to_owned_message();
        let (_, admission) = self.admit(request.sandbox.into_option(), "signal").await?;
        self.asked(
            admission
                .session
                .agent
                .signal_process(request.process_id, request.signal),
        )
        .await?;
        Response::ok(v1::SignalProcessResponse {})
    }

    async fn list_processes<'a>(
        &'a self,
        _ctx: RequestContext,
        request: ServiceRequest<'_, v1::ListProcessesRequest>,
    ) -> ServiceResult<impl Encodable<v1::ListProcessesResponse> + Send + use<'a>> {
        let sandbox = self
            .sandbox(request.to_owned_message().sandbox.into_option())
            .await?;
        Response::ok(v1::ListProcessesResponse {
            processes: self.processes(&sandbox).await?,
        })
    }

    async fn get_process<'a>(
        &'a self,
        _ctx: RequestContext,
        request: ServiceRequest<'_, v1::GetProcessRequest>,
    ) -> ServiceResult<impl Encodable<v1::GetProcessResponse> + Send + use<'a>> {
        let request = request.to_owned_message();
        let sandbox = self.sandbox(request.sandbox.into_option()).await?;
        let found = self
            .processes(&sandbox)
            .await?
            .into_iter()
            .find(|process| process.process_id == request.process_id)
            .ok_or_else(|| {
                ApiError::new(
                    connectrpc::ErrorCode::NotFound,
                    "PROCESS_NOT_FOUND",
                    format!("there is no process {:?}", request.process_id),
                    "`overwinter process list` shows those that are kept",
                )
            })?;
        Response::ok(v1::GetProcessResponse {
            process: MessageField::some(found),
        })
    }
}

impl Api {
    /// The live ones, as the supervisor says, and the kept results. Looking wakes nothing.
    async fn processes(&self, sandbox: &Sandbox) -> Result<Vec<v1::ProcessInfo>, ApiError> {
        let session = match sandbox.phase() {
            Phase::Ready => self.reconciler.session_of(sandbox).await,
            Phase::Creating
            | Phase::Suspending(_)
            | Phase::Suspended(_)
            | Phase::Resuming
            | Phase::Failed
            | Phase::Deleting
            | Phase::Tombstone => {
                let slot = self.reconciler.hub.find(sandbox.id);
                slot.and_then(|slot| slot.session())
            }
        };
        let attached = session.is_some();
        let mut processes: Vec<v1::ProcessInfo> = match session {
            Some(session) => {
                let live = self.asked(session.agent.list_processes()).await?;
                live.iter().map(process::info).collect()
            }
            None => Vec::new(),
        };
        for result in self.reconciler.store.process_results(sandbox.id).await? {
            let stored = process::from_stored(&result);
            // Whoever is inside knows best what runs.
            if stored.running && attached {
                continue;
            }
            if !processes
                .iter()
                .any(|live| live.process_id == stored.process_id)
            {
                processes.push(stored);
            }
        }
        Ok(processes)
    }
}

/// All of the input and its end; the stream itself stays open.
fn stdin_of(
    data: Bytes,
) -> impl futures::Stream<Item = Result<v1::ExecRequest, ConnectError>> + Send {
    let given = (!data.is_empty()).then(|| {
        Ok(v1::ExecRequest {
            message: Some(
                v1::StdinData {
                    offset: 0,
                    data,
                    eof: true,
                }
                .into(),
            ),
        })
    });
    stream::iter(given).chain(stream::pending())
}

async fn collect(
    answers: &mut tokio::sync::mpsc::Receiver<Result<v1::ExecResponse, ConnectError>>,
) -> Result<v1::RunProcessResponse, ConnectError> {
    let (mut stdout, mut stderr, mut truncated) = (BytesMut::new(), BytesMut::new(), false);
    while let Some(answer) = answers.recv().await {
        match answer?.message {
            Some(v1::exec_response::Message::Output(output)) => {
                let kept = if output.stderr {
                    &mut stderr
                } else {
                    &mut stdout
                };
                let room = OUTPUT_KEPT - kept.len().min(OUTPUT_KEPT);
                truncated |= output.data.len() > room;
                kept.extend_from_slice(&output.data[..output.data.len().min(room)]);
            }
            Some(v1::exec_response::Message::Exited(exit)) => {
                return Ok(v1::RunProcessResponse {
                    exit: MessageField::some(*exit),
                    stdout: stdout.freeze(),
                    stderr: stderr.freeze(),
                    truncated,
                });
            }
            Some(
                v1::exec_response::Message::Started(_) | v1::exec_response::Message::StdinAck(_),
            )
            | None => {}
        }
    }
    Err(ApiError::from(overwinter_driver::AgentError::Gone).into())
}
