//! Any history of verbs, steps, faults and restarts, with the owners' own step machine: what the
//! store says of itself stays consistent, whatever the order.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod answers;
mod memory;
#[path = "../support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::path::Path;

use answers::{Answers, WORST};
use memory::Memory;
use overwinter_lifecycle::Depth;
use overwinter_lifecycle::admission::Request;
use overwinter_lifecycle::capacity::{Limits, Usage};
use overwinter_lifecycle::ids::{Incarnation, OperationId, SandboxId};
use overwinter_lifecycle::operation::{Outcome, Step};
use overwinter_lifecycle::record::{Compute, DebtKind, Desired, Sandbox};
use overwinter_lifecycle::recording::Recorded;
use overwinter_lifecycle::steps::{self, Action, Deadline, Event};
use overwinter_store::{AcceptError, ListFilter, OperationFilter, Store, StoreOptions, WriterKind};
use proptest::prelude::*;
use proptest::test_runner::RngAlgorithm;
use support::*;
use tempfile::TempDir;

/// Room for two of the three that a history creates at once, running or on disk.
const LIMITS: Limits = Limits {
    running: Some(2),
    cpu_millis: None,
    memory_bytes: None,
    disk_bytes: Some(DISK),
};
const DISK: u64 = 128 << 20;

#[derive(Clone, Debug)]
enum Move {
    Create(u8),
    Ask(usize, Request),
    /// The owner's next steps; the higher, the worse their luck.
    Own(usize, Vec<u8>),
    Call(usize),
    /// Its compute is seen to be gone; or that of before was, which counts for nothing.
    Loss(usize, bool),
    SettleDebts,
    Restart,
}

fn moves() -> impl Strategy<Value = Move> {
    let depth = prop::sample::select(&Depth::ALL[..]);
    let request = prop_oneof![
        8 => (proptest::option::weighted(0.9, depth), prop::bool::weighted(0.1))
            .prop_map(|(depth, idle)| Request::Suspend {
                depth,
                idle,
                reclaim: depth == Some(Depth::Freeze) && !idle,
            }),
        6 => any::<bool>().prop_map(|fallback| Request::Resume { fallback, prefetch: false }),
        1 => Just(Request::Start),
        1 => any::<bool>().prop_map(|abandon| Request::Delete { abandon }),
    ];
    // Mostly good: memory is written before it can be lost.
    let luck = prop_oneof![1 => 0..=WORST, 2 => 0..4u8];
    prop_oneof![
        1 => (0..3u8).prop_map(Move::Create),
        6 => (0..6usize, request).prop_map(|(which, request)| Move::Ask(which, request)),
        10 => (0..6usize, prop::collection::vec(luck, 1..10)).prop_map(|(which, lucks)| Move::Own(which, lucks)),
        1 => (0..6usize).prop_map(Move::Call),
        1 => (0..6usize, any::<bool>()).prop_map(|(which, old)| Move::Loss(which, old)),
        1 => Just(Move::SettleDebts),
        1 => Just(Move::Restart),
    ]
}

struct World {
    folder: TempDir,
    store: Option<Store>,
    sandboxes: Vec<SandboxId>,
    operations: Vec<OperationId>,
    /// What each owner does now; only in its memory.
    owners: BTreeMap<SandboxId, Action>,
    /// Kept up to date by the change feed alone.
    mirror: BTreeMap<SandboxId, Sandbox>,
    seq: u64,
    answers: Answers,
    memory: Memory,
}

impl World {
    fn new() -> Self {
        // In memory where there is such a folder: durability has a test of its own, and most of the
        // time would go to syncs.
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() {
            tempfile::tempdir_in(memory).unwrap()
        } else {
            tempfile::tempdir().unwrap()
        };
        Self {
            store: Some(Self::open(&folder)),
            folder,
            sandboxes: Vec::new(),
            operations: Vec::new(),
            owners: BTreeMap::new(),
            mirror: BTreeMap::new(),
            seq: 0,
            answers: Answers::default(),
            memory: Memory::default(),
        }
    }

    fn open(folder: &TempDir) -> Store {
        Store::open(StoreOptions {
            writer: WriterKind::Inline,
            limits: LIMITS,
            ..StoreOptions::folder(folder.path(), NOW)
        })
        .unwrap()
    }

    fn store(&self) -> &Store {
        self.store.as_ref().unwrap()
    }

    async fn get(&self, id: SandboxId) -> Sandbox {
        self.store().get(id).await.unwrap().unwrap()
    }

    /// One that is not gone, or the newest that is: no move is lost.
    fn pick(&self, which: usize) -> Option<SandboxId> {
        let living: Vec<_> = self.living().map(|living| living.id).collect();
        match living.len() {
            0 => self.sandboxes.last().copied(),
            many => living.get(which % many).copied(),
        }
    }

