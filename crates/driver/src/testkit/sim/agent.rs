//! The agent of one attachment: a supervisor without a wire.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::BytesMut;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use overwinter_api::supervisor as wire;
use tokio::sync::broadcast::error::RecvError;
use wire::__buffa::oneof::{process_event, read_file_response, write_file_request};

use super::exec::exec;
use super::files::refused;
use super::guest::{Connection, Guest, Run};
use super::world::SimWorld;
use crate::agent::{Agent, AgentError, AgentResult, AgentStream, RefusedKind};
use crate::testkit::fault::{CallKind, CrashPoint, Fault};

const PIECE: usize = 1 << 20;

/// See [`AttachPort::agent`](crate::AttachPort::agent).
pub struct SimAgent {
    world: Arc<SimWorld>,
    guest: Arc<Guest>,
    connection: Arc<Connection>,
}

/// What the plan has for a call that goes on.
#[derive(PartialEq, Eq)]
enum Honest {
    Yes,
    Lies,
}

impl SimAgent {
    pub(super) fn new(
        world: Arc<SimWorld>,
        guest: Arc<Guest>,
        connection: Arc<Connection>,
    ) -> Self {
        Self {
            world,
            guest,
            connection,
        }
    }

    /// Every call begins so: with what goes wrong, and by waiting out a freeze, as whoever speaks to
    /// a frozen peer does.
    async fn enter(&self, kind: CallKind) -> AgentResult<Honest> {
        let honest = match self.world.decide(kind, Some(self.guest.sandbox)) {
            Some((_, Fault::AgentDies)) => {
                self.world.kill(self.guest.sandbox);
                return Err(AgentError::Gone);
            }
            Some((_, Fault::AgentHangs)) => {
                self.connection.closed().await;
                return Err(AgentError::Gone);
            }
            Some((site, Fault::Crash(point @ CrashPoint::BeforeEffect))) => {
                self.world.crash(site, point).await
            }
            Some((_, Fault::Delay(time))) => {
                self.guest.clock().sleep(time).await;
                Honest::Yes
            }
            Some((_, Fault::AgentLies)) => Honest::Lies,
            Some(_) | None => Honest::Yes,
        };
        if self.connection.is_closed() {
            return Err(AgentError::Gone);
        }
        match self.guest.state() {
            Run::Running => Ok(honest),
            Run::Ended => Err(AgentError::Gone),
            Run::Frozen => tokio::select! {
                biased;
                () = self.guest.running() => Ok(honest),
                () = self.connection.closed() => Err(AgentError::Gone),
            },
        }
    }

    fn hook(&self, command: Vec<String>) -> AgentResult<Option<wire::ExitResult>> {
        if command.is_empty() {
            return Ok(None);
        }
        let start = wire::ExecStart {
            process_id: "pre-suspend-hook".to_owned(),
            process: wire::ProcessSpec {
                command,
                ..Default::default()
            }
            .into(),
        };
        let process = self.guest.start(start)?;
        let exit = process.streams.borrow().exit.clone();
        // What has not ended at once is taken to hang until the hook's time is over.
        Ok(Some(exit.unwrap_or(wire::ExitResult {
            code: 124,
            ..Default::default()
        })))
    }
}

/// A result that no process ever had.
fn invented() -> wire::ExitResult {
    wire::ExitResult {
        process_id: "00000000-0000-0000-0000-000000000000".to_owned(),
        code: 42,
        cause: wire::ExitCause::Own.into(),
        ..Default::default()
    }
}

#[async_trait]
impl Agent for SimAgent {
    async fn exec(
        &self,
        input: BoxStream<'static, wire::ExecRequest>,
    ) -> AgentResult<AgentStream<wire::ExecResponse>> {
        self.enter(CallKind::Data).await?;
        Ok(exec(self.guest.clone(), self.connection.clone(), input))
    }

    async fn start_process(&self, start: wire::ExecStart) -> AgentResult<wire::ProcessInfo> {
        self.enter(CallKind::Data).await?;
        Ok(self.guest.start(start)?.info())
    }

    async fn signal_process(&self, process_id: String, signal: i32) -> AgentResult<()> {
        self.enter(CallKind::Data).await?;
        let process = self.guest.process(&process_id)?;
        if !process.runs() {
            return Err(refused(
                RefusedKind::FailedPrecondition,
                "PROCESS_ENDED",
                "the process has ended",
            ));
        }
        self.guest.signal(&process, signal);
        Ok(())
    }

    async fn list_processes(&self) -> AgentResult<Vec<wire::ProcessInfo>> {
        self.enter(CallKind::Data).await?;
        Ok(self.guest.processes())
    }

    async fn get_process(&self, process_id: String) -> AgentResult<wire::ProcessInfo> {
        self.enter(CallKind::Data).await?;
        Ok(self.guest.process(&process_id)?.info())
    }

    async fn watch_processes(&self) -> AgentResult<AgentStream<wire::ProcessEvent>> {
        self.enter(CallKind::Data).await?;
        let (processes, events) = self.guest.watch();
        let snapshot = process_event::Event::from(wire::ListProcessesResponse { processes });
        let rest = futures::stream::unfold(
            Some((events, self.connection.clone())),
            |state| async move {
                let (mut events, connection) = state?;
                tokio::select! {
                    biased;
                    event = events.recv() => match event {
                        Ok(event) => Some((Ok(event), Some((events, connection)))),
                        Err(RecvError::Closed) => Some((Err(AgentError::Gone), None)),
                        Err(RecvError::Lagged(_)) => {
                            let lagged = refused(
                                RefusedKind::FailedPrecondition,
                                "WATCH_LAGGED",
                                "too many events for this watcher; watch again",
                            );
                            Some((Err(lagged), None))
                        }
                    },
                    () = connection.closed() => Some((Err(AgentError::Gone), None)),
                }
            },
        );
        let events = futures::stream::once(async { Ok(snapshot) }).chain(rest);
        Ok(events
            .map(|event| event.map(|event| wire::ProcessEvent { event: Some(event) }))
            .boxed())
    }

