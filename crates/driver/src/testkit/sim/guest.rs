//! The memory of one compute: its processes, whether it runs, and what its agent knows. A
//! checkpoint keeps it whole; a stop loses it.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use futures::future::AbortHandle;
use overwinter_api::supervisor as wire;
use overwinter_lifecycle::ids::{Incarnation, SandboxId};
use tokio::sync::broadcast;
use wire::__buffa::oneof::process_event::Event;

use super::files::refused;
use super::process::Process;
use super::program;
use super::seen::{Looked, Violation};
use super::signal::Signal;
use super::storage::Storage;
use super::world::SimWorld;
use crate::agent::{AgentResult, RefusedKind};
use crate::attach::{AttachProof, Credentials};
use crate::testkit::clock::Clock;
use crate::testkit::fault::Dice;
use crate::testkit::spawn::{Spawn, spawn};

const KEPT_RESULTS: usize = 1000;
const EVENTS: usize = 1024;
const SIGTERM: i32 = 15;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Run {
    Running,
    Frozen,
    Ended,
}

pub(super) struct Guest {
    pub(super) sandbox: SandboxId,
    pub(super) storage: Arc<Storage>,
    world: Weak<SimWorld>,
    clock: Arc<dyn Clock>,
    spawn: Arc<dyn Spawn>,
    /// Of this world, from 1.
    pub(super) number: u64,
    run: Signal<Run>,
    inside: Mutex<Inside>,
}

struct Inside {
    generation: Incarnation,
    processes: BTreeMap<String, Arc<Process>>,
    pids: i32,
    quiesced: bool,
    /// Has let go, and waits for new credentials.
    detached: bool,
    proof: Option<AttachProof>,
    /// What it had before `proof`.
    stale_proof: Option<AttachProof>,
    /// The secret of the last attach that was not refused.
    accepted: Option<[u8; 32]>,
    /// And the incarnation that it proved with it.
    proved: Option<Incarnation>,
    /// How many connections there were.
    connections: u64,
    connection: Option<Arc<Connection>>,
    events: Option<broadcast::Sender<Event>>,
}

/// One attachment. Once closed it is never open again.
#[derive(Debug)]
pub(super) struct Connection {
    closed: Signal<bool>,
}

impl Connection {
    pub(super) fn is_closed(&self) -> bool {
        self.closed.get()
    }

    pub(super) fn close(&self) {
        self.closed.set(true);
    }

    pub(super) async fn closed(&self) {
        self.closed.until(|it| it).await;
    }
}

impl Guest {
    pub(super) fn new(
        world: &Arc<SimWorld>,
        sandbox: SandboxId,
        storage: Arc<Storage>,
        credentials: &Credentials,
    ) -> Arc<Self> {
        let guest = Self {
            sandbox,
            storage,
            world: Arc::downgrade(world),
            clock: world.config.clock.clone(),
            spawn: world.config.spawn.clone(),
            number: world.next_guest(),
            run: Signal::new(Run::Running),
            inside: Mutex::new(Inside {
                generation: credentials.incarnation,
                processes: BTreeMap::new(),
                pids: 1,
                quiesced: false,
                detached: false,
                proof: None,
                stale_proof: None,
                accepted: None,
                proved: None,
                connections: 0,
                connection: None,
                events: None,
            }),
        };
        guest.give(credentials, world.config.seed);
        Arc::new(guest)
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    pub(super) fn now_ms(&self) -> i64 {
        i64::try_from(self.clock.now().as_millis()).unwrap_or(i64::MAX)
    }

    pub(super) fn violate(&self, violation: Violation) {
        if let Some(world) = self.world.upgrade() {
            world.violate(violation);
        }
    }

    pub(super) fn looked_at(&self, looked: Looked) {
        if let Some(world) = self.world.upgrade() {
            world.tested(looked);
        }
    }

    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        spawn(&*self.spawn, task)
    }

    // Whether it runs.

    pub(super) fn state(&self) -> Run {
        self.run.get()
    }

    pub(super) fn is_running(&self) -> bool {
        self.state() == Run::Running
    }

    /// Waits out a freeze. Does not return once it has ended.
    pub(super) async fn running(&self) {
        self.run.until(|it| it == Run::Running).await;
    }