    async fn carry_out(&mut self, step: Move) {
        match step {
            Move::Create(name) => self.create(&format!("name-{name}")).await,
            Move::Ask(which, request) => {
                if let Some(id) = self.pick(which) {
                    self.ask(id, request).await;
                }
            }
            Move::Own(which, lucks) => {
                if let Some(id) = self.pick(which) {
                    for luck in lucks {
                        if self.own(id, luck).await {
                            self.check_changes().await;
                        }
                    }
                }
            }
            Move::Call(which) => {
                if let Some(id) = self.pick(which)
                    && let Some(op) = self.get(id).await.running
                {
                    self.store().turn_back_for_call(id, op.id).await.unwrap();
                }
            }
            Move::Loss(which, old) => {
                if let Some(id) = self.pick(which) {
                    self.lose(id, old).await;
                }
            }
            Move::SettleDebts => {
                for debt in self.store().debts_due(NOW, 10).await.unwrap() {
                    self.store().settle_debt(debt.clone()).await.unwrap();
                    self.memory.paid(&debt);
                }
            }
            Move::Restart => {
                self.store = None;
                self.store = Some(Self::open(&self.folder));
                self.owners.clear();
                self.store().recover().await.unwrap();
            }
        }
    }

    async fn create(&mut self, name: &str) {
        let new = new_sandbox(name);
        let (id, op) = (new.sandbox.id, new.operation.id);
        let holder = self.living().find(|held| held.name.as_str() == name);
        let holder = holder.map(|held| held.id);
        match (self.store().accept_create(new).await, holder) {
            (Ok(accepted), None) => {
                self.sandboxes.push(id);
                self.operations.push(op);
                self.check_room(accepted.begun).await;
            }
            (Err(AcceptError::NameTaken { id }), Some(holder)) => assert_eq!(id, holder),
            (Err(AcceptError::Denied(_)), None) => {}
            (answer, holder) => panic!("{answer:?} where the name's holder is {holder:?}"),
        }
    }

