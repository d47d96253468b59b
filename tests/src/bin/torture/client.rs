//! One of many clients: it picks a sandbox and does something to it that fits what it finds, all
//! the while holding the sandbox to what it was promised.

use std::sync::Arc;

use overwinter_client::{Achieved, Code, Depth, Phase, Sandbox};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::contents;
use crate::ledger::{Ledger, keeps_memory};
use crate::life;
use crate::report::FROM_DISK;
use crate::stage::{Answer, RUNSC, Stage};

/// Counts in memory alone, under a word that this life of it has made up; shows both twenty times a
/// second.
const MAIN: &str = "word=$(head -c 16 /dev/urandom | md5sum | cut -c1-32); n=0; while true; do n=$((n+1)); \
    echo $word $n > /tmp/count.new; mv /tmp/count.new /tmp/count; usleep 50000; done";

pub(crate) struct Actor {
    pub(crate) stage: Arc<Stage>,
    pub(crate) index: usize,
    chance: StdRng,
}

impl Actor {
    pub(crate) fn new(stage: Arc<Stage>, index: usize, seed: u64) -> Self {
        Self {
            stage,
            index,
            chance: StdRng::seed_from_u64(seed),
        }
    }

    /// Until `stop`, or until something does not hold.
    pub(crate) async fn act(mut self, places: usize, stop: tokio_util::sync::CancellationToken) {
        while !stop.is_cancelled() && !self.stage.report.over.is_cancelled() {
            let at = self.chance.random_range(0..places);
            match self.stage.place(at) {
                None => self.create(at).await,
                Some(ledger) => self.visit(at, &ledger).await,
            }
        }
    }

    fn key(&mut self) -> String {
        format!("torture-{:032x}", self.chance.random::<u128>())
    }

    async fn create(&mut self, at: usize) {
        let key = self.key();
        let name = format!("t-{}", &key[key.len() - 12..]);
        let stage = Arc::clone(&self.stage);
        // Each place has its own, so that there are always some of every kind.
        let runtime = stage.runtimes[at % stage.runtimes.len()];
        let ended = stage
            .verb("create", || {
                stage
                    .client
                    .create()
                    .name(&name)
                    .image(&stage.image)
                    .main(["/bin/sh", "-c", MAIN])
                    .runtime(runtime)
                    .idempotency_key(&key)
                    .accept()
            })
            .await;
        let Some(Ok(ended)) = ended else { return };
        let ledger = Arc::new(Ledger::new(&ended.sandbox, runtime, stage.clients));
        if let Some(Err(error)) = ended.operation.map(|it| it.achieved()) {
            // Its name is free, and nothing is left of it: looked at in the end.
            stage.judge("create", &error);
            ledger.delete();
            stage.take(usize::MAX, &ledger);
            return;
        }
        if !stage.take(at, &ledger) {
            self.delete(at, &ledger).await;
        }
    }

    async fn visit(&mut self, at: usize, ledger: &Arc<Ledger>) {
        let stage = Arc::clone(&self.stage);
        let before = ledger.steady();
        let found = stage
            .until_answered("get", || stage.client.get(ledger.id.as_str()))
            .await;
        let sandbox = match found {
            None => return,
            Some(Answer::Done(sandbox)) => sandbox,
            Some(Answer::Refused(error)) => {
                if error.code() == Code::NotFound && !ledger.is_deleted() {
                    stage
                        .report
                        .broken(format!("{} is not there: {error}", ledger.id));
                }
                return;
            }
        };
        self.not_lost(ledger, before, &sandbox);
        match sandbox.phase() {
            Phase::Ready => self.use_it(at, ledger).await,
            Phase::Suspended => self.wake(at, ledger, before, &sandbox).await,
            Phase::Failed => match self.chance.random_range(0..40) {
                0 => self.delete(at, ledger).await,
                1..12 => self.start(ledger).await,
                _ => self.resume(ledger, None, false).await,
            },
            // On its way somewhere.
            _ => self.interfere(at, ledger).await,
        }
    }

    /// Compute is lost only where somebody ended it.
    fn not_lost(&self, ledger: &Ledger, before: Option<u64>, sandbox: &Sandbox) {
        let Some(epoch) = before.filter(|epoch| ledger.steady() == Some(*epoch)) else {
            return;
        };
        let lost = sandbox.phase() == Phase::Failed || sandbox.lost().is_some();
        if lost && ledger.lives_in(epoch) && !ledger.is_deleted() {
            self.stage.report.broken(format!(
                "{}: its compute is gone ({:?}), and nobody ended it",
                ledger.id,
                sandbox.failure()
            ));
        }
    }

    async fn use_it(&mut self, at: usize, ledger: &Arc<Ledger>) {
        let stage = Arc::clone(&self.stage);
        match self.chance.random_range(0..400) {
            0..72 => contents::write(&stage, ledger, self.index, &mut self.chance).await,
            72..144 => contents::read(&stage, ledger, self.index).await,
            144..160 => contents::remove(&stage, ledger, self.index, &mut self.chance).await,
            160..216 => {
                life::main_lives(&stage, ledger).await;
            }
            216..260 => life::left_running(&stage, ledger, self.index).await,
            260..304 => life::follow(&stage, ledger).await,
            304..344 => {
                let depth = self.memory_depth(ledger);
                self.suspend(ledger, depth).await;
            }
            344..376 => self.suspend(ledger, Depth::Stop).await,
            376..384 => self.update(ledger).await,
            384..392 => self.resume(ledger, None, false).await,
            392..399 => self.start(ledger).await,
            _ => self.delete(at, ledger).await,
        }
    }

