//! The task behind an exec.
//!
//! ```text
//!   begin ──► attached ──► exited
//!               │  ▲
//!        broken │  │ attached at the offsets seen
//!               ▼  │
//!             waiting: the process's kept result (a `stop` ended it) ──► exited
//!                      the sandbox awake ──► attach
//!                      gone, failed, or the limit passed ──► error
//! ```

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use overwinter_api::v1;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::link::{Link, Request, Response};
use super::stdin::Stdin;
use super::{Control, Exec, ExecControl, ExecEvent, ExecStdin, Exit, Reattach};
use crate::client::Client;
use crate::error::{Code, Error, Result, reason};
use crate::sandbox::Change;
use crate::types::{Depth, Phase};

/// Events that wait for the caller; 64 KiB each at most.
const EVENTS: usize = 16;
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LAST_PAUSE: Duration = Duration::from_secs(1);

pub(crate) struct Session {
    client: Client,
    start: v1::ExecStart,
    reattach: Reattach,
    events: mpsc::Sender<ExecEvent>,
    /// Events that were received and not yet taken by the caller; nothing more is received until
    /// they are, so that a slow reader costs only itself.
    pending: VecDeque<ExecEvent>,
    input: mpsc::Receiver<Bytes>,
    stdin: Stdin,
    control: mpsc::UnboundedReceiver<Control>,
    /// Bytes seen so far.
    stdout: u64,
    stderr: u64,
}

/// Why a stream is no longer driven.
enum End {
    Exited(Exit),
    Broken(Error),
    /// The caller dropped its handle.
    Dropped,
}

impl Session {
    /// Starts the process, and answers when it has started.
    pub(crate) async fn begin(
        client: Client,
        start: v1::ExecStart,
        reattach: Reattach,
    ) -> Result<Exec> {
        let (events, event_queue) = mpsc::channel(EVENTS);
        let (stdin_sender, input) = mpsc::channel(2);
        let (control_sender, control) = mpsc::unbounded_channel();
        let (exit_sender, exit) = oneshot::channel();
        let process_id = start.process_id.clone();
        let mut stdin = Stdin::default();
        if !start.process.stdin {
            stdin.close();
            // Nothing is connected that an end of file could be told to.
            let _ = stdin.take();
        }
        let mut session = Self {
            client,
            start,
            reattach,
            events,
            pending: VecDeque::new(),
            input,
            stdin,
            control,
            stdout: 0,
            stderr: 0,
        };
        let (link, first) = session.start().await?;
        tokio::spawn(async move {
            // Errs only when the handle was dropped: nobody asks.
            let _ = exit_sender.send(session.run(link, first).await);
        });
        Ok(Exec {
            process_id,
            events: event_queue,
            exit,
            ended: None,
            stdin: Some(ExecStdin(stdin_sender)),
            control: ExecControl(control_sender),
        })
    }

    /// Opens the first stream. Starting is idempotent by the process's id, so a connection that
    /// broke before an answer came is tried again, once.
    async fn start(&mut self) -> Result<(Link, Response)> {
        let first = match self.open(Request::from(self.start.clone())).await {
            Err(error) if error.reason() == reason::CONNECTION_LOST => {
                self.open(Request::from(self.start.clone())).await?
            }
            other => other?,
        };
        Ok(first)
    }

    async fn open(&self, first: Request) -> Result<(Link, Response)> {
        let mut link = Link::open(&self.client, first).await?;
        let answer = link.receive().await?;
        Ok((link, answer))
    }

    async fn run(mut self, link: Link, first: Response) -> Result<Exit> {
        let mut end = self.drive(link, first).await;
        loop {
            let error = match end {
                End::Exited(exit) => return self.finish(exit).await,
                End::Dropped => return Err(dropped()),
                End::Broken(error) => error,
            };
            if !is_worth_another_try(&error) {
                self.flush().await?;
                return Err(error);
            }
            self.pending.push_back(ExecEvent::Interrupted {
                reason: error.reason().to_owned(),
            });
            self.flush().await?;
            let events = self.events.clone();
            let back = tokio::select! {
                back = self.come_back(error) => back?,
                () = events.closed() => return Err(dropped()),
            };
            end = match back {
                Back::Exited(exit) => End::Exited(exit),
                Back::Attached(link, first) => {
                    self.pending.push_back(ExecEvent::Reattached);
                    self.drive(link, first).await
                }
            };
        }
    }