    async fn ask(&mut self, id: SandboxId, request: Request) {
        match self.store().accept(ask(id, request)).await {
            Ok(accepted) => {
                let Some(op) = accepted.operation else { return };
                if !self.operations.contains(&op.id) {
                    self.operations.push(op.id);
                }
                self.check_room(accepted.begun && op.verb.starts_compute())
                    .await;
            }
            Err(AcceptError::Denied(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }

    /// Whatever begins to start compute has found room for it.
    async fn check_room(&self, begun: bool) {
        let mut held = 0;
        for id in &self.sandboxes {
            held += Usage::of(&self.get(*id).await).running;
        }
        assert!(
            !begun || held <= 2,
            "{held} hold a place, and one just began"
        );
    }

    async fn lose(&mut self, id: SandboxId, old: bool) {
        let before = self.get(id).await;
        let issued = Incarnation(before.issued.0 - u64::from(old));
        let lost = self.store().record_loss(id, Compute::Absent, issued, NOW);
        let lost = lost.await.unwrap();
        assert!(!(old && lost.is_some()), "what was seen before counts");
        let counts = !old && before.running.is_none() && before.desired != Desired::Deleted;
        assert!(!counts || !self.get(id).await.compute.may_exist());
    }

    /// Whether anything was written.
    async fn own(&mut self, id: SandboxId, luck: u8) -> bool {
        let sandbox = self.get(id).await;
        let Some(op) = &sandbox.running else {
            return false;
        };
        let action = self
            .owners
            .remove(&id)
            .unwrap_or_else(|| steps::first(&sandbox, op));
        let writes = matches!(action, Action::Record(_));
        let event = match &action {
            Action::Record(recording) => {
                let written = record(self.store(), &sandbox, recording.clone()).await;
                match written.recorded {
                    Recorded::Done(_) => Event::Recorded,
                    Recorded::Stop(stopping) => Event::Stopped(stopping),
                    Recorded::Ended { next } => {
                        let runs = written.sandbox.running.as_ref().map(|op| op.id);
                        assert_eq!(next, runs);
                        assert!(written.ended.iter().all(|op| op.outcome.is_some()));
                        return true;
                    }
                }
            }
            action => self.answers.event(&sandbox, action, luck),
        };
        let sandbox = self.get(id).await;
        if let Some(op) = &sandbox.running {
            let deadline = if luck.is_multiple_of(2) {
                Deadline::Ahead
            } else {
                Deadline::Up
            };
            let next = steps::next(&sandbox, op, action, event, deadline);
            self.owners.insert(id, next);
        }
        writes
    }

    fn living(&self) -> impl Iterator<Item = &Sandbox> {
        self.mirror
            .values()
            .filter(|sandbox| sandbox.tombstone_at.is_none())
    }

    /// What the feed says, and what is written beside each record.
    async fn check_changes(&mut self) {
        // A feed tells of what is on the disk.
        self.store().sync().await.unwrap();
        let changes = self.store().changes_since(self.seq, 100).await.unwrap();
        self.seq = changes.next;
        for (_, sandbox) in changes.changes {
            if let Some(before) = self.mirror.insert(sandbox.id, sandbox.clone()) {
                check_order(&before, &sandbox);
                self.memory.check_change(&before, &sandbox);
            }
            self.check_line(&sandbox).await;
            self.check_ledger(&sandbox).await;
            self.memory.check_rest(&sandbox, &self.answers);
        }
        let held = self.mirror.values();
        let held = held.map(|sandbox| Usage::of(sandbox).disk_bytes);
        assert!(
            held.sum::<u64>() <= DISK,
            "more is on disk than there is room for"
        );
    }

    async fn check(&mut self) {
        self.check_changes().await;
        for id in &self.sandboxes {
            let sandbox = self.get(*id).await;
            assert_eq!(
                self.mirror.get(id),
                Some(&sandbox),
                "the feed misses nothing"
            );
        }
        let listed = self.store().list(ListFilter {
            limit: 1000,
            ..ListFilter::default()
        });
        let listed: Vec<_> = listed
            .await
            .unwrap()
            .iter()
            .map(|listed| listed.id)
            .collect();
        let living: Vec<_> = self.living().map(|living| living.id).collect();
        assert_eq!(listed, living);
        let counted = self.store().count_by_phase(None).await.unwrap();
        let mut expected = BTreeMap::new();
        for sandbox in self.mirror.values() {
            *expected
                .entry(sandbox.phase().as_str().to_owned())
                .or_insert(0) += 1;
        }
        assert_eq!(counted, expected);
    }

    async fn check_line(&self, sandbox: &Sandbox) {
        let unfinished = self.store().operations(OperationFilter {
            sandbox: Some(sandbox.id),
            unfinished_only: true,
            limit: 10,
            ..OperationFilter::default()
        });
        let mut unfinished: Vec<_> = unfinished.await.unwrap().iter().map(|op| op.id).collect();
        unfinished.sort_unstable();
        let line = sandbox.running.iter().chain(&sandbox.waiting);
        let mut line: Vec<_> = line.map(|op| op.id).collect();
        line.sort_unstable();
        assert_eq!(unfinished, line);
        if let Some(running) = &sandbox.running {
            assert_eq!(running.fence, sandbox.fence);
        }
        if let Some(waiting) = &sandbox.waiting {
            assert_eq!(waiting.step, Step::Waiting);
            assert!(sandbox.running.is_some(), "nothing waits for nothing");
        }
    }

    async fn check_ledger(&self, sandbox: &Sandbox) {
        let receipts = self.store().receipts(sandbox.id).await.unwrap();
        assert!(receipts.is_sorted_by(|a, b| a.key < b.key));
        let intent = sandbox.running.as_ref().and_then(|op| op.intent_key());
        for receipt in receipts.iter().filter(|row| row.outcome.is_none()) {
            // What a delete has taken over is settled when that has ended.
            let taken_over = sandbox.desired == Desired::Deleted && sandbox.tombstone_at.is_none();
            assert!(taken_over || Some(receipt.key) == intent, "{receipt:?}");
        }
        if let Some(key) = intent {
            assert_eq!(receipts.last().map(|row| row.key), Some(key));
        }
        let mut debts = self.store().debts_due(NOW, 1000).await.unwrap();
        debts.retain(|debt| debt.key.sandbox == sandbox.id);
        let owed = (debts.iter()).filter(|debt| debt.kind == DebtKind::Compute);
        assert_eq!(owed.count(), sandbox.compute_debts as usize);
        self.memory.check_owners(sandbox, &receipts, &debts);
    }

    /// Every operation that was accepted comes to an end, and says how.
    async fn drain(&mut self) {
        for id in self.sandboxes.clone() {
            for _ in 0..200 {
                if self.get(id).await.running.is_none() {
                    break;
                }
                self.own(id, 0).await;
            }
            let sandbox = self.get(id).await;
            assert_eq!((&sandbox.running, &sandbox.waiting), (&None, &None));
        }
        for id in &self.operations {
            match outcome(self.store(), *id).await {
                Some(Outcome::SupersededBy(by) | Outcome::TurnedBack(Some(by))) => {
                    assert!(self.operations.contains(&by));
                }
                Some(
                    Outcome::Succeeded { .. } | Outcome::Failed(_) | Outcome::TurnedBack(None),
                ) => {}
                None => panic!("{id} has no outcome"),
            }
        }
    }
}

/// What may only rise, and what never comes back.
fn check_order(before: &Sandbox, after: &Sandbox) {
    assert!(after.revision > before.revision);
    assert!(after.fence >= before.fence);
    assert!(after.issued >= before.issued);
    assert!(after.generation >= before.generation);
    if before.desired == Desired::Deleted {
        assert_eq!(after.desired, Desired::Deleted);
    }
    if before.tombstone_at.is_some() {
        assert_eq!(after.tombstone_at, before.tombstone_at);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        rng_algorithm: RngAlgorithm::XorShift,
        ..ProptestConfig::default()
    })]
    #[test]
    fn any_history_leaves_a_store_that_agrees_with_itself(
        history in proptest::collection::vec(moves(), 1..80),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut world = World::new();
            // No history ends before anything is there.
            world.carry_out(Move::Create(0)).await;
            world.carry_out(Move::Own(0, vec![0; 9])).await;
            for step in history {
                world.carry_out(step).await;
                world.check().await;
            }
            world.drain().await;
            world.check().await;
        });
    }
}