    async fn wake(
        &mut self,
        at: usize,
        ledger: &Arc<Ledger>,
        before: Option<u64>,
        sandbox: &Sandbox,
    ) {
        let memory = before.filter(|_| keeps_memory(sandbox));
        match self.chance.random_range(0..100) {
            0..60 => {
                let memory = memory.map(|epoch| (epoch, sandbox.depth()));
                self.resume(ledger, memory, false).await;
            }
            60..70 => self.resume(ledger, None, true).await,
            70..75 => self.suspend(ledger, Depth::Stop).await,
            // Deeper, where it can.
            75..85 => self.suspend(ledger, deepest_memory(ledger)).await,
            85..93 => self.start(ledger).await,
            93..99 => {
                life::main_lives(&self.stage, ledger).await;
            }
            _ => self.delete(at, ledger).await,
        }
    }

    /// Something is under way: any verb may come.
    async fn interfere(&mut self, at: usize, ledger: &Arc<Ledger>) {
        match self.chance.random_range(0..200) {
            0..50 => self.resume(ledger, None, false).await,
            50..80 => {
                let depth = self.memory_depth(ledger);
                self.suspend(ledger, depth).await;
            }
            80..100 => self.suspend(ledger, Depth::Stop).await,
            100 => self.delete(at, ledger).await,
            // Waits for whatever it is, as a call that needs it awake does.
            _ => {
                life::main_lives(&self.stage, ledger).await;
            }
        }
    }

    fn memory_depth(&mut self, ledger: &Ledger) -> Depth {
        if self.chance.random_ratio(1, 2) {
            Depth::Freeze
        } else {
            deepest_memory(ledger)
        }
    }

    async fn suspend(&mut self, ledger: &Ledger, depth: Depth) {
        let (key, stage) = (self.key(), Arc::clone(&self.stage));
        let _ending = (depth == Depth::Stop).then(|| ledger.ending());
        let ended = stage
            .verb(depth.as_str(), || {
                let suspend = stage.client.suspend(ledger.id.as_str()).depth(depth);
                suspend.idempotency_key(&key).accept()
            })
            .await;
        if let Some(Err(error)) = ended {
            self.still_there(ledger, &error);
        }
    }

    /// `memory`: the epoch in which it was found asleep with its memory. While that lasts, a strict
    /// resume brings the memory back.
    async fn resume(
        &mut self,
        ledger: &Ledger,
        memory: Option<(u64, Option<Depth>)>,
        fallback: bool,
    ) {
        let (key, stage) = (self.key(), Arc::clone(&self.stage));
        // Strict, it ends no process that is there; asleep without memory it starts new ones.
        let _ending = fallback.then(|| ledger.ending());
        let ended = stage
            .verb("resume", || {
                stage
                    .client
                    .resume(ledger.id.as_str())
                    .restart_if_restore_fails(fallback)
                    .idempotency_key(&key)
                    .accept()
            })
            .await;
        let ended = match ended {
            None => return,
            Some(Err(error)) => return self.still_there(ledger, &error),
            Some(Ok(ended)) => ended,
        };
        let Some(operation) = ended.operation else {
            return;
        };
        let Some((_, depth)) = memory.filter(|(epoch, _)| ledger.steady() == Some(*epoch)) else {
            return;
        };
        match operation.achieved() {
            Ok(Achieved::Memory) => stage.report.proved(match depth {
                Some(Depth::Checkpoint) => FROM_DISK,
                _ => "resumes with their memory",
            }),
            Ok(Achieved::Storage) => stage.report.broken(format!(
                "{}: operation {} resumed it from its storage, and its memory was there",
                ledger.id,
                operation.id()
            )),
            // A runtime that was killed may fail it: then it sleeps on.
            Ok(_) | Err(_) => {}
        }
    }

    async fn start(&mut self, ledger: &Ledger) {
        let (key, stage) = (self.key(), Arc::clone(&self.stage));
        let _ending = ledger.ending();
        let ended = stage
            .verb("start", || {
                let start = stage.client.start(ledger.id.as_str());
                start.idempotency_key(&key).accept()
            })
            .await;
        if let Some(Err(error)) = ended {
            self.still_there(ledger, &error);
        }
    }

    async fn delete(&mut self, at: usize, ledger: &Arc<Ledger>) {
        let (key, stage) = (self.key(), Arc::clone(&self.stage));
        ledger.delete();
        let _ending = ledger.ending();
        stage.leave(at, ledger);
        let ended = stage
            .verb("delete", || {
                let delete = stage.client.delete(ledger.id.as_str());
                delete.idempotency_key(&key).accept()
            })
            .await;
        if let Some(Ok(ended)) = ended
            && let Some(Err(error)) = ended.operation.map(|it| it.achieved())
        {
            stage
                .report
                .broken(format!("the delete of {} ended with {error}", ledger.id));
        }
    }

    async fn update(&mut self, ledger: &Ledger) {
        let (label, stage) = (self.key(), Arc::clone(&self.stage));
        let answer = stage
            .until_answered("update", || {
                let update = stage.client.update(ledger.id.as_str());
                update.label("torture", &label[..20]).send()
            })
            .await;
        match answer {
            Some(Answer::Done(_)) => stage.report.did("update", "done"),
            Some(Answer::Refused(error)) => self.still_there(ledger, &error),
            None => {}
        }
    }

    fn still_there(&self, ledger: &Ledger, error: &overwinter_client::Error) {
        if error.code() == Code::NotFound && !ledger.is_deleted() {
            let id = &ledger.id;
            self.stage
                .report
                .broken(format!("{id} is not found: {error}"));
        }
    }
}

fn deepest_memory(ledger: &Ledger) -> Depth {
    if ledger.runtime == RUNSC {
        Depth::Checkpoint
    } else {
        Depth::Freeze
    }
}
