//! The gateway's side of the attach, played by the test: a listener in a folder of its own, the
//! handshake, and a generated client over the connection that the supervisor has dialled.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use connectrpc::ConnectError;
use connectrpc::client::{ClientBody, ClientConfig, ServiceTransport};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use overwinter_api::supervisor as wire;
use overwinter_api::supervisor::__buffa::oneof::exec_request::Message as Ask;
use overwinter_api::supervisor::__buffa::oneof::exec_response::Message as Tell;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;

/// Far beyond what anything here takes; a test that hits it has failed.
pub const LONG: Duration = Duration::from_secs(20);

pub type Client = wire::SupervisorServiceClient<ServiceTransport<Sender>>;
pub type ExecStream = connectrpc::client::BidiStream<
    Incoming,
    wire::ExecRequest,
    wire::__buffa::view::ExecResponseView<'static>,
>;

/// Hyper's request sender as the service that the client wants.
#[derive(Clone)]
pub struct Sender(http2::SendRequest<ClientBody>);

impl tower::Service<http::Request<ClientBody>> for Sender {
    type Response = http::Response<Incoming>;
    type Error = hyper::Error;
    type Future =
        std::pin::Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(
        &mut self,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), Self::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<ClientBody>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

/// A supervisor process with its folders and the gateway's listener.
pub struct Gateway {
    pub folder: TempDir,
    pub supervisor: Child,
    listener: UnixListener,
    wrapped: bool,
    /// What the folder is called by the supervisor.
    root: String,
}

/// What the supervisor said of itself in one handshake.
#[derive(Debug, Clone)]
pub struct Hello {
    head: String,
}

impl Hello {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(": ")?;
            key.eq_ignore_ascii_case(name).then_some(value)
        })
    }
}

/// An accepted attach.
pub struct Session {
    pub client: Client,
    pub hello: Hello,
    /// Ends when the connection does.
    pub connection: JoinHandle<()>,
}

impl Gateway {
    /// Starts a supervisor that finds incarnation 1 and the token `one`.
    pub fn start() -> Self {
        Self::start_under(&[], &["--no-pid1"])
    }

    /// Starts one by way of another program, as a container runtime would.
    pub fn start_under(wrapper: &[&str], flags: &[&str]) -> Self {
        let folder = folders();
        let mut command: Vec<OsString> = wrapper.iter().map(Into::into).collect();
        command.push(program());
        for (flag, name) in [("--run-dir", "run"), ("--workspace", "work")] {
            command.push(flag.into());
            command.push(folder.path().join(name).into());
        }
        command.extend(flags.iter().map(Into::into));
        let root = folder.path().to_str().unwrap().to_owned();
        Self::launch(folder, root, &command, !wrapper.is_empty())
    }

    /// Starts one in a root that holds nothing but itself and its two folders.
    pub fn start_in_an_empty_root() -> Self {
        let folder = folders();
        std::fs::copy(program(), folder.path().join("supervisor")).unwrap();
        let command = [
            "chroot".into(),
            folder.path().into(),
            "/supervisor".into(),
            "--run-dir".into(),
            "/run".into(),
            "--workspace".into(),
            "/work".into(),
            "--no-pid1".into(),
        ];
        Self::launch(folder, String::new(), &command, false)
    }

    fn launch(folder: TempDir, root: String, command: &[OsString], wrapped: bool) -> Self {
        let listener = UnixListener::bind(folder.path().join("run/gateway.sock")).unwrap();
        write_attach(folder.path(), &root, 1, 0, "one");
        let supervisor = Command::new(&command[0])
            .args(&command[1..])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        Self {
            folder,
            supervisor,
            listener,
            wrapped,
            root,
        }
    }

    /// A supervisor, attached.
    pub async fn attached() -> (Self, Session) {
        let gateway = Self::start();
        let session = gateway.accept().await;
        (gateway, session)
    }