    /// Carries one stream until it ends.
    async fn drive(&mut self, mut link: Link, first: Response) -> End {
        let mut control_open = true;
        match self.handle(first) {
            Ok(None) => {}
            Ok(Some(exit)) => return End::Exited(exit),
            Err(error) => return End::Broken(error),
        }
        loop {
            while let Some(data) = self.stdin.take() {
                link.send(data);
            }
            let received = tokio::select! {
                message = link.receive(), if self.pending.is_empty() => message,
                permit = self.events.reserve(), if !self.pending.is_empty() => match permit {
                    Ok(permit) => {
                        if let Some(event) = self.pending.pop_front() {
                            permit.send(event);
                        }
                        continue;
                    }
                    Err(_) => return End::Dropped,
                },
                data = self.input.recv(), if self.stdin.has_room() => {
                    match data {
                        Some(data) => self.stdin.push(data),
                        None => self.stdin.close(),
                    }
                    continue;
                }
                control = self.control.recv(), if control_open => {
                    match control {
                        Some(Control::Signal(signal)) => link.send(Request::Signal(signal)),
                        Some(Control::Resize { rows, columns }) => {
                            link.send(v1::WindowSize { rows, columns });
                        }
                        None => control_open = false,
                    }
                    continue;
                }
                () = self.events.closed() => return End::Dropped,
            };
            match received.and_then(|message| self.handle(message)) {
                Ok(None) => {}
                Ok(Some(exit)) => return End::Exited(exit),
                Err(error) => return End::Broken(error),
            }
        }
    }

    fn handle(&mut self, message: Response) -> Result<Option<Exit>> {
        match message {
            Response::Started(started) => {
                self.skip_to(false, started.stdout_offset);
                self.skip_to(true, started.stderr_offset);
                if self.start.process.stdin && !self.stdin.rewind(started.stdin_offset) {
                    return Err(Error::protocol("it lost stdin that it had acknowledged"));
                }
            }
            Response::Output(output) => {
                self.skip_to(output.stderr, output.offset);
                let seen = if output.stderr {
                    &mut self.stderr
                } else {
                    &mut self.stdout
                };
                // What overlaps has been handed over before.
                let known = (*seen - output.offset.min(*seen)) as usize;
                if known < output.data.len() {
                    let fresh = output.data.slice(known..);
                    *seen += fresh.len() as u64;
                    self.pending.push_back(if output.stderr {
                        ExecEvent::Stderr(fresh)
                    } else {
                        ExecEvent::Stdout(fresh)
                    });
                }
            }
            Response::StdinAck(ack) => self.stdin.acknowledge(ack.offset),
            Response::Exited(exit) => return Ok(Some(Exit::from(*exit))),
        }
        Ok(None)
    }

    /// The stream goes on at `offset`; what lies between is gone.
    fn skip_to(&mut self, stderr: bool, offset: u64) {
        let seen = if stderr {
            &mut self.stderr
        } else {
            &mut self.stdout
        };
        if offset > *seen {
            let bytes = offset - *seen;
            *seen = offset;
            self.pending.push_back(ExecEvent::Gap { stderr, bytes });
        }
    }

    /// Hands over all that came before the end.
    async fn finish(&mut self, exit: Exit) -> Result<Exit> {
        self.skip_to(false, exit.stdout_bytes);
        self.skip_to(true, exit.stderr_bytes);
        self.flush().await?;
        Ok(exit)
    }

    async fn flush(&mut self) -> Result<()> {
        while let Some(event) = self.pending.pop_front() {
            self.events.send(event).await.map_err(|_| dropped())?;
        }
        Ok(())
    }
}

enum Back {
    Exited(Exit),
    Attached(Link, Response),
}

/// Whether the gateway, asked to wait for a sandbox, has more to say about it.
enum Wake {
    Ready,
    Exited(Exit),
}