    pub(super) fn freeze(&self) {
        self.looked_at(Looked::Freeze);
        let attached = self.connection().is_some_and(|it| !it.is_closed());
        if attached {
            self.violate(Violation::FrozenWhileAttached(self.sandbox));
        }
        self.run.set(Run::Frozen);
    }

    pub(super) fn thaw(&self, generation: Incarnation) {
        self.inside().generation = generation;
        self.run.set(Run::Running);
    }

    /// The end of PID 1 is the end of everything inside.
    pub(super) fn end(&self) {
        self.run.set(Run::Ended);
        let inside = self.inside();
        for process in inside.processes.values() {
            process.stop_task();
        }
        if let Some(connection) = &inside.connection {
            connection.close();
        }
    }

    pub(super) fn generation(&self) -> Incarnation {
        self.inside().generation
    }

    // Its agent's authority.

    /// Credentials, where only the agent reads them. Answers whether it has to present itself:
    /// they are new, or it is not attached.
    pub(super) fn give(&self, credentials: &Credentials, seed: u64) -> bool {
        let mut inside = self.inside();
        inside.detached = false;
        inside.generation = credentials.incarnation;
        if let Some(proof) = &mut inside.proof
            && proof.token == credentials.token
        {
            proof.incarnation = credentials.incarnation;
            return inside.connection.as_ref().is_none_or(|it| it.is_closed());
        }
        let id = self.sandbox.0.as_u128();
        let token: Vec<u64> = credentials.token.0.bytes().map(u64::from).collect();
        let words = [
            &[
                seed,
                id as u64,
                (id >> 64) as u64,
                credentials.incarnation.0,
            ],
            &token[..],
        ];
        let mut dice = Dice::new(&words.concat());
        let mut secret = [0; 32];
        for piece in secret.chunks_mut(8) {
            piece.copy_from_slice(&dice.next().to_le_bytes());
        }
        inside.stale_proof = inside.proof.take();
        inside.proof = Some(AttachProof {
            incarnation: credentials.incarnation,
            token: credentials.token.clone(),
            secret,
            previous_secret: inside.accepted,
        });
        true
    }

    pub(super) fn proof(&self) -> Option<AttachProof> {
        let inside = self.inside();
        (!inside.detached).then(|| inside.proof.clone()).flatten()
    }

    pub(super) fn stale_proof(&self) -> Option<AttachProof> {
        self.inside().stale_proof.clone()
    }

    /// It was let in.
    pub(super) fn accept(&self, proof: &AttachProof) {
        let mut inside = self.inside();
        inside.accepted = Some(proof.secret);
        inside.proved = Some(proof.incarnation);
    }

    pub(super) fn proved(&self) -> Option<Incarnation> {
        self.inside().proved
    }

    /// Its open connection, by number from 1.
    pub(super) fn connection_number(&self) -> Option<u64> {
        let inside = self.inside();
        let open = inside.connection.as_ref().is_some_and(|it| !it.is_closed());
        open.then_some(inside.connections)
    }

    pub(super) fn connection(&self) -> Option<Arc<Connection>> {
        self.inside().connection.clone()
    }

    /// A new attachment; the one before is over.
    pub(super) fn connect(&self) -> Arc<Connection> {
        let connection = Arc::new(Connection {
            closed: Signal::new(false),
        });
        let before = {
            let mut inside = self.inside();
            inside.connections += 1;
            inside.connection.replace(connection.clone())
        };
        if let Some(before) = before {
            before.close();
        }
        connection
    }

    pub(super) fn disconnect(&self) {
        if let Some(connection) = self.inside().connection.take() {
            connection.close();
        }
    }

    /// Lets go. Answers with the live processes.
    pub(super) fn detach(&self) -> Vec<String> {
        let live = self.live();
        self.inside().detached = true;
        self.disconnect();
        live
    }

    // Quiescing and ending.

    pub(super) fn is_quiesced(&self) -> bool {
        self.inside().quiesced
    }

    pub(super) fn set_quiesced(&self, quiesced: bool) {
        self.inside().quiesced = quiesced;
    }

    pub(super) fn live(&self) -> Vec<String> {
        let inside = self.inside();
        let live = inside.processes.values().filter(|it| it.runs());
        live.map(|it| it.id().to_owned()).collect()
    }

