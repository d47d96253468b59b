//! A store on a real folder, and the verbs as a gateway would drive them.
#![allow(dead_code, reason = "each test file uses its part")]

use std::path::Path;

use overwinter_lifecycle::admission::Request;
use overwinter_lifecycle::capacity::Limits;
use overwinter_lifecycle::config::{Config, Resources, Spec};
use overwinter_lifecycle::ids::{Fence, Incarnation, Millis, OperationId, SandboxId};
use overwinter_lifecycle::operation::{Achieved, Deadlines, EffectKind, Operation, Outcome, Verb};
use overwinter_lifecycle::record::{Compute, Debt, DriverReference, Sandbox};
use overwinter_lifecycle::recording::{Asleep, Ending, Recording};
use overwinter_lifecycle::{Depth, Fault, Name, Reason};
use overwinter_store::{
    Accept, AcceptError, Accepted, Durability, Idempotency, NewSandbox, Store, StoreError,
    StoreOptions, Written,
};
use uuid::Uuid;

pub(crate) const NOW: Millis = Millis(1_790_000_000_000);
pub(crate) const TENANT: &str = "default";

pub(crate) const FREEZE: Request = Request::Suspend {
    depth: Some(Depth::Freeze),
    idle: false,
    reclaim: false,
};
pub(crate) const STOP: Request = Request::Suspend {
    depth: Some(Depth::Stop),
    idle: false,
    reclaim: false,
};
pub(crate) const IDLE: Request = Request::Suspend {
    depth: Some(Depth::Freeze),
    idle: true,
    reclaim: false,
};
pub(crate) const RESUME: Request = Request::Resume {
    fallback: false,
    prefetch: false,
};
pub(crate) const DELETE: Request = Request::Delete { abandon: false };

pub(crate) fn open(folder: &Path) -> Store {
    Store::open(StoreOptions::folder(folder, NOW)).unwrap()
}

pub(crate) fn open_with(folder: &Path, limits: Limits) -> Store {
    let options = StoreOptions {
        limits,
        ..StoreOptions::folder(folder, NOW)
    };
    Store::open(options).unwrap()
}

pub(crate) fn new_sandbox(name: &str) -> NewSandbox {
    let id = SandboxId(Uuid::now_v7());
    let spec = Spec {
        driver: "local".to_owned(),
        image: "/images/busybox".to_owned(),
        network: "none".to_owned(),
        resources: Resources {
            cpu_millis: 1000,
            memory_bytes: 64 << 20,
            ..Resources::default()
        },
        ..Spec::default()
    };
    let name = Name::parse(name).unwrap();
    let sandbox = Sandbox::new(id, TENANT, name, spec, Config::default(), NOW);
    let op = OperationId(Uuid::now_v7());
    NewSandbox {
        operation: Operation::new(op, id, Verb::Create, "uid:1000", NOW),
        sandbox,
        idempotency: None,
        now: NOW,
    }
}

pub(crate) fn ask(sandbox: SandboxId, request: Request) -> Accept {
    Accept {
        sandbox,
        request,
        operation: OperationId(Uuid::now_v7()),
        requester: "uid:1000".to_owned(),
        deadlines: Deadlines::default(),
        idempotency: None,
        durability: Durability::Before,
        now: NOW,
    }
}

pub(crate) fn keyed(method: &str, key: &str, body: u8) -> Option<Idempotency> {
    Some(Idempotency {
        method: method.to_owned(),
        key: key.to_owned(),
        body_hash: [body; 32],
        life_ms: 60_000,
    })
}

/// The running operation, which has to be there.
pub(crate) fn running(sandbox: &Sandbox) -> (OperationId, Fence) {
    let op = sandbox.running.as_ref().expect("an operation runs");
    (op.id, op.fence)
}

pub(crate) async fn record(store: &Store, of: &Sandbox, recording: Recording) -> Written {
    try_record(store, of, recording).await.unwrap()
}

pub(crate) async fn try_record(
    store: &Store,
    of: &Sandbox,
    recording: Recording,
) -> Result<Written, StoreError> {
    let timings = vec![("step".to_owned(), 7)];
    store
        .record(of.id, running(of), recording, timings, Vec::new(), NOW)
        .await
}

pub(crate) fn intent(effect: EffectKind) -> Recording {
    Recording::Intent {
        effect,
        pinned: None,
        quiesced: true,
    }
}

pub(crate) fn ready(sandbox: &Sandbox) -> Recording {
    Recording::End(Ending::Ready {
        compute: Compute::Live {
            held: sandbox.issued,
        },
        achieved: Achieved::Done,
        remarks: Vec::new(),
        secret: None,
    })
}

pub(crate) fn asleep(depth: Depth, held: Incarnation, debts: Vec<Debt>) -> Recording {
    Recording::End(Ending::Suspended(Asleep {
        depth,
        compute: match depth {
            Depth::Freeze => Compute::Frozen { held },
            Depth::Checkpoint | Depth::Stop => Compute::Absent,
        },
        reference: DriverReference::default(),
        size_bytes: 0,
        lost: None,
        debts,
        remarks: Vec::new(),
        reclaimed: None,
    }))
}

pub(crate) fn deleted() -> Recording {
    Recording::End(Ending::Deleted {
        remarks: Vec::new(),
    })
}

pub(crate) async fn accept(store: &Store, of: &Sandbox, request: Request) -> Accepted {
    try_accept(store, of, request).await.unwrap()
}

pub(crate) async fn try_accept(
    store: &Store,
    of: &Sandbox,
    request: Request,
) -> Result<Accepted, AcceptError> {
    store.accept(ask(of.id, request)).await
}

/// A sandbox that was created and is Ready.
pub(crate) async fn create(store: &Store, name: &str) -> Sandbox {
    let created = store
        .accept_create(new_sandbox(name))
        .await
        .unwrap()
        .sandbox;
    record(store, &created, intent(EffectKind::Create)).await;
    record(store, &created, ready(&created)).await.sandbox
}

/// A Ready sandbox goes to sleep, without debts.
pub(crate) async fn suspend(store: &Store, of: &Sandbox, depth: Depth) -> Sandbox {
    let request = Request::Suspend {
        depth: Some(depth),
        idle: false,
        reclaim: false,
    };
    let begun = accept(store, of, request).await.sandbox;
    record(store, &begun, intent(EffectKind::Suspend(depth))).await;
    if depth == Depth::Stop {
        record(store, &begun, Recording::Terminated).await;
    }
    let end = asleep(depth, begun.issued, Vec::new());
    record(store, &begun, end).await.sandbox
}

pub(crate) async fn delete(store: &Store, of: &Sandbox) -> Sandbox {
    let begun = accept(store, of, DELETE).await.sandbox;
    record(store, &begun, deleted()).await.sandbox
}

pub(crate) async fn outcome(store: &Store, id: OperationId) -> Option<Outcome> {
    store.operation(id).await.unwrap().and_then(|op| op.outcome)
}

pub(crate) fn fault() -> Fault {
    Fault::new(Reason::StartFailed, "as the test wants it")
}