impl Session {
    /// Gets back to the process after `broken`, within the limits.
    async fn come_back(&mut self, broken: Error) -> Result<Back> {
        let asleep_until = self.reattach.suspended.map(|limit| Instant::now() + limit);
        let mut reach_until = Instant::now() + self.reattach.unreachable;
        let mut pause = FIRST_PAUSE;
        let mut error = broken;
        loop {
            let asleep = is_asleep(&error);
            let woken = if asleep {
                let wait = self.until_awake();
                let woken = match asleep_until {
                    Some(until) => tokio::time::timeout_at(until, wait).await,
                    None => Ok(wait.await),
                };
                match woken {
                    Ok(woken) => woken,
                    Err(_) => return Err(error),
                }
            } else {
                Ok(Some(Wake::Ready))
            };
            if asleep && woken.is_ok() {
                // The time that it slept is not time in which the gateway could not be reached.
                reach_until = Instant::now() + self.reattach.unreachable;
            }
            let answer = match woken {
                Ok(Some(Wake::Exited(exit))) => return Ok(Back::Exited(exit)),
                // Deleted, or failed: nothing will wake it by itself.
                Ok(None) => return Err(error),
                Ok(Some(Wake::Ready)) => self.attach().await,
                Err(error) => Err(error),
            };
            error = match answer {
                Ok((link, first)) => return Ok(Back::Attached(link, first)),
                Err(error) if is_worth_another_try(&error) => error,
                Err(error) => return Err(error),
            };
            if Instant::now() + pause > reach_until {
                return Err(error);
            }
            // A gateway that is down tells nobody when it is up, so this is asked again.
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LAST_PAUSE);
        }
    }

    async fn attach(&self) -> Result<(Link, Response)> {
        self.open(Request::from(v1::ExecAttach {
            sandbox: self.start.sandbox.clone(),
            process_id: self.start.process_id.clone(),
            stdout_offset: self.stdout,
            stderr_offset: self.stderr,
        }))
        .await
    }

    /// Waits until the sandbox is awake, or the process is known to have ended with a suspension;
    /// `None` when it is gone or failed.
    async fn until_awake(&self) -> Result<Option<Wake>> {
        let request = v1::WatchSandboxesRequest {
            after_revision: 0,
            sandbox: self.start.sandbox.clone(),
        };
        let mut watch = self.client.watch_raw(request).await?;
        while let Some(change) = watch.next().await? {
            let Change::Sandbox(sandbox) = change else {
                continue;
            };
            match sandbox.phase() {
                Phase::Ready => return Ok(Some(Wake::Ready)),
                Phase::Failed | Phase::Deleting | Phase::Tombstone => return Ok(None),
                Phase::Suspended if sandbox.depth() == Some(Depth::Stop) => {
                    if let Some(exit) = self.kept_result().await? {
                        return Ok(Some(Wake::Exited(exit)));
                    }
                }
                Phase::Suspended
                | Phase::Creating
                | Phase::Suspending
                | Phase::Resuming
                | Phase::Unknown => {}
            }
        }
        Err(Error::new(
            Code::Unavailable,
            reason::CONNECTION_LOST,
            "the gateway ended the watch",
        ))
    }

    async fn kept_result(&self) -> Result<Option<Exit>> {
        let request = v1::GetProcessRequest {
            sandbox: self.start.sandbox.clone(),
            process_id: self.start.process_id.clone(),
        };
        match self.client.rpc.processes.get_process(request).await {
            Ok(answer) => {
                let process = answer.into_owned().process.into_option();
                let exit = process.and_then(|process| process.exit.into_option());
                Ok(exit.map(Exit::from))
            }
            Err(error) => match Error::from(error) {
                // Not known while it sleeps: known when it has been woken.
                error if error.code() == Code::NotFound => Ok(None),
                error => Err(error),
            },
        }
    }
}

/// Whether it is the sandbox's sleep that keeps us from the process.
fn is_asleep(error: &Error) -> bool {
    matches!(
        error.reason(),
        reason::SANDBOX_SUSPENDED | reason::SANDBOX_SUSPENDING | reason::SANDBOX_RESUMING
    )
}

/// Whether the process may be there to get back to.
fn is_worth_another_try(error: &Error) -> bool {
    is_asleep(error)
        || error.is_transport()
        || error.code() == Code::Unavailable
        || matches!(
            error.reason(),
            reason::SUSPEND_ABORTED | reason::CONNECTION_LOST
        )
}

fn dropped() -> Error {
    Error::new(
        Code::Canceled,
        reason::CONNECTION_LOST,
        "the handle was dropped",
    )
}