    /// Ends every process, each as ended by the suspension, and answers with every kept result.
    pub(super) fn terminate(&self) -> Vec<wire::ExitResult> {
        let processes: Vec<_> = self.inside().processes.values().cloned().collect();
        for process in &processes {
            self.finish(
                process,
                128 + SIGTERM,
                SIGTERM,
                wire::ExitCause::Suspension,
                "",
            );
        }
        let results = processes.iter().map(|it| it.streams.borrow().exit.clone());
        results.flatten().collect()
    }

    // Processes.

    /// Starts it, or finds the one that was started so.
    pub(super) fn start(self: &Arc<Self>, start: wire::ExecStart) -> AgentResult<Arc<Process>> {
        let process = {
            let mut inside = self.inside();
            if let Some(process) = inside.processes.get(&start.process_id) {
                return if process.start == start {
                    Ok(process.clone())
                } else {
                    Err(refused(
                        RefusedKind::AlreadyExists,
                        "PROCESS_EXISTS",
                        "a process with this id exists with another start",
                    ))
                };
            }
            if inside.quiesced {
                return Err(refused(
                    RefusedKind::FailedPrecondition,
                    "QUIESCED",
                    "the sandbox is being suspended: no new processes",
                ));
            }
            let is_main = |start: &wire::ExecStart| {
                let spec = start.process.as_option();
                spec.is_some_and(|spec| spec.main)
            };
            let mut mains = inside.processes.values().map(|known| &known.start);
            if is_main(&start) && mains.any(is_main) {
                self.violate(Violation::TwoMains(self.sandbox));
            }
            inside.pids += 1;
            let process = Arc::new(Process::new(start, inside.pids, self.now_ms()));
            inside.forget_old_results();
            inside
                .processes
                .insert(process.id().to_owned(), process.clone());
            process
        };
        self.tell(|| Event::from(process.info()));
        program::run(self, &process);
        Ok(process)
    }

    pub(super) fn process(&self, id: &str) -> AgentResult<Arc<Process>> {
        let found = self.inside().processes.get(id).cloned();
        found.ok_or_else(|| {
            refused(
                RefusedKind::NotFound,
                "PROCESS_NOT_FOUND",
                "no such process",
            )
        })
    }

    pub(super) fn processes(&self) -> Vec<wire::ProcessInfo> {
        let inside = self.inside();
        inside.processes.values().map(|it| it.info()).collect()
    }

    pub(super) fn finish(
        &self,
        process: &Process,
        code: i32,
        signal: i32,
        cause: wire::ExitCause,
        error: &str,
    ) {
        if let Some(result) = process.end(code, signal, cause, error, self.now_ms()) {
            self.tell(|| Event::from(result));
        }
        // Last: it may be the task that runs this.
        process.stop_task();
    }

    pub(super) fn signal(&self, process: &Process, signal: i32) {
        // 0 asks whether it is there; the rest are ignored or stop and continue by default.
        if matches!(signal, 0 | 17 | 18 | 19 | 20 | 21 | 22 | 23 | 28) {
            return;
        }
        self.finish(process, 128 + signal, signal, wire::ExitCause::Own, "");
    }

    fn tell(&self, event: impl FnOnce() -> Event) {
        if let Some(events) = &self.inside().events {
            // Nobody may be listening any more.
            let _ = events.send(event());
        }
    }

    /// What is so, and what happens from then on.
    pub(super) fn watch(&self) -> (Vec<wire::ProcessInfo>, broadcast::Receiver<Event>) {
        let mut inside = self.inside();
        let events = inside
            .events
            .get_or_insert_with(|| broadcast::Sender::new(EVENTS))
            .subscribe();
        (
            inside.processes.values().map(|it| it.info()).collect(),
            events,
        )
    }
}

impl Inside {
    fn forget_old_results(&mut self) {
        if self.processes.len() < KEPT_RESULTS {
            return;
        }
        let oldest = self
            .processes
            .values()
            .filter(|it| !it.runs())
            .min_by_key(|it| it.pid)
            .map(|it| it.id().to_owned());
        if let Some(oldest) = oldest {
            self.processes.remove(&oldest);
        }
    }
}
