//! Processes that are programs of the fake's own: `echo`, `cat`, `exit CODE`, `sleep`, `flood`;
//! `deaf`, which no signal ends, and `unanswered`, whose start is never told of; anything else is not
//! found. They outlive the streams that are attached to them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use connectrpc::{
    ConnectError, ErrorCode, InboundStream, RequestContext, Response, ServiceRequest,
    ServiceResult, ServiceStream,
};
use futures::StreamExt as _;
use overwinter_api::v1;
use tokio::sync::{mpsc, watch};
use v1::__buffa::oneof::{exec_request, exec_response};

use super::{Fake, error};

#[derive(Default)]
pub struct Process {
    pub sandbox: String,
    pub command: Vec<String>,
    pub kept: Mutex<Kept>,
    changed: watch::Sender<()>,
}

#[derive(Default)]
pub struct Kept {
    pub stdin: Vec<u8>,
    pub stdin_closed: bool,
    pub output: Vec<u8>,
    pub exit: Option<v1::ExitResult>,
    pub attached: usize,
}

impl Process {
    fn end(&self, code: i32, error: &str) {
        let mut kept = self.kept.lock().unwrap();
        let stdout_bytes = kept.output.len() as u64;
        kept.exit.get_or_insert(v1::ExitResult {
            code,
            error: error.to_owned(),
            cause: v1::ExitCause::Own.into(),
            stdout_bytes,
            ..Default::default()
        });
    }

    /// Runs the program as far as its input goes.
    fn step(&self) {
        let text: Vec<&str> = self.command.iter().map(String::as_str).collect();
        match text[..] {
            ["echo", ref words @ ..] => {
                let line = format!("{}\n", words.join(" "));
                let mut kept = self.kept.lock().unwrap();
                if kept.exit.is_none() {
                    kept.output.extend_from_slice(line.as_bytes());
                    drop(kept);
                    self.end(0, "");
                }
            }
            ["cat"] => {
                let mut kept = self.kept.lock().unwrap();
                kept.output = kept.stdin.clone();
                if kept.stdin_closed {
                    drop(kept);
                    self.end(0, "");
                }
            }
            ["exit", code] => self.end(code.parse().unwrap(), ""),
            ["sleep" | "deaf" | "unanswered"] => {}
            ["flood"] => self.kept.lock().unwrap().output.extend([b'y'; 64 << 10]),
            _ => self.end(127, &format!("{}: not found in PATH", self.command[0])),
        }
        self.changed.send_replace(());
    }

    fn signal(&self, signal: i32) {
        if self.command[0] != "deaf" {
            self.end(128 + signal, "");
        }
        self.changed.send_replace(());
    }
}

impl Fake {
    fn start(&self, start: &v1::ExecStart) -> Result<Arc<Process>, ConnectError> {
        let sandbox = self.find(&start.sandbox)?;
        let mut state = self.state();
        let process = state
            .processes
            .entry(start.process_id.clone())
            .or_insert_with(|| {
                Arc::new(Process {
                    sandbox: sandbox.name,
                    command: start.process.command.clone(),
                    ..Default::default()
                })
            });
        Ok(process.clone())
    }

    fn known(&self, id: &str) -> Result<Arc<Process>, ConnectError> {
        let found = self.state().processes.get(id).cloned();
        found.ok_or_else(|| error(ErrorCode::NotFound, "PROCESS_NOT_FOUND", "no process", ""))
    }

    /// Whether this stdin is what puts the sandbox to sleep.
    fn falls_asleep(&self, taken: usize) -> bool {
        let mut state = self.state();
        match state.sleep_after_stdin {
            Some(limit) if taken >= limit => {
                state.sleep_after_stdin = None;
                true
            }
            _ => false,
        }
    }

