//! A gateway of a few hundred lines, in memory, on a Unix socket: enough of the services to see
//! what a client does with answers, errors and broken streams. Shared with the CLI's tests.

#![allow(dead_code, unreachable_pub, refining_impl_trait, clippy::unwrap_used)]

mod exec;
mod files;
mod sandboxes;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use connectrpc::{ConnectError, ConnectRpcService, ErrorCode, ErrorDetail, Router};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use overwinter_api::rpc::ErrorInfo;
use overwinter_api::v1;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use v1::__buffa::oneof::sandbox_ref::By;

pub use exec::Process;

#[derive(Default)]
pub struct State {
    pub sandboxes: Vec<v1::Sandbox>,
    pub operations: Vec<v1::Operation>,
    pub processes: HashMap<String, Arc<Process>>,
    pub files: HashMap<String, Vec<u8>>,
    /// The idempotency keys of the verbs, as they came.
    pub keys: Vec<String>,
    /// The sizes of the pages of sandboxes that were asked for.
    pub pages: usize,
    /// Puts the sandbox to sleep for a moment when a process has taken so many bytes of stdin.
    pub sleep_after_stdin: Option<usize>,
    /// Operations that do not end, by the idempotency keys of their verbs.
    pub slow: HashMap<String, v1::Operation>,
    /// How many calls have come to wait for what does not come, or to watch.
    pub waiting: usize,
    /// Whether it then stays asleep.
    pub sleeps_on: bool,
    /// The signals that processes were sent.
    pub signals: Vec<i32>,
}

pub struct Shared {
    state: Mutex<State>,
    /// Counts changes of sandboxes.
    changes: watch::Sender<u64>,
}

#[derive(Clone)]
pub struct Fake(pub Arc<Shared>);

/// A fake that is being served; dropping it stops it.
pub struct Served {
    pub fake: Fake,
    pub socket: PathBuf,
    server: Mutex<JoinHandle<()>>,
    _folder: tempfile::TempDir,
}

impl Served {
    /// Ends the server and every connection of it; processes go on.
    pub async fn stop(&self) {
        self.server.lock().unwrap().abort();
        while !self.server.lock().unwrap().is_finished() {
            tokio::task::yield_now().await;
        }
    }

    /// Serves again on the same socket, after [`stop`](Self::stop).
    pub fn restart(&self) {
        std::fs::remove_file(&self.socket).unwrap();
        *self.server.lock().unwrap() = self.fake.listen(&self.socket);
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.server.get_mut().unwrap().abort();
    }
}

impl Fake {
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap()
    }

    pub fn add(&self, name: &str) -> v1::Sandbox {
        let sandbox = v1::Sandbox {
            id: uuid::Uuid::now_v7().to_string(),
            name: name.to_owned(),
            phase: v1::Phase::Ready.into(),
            desired: v1::Desired::Running.into(),
            spec: v1::SandboxSpec {
                driver: "fake".into(),
                image: "busybox".into(),
                ..Default::default()
            }
            .into(),
            ..Default::default()
        };
        self.state().sandboxes.push(sandbox.clone());
        self.changed();
        sandbox
    }

    pub fn changed(&self) {
        self.0.changes.send_modify(|count| *count += 1);
    }

    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    pub fn set_phase(&self, name: &str, phase: v1::Phase, depth: v1::Depth) {
        for sandbox in &mut self.state().sandboxes {
            if sandbox.name == name {
                sandbox.phase = phase.into();
                sandbox.retained = v1::RetainedState {
                    depth: depth.into(),
                    ..Default::default()
                }
                .into();
            }
        }
        self.changed();
    }

    pub fn find(&self, sandbox: &v1::SandboxRef) -> Result<v1::Sandbox, ConnectError> {
        let wanted = match &sandbox.by {
            Some(By::Id(text) | By::Name(text)) => text.clone(),
            None => String::new(),
        };
        let found = self
            .state()
            .sandboxes
            .iter()
            .find(|it| it.id == wanted || it.name == wanted)
            .cloned();
        found.ok_or_else(|| {
            error(
                ErrorCode::NotFound,
                "SANDBOX_NOT_FOUND",
                &format!("there is no sandbox \"{wanted}\""),
                "overwinter sandbox list",
            )
        })
    }

    pub async fn serve() -> Served {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("gateway.sock");
        let fake = Self(Arc::new(Shared {
            state: Mutex::default(),
            changes: watch::channel(0).0,
        }));
        let server = fake.listen(&socket);
        Served {
            fake,
            socket,
            server: Mutex::new(server),
            _folder: folder,
        }
    }

    fn listen(&self, socket: &Path) -> JoinHandle<()> {
        let listener = UnixListener::bind(socket).unwrap();
        let it = Arc::new(self.clone());
        let router = Router::new();
        let router = v1::SandboxServiceExt::register(it.clone(), router);
        let router = v1::OperationServiceExt::register(it.clone(), router);
        let router = v1::ProcessServiceExt::register(it.clone(), router);
        let router = v1::FileServiceExt::register(it.clone(), router);
        let router = v1::GatewayServiceExt::register(it.clone(), router);
        let router = v1::DriverServiceExt::register(it, router);
        let service = ConnectRpcService::new(router);
        tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let service = TowerToHyperService::new(service.clone());
                connections.spawn(async move {
                    let _ = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new())
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        })
    }
}

pub fn error(code: ErrorCode, reason: &str, message: &str, next: &str) -> ConnectError {
    let mut info = ErrorInfo {
        reason: reason.into(),
        domain: "overwinter".into(),
        ..Default::default()
    };
    info.metadata.insert("next".into(), next.into());
    // With the prefix of an `Any`, as an error that was passed on from gRPC has it.
    ConnectError::new(code, message).with_detail(ErrorDetail::from_message(
        "type.googleapis.com/google.rpc.ErrorInfo",
        &info,
    ))
}
