//! One sandbox under test: the numbers that a gateway keeps for it, and the steps that it takes.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use overwinter_api::supervisor as wire;
use overwinter_lifecycle::config::Resources;
use overwinter_lifecycle::ids::{EffectKey, Fence, Incarnation, SandboxId, Serial};
use overwinter_lifecycle::operation::EffectKind;
use uuid::Uuid;
use wire::__buffa::oneof::{exec_request, exec_response, read_file_response, write_file_request};

use super::Backend;
use crate::agent::{Agent, AgentStream};
use crate::attach::{Credentials, Token};
use crate::types::{
    ComputeSpec, Depth, DriverReference, EffectContext, EffectOptions, Effected, Observation,
    PinnedImage,
};

const DEADLINE: Duration = Duration::from_secs(30);
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// A sandbox as a case uses it. Every step panics when it does not succeed.
pub struct Subject<'a, B> {
    pub backend: &'a B,
    pub id: SandboxId,
    pub spec: ComputeSpec,
    fence: Fence,
    pub issued: Incarnation,
}

impl<'a, B: Backend> Subject<'a, B> {
    /// Not made yet.
    pub async fn new(backend: &'a B) -> Self {
        let image = backend.image().await;
        let image = backend
            .driver()
            .pin(&image)
            .await
            .expect("the image is there");
        Self::with_image(backend, image)
    }

    pub fn with_image(backend: &'a B, image: PinnedImage) -> Self {
        Self {
            backend,
            id: SandboxId(Uuid::now_v7()),
            spec: ComputeSpec {
                name: "conformance".to_owned(),
                image,
                resources: Resources::default(),
                network: "none".to_owned(),
                runtime: String::new(),
            },
            fence: Fence(0),
            issued: Incarnation(0),
        }
    }

    /// Made and attached.
    pub async fn created(backend: &'a B) -> (Self, Arc<dyn Agent>) {
        let mut subject = Self::new(backend).await;
        let agent = subject.create().await;
        (subject, agent)
    }

    /// The context of the next operation's first effect, with its receipt written.
    pub fn next(&mut self, kind: EffectKind) -> EffectContext {
        self.fence = self.fence.next();
        let ctx = EffectContext {
            key: EffectKey {
                sandbox: self.id,
                fence: self.fence,
                serial: Serial(1),
            },
            incarnation: self.issued,
            deadline: DEADLINE,
            options: EffectOptions::default(),
        };
        self.backend.ledger().intend(ctx.key, kind);
        ctx
    }

    /// The same under a new incarnation, with its credentials.
    pub fn next_incarnation(&mut self, kind: EffectKind) -> (EffectContext, Credentials) {
        self.issued = self.issued.next();
        let ctx = self.next(kind);
        let credentials = Credentials {
            sandbox: self.id,
            incarnation: self.issued,
            token: Token(Uuid::new_v4().simple().to_string()),
        };
        let same_memory = match kind {
            EffectKind::Resume(depth) => depth.keeps_memory(),
            EffectKind::Reattach => true,
            EffectKind::Create
            | EffectKind::Start
            | EffectKind::Suspend(_)
            | EffectKind::Delete => false,
        };
        self.backend.port().issue(&credentials, same_memory);
        (ctx, credentials)
    }

    pub async fn create(&mut self) -> Arc<dyn Agent> {
        let (ctx, credentials) = self.next_incarnation(EffectKind::Create);
        let driver = self.backend.driver();
        let created = driver.create(&ctx, &self.spec, &credentials).await;
        created.expect("create");
        self.attached().await
    }

    pub async fn start(&mut self) -> Arc<dyn Agent> {
        self.start_with(EffectOptions::default()).await
    }

    /// On a new root layer, where the one that was kept is gone.
    pub async fn start_anew(&mut self) -> Arc<dyn Agent> {
        let anew = EffectOptions {
            new_root: true,
            ..EffectOptions::default()
        };
        self.start_with(anew).await
    }

    async fn start_with(&mut self, options: EffectOptions) -> Arc<dyn Agent> {
        let (ctx, credentials) = self.next_incarnation(EffectKind::Start);
        let ctx = EffectContext { options, ..ctx };
        let driver = self.backend.driver();
        let started = driver.start(&ctx, &self.spec, &credentials).await;
        started.expect("start");
        self.attached().await
    }

    /// Detaches for a memory depth, as a gateway does; then suspends.
    pub async fn suspend(&mut self, depth: Depth, agent: &Arc<dyn Agent>) -> Effected {
        if depth.keeps_memory() {
            agent.detach().await.expect("detach");
        }
        self.backend.port().forget(self.id);
        self.deepen(depth).await
    }

    /// Suspends without a word to whoever is inside.
    pub async fn deepen(&mut self, depth: Depth) -> Effected {
        let ctx = self.next(EffectKind::Suspend(depth));
        let suspended = self.backend.driver().suspend(&ctx, depth).await;
        suspended.expect("suspend")
    }

    pub async fn resume(&mut self, depth: Depth, reference: &DriverReference) -> Arc<dyn Agent> {
        let (ctx, credentials) = self.next_incarnation(EffectKind::Resume(depth));
        let driver = self.backend.driver();
        let resumed = driver.resume(&ctx, depth, reference, &credentials).await;
        let resumed = resumed.expect("resume");
        let agent = self.attached().await;
        for debt in &resumed.leftovers {
            driver.discard(debt).await.expect("discard");
        }
        agent
    }

    pub async fn delete(&mut self) {
        let ctx = self.next(EffectKind::Delete);
        let deleted = self.backend.driver().delete(&ctx).await;
        deleted.expect("delete");
    }

