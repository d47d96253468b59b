//! What is learnt of processes, and its way into the store: no call waits for it.
//!
//! ```text
//!   supervisor ─ watch ─► follow ─► Learnt ─┬─► every moment, of all sandboxes together ─► store
//!                                           └─► taken along by an owner's next recording ─► store
//! ```
//!
//! What has not been written when the gateway dies is learnt again: a supervisor keeps its results,
//! and each watch begins with the state. Whatever the store holds as running is ended, as lost or by
//! a suspension, in the transaction that records that its compute is gone.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use overwinter_api::supervisor as wire;
use overwinter_driver::AgentError;
use overwinter_lifecycle::ids::SandboxId;
use overwinter_lifecycle::record::{MainExit, Sandbox};
use overwinter_store::{ProcessResult, StoreError};
use tokio::sync::Notify;
use uuid::Uuid;

use super::Reconciler;
use crate::dataplane::process;
use crate::sessions::{Session, Slot};

/// How long is gathered for one commit.
const MOMENT: Duration = Duration::from_millis(200);
/// Between two tries of what fails: a store that refuses, a watch that is refused.
const PAUSE: Duration = Duration::from_secs(1);
/// Of a watch that goes on failing: each one begins with all there is, and costs as much.
const LONGEST_PAUSE: Duration = Duration::from_secs(64);
/// Of one sandbox; as many as the store keeps.
const KEPT: usize = 1_000;

/// Bytes of one sandbox that wait to be written; who tells more waits too.
const PENDING: usize = 64 << 10;

/// Ordered: what is written, is written in the same order in every run.
type BySandbox = BTreeMap<SandboxId, Pending>;

#[derive(Default)]
struct Pending {
    processes: BTreeMap<Uuid, ProcessResult>,
    /// About.
    bytes: usize,
}

/// Learnt and not written yet. In memory: see the module.
#[derive(Default)]
pub(super) struct Learnt {
    processes: Mutex<BySandbox>,
    arrived: Notify,
    taken: Notify,
}

impl Learnt {
    fn lock(&self) -> MutexGuard<'_, BySandbox> {
        self.processes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, sandbox: SandboxId, learnt: ProcessResult) {
        {
            let mut all = self.lock();
            let of_sandbox = all.entry(sandbox).or_default();
            let bytes = process::weight(&learnt);
            let known = of_sandbox.processes.len();
            match of_sandbox.processes.entry(learnt.process) {
                Entry::Occupied(mut earlier) => {
                    process::complete(earlier.get_mut(), learnt);
                    of_sandbox.bytes += bytes;
                }
                Entry::Vacant(place) if known < KEPT => {
                    place.insert(learnt);
                    of_sandbox.bytes += bytes;
                }
                Entry::Vacant(_) => {}
            }
            // More than the store would keep comes again with the next watch, if ever.
        }
        self.arrived.notify_one();
    }

    /// The same, once there is room: a supervisor may tell of any number of processes, as fast as
    /// it likes, and is read no faster than that is written.
    async fn learn(&self, sandbox: SandboxId, learnt: ProcessResult) {
        loop {
            let taken = self.taken.notified();
            tokio::pin!(taken);
            // Enabled before the look, so that no write falls between.
            taken.as_mut().enable();
            let full = |of: &Pending| of.bytes >= PENDING;
            if !self.lock().get(&sandbox).is_some_and(full) {
                return self.note(sandbox, learnt);
            }
            taken.await;
        }
    }

    /// For a recording of its owner.
    pub(super) fn take(&self, sandbox: SandboxId) -> Vec<ProcessResult> {
        let taken = self.lock().remove(&sandbox);
        self.taken.notify_waiters();
        let processes = taken.into_iter().flat_map(|taken| taken.processes);
        processes.map(|(_, learnt)| learnt).collect()
    }

    fn take_all(&self) -> Vec<(SandboxId, Vec<ProcessResult>)> {
        let taken = std::mem::take(&mut *self.lock());
        self.taken.notify_waiters();
        let taken = taken.into_iter();
        taken
            .map(|(sandbox, learnt)| (sandbox, learnt.processes.into_values().collect()))
            .collect()
    }
}

impl Reconciler {
    /// Writes what is learnt, moment by moment. Ends with the process.
    pub(super) async fn write_what_is_learnt(&self) {
        loop {
            self.learnt.arrived.notified().await;
            self.ports.clock.sleep(MOMENT).await;
            if !self.save_learnt().await {
                self.ports.clock.sleep(PAUSE).await;
            }
        }
    }

    /// Writes what is learnt by now. False: it is kept, to be tried again.
    pub(crate) async fn save_learnt(&self) -> bool {
        let learnt = self.learnt.take_all();
        if learnt.is_empty() {
            return true;
        }
        let now = self.ports.clock.wall();
        let Err(error) = self.store.save_processes(learnt.clone(), now).await else {
            return true;
        };
        tracing::error!(%error, "what became of processes was not written");
        if error != StoreError::Closed {
            for (sandbox, processes) in learnt {
                for process in processes {
                    self.learnt.note(sandbox, process);
                }
            }
        }
        false
    }