    fn nap(&self, name: &str) {
        self.set_phase(name, v1::Phase::Suspended, v1::Depth::Freeze);
        if self.state().sleeps_on {
            return;
        }
        let (fake, name) = (self.clone(), name.to_owned());
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(50)).await;
            fake.set_phase(&name, v1::Phase::Ready, v1::Depth::Unspecified);
        });
    }

    async fn attached(
        self,
        mut requests: InboundStream<v1::ExecRequest>,
        out: mpsc::Sender<Result<v1::ExecResponse, ConnectError>>,
    ) -> Result<(), ConnectError> {
        let Some(first) = requests.next().await else {
            return Ok(());
        };
        let (id, process, mut seen) = match first?.to_owned_message().message {
            Some(exec_request::Message::Start(start)) => {
                let process = self.start(&start)?;
                (start.process_id.clone(), process, 0)
            }
            Some(exec_request::Message::Attach(attach)) => {
                let process = self.known(&attach.process_id)?;
                (
                    attach.process_id.clone(),
                    process,
                    attach.stdout_offset as usize,
                )
            }
            _ => return Err(ConnectError::invalid_argument("neither start nor attach")),
        };
        if process.command[0] == "unanswered" {
            std::future::pending::<()>().await;
        }
        let send = async |message: exec_response::Message| {
            let response = v1::ExecResponse {
                message: Some(message),
            };
            out.send(Ok(response)).await.is_ok()
        };
        let mut changed = process.changed.subscribe();
        let stdin_offset = {
            let mut kept = process.kept.lock().unwrap();
            kept.attached += 1;
            kept.stdin.len() as u64
        };
        send(exec_response::Message::from(v1::ExecStarted {
            process_id: id,
            stdout_offset: seen as u64,
            stdin_offset,
            ..Default::default()
        }))
        .await;
        process.step();
        loop {
            let (fresh, exit) = {
                let kept = process.kept.lock().unwrap();
                (kept.output[seen..].to_vec(), kept.exit.clone())
            };
            for data in fresh.chunks(64 << 10) {
                let output = v1::OutputData {
                    stderr: false,
                    offset: seen as u64,
                    data: bytes::Bytes::copy_from_slice(data),
                };
                seen += data.len();
                if !send(exec_response::Message::from(output)).await {
                    return Ok(());
                }
            }
            if let Some(exit) = exit {
                send(exec_response::Message::from(exit)).await;
                return Ok(());
            }
            tokio::select! {
                changed = changed.changed() => {
                    changed.unwrap();
                    // It prints as long as anyone takes it.
                    if process.command[0] == "flood" {
                        process.step();
                    }
                }
                request = requests.next() => {
                    let Some(request) = request else { return Ok(()) };
                    match request?.to_owned_message().message {
                        Some(exec_request::Message::Stdin(stdin)) => {
                            let taken = {
                                let mut kept = process.kept.lock().unwrap();
                                // Bytes that came before, or too early, would be wrong here.
                                assert_eq!(stdin.offset, kept.stdin.len() as u64);
                                kept.stdin.extend_from_slice(&stdin.data);
                                kept.stdin_closed |= stdin.eof;
                                kept.stdin.len()
                            };
                            if self.falls_asleep(taken) {
                                // Taken, but not acknowledged.
                                self.nap(&process.sandbox);
                                return Err(error(
                                    ErrorCode::Unavailable,
                                    "SANDBOX_SUSPENDED",
                                    "the sandbox was suspended",
                                    "",
                                ));
                            }
                            process.step();
                            let ack = v1::StdinAck { offset: taken as u64 };
                            send(exec_response::Message::from(ack)).await;
                        }
                        Some(exec_request::Message::Signal(signal)) => {
                            self.state().signals.push(signal);
                            process.signal(signal);
                        }
                        _ => {}
                    }
                }
            }
        }
    }
}

impl v1::ProcessService for Fake {
    async fn exec(
        &self,
        _: RequestContext,
        requests: InboundStream<v1::ExecRequest>,
    ) -> ServiceResult<ServiceStream<v1::ExecResponse>> {
        let (out, responses) = mpsc::channel(4);
        let fake = self.clone();
        tokio::spawn(async move {
            if let Err(error) = fake.attached(requests, out.clone()).await {
                let _ = out.send(Err(error)).await;
            }
        });
        let responses = futures::stream::unfold(responses, |mut responses| async move {
            Some((responses.recv().await?, responses))
        });
        Response::ok(Box::pin(responses))
    }

    async fn start_process(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, v1::StartProcessRequest>,
    ) -> ServiceResult<v1::StartProcessResponse> {
        let start = request.to_owned_message().start;
        self.start(&start)?;
        Response::ok(v1::StartProcessResponse {
            process: v1::ProcessInfo {
                process_id: start.process_id.clone(),
                running: true,
                ..Default::default()
            }
            .into(),
        })
    }

    async fn run_process(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, v1::RunProcessRequest>,
    ) -> ServiceResult<v1::RunProcessResponse> {
        let request = request.to_owned_message();
        let process = self.start(&request.start)?;
        process.kept.lock().unwrap().stdin = request.stdin.to_vec();
        process.kept.lock().unwrap().stdin_closed = true;
        process.step();
        let kept = process.kept.lock().unwrap();
        Response::ok(v1::RunProcessResponse {
            exit: kept.exit.clone().into(),
            stdout: kept.output.clone().into(),
            ..Default::default()
        })
    }

    async fn signal_process(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, v1::SignalProcessRequest>,
    ) -> ServiceResult<v1::SignalProcessResponse> {
        let request = request.to_owned_message();
        self.known(&request.process_id)?.signal(request.signal);
        Response::ok(v1::SignalProcessResponse::default())
    }

    async fn list_processes(
        &self,
        _: RequestContext,
        _: ServiceRequest<'_, v1::ListProcessesRequest>,
    ) -> ServiceResult<v1::ListProcessesResponse> {
        let state = self.state();
        let processes = state.processes.iter().map(|(id, process)| v1::ProcessInfo {
            process_id: id.clone(),
            command: process.command.clone(),
            running: process.kept.lock().unwrap().exit.is_none(),
            exit: process.kept.lock().unwrap().exit.clone().into(),
            ..Default::default()
        });
        Response::ok(v1::ListProcessesResponse {
            processes: processes.collect(),
        })
    }

    async fn get_process(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, v1::GetProcessRequest>,
    ) -> ServiceResult<v1::GetProcessResponse> {
        let process = self.known(&request.to_owned_message().process_id)?;
        let exit = process.kept.lock().unwrap().exit.clone();
        Response::ok(v1::GetProcessResponse {
            process: v1::ProcessInfo {
                running: exit.is_none(),
                exit: exit.into(),
                ..Default::default()
            }
            .into(),
        })
    }
}