    async fn read_file(
        &self,
        request: wire::ReadFileRequest,
    ) -> AgentResult<AgentStream<wire::ReadFileResponse>> {
        self.enter(CallKind::Data).await?;
        let (info, mut data) = self.guest.file(&request.path)?;
        let length = data.len();
        let from = usize::try_from(request.offset).map_or(length, |it| it.min(length));
        data = data.slice(from..);
        if request.length > 0 {
            data.truncate(usize::try_from(request.length).unwrap_or(usize::MAX));
        }
        let mut messages = vec![read_file_response::Message::from(info)];
        while !data.is_empty() {
            let piece = data.split_to(PIECE.min(data.len()));
            messages.push(read_file_response::Message::Data(piece));
        }
        let connection = self.connection.clone();
        let messages = messages.into_iter().map(move |message| {
            // Whoever reads on when it has let go gets no more.
            if connection.is_closed() {
                return Err(AgentError::Gone);
            }
            Ok(wire::ReadFileResponse {
                message: Some(message),
            })
        });
        Ok(futures::stream::iter(messages).boxed())
    }

    async fn write_file(
        &self,
        mut input: BoxStream<'static, wire::WriteFileRequest>,
    ) -> AgentResult<wire::FileInfo> {
        self.enter(CallKind::Data).await?;
        let mut start = None;
        let mut data = BytesMut::new();
        loop {
            let request = tokio::select! {
                biased;
                request = input.next() => request,
                () = self.connection.closed() => return Err(AgentError::Gone),
            };
            match (request.and_then(|it| it.message), &start) {
                (Some(write_file_request::Message::Start(it)), None) => start = Some(it),
                (Some(write_file_request::Message::Data(it)), Some(_)) => {
                    data.extend_from_slice(&it);
                }
                (Some(write_file_request::Message::End(_)), Some(start)) => {
                    return self.guest.put(start, data.freeze());
                }
                (None, Some(_)) => {
                    return Err(refused(
                        RefusedKind::FailedPrecondition,
                        "UPLOAD_BROKEN",
                        "the upload ended before its end message",
                    ));
                }
                (_, None | Some(_)) => {
                    return Err(refused(
                        RefusedKind::InvalidArgument,
                        "INVALID_ARGUMENT",
                        "an upload starts once, and first",
                    ));
                }
            }
        }
    }

    async fn stat_file(&self, request: wire::StatFileRequest) -> AgentResult<wire::FileInfo> {
        self.enter(CallKind::Data).await?;
        self.guest.stat(&request.path)
    }

    async fn list_directory(
        &self,
        request: wire::ListDirectoryRequest,
    ) -> AgentResult<Vec<wire::FileInfo>> {
        self.enter(CallKind::Data).await?;
        self.guest.entries(&request.path)
    }

    async fn make_directory(&self, request: wire::MakeDirectoryRequest) -> AgentResult<()> {
        self.enter(CallKind::Data).await?;
        self.guest.make_folder(&request)
    }

    async fn rename_file(&self, request: wire::RenameFileRequest) -> AgentResult<()> {
        self.enter(CallKind::Data).await?;
        self.guest.rename(&request.from, &request.to)
    }

    async fn remove_file(&self, request: wire::RemoveFileRequest) -> AgentResult<()> {
        self.enter(CallKind::Data).await?;
        self.guest.remove(&request.path, request.recursive)
    }

    async fn quiesce(
        &self,
        hook: Vec<String>,
        _hook_timeout: Duration,
    ) -> AgentResult<wire::QuiesceResponse> {
        if self.enter(CallKind::Quiesce).await? == Honest::Lies {
            return Ok(wire::QuiesceResponse::default());
        }
        // The hook may still write; nobody else starts anything in between.
        let hook = self.hook(hook)?;
        self.guest.set_quiesced(true);
        Ok(wire::QuiesceResponse {
            live_processes: self.guest.live().len() as u32,
            hook: hook.into(),
        })
    }

    async fn unquiesce(&self) -> AgentResult<()> {
        self.enter(CallKind::Unquiesce).await?;
        self.guest.set_quiesced(false);
        Ok(())
    }

    async fn detach(&self) -> AgentResult<Vec<String>> {
        let honest = self.enter(CallKind::Detach).await?;
        let live = self.guest.detach();
        Ok(match honest {
            Honest::Yes => live,
            Honest::Lies => vec![invented().process_id],
        })
    }

    async fn terminate(&self, _grace: Duration) -> AgentResult<Vec<wire::ExitResult>> {
        if self.enter(CallKind::Terminate).await? == Honest::Lies {
            return Ok(vec![invented()]);
        }
        Ok(self.guest.terminate())
    }

    async fn gone(&self) {
        self.connection.closed().await;
    }

    /// It dials again with what it has.
    fn hang_up(&self) {
        if self.connection.is_closed() {
            return;
        }
        self.connection.close();
        let (world, guest, ended) = (
            self.world.clone(),
            self.guest.clone(),
            self.connection.clone(),
        );
        self.guest.spawn(async move {
            let newest = guest.connection();
            if newest.is_none_or(|newest| Arc::ptr_eq(&newest, &ended)) {
                world.present(&guest);
            }
        });
    }
}