    pub fn work(&self) -> PathBuf {
        self.folder.path().join("work")
    }

    pub fn write_attach(&self, incarnation: u64, reattach: u64, token: &str) {
        write_attach(self.folder.path(), &self.root, incarnation, reattach, token);
    }

    /// The next dial, answered with `status`.
    pub async fn answer(&self, status: &str) -> (Hello, UnixStream) {
        let accept = async {
            let (mut stream, _) = self.listener.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            let head = String::from_utf8(head).unwrap();
            assert!(head.starts_with("POST /attach HTTP/1.1\r\n"), "{head}");
            let answer = format!("HTTP/1.1 {status}\r\nConnection: Upgrade\r\n\r\n");
            stream.write_all(answer.as_bytes()).await.unwrap();
            (Hello { head }, stream)
        };
        tokio::time::timeout(LONG, accept).await.expect("no dial")
    }

    /// Whether nobody dials for a while.
    pub async fn is_left_alone(&self, pause: Duration) -> bool {
        tokio::time::timeout(pause, self.listener.accept())
            .await
            .is_err()
    }

    /// Accepts the next dial.
    pub async fn accept(&self) -> Session {
        let (hello, stream) = self.answer("101 Switching Protocols").await;
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(256 << 10)
            .initial_connection_window_size(64 << 20)
            .max_frame_size(256 << 10)
            .handshake(TokioIo::new(stream))
            .await
            .unwrap();
        let connection = tokio::spawn(async move {
            // How it ended is asked of the calls on it.
            let _ = connection.await;
        });
        let transport = ServiceTransport::new(Sender(sender));
        let config = ClientConfig::new("http://supervisor".parse().unwrap())
            .with_protocol(connectrpc::Protocol::Grpc);
        Session {
            client: wire::SupervisorServiceClient::new(transport, config),
            hello,
            connection,
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // Under a wrapper it is a child of what was started, and survives it.
        let pid = self.supervisor.id();
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        if self.wrapped
            && let Some(child) = children.ok().and_then(|text| text.trim().parse().ok())
        {
            // SAFETY: plain numbers; its parent has not been reaped, and so neither has it.
            unsafe { libc::kill(child, libc::SIGKILL) };
        }
        // What it started dies with its pipes or by the test's own hand.
        let _ = self.supervisor.kill();
        let _ = self.supervisor.wait();
    }
}

fn folders() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("run")).unwrap();
    std::fs::create_dir(folder.path().join("work")).unwrap();
    folder
}

/// The shipped static binary can be put in place of the one just built.
fn program() -> OsString {
    std::env::var_os("OVERWINTER_SUPERVISOR")
        .unwrap_or_else(|| env!("CARGO_BIN_EXE_overwinter-supervisor").into())
}

fn write_attach(folder: &Path, root: &str, incarnation: u64, reattach: u64, token: &str) {
    let run = folder.join("run");
    let text = format!(
        r#"{{"version":1,"endpoint":"unix:{root}/run/gateway.sock","sandbox_id":"s-1","incarnation":{incarnation},"reattach":{reattach},"token":"{token}"}}"#
    );
    std::fs::write(run.join("attach.new"), text).unwrap();
    std::fs::rename(run.join("attach.new"), run.join("attach")).unwrap();
}

/// The specification of `sh -c script`.
pub fn shell(script: &str) -> wire::ProcessSpec {
    wire::ProcessSpec {
        command: vec!["sh".into(), "-c".into(), script.into()],
        ..Default::default()
    }
}

pub fn start(id: &str, process: wire::ProcessSpec) -> wire::ExecStart {
    wire::ExecStart {
        process_id: id.into(),
        process: process.into(),
    }
}

pub fn ask(message: impl Into<Ask>) -> wire::ExecRequest {
    wire::ExecRequest {
        message: Some(message.into()),
    }
}

