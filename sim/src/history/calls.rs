//! What a client does in a sandbox: it writes and reads files and runs processes, while idleness may ask
//! for a suspend, and holds the answers to what it was promised.

use std::sync::atomic::Ordering;
use std::time::Duration;

use connectrpc::{ConnectError, ErrorCode};
use futures::channel::oneshot;
use futures::future::join;
use overwinter_gateway::ports::Ids as _;
use overwinter_lifecycle::Depth;
use overwinter_lifecycle::ids::SandboxId;

use super::client::Client;
use super::doors::{Exit, Target};
use super::invariant::Invariant;

/// While a call is open, for something else to come.
const MEANWHILE: Duration = Duration::from_secs(4);
/// Of a thousand calls, how many are open while idleness asks for a suspend.
const HELD: u64 = 150;

impl Client {
    pub(super) async fn write(&self, id: SandboxId) {
        let stage = &self.stage;
        let number = {
            let mut model = stage.model.borrow_mut();
            model.written += 1;
            model.written
        };
        let path = format!("/workspace/f{number}");
        let data = format!("contents {number} of {id}");
        let (call, _) = stage.call_begins(id);
        let (go_on, held) = oneshot::channel();
        let target = Target::Id(id);
        let write = async {
            let written = self.doors.write(&target, &path, &data, held).await;
            match &written {
                Ok(()) => {
                    stage.call_succeeded(call, "a write");
                    let mut model = stage.model.borrow_mut();
                    let files = model.files.entry(id).or_default();
                    files.insert(path.clone(), data.clone());
                }
                Err(error) => stage.call_failed(call, error),
            }
            self.note("write", written.map(|()| number.to_string()));
        };
        let meanwhile = async {
            if stage.chance(HELD) {
                self.idle_meanwhile(id).await;
            }
            drop(go_on);
        };
        join(write, meanwhile).await;
    }

    pub(super) async fn read(&self, id: SandboxId) {
        let stage = &self.stage;
        let chosen = {
            let model = stage.model.borrow();
            let files = model.files.get(&id).filter(|files| !files.is_empty());
            files.and_then(|files| {
                let nth = usize::try_from(stage.roll(files.len() as u64)).unwrap_or(0);
                let (path, data) = files.iter().nth(nth)?;
                Some((path.clone(), data.clone()))
            })
        };
        let Some((path, data)) = chosen else { return };
        let (call, open) = stage.call_begins(id);
        let held = async {
            open.store(true, Ordering::Relaxed);
            if stage.chance(HELD) {
                self.idle_meanwhile(id).await;
            }
        };
        let read = self.doors.read(&Target::Id(id), &path, held).await;
        match &read {
            Ok(read) => {
                stage.call_succeeded(call, "a read");
                stage.expect(Invariant::ContentsStay, *read == data, || {
                    format!("{id} {path}: {read:?}, written was {data:?}")
                });
            }
            Err(error) => {
                stage.call_failed(call, error);
                let missing = error.code == ErrorCode::NotFound && stage.is_kept(id);
                stage.expect(Invariant::ContentsStay, !missing, || {
                    format!("{id} {path}: {error}")
                });
            }
        }
        self.note("read", read.map(|_| path));
    }

    pub(super) async fn run_process(&self, id: SandboxId) {
        let stage = &self.stage;
        let (call, _) = stage.call_begins(id);
        let command: &[&str] = if stage.chance(300) {
            &["sleep", "4000"]
        } else {
            &["true"]
        };
        let process = self.ids.next().to_string();
        let target = Target::Id(id);
        let run = async {
            let ran = self.doors.run(&target, process.clone(), command).await;
            match &ran {
                Ok(exit) => {
                    stage.call_succeeded(call, "an exec");
                    self.not_ended(id, &process, *exit);
                }
                Err(error) => {
                    stage.call_failed(call, error);
                    self.not_cut(id, &process, error);
                }
            }
            self.note("ran", ran.map(|exit| format!("{exit:?}")));
        };
        let meanwhile = async {
            if stage.chance(HELD) {
                self.idle_meanwhile(id).await;
            }
        };
        join(run, meanwhile).await;
    }

    /// While a call is open.
    async fn idle_meanwhile(&self, id: SandboxId) {
        self.stage.a_while(MEANWHILE).await;
        self.idle(id).await;
    }

    /// As an idle timer would.
    pub(super) async fn idle(&self, id: SandboxId) {
        let depth = match self.stage.roll(10) {
            0..=4 => Depth::Freeze,
            5..=6 => Depth::Checkpoint,
            _ => Depth::Stop,
        };
        let asked = self.doors.suspend_idle(id, depth).await;
        let trace = &self.stage.trace;
        trace.note(format_args!("idle {id} {depth}: {asked:?}"));
    }

    /// The process of a call that is open has ended. No suspend that idleness asked for did that.
    fn not_ended(&self, id: SandboxId, process: &str, exit: Exit) {
        if !exit.by_suspension {
            return;
        }
        let stage = &self.stage;
        let idle = stage.model.borrow().told.idle.get(&id).copied();
        let idle = idle.unwrap_or_default();
        stage.expect(Invariant::IdleCutsNothing, !idle, || {
            format!("{id}: {process} was waited for, and ended with {exit:?}")
        });
    }

    /// A call has failed. Where its process lives on, it was its stream that ended, and then not
    /// because nobody seemed to use the sandbox.
    fn not_cut(&self, id: SandboxId, process: &str, error: &ConnectError) {
        let stage = &self.stage;
        if !stage
            .world
            .live_processes(id)
            .iter()
            .any(|it| it == process)
        {
            return;
        }
        let idle = stage.model.borrow().told.idle.get(&id).copied();
        let idle = idle.unwrap_or_default();
        stage.expect(Invariant::IdleCutsNothing, !idle, || {
            format!("{id}: {process} runs, and its call ended with {error}")
        });
    }

    pub(super) async fn start_process(&self, id: SandboxId) {
        let stage = &self.stage;
        let (call, _) = stage.call_begins(id);
        let process = self.ids.next().to_string();
        let target = Target::Id(id);
        let started = self.doors.start(&target, process, &["sleep", "100000"]);
        let started = started.await;
        match &started {
            Ok(()) => stage.call_succeeded(call, "a start of a process"),
            Err(error) => stage.call_failed(call, error),
        }
        self.note("started", started.map(|()| id.to_string()));
    }
}
