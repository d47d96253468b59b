//! A supervisor that lies: it has proved what a supervisor must, and from then on does as it likes.
//!
//! Inside runs a PID 1 that does nothing at all; its part of the protocol is played from here, with
//! its user and on its socket, as whoever has taken over a PID 1 could.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use buffa::Message;
use bytes::{Bytes, BytesMut};
use h2::SendStream;
use http::{HeaderMap, HeaderValue, Response};
use overwinter_api::supervisor as wire;
use tokio::sync::watch;
use wire::exec_response::Message as Exec;
use wire::process_event::Event;

use crate::dial::{SUPERVISOR, Stolen};

/// What a liar does with the connection that it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lie {
    /// Answers, with processes, results and output that never were.
    Invents,
    /// Begins the longest message that is taken, in every answer, and never ends it.
    Unfinished,
    /// Headers without end.
    Headers,
    /// Neither reads nor writes.
    Silent,
    /// Bytes that are no HTTP/2.
    Garbage,
    /// Ten thousand streams that nobody asked for.
    Streams,
    /// Frames that ask for an answer each, whose answers it never reads.
    Pings,
    /// Headers that go on and on, without an end.
    Continuations,
}

pub(crate) const LIES: [Lie; 8] = [
    Lie::Invents,
    Lie::Unfinished,
    Lie::Headers,
    Lie::Silent,
    Lie::Garbage,
    Lie::Streams,
    Lie::Pings,
    Lie::Continuations,
];

/// A result of an invented process, which no program ever had.
pub(crate) const CODE: i32 = 99;
/// As much as the gateway takes of one message.
const LONGEST: usize = (16 << 20) - 5;
const CREDIT: usize = 64 << 10;

/// A program for x86-64 that waits for signals, for ever: `for (;;) pause();`.
pub(crate) fn idle(folder: &Path) -> anyhow::Result<PathBuf> {
    const BASE: u64 = 0x40_0000;
    const HEADERS: u64 = 64 + 56;
    // mov eax, 34; syscall; jmp to the start
    const CODE: [u8; 9] = [0xb8, 34, 0, 0, 0, 0x0f, 0x05, 0xeb, 0xf7];
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    let size = HEADERS + CODE.len() as u64;
    // elf(5): an executable for x86-64, whose program headers follow this one.
    file.extend([2, 0, 62, 0, 1, 0, 0, 0]);
    for field in [BASE + HEADERS, 64, 0] {
        file.extend(field.to_le_bytes());
    }
    file.extend([0; 4]);
    for field in [64_u16, 56, 1, 0, 0, 0] {
        file.extend(field.to_le_bytes());
    }
    // One segment: all of the file, to be read and run.
    file.extend([1, 0, 0, 0, 5, 0, 0, 0]);
    for field in [0, BASE, BASE, size, size, 0x1000] {
        file.extend(field.to_le_bytes());
    }
    file.extend(CODE);
    let path = folder.join("idle");
    std::fs::write(&path, file)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
    Ok(path)
}

/// What liars have done, so that a test knows that they did.
#[derive(Debug, Default)]
pub(crate) struct Told {
    pub(crate) bytes: AtomicU64,
    pub(crate) attached: AtomicU64,
    /// Until then they are honest, and say nothing.
    pub(crate) begin: watch::Sender<bool>,
}

impl Told {
    async fn begun(&self) {
        // The sender is in here.
        let _ = self.begin.subscribe().wait_for(|begun| *begun).await;
    }