/// An exec stream with what it has said so far.
pub struct Exec {
    pub stream: ExecStream,
    pub started: wire::ExecStarted,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub acknowledged: u64,
}

impl Exec {
    pub async fn start(client: &Client, id: &str, process: wire::ProcessSpec) -> Self {
        Self::open(client, ask(start(id, process))).await.unwrap()
    }

    pub async fn attach(client: &Client, id: &str, stdout_offset: u64) -> Self {
        let attach = wire::ExecAttach {
            process_id: id.into(),
            stdout_offset,
            stderr_offset: 0,
        };
        Self::open(client, ask(attach)).await.unwrap()
    }

    pub async fn open(client: &Client, first: wire::ExecRequest) -> Result<Self, ConnectError> {
        let mut stream = client.exec().await?;
        stream.send(first).await?;
        let mut this = Self {
            stream,
            started: Default::default(),
            stdout: Vec::new(),
            stderr: Vec::new(),
            acknowledged: 0,
        };
        match this.next().await? {
            Some(Tell::Started(started)) => this.started = *started,
            other => panic!("not started first: {other:?}"),
        }
        Ok(this)
    }

    pub async fn send(&mut self, message: impl Into<Ask>) {
        self.stream.send(ask(message)).await.unwrap();
    }

    /// The next message; output is checked to be gapless and kept.
    pub async fn next(&mut self) -> Result<Option<Tell>, ConnectError> {
        let message = tokio::time::timeout(LONG, self.stream.message::<wire::ExecResponse>())
            .await
            .expect("no message")?;
        let Some(message) = message.and_then(|m| m.to_owned_message().message) else {
            return Ok(None);
        };
        match &message {
            Tell::Output(output) => {
                let (kept, from) = if output.stderr {
                    (&mut self.stderr, self.started.stderr_offset)
                } else {
                    (&mut self.stdout, self.started.stdout_offset)
                };
                assert_eq!(output.offset, from + kept.len() as u64, "a gap");
                kept.extend_from_slice(&output.data);
            }
            Tell::StdinAck(ack) => self.acknowledged = ack.offset,
            Tell::Started(_) | Tell::Exited(_) => {}
        }
        Ok(Some(message))
    }

    pub async fn until_stdout(&mut self, wanted: &str) {
        while !String::from_utf8_lossy(&self.stdout).contains(wanted) {
            let told = self.next().await.unwrap();
            assert!(
                !matches!(told, Some(Tell::Exited(_)) | None),
                "ended without {wanted:?}: {:?}",
                String::from_utf8_lossy(&self.stdout)
            );
        }
    }

    pub async fn until_acknowledged(&mut self, offset: u64) {
        while self.acknowledged < offset {
            assert!(self.next().await.unwrap().is_some());
        }
    }

    pub async fn exit(&mut self) -> wire::ExitResult {
        loop {
            match self.next().await.unwrap() {
                Some(Tell::Exited(exit)) => return *exit,
                Some(Tell::Output(_) | Tell::StdinAck(_) | Tell::Started(_)) => {}
                None => panic!("no exit"),
            }
        }
    }
}

/// Runs a process to its end.
pub async fn run(
    client: &Client,
    id: &str,
    process: wire::ProcessSpec,
) -> (Exec, wire::ExitResult) {
    let mut exec = Exec::start(client, id, process).await;
    let exit = exec.exit().await;
    (exec, exit)
}

/// The stable reason of an error.
pub fn reason(error: &ConnectError) -> String {
    use base64::Engine;
    use buffa::Message;
    let Some(detail) = error.details.first() else {
        panic!("no detail: {error:?}");
    };
    let bytes = base64::engine::general_purpose::STANDARD_NO_PAD
        .decode(detail.value.as_ref().unwrap())
        .unwrap();
    let info = overwinter_api::rpc::ErrorInfo::decode_from_slice(&bytes).unwrap();
    assert_eq!(info.domain, "overwinter");
    info.reason
}