    pub async fn observe(&self) -> Observation {
        let observed = self.backend.driver().observe(self.id).await;
        observed.expect("observe")
    }

    /// The agent of the newest incarnation.
    pub async fn attached(&self) -> Arc<dyn Agent> {
        self.backend.port().attached(self.id, self.issued).await
    }
}

/// Writes a whole file.
pub(super) async fn write(agent: &Arc<dyn Agent>, path: &str, data: &[u8]) {
    let parts = [
        write_file_request::Message::from(wire::WriteFileStart {
            path: Bytes::copy_from_slice(path.as_bytes()),
            ..Default::default()
        }),
        write_file_request::Message::Data(Bytes::copy_from_slice(data)),
        write_file_request::Message::from(wire::WriteFileEnd::default()),
    ];
    let messages = parts.map(|part| wire::WriteFileRequest {
        message: Some(part),
    });
    let written = agent
        .write_file(futures::stream::iter(messages).boxed())
        .await;
    written.unwrap_or_else(|error| panic!("cannot write {path}: {error:?}"));
}

/// Reads a whole file.
pub(super) async fn read(agent: &Arc<dyn Agent>, path: &str) -> Vec<u8> {
    let request = wire::ReadFileRequest {
        path: Bytes::copy_from_slice(path.as_bytes()),
        ..Default::default()
    };
    let stream = agent.read_file(request).await;
    let mut stream = stream.unwrap_or_else(|error| panic!("cannot read {path}: {error:?}"));
    let mut data = Vec::new();
    while let Some(message) = stream.next().await {
        let message = message.unwrap_or_else(|error| panic!("cannot read {path}: {error:?}"));
        match message.message {
            Some(read_file_response::Message::Data(piece)) => data.extend_from_slice(&piece),
            Some(read_file_response::Message::Info(_)) | None => {}
        }
    }
    data
}

pub(super) fn start_of(id: &str, command: &[String]) -> wire::ExecStart {
    wire::ExecStart {
        process_id: id.to_owned(),
        process: wire::ProcessSpec {
            command: command.to_vec(),
            ..Default::default()
        }
        .into(),
    }
}

/// Runs a program to its end.
pub(super) async fn run(agent: &Arc<dyn Agent>, command: &[&str]) -> i32 {
    let command: Vec<String> = command.iter().map(|&word| word.to_owned()).collect();
    let start = start_of(&Uuid::new_v4().to_string(), &command);
    let request = wire::ExecRequest {
        message: Some(start.into()),
    };
    let input = futures::stream::iter([request]).boxed();
    let mut output = agent.exec(input).await.expect("exec");
    while let Some(message) = output.next().await {
        if let Some(exec_response::Message::Exited(exit)) = message.expect("exec").message {
            return exit.code;
        }
    }
    panic!("the exec ended without an exit");
}

/// A process of [`Backend::counter`], and what was seen of its output.
pub(super) struct Counter {
    pub(super) id: String,
    stream: Option<AgentStream<wire::ExecResponse>>,
    seen: Vec<u8>,
}

impl Counter {
    pub(super) async fn start<B: Backend>(backend: &B, agent: &Arc<dyn Agent>) -> Self {
        let id = Uuid::new_v4().to_string();
        let start = start_of(&id, &backend.counter());
        let mut counter = Self {
            id,
            stream: None,
            seen: Vec::new(),
        };
        counter.open(agent, start.into()).await;
        counter
    }

    /// Goes on with the output from where it was left.
    pub(super) async fn attach(&mut self, agent: &Arc<dyn Agent>) {
        let attach = wire::ExecAttach {
            process_id: self.id.clone(),
            stdout_offset: self.seen.len() as u64,
            stderr_offset: 0,
        };
        self.open(agent, attach.into()).await;
    }

    async fn open(&mut self, agent: &Arc<dyn Agent>, first: exec_request::Message) {
        let request = wire::ExecRequest {
            message: Some(first),
        };
        let input = futures::stream::iter([request])
            .chain(futures::stream::pending())
            .boxed();
        self.stream = Some(agent.exec(input).await.expect("exec"));
    }

    pub(super) fn leave(&mut self) {
        self.stream = None;
    }

    /// The whole numbers that were seen; they count from 1 without a gap.
    pub(super) fn count(&self) -> u64 {
        let whole = self
            .seen
            .iter()
            .rposition(|&b| b == b'\n')
            .map_or(0, |at| at + 1);
        let text = String::from_utf8_lossy(&self.seen[..whole]);
        let mut count = 0;
        for line in text.lines() {
            count += 1;
            assert_eq!(line.parse(), Ok(count), "the count has a gap: {text:?}");
        }
        count
    }

    /// Reads one message of output.
    pub(super) async fn more(&mut self) -> u64 {
        let stream = self.stream.as_mut().expect("attached");
        loop {
            let message = tokio::time::timeout(PATIENCE, stream.next()).await;
            let message = message.expect("the counter stands still");
            let message = message.expect("the stream ended").expect("exec");
            match message.message {
                Some(exec_response::Message::Output(output)) => {
                    assert_eq!(output.offset, self.seen.len() as u64, "output was lost");
                    self.seen.extend_from_slice(&output.data);
                    return self.count();
                }
                Some(exec_response::Message::Exited(exit)) => panic!("it ended: {exit:?}"),
                Some(exec_response::Message::Started(_) | exec_response::Message::StdinAck(_))
                | None => {}
            }
        }
    }

    pub(super) async fn reach(&mut self, count: u64) {
        while self.more().await < count {}
    }
}