    fn add(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// Attaches, and lies until the connection ends. `of_another`: a process of another sandbox, of which
/// it tells too.
pub(crate) async fn attach(
    stolen: &Stolen,
    lie: Lie,
    of_another: &str,
    told: &Arc<Told>,
) -> anyhow::Result<()> {
    if !matches!(lie, Lie::Invents | Lie::Unfinished | Lie::Headers) {
        told.begun().await;
    }
    let (stolen, head) = (stolen.clone(), stolen.head(&"7".repeat(64)));
    let mut stream = tokio::task::spawn_blocking(move || {
        let mut stream = stolen.dial(SUPERVISOR)?;
        stream.write_all(head.as_bytes())?;
        let mut heard = Vec::new();
        // Not a byte more than the head: what follows is HTTP/2.
        while !heard.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            heard.push(byte[0]);
        }
        anyhow::ensure!(
            heard.starts_with(b"HTTP/1.1 101"),
            "{}",
            String::from_utf8_lossy(&heard)
        );
        Ok(stream)
    })
    .await??;
    told.attached.fetch_add(1, Ordering::Relaxed);
    match lie {
        Lie::Invents | Lie::Unfinished | Lie::Headers => {
            stream.set_nonblocking(true)?;
            serve(stream, lie, of_another, told).await
        }
        Lie::Silent | Lie::Garbage | Lie::Streams | Lie::Pings | Lie::Continuations => {
            let told = Arc::clone(told);
            // It may wait for ever for a peer that does not read.
            stream.set_write_timeout(Some(Duration::from_secs(5)))?;
            tokio::task::spawn_blocking(move || {
                let said = raw(lie);
                for piece in said.chunks(CREDIT) {
                    if stream.write_all(piece).is_err() {
                        return;
                    }
                    told.add(piece.len());
                }
                if lie == Lie::Pings || lie == Lie::Silent {
                    // Held, and never read.
                    std::thread::sleep(Duration::from_secs(3));
                } else {
                    let _ = stream.set_read_timeout(Some(Duration::from_secs(3)));
                    let _ = stream.read_to_end(&mut Vec::new());
                }
            })
            .await?;
            Ok(())
        }
    }
}

/// A frame of RFC 9113, section 4.1.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = payload.len() as u32;
    let mut frame = length.to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

fn raw(lie: Lie) -> Vec<u8> {
    const HEADERS: u8 = 1;
    const SETTINGS: u8 = 4;
    const PUSH: u8 = 5;
    const PING: u8 = 6;
    const CONTINUATION: u8 = 9;
    let settings = frame(SETTINGS, 0, 0, &[]);
    // Of HPACK: a literal field that is indexed, with a name and a value of three bytes.
    let field = b"\x40\x03abc\x03def";
    match lie {
        Lie::Garbage => (0..1_u32 << 20)
            .map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8)
            .collect(),
        Lie::Streams => {
            let each = (1..=10_000_u32).flat_map(|n| {
                // Pushed on the gateway's first stream, and as answers to what was never asked.
                let mut pushed = (2 * n).to_be_bytes().to_vec();
                pushed.extend(field);
                [
                    frame(PUSH, 4, 1, &pushed),
                    frame(HEADERS, 4, 2 * n + 1, field),
                ]
                .concat()
            });
            settings.into_iter().chain(each).collect()
        }
        Lie::Pings => {
            let each = (0..200_000_u64).flat_map(|n| {
                let ping = frame(PING, 0, 0, &n.to_be_bytes());
                [ping, frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0xff, 0xff])].concat()
            });
            settings.into_iter().chain(each).collect()
        }
        Lie::Continuations => {
            let more = (0..4_000).flat_map(|_| frame(CONTINUATION, 0, 1, &field.repeat(1_000)));
            let begun = frame(HEADERS, 0, 1, field);
            settings.into_iter().chain(begun).chain(more).collect()
        }
        Lie::Silent | Lie::Invents | Lie::Unfinished | Lie::Headers => Vec::new(),
    }
}

async fn serve(
    stream: std::os::unix::net::UnixStream,
    lie: Lie,
    of_another: &str,
    told: &Arc<Told>,
) -> anyhow::Result<()> {
    let stream = tokio::net::UnixStream::from_std(stream)?;
    let mut connection = h2::server::handshake(stream).await?;
    let mut answering = tokio::task::JoinSet::new();
    while let Some(request) = connection.accept().await {
        // It ends as the gateway likes: that is no fault of the test's.
        let Ok((request, respond)) = request else {
            break;
        };
        let path = request.uri().path().to_owned();
        let (of_another, told) = (of_another.to_owned(), Arc::clone(told));
        answering.spawn(async move { answer(&path, respond, lie, &of_another, &told).await });
    }
    Ok(())
}

/// Answers one call, as long as the gateway listens.
async fn answer(
    path: &str,
    mut respond: h2::server::SendResponse<Bytes>,
    lie: Lie,
    of_another: &str,
    told: &Told,
) -> anyhow::Result<()> {
    let quiet = !*told.begin.borrow();
    let method = path.rsplit('/').next().unwrap_or_default();
    if quiet && method == "WatchProcesses" {
        told.begun().await;
    }
    let quiet = quiet && method != "WatchProcesses";
    let mut head = Response::builder().header("content-type", "application/grpc");
    if lie == Lie::Headers && !quiet {
        for number in 0..1_000 {
            head = head.header(format!("x-{number}"), "y".repeat(1_000));
        }
    }
    let mut body = respond.send_response(head.body(())?, false)?;
    if lie == Lie::Unfinished && !quiet {
        let mut begun = BytesMut::from(&[0][..]);
        begun.extend_from_slice(&(LONGEST as u32).to_be_bytes());
        pour(&mut body, begun.freeze(), told).await?;
        // A field of bytes that nobody knows, so that nothing is wrong with it before its end.
        pour(
            &mut body,
            Bytes::from_static(&[0xfa, 0x7f, 0xff, 0xff, 0xff, 0x07]),
            told,
        )
        .await?;
        for _ in 0..(LONGEST / CREDIT - 1) {
            pour(&mut body, Bytes::from(vec![b'x'; CREDIT]), told).await?;
        }
        std::future::poll_fn(|cx| body.poll_reset(cx)).await?;
        return Ok(());
    }
    match method {
        "WatchProcesses" => invent(&mut body, of_another, told).await?,
        "Exec" => output(&mut body, of_another, told).await?,
        "ListProcesses" => {
            let processes = (0..3).map(|n| process(uuid::Uuid::from_u128(n).to_string(), 500));
            let listed = wire::ListProcessesResponse {
                processes: processes.collect(),
            };
            pour(&mut body, enveloped(&listed), told).await?;
        }
        // Nothing is in it: every field has its default.
        _ => pour(&mut body, Bytes::from_static(&[0; 5]), told).await?,
    }
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    body.send_trailers(trailers)?;
    Ok(())
}