    /// Follows the processes of a sandbox that is Ready, as long as it is awake: their starts and
    /// ends are kept. The end of its main process is recorded too, and never changes the phase.
    pub(super) fn follow(&self, sandbox: &Sandbox, slot: &Arc<Slot>) {
        let (this, slot, issued) = (self.clone(), Arc::clone(slot), sandbox.issued);
        if !slot.claim_following(issued) {
            return;
        }
        tokio::spawn(async move {
            let (mut number, mut main) = (0, Main::default());
            // A watch ends with its connection; the next session is watched again.
            while let Some(session) = slot.next_session(issued, number).await {
                number = session.number;
                this.follow_session(&slot, &session, &mut main).await;
            }
        });
    }

    async fn follow_session(&self, slot: &Slot, session: &Session, main: &mut Main) {
        let mut pause = PAUSE;
        loop {
            let begun = self.ports.clock.monotonic();
            match self.watch(slot, session, main).await {
                Ok(()) | Err(AgentError::Gone) => return,
                // It fell behind, or was refused: the next watch begins with the state.
                Err(error) => {
                    tracing::warn!(sandbox = %slot.id, %error, "its processes are watched again");
                }
            }
            if self.ports.clock.monotonic().saturating_sub(begun) > LONGEST_PAUSE {
                pause = PAUSE;
            }
            self.ports.clock.sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
            let newest = slot.session().map(|newest| newest.number);
            if newest != Some(session.number) {
                return;
            }
        }
    }

    async fn watch(
        &self,
        slot: &Slot,
        session: &Session,
        main: &mut Main,
    ) -> Result<(), AgentError> {
        let mut events = session.agent.watch_processes().await?;
        while let Some(event) = events.next().await {
            let Some(event) = event?.event else { continue };
            match &event {
                wire::process_event::Event::Snapshot(list) => {
                    self.learn_all(slot.id, &list.processes).await;
                }
                wire::process_event::Event::Started(info) => {
                    if let Some(learnt) = process::learnt(info) {
                        self.learnt.learn(slot.id, learnt).await;
                    }
                }
                wire::process_event::Event::Exited(exit) => {
                    if let Some(learnt) = process::ended(exit) {
                        self.learnt.learn(slot.id, learnt).await;
                    }
                }
            }
            if let Some((code, signal)) = main.ends_in(&event) {
                let exit = MainExit {
                    code,
                    signal,
                    at: self.ports.clock.wall(),
                };
                if let Err(error) = self.store.record_main_exit(slot.id, exit).await {
                    tracing::error!(sandbox = %slot.id, %error, "an exit was not recorded");
                }
            }
        }
        Ok(())
    }

    /// What the store does not know yet of the state at the beginning of a watch.
    async fn learn_all(&self, id: SandboxId, processes: &[wire::ProcessInfo]) {
        let mut known: BTreeMap<Uuid, bool> = match self.store.process_ids(id).await {
            Ok(known) => known.into_iter().collect(),
            Err(error) => return tracing::error!(sandbox = %id, %error, "cannot be read"),
        };
        for learnt in processes.iter().filter_map(process::learnt) {
            match known.remove(&learnt.process) {
                Some(false) => {}
                Some(true) if learnt.exited_at.is_none() => {}
                Some(true) | None => self.learnt.learn(id, learnt).await,
            }
        }
        // Inside nobody knows of them any more.
        for (id_of_lost, _) in known.into_iter().filter(|(_, running)| *running) {
            let lost = process::lost(id_of_lost, self.ports.clock.wall());
            self.learnt.learn(id, lost).await;
        }
    }
}

/// The main process, as the events tell of it.
#[derive(Default)]
struct Main {
    id: Option<String>,
    /// Its end was seen: it ends once.
    ended: bool,
}

impl Main {
    /// Its code and signal, if this event is its end.
    fn ends_in(&mut self, event: &wire::process_event::Event) -> Option<(i32, i32)> {
        let exit = match event {
            wire::process_event::Event::Snapshot(list) => {
                let main = list.processes.iter().find(|process| process.main)?;
                self.id = Some(main.process_id.clone());
                main.exit.as_option()
            }
            wire::process_event::Event::Started(process) => {
                if process.main {
                    self.id = Some(process.process_id.clone());
                }
                None
            }
            wire::process_event::Event::Exited(exit) => {
                (Some(&exit.process_id) == self.id.as_ref()).then_some(&**exit)
            }
        }?;
        let first = !std::mem::replace(&mut self.ended, true);
        first.then_some((exit.code, exit.signal))
    }
}
