//! Every process of this sandbox's life: the live ones, and the results of those that have ended.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use overwinter_api::supervisor::{ExecStart, ExitResult, ProcessInfo, ProcessSpec};
use sha2::{Digest, Sha256};
use tokio::sync::{Notify, broadcast};

use super::stdin::Stdin;
use super::{Description, Process, Startup};
use crate::config::ImageDefaults;
use crate::credentials::Own;
use crate::error::Refusal;
use crate::replay::{Budget, TOTAL_REPLAY_BYTES};
use crate::spawn::{self, Program};
use crate::users;

/// How many results are kept, and for how long.
const KEPT_RESULTS: usize = 1000;
const KEPT_FOR: Duration = Duration::from_secs(24 * 3600);
/// Ended processes whose output can still be replayed; older ones keep their result alone.
const KEPT_OUTPUTS: usize = 64;
/// What a watcher may fall behind.
const EVENT_BACKLOG: usize = 1024;

/// Something that happened to a process.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    Started(Arc<ProcessInfo>),
    Exited(Arc<ExitResult>),
}

/// The processes by id, and by pid while they are not reaped.
pub(crate) struct Table {
    own: Own,
    workspace: String,
    image: ImageDefaults,
    budget: Arc<Budget>,
    inner: Mutex<Inner>,
    events: broadcast::Sender<Event>,
    /// Woken by each round of reaping, orphans included.
    pub reaped: Notify,
}

#[derive(Default)]
struct Inner {
    by_id: HashMap<String, Arc<Process>>,
    by_pid: HashMap<i32, Arc<Process>>,
    /// Oldest first.
    ended: VecDeque<(Instant, String)>,
}