/// Sends as the peer has room, so that what is held is held at the other end.
async fn pour(body: &mut SendStream<Bytes>, mut data: Bytes, told: &Told) -> anyhow::Result<()> {
    while !data.is_empty() {
        body.reserve_capacity(data.len().min(CREDIT));
        let Some(room) = std::future::poll_fn(|cx| body.poll_capacity(cx)).await else {
            bail!("the stream is no more");
        };
        let piece = data.split_to(room.context("no room")?.min(data.len()));
        told.add(piece.len());
        body.send_data(piece, false)?;
    }
    Ok(())
}

fn enveloped(message: &impl Message) -> Bytes {
    let message = message.encode_to_vec();
    let mut bytes = BytesMut::from(&[0][..]);
    bytes.extend_from_slice(&(message.len() as u32).to_be_bytes());
    bytes.extend_from_slice(&message);
    bytes.freeze()
}

/// A process that never was; `long`: so many bytes in each of its texts.
fn process(id: String, long: usize) -> wire::ProcessInfo {
    wire::ProcessInfo {
        command: vec!["\x1b[2Jx".repeat(long / 5); 3],
        user: "\x1b]0;u\x07".repeat(long / 6),
        pid: i32::MIN,
        started_at_ms: i64::MAX,
        exit: exit(id.clone(), long).into(),
        process_id: id,
        ..Default::default()
    }
}

fn exit(process_id: String, long: usize) -> wire::ExitResult {
    wire::ExitResult {
        process_id,
        code: CODE,
        signal: i32::MAX,
        error: "\x1b[31me".repeat(long / 6),
        stdout_bytes: u64::MAX,
        exited_at_ms: i64::MIN,
        cause: wire::ExitCause::Own.into(),
        ..Default::default()
    }
}

/// A thousand processes at once, then one after another, of whichever id.
async fn invent(body: &mut SendStream<Bytes>, of_another: &str, told: &Told) -> anyhow::Result<()> {
    let id = |n: u128| uuid::Uuid::from_u128(n).to_string();
    let snapshot = wire::ListProcessesResponse {
        processes: (0..1_000).map(|n| process(id(n), 4_000)).collect(),
    };
    let events = [
        Event::Exited(Box::new(exit(of_another.to_owned(), 10))),
        Event::Started(Box::new(process(of_another.to_owned(), 10))),
        Event::Exited(Box::new(exit("no id at all\x1b[2J".to_owned(), 10))),
        Event::Exited(Box::new(exit(String::new(), 10))),
        Event::Snapshot(Box::new(snapshot.clone())),
        // A second state, which may come only once.
        Event::Snapshot(Box::new(snapshot)),
    ];
    for event in events {
        let event = wire::ProcessEvent { event: Some(event) };
        pour(body, enveloped(&event), told).await?;
    }
    for n in 1_000..100_000 {
        // One in ten is as long as a message may be.
        let long = if n % 10 == 0 { 700_000 } else { 20_000 };
        let event = Event::Started(Box::new(process(id(n), long)));
        pour(
            body,
            enveloped(&wire::ProcessEvent { event: Some(event) }),
            told,
        )
        .await?;
    }
    Ok(())
}

/// Output of another process, from offsets that are nowhere, without an end.
async fn output(body: &mut SendStream<Bytes>, of_another: &str, told: &Told) -> anyhow::Result<()> {
    let say = |message: Exec| {
        enveloped(&wire::ExecResponse {
            message: Some(message),
        })
    };
    let started = wire::ExecStarted {
        process_id: of_another.to_owned(),
        stdout_offset: u64::MAX - 3,
        ..Default::default()
    };
    pour(body, say(Exec::Started(Box::new(started))), told).await?;
    let ack = wire::StdinAck { offset: u64::MAX };
    pour(body, say(Exec::StdinAck(Box::new(ack))), told).await?;
    for n in 0..u64::from(u32::MAX) {
        let output = wire::OutputData {
            offset: u64::MAX - n,
            data: Bytes::from(vec![b'o'; 60_000]),
            ..Default::default()
        };
        pour(body, say(Exec::Output(Box::new(output))), told).await?;
        if n % 100 == 99 {
            let exited = exit(of_another.to_owned(), 10);
            pour(body, say(Exec::Exited(Box::new(exited))), told).await?;
        }
    }
    Ok(())
}
