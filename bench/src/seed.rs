//! Sleeping sandboxes in numbers, written straight into a store: through its own methods, with every
//! transaction that a gateway makes, but without one.

use std::path::Path;

use anyhow::Context;
use overwinter_gateway::ports::{Clock, SystemClock};
use overwinter_lifecycle::admission::Request;
use overwinter_lifecycle::config::{Config, Spec};
use overwinter_lifecycle::ids::{Millis, OperationId, SandboxId};
use overwinter_lifecycle::operation::{Achieved, Deadlines, EffectKind, Operation, Verb};
use overwinter_lifecycle::record::{Compute, DriverReference, Sandbox};
use overwinter_lifecycle::recording::{Asleep, Ending, Recording};
use overwinter_lifecycle::{Depth, Name};
use overwinter_store::{Accept, Durability, NewSandbox, Store, StoreOptions};
use tokio::task::JoinSet;
use uuid::Uuid;

/// Many at once share a commit.
const AT_ONCE: usize = 512;

/// Writes `number` sandboxes that sleep at `stop` into the store of `folder`.
///
/// # Errors
/// When the store refuses.
pub async fn sleeping(folder: &Path, number: usize) -> anyhow::Result<()> {
    let now = SystemClock::default().wall();
    let store = Store::open(StoreOptions::folder(folder, now))?;
    let mut tasks = JoinSet::new();
    for first in 0..AT_ONCE {
        let store = store.clone();
        tasks.spawn(async move {
            for number in (first..number).step_by(AT_ONCE) {
                one(&store, &format!("sandbox-{number}"), now).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(())
}

async fn one(store: &Store, name: &str, now: Millis) -> anyhow::Result<()> {
    let id = SandboxId(Uuid::now_v7());
    let spec = Spec {
        driver: "sim".to_owned(),
        image: "busybox".to_owned(),
        network: "none".to_owned(),
        ..Spec::default()
    };
    let name = Name::parse(name)?;
    let operation = OperationId(Uuid::now_v7());
    let mut sandbox = store
        .accept_create(NewSandbox {
            sandbox: Sandbox::new(id, "default", name, spec, Config::default(), now),
            operation: Operation::new(operation, id, Verb::Create, "bench", now),
            idempotency: None,
            now,
        })
        .await?
        .sandbox;
    let created = Ending::Ready {
        compute: Compute::Live {
            held: sandbox.issued,
        },
        achieved: Achieved::Done,
        remarks: Vec::new(),
        secret: None,
    };
    record(store, &sandbox, intent(EffectKind::Create), now).await?;
    record(store, &sandbox, Recording::End(created), now).await?;
    sandbox = store
        .accept(Accept {
            sandbox: id,
            request: Request::Suspend {
                depth: Some(Depth::Stop),
                idle: false,
                reclaim: false,
            },
            operation: OperationId(Uuid::now_v7()),
            requester: "bench".to_owned(),
            deadlines: Deadlines::default(),
            idempotency: None,
            durability: Durability::Before,
            now,
        })
        .await?
        .sandbox;
    let asleep = Ending::Suspended(Asleep {
        depth: Depth::Stop,
        compute: Compute::Absent,
        reference: DriverReference::default(),
        size_bytes: 0,
        lost: None,
        debts: Vec::new(),
        remarks: Vec::new(),
        reclaimed: None,
    });
    let suspend = intent(EffectKind::Suspend(Depth::Stop));
    record(store, &sandbox, suspend, now).await?;
    record(store, &sandbox, Recording::End(asleep), now).await
}

async fn record(
    store: &Store,
    of: &Sandbox,
    recording: Recording,
    now: Millis,
) -> anyhow::Result<()> {
    let running = of.running.as_ref().context("nothing runs on it")?;
    let writer = (running.id, running.fence);
    store
        .record(of.id, writer, recording, Vec::new(), Vec::new(), now)
        .await?;
    Ok(())
}

fn intent(effect: EffectKind) -> Recording {
    Recording::Intent {
        effect,
        pinned: None,
        quiesced: true,
    }
}