impl Table {
    /// An empty table; `workspace` is the default working folder.
    pub(crate) fn new(own: Own, workspace: String, image: ImageDefaults) -> Arc<Self> {
        Arc::new(Self {
            own,
            workspace,
            image,
            budget: Budget::new(TOTAL_REPLAY_BYTES),
            inner: Mutex::default(),
            events: broadcast::Sender::new(EVENT_BACKLOG),
            reaped: Notify::new(),
        })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // As for a process: whole between any two statements that can panic.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The process of that start, if it exists already: what makes a start idempotent.
    pub(crate) fn existing(&self, start: &ExecStart) -> Result<Option<Arc<Process>>, Refusal> {
        match self.inner().by_id.get(&start.process_id) {
            None => Ok(None),
            Some(known) if known.description.hash == hash(start) => Ok(Some(Arc::clone(known))),
            Some(_) => Err(Refusal::ProcessExists(start.process_id.clone())),
        }
    }

    /// Starts a process that is listed and kept. The caller has looked for an existing one.
    pub(crate) fn start(self: &Arc<Self>, start: &ExecStart) -> Result<Arc<Process>, Refusal> {
        if !is_process_id(&start.process_id) {
            return Err(Refusal::Invalid(format!(
                "process id {:?}",
                start.process_id
            )));
        }
        let process = self.launch(start, true)?;
        Ok(process)
    }

    /// Starts a process of the supervisor's own, which is in no listing.
    pub(crate) fn start_hidden(
        self: &Arc<Self>,
        start: &ExecStart,
    ) -> Result<Arc<Process>, Refusal> {
        self.launch(start, false)
    }

    /// With what the image says where the client says nothing.
    fn complete(&self, spec: &mut ProcessSpec) {
        for (name, value) in &self.image.env {
            spec.env
                .entry(name.clone())
                .or_insert_with(|| value.clone());
        }
        if spec.main && spec.user.is_empty() {
            spec.user.clone_from(&self.image.main_user);
        }
        if spec.main && spec.workdir.is_empty() {
            spec.workdir.clone_from(&self.image.main_workdir);
        }
    }

    fn launch(self: &Arc<Self>, start: &ExecStart, listed: bool) -> Result<Arc<Process>, Refusal> {
        let mut spec = start.process.as_option().cloned().unwrap_or_default();
        self.complete(&mut spec);
        let mut description = Description {
            id: start.process_id.clone(),
            hash: hash(start),
            program: program(&spec),
            user: spec.user.clone(),
            main: spec.main,
        };
        let user = match users::resolve(&spec.user, self.own.default_user()) {
            Ok(user) => user,
            Err(error) => {
                // A result like that of any other program that cannot be run: the client asked
                // for an exit code.
                let process = Arc::new(Process::new(
                    description,
                    0,
                    Startup::Failed {
                        code: 126,
                        message: error.to_string(),
                    },
                    Stdin::default(),
                    None,
                    &self.budget,
                ));
                process.set_reaped(0);
                self.insert(&process, listed);
                self.conclude(&process, listed);
                return Ok(process);
            }
        };
        description.user = user.name.clone().unwrap_or_else(|| user.uid.to_string());
        let mut child = spawn::spawn(&self.own, &user, &description.program, &self.workspace)?;
        let tty = description.program.tty.is_some();
        let terminal = match (&child.stdin, tty) {
            (Some(master), true) => master.try_clone().ok(),
            (Some(_) | None, _) => None,
        };
        let stdin = Stdin::open(child.stdin.take(), tty).map_err(Refusal::Spawn)?;
        let process = Arc::new(Process::new(
            description,
            child.pid,
            Startup::Pending,
            stdin,
            terminal,
            &self.budget,
        ));
        self.inner().by_pid.insert(child.pid, Arc::clone(&process));
        self.insert(&process, listed);
        let table = Arc::clone(self);
        let supervised = Arc::clone(&process);
        tokio::spawn(async move {
            supervised.supervise(child).await;
            table.conclude(&supervised, listed);
        });
        Ok(process)
    }

    fn insert(&self, process: &Arc<Process>, listed: bool) {
        if listed {
            self.inner()
                .by_id
                .insert(process.description.id.clone(), Arc::clone(process));
            self.tell(Event::Started(Arc::new(process.info())));
        }
    }

    fn conclude(&self, process: &Arc<Process>, listed: bool) {
        let exit = process.conclude();
        if !listed {
            return;
        }
        let mut inner = self.inner();
        inner
            .ended
            .push_back((Instant::now(), exit.process_id.clone()));
        while inner.ended.len() > KEPT_RESULTS
            || inner
                .ended
                .front()
                .is_some_and(|(since, _)| since.elapsed() > KEPT_FOR)
        {
            if let Some((_, id)) = inner.ended.pop_front() {
                inner.by_id.remove(&id);
            }
        }
        if let Some(index) = inner.ended.len().checked_sub(KEPT_OUTPUTS + 1) {
            let old = inner.by_id.get(&inner.ended[index].1).cloned();
            drop(inner);
            if let Some(old) = old {
                old.forget_output();
            }
        } else {
            drop(inner);
        }
        self.tell(Event::Exited(Arc::new(exit)));
    }

    fn tell(&self, event: Event) {
        // Nobody watching is no failure.
        let _ = self.events.send(event);
    }

    /// Collects every child that has ended, ours and orphans.
    pub(crate) fn reap(&self) {
        loop {
            let mut status = 0;
            // SAFETY: fills one int; never blocks.
            let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
            if pid <= 0 {
                break;
            }
            let process = self.inner().by_pid.remove(&pid);
            if let Some(process) = process {
                process.set_reaped(status);
            }
        }
        self.reaped.notify_waiters();
    }

    /// The process of that id, live or kept.
    pub(crate) fn get(&self, id: &str) -> Result<Arc<Process>, Refusal> {
        let found = self.inner().by_id.get(id).cloned();
        found.ok_or_else(|| Refusal::ProcessNotFound(id.to_owned()))
    }

    /// All that are listed, oldest first.
    pub(crate) fn all(&self) -> Vec<Arc<Process>> {
        let mut all: Vec<_> = self.inner().by_id.values().cloned().collect();
        all.sort_by_key(|process| (process.started_at_ms, process.pid));
        all
    }

    /// Those that are listed and live.
    pub(crate) fn live(&self) -> Vec<Arc<Process>> {
        let mut all = self.all();
        all.retain(|process| process.is_live());
        all
    }

    /// Every child that has not been reaped, hidden ones included.
    pub(crate) fn unreaped(&self) -> Vec<Arc<Process>> {
        self.inner().by_pid.values().cloned().collect()
    }

    /// Events from now on.
    pub(crate) fn watch(&self) -> broadcast::Receiver<Event> {
        self.events.subscribe()
    }
}

fn program(spec: &ProcessSpec) -> Program {
    let or = |asked: u32, default: u32| if asked == 0 { default } else { asked };
    Program {
        command: spec.command.clone(),
        env: spec.env.clone().into_iter().collect(),
        workdir: spec.workdir.clone(),
        tty: spec
            .tty
            .as_option()
            .map(|size| (or(size.rows, 24), or(size.columns, 80))),
        stdin: spec.stdin,
    }
}

/// The id becomes part of messages and keys: a UUID, or another short word.
fn is_process_id(id: &str) -> bool {
    (1..=64).contains(&id.len())
        && id
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

/// Of the whole start, in an order of its own: the encoding of a map has none.
fn hash(start: &ExecStart) -> [u8; 32] {
    let mut hasher = Sha256::new();
    let mut feed = |bytes: &[u8]| {
        hasher.update((bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    let spec = start.process.as_option().cloned().unwrap_or_default();
    feed(start.process_id.as_bytes());
    feed(&(spec.command.len() as u64).to_le_bytes());
    spec.command.iter().for_each(|part| feed(part.as_bytes()));
    let mut env: Vec<_> = spec.env.iter().collect();
    env.sort();
    feed(&(env.len() as u64).to_le_bytes());
    for (key, value) in env {
        feed(key.as_bytes());
        feed(value.as_bytes());
    }
    feed(spec.workdir.as_bytes());
    feed(spec.user.as_bytes());
    match spec.tty.as_option() {
        Some(size) => feed(&[size.rows.to_le_bytes(), size.columns.to_le_bytes()].concat()),
        None => feed(&[]),
    }
    feed(&[u8::from(spec.stdin), u8::from(spec.main)]);
    hasher.finalize().into()
}
