//! What the SDK promises, against a gateway that misbehaves on purpose.

#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures::stream;
use http_body_util::StreamBody;
use hyper::body::Frame;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use overwinter_api::v1;
use overwinter_client::{
    Client, Code, Depth, Exec, ExecEvent, ExecStdin, Exit, Outcome, Phase, Reattach, reason,
};
use support::{Fake, Served};

async fn served() -> (Served, Client) {
    let served = Fake::serve().await;
    let client = Client::connect(&served.socket);
    (served, client)
}

async fn read_all(exec: &mut Exec) -> (Vec<u8>, Vec<ExecEvent>) {
    let (mut output, mut rest) = (Vec::new(), Vec::new());
    while let Some(event) = exec.next().await {
        match event {
            ExecEvent::Stdout(data) => output.extend_from_slice(&data),
            other => rest.push(other),
        }
    }
    (output, rest)
}

async fn feed(stdin: ExecStdin, input: Vec<u8>) {
    // In small pieces, so that many are under way when the stream breaks.
    for piece in input.chunks(1000) {
        assert!(stdin.send(piece.to_vec()).await);
    }
}

#[tokio::test]
async fn an_exec_goes_on_after_a_suspension_with_each_byte_once_both_ways() {
    let (served, client) = served().await;
    served.fake.add("box");
    served.fake.state().sleep_after_stdin = Some(300_000);
    let input: Vec<u8> = (0..1_000_000_u32).map(|n| (n % 251) as u8).collect();

    let mut exec = client
        .command("box", ["cat"])
        .stdin(true)
        .exec()
        .await
        .unwrap();
    let stdin = exec.take_stdin().unwrap();
    let ((output, rest), ()) = tokio::join!(read_all(&mut exec), feed(stdin, input.clone()));

    assert_eq!(exec.wait().await.unwrap().code, 0);
    assert!(output == input, "{} bytes came back", output.len());
    let interrupted = ExecEvent::Interrupted {
        reason: reason::SANDBOX_SUSPENDED.into(),
    };
    assert_eq!(rest, [interrupted, ExecEvent::Reattached]);
    let state = served.fake.state();
    let process = &state.processes[exec.process_id()];
    let kept = process.kept.lock().unwrap();
    assert!(kept.stdin == input);
    assert_eq!(kept.attached, 2);
}

#[tokio::test]
async fn an_exec_that_is_told_never_to_reattach_fails_with_the_reason() {
    let (served, client) = served().await;
    served.fake.add("box");
    served.fake.state().sleep_after_stdin = Some(1);
    let command = client.command("box", ["cat"]).stdin(true);
    let mut exec = command.reattach(Reattach::NEVER).exec().await.unwrap();
    assert!(exec.take_stdin().unwrap().send("x").await);
    let error = exec.wait().await.unwrap_err();
    assert_eq!(error.reason(), reason::SANDBOX_SUSPENDED);
}

#[tokio::test]
async fn a_process_that_a_stop_ended_gives_its_result_without_being_woken() {
    let (served, client) = served().await;
    served.fake.add("box");
    served.fake.state().sleep_after_stdin = Some(1);
    let mut exec = client
        .command("box", ["cat"])
        .stdin(true)
        .exec()
        .await
        .unwrap();
    let stdin = exec.take_stdin().unwrap();
    assert!(stdin.send("x").await);
    assert!(matches!(
        exec.next().await,
        Some(ExecEvent::Interrupted { .. })
    ));
    {
        let state = served.fake.state();
        let mut kept = state.processes[exec.process_id()].kept.lock().unwrap();
        kept.exit = Some(v1::ExitResult {
            code: 143,
            signal: 15,
            cause: v1::ExitCause::Suspension.into(),
            ..Default::default()
        });
    }
    served
        .fake
        .set_phase("box", v1::Phase::Suspended, v1::Depth::Stop);
    let Exit {
        code,
        signal,
        cause,
        ..
    } = exec.wait().await.unwrap();
    assert_eq!((code, signal), (143, Some(15)));
    assert_eq!(cause, overwinter_client::ExitCause::Suspension);
}

#[tokio::test]
async fn a_signal_ends_the_process_and_its_code_says_so() {
    let (served, client) = served().await;
    served.fake.add("box");
    let exec = client.command("box", ["sleep"]).exec().await.unwrap();
    exec.control().signal(2);
    let mut exec = exec;
    assert_eq!(exec.wait().await.unwrap().code, 130);
}

#[tokio::test]
async fn an_error_says_what_happened_its_reason_and_what_to_do() {
    let (_served, client) = served().await;
    let error = client.get("nobody").await.unwrap_err();
    assert_eq!(error.code(), Code::NotFound);
    assert_eq!(error.reason(), "SANDBOX_NOT_FOUND");
    assert_eq!(error.message(), "there is no sandbox \"nobody\"");
    assert_eq!(error.next(), Some("overwinter sandbox list"));
    // The same in the middle of a stream.
    let command = client.command("nobody", ["cat"]);
    assert_eq!(
        command.exec().await.unwrap_err().reason(),
        "SANDBOX_NOT_FOUND"
    );
}

#[tokio::test]
async fn a_socket_that_nobody_serves_says_how_to_start_a_gateway() {
    let folder = tempfile::tempdir().unwrap();
    let client = Client::connect(folder.path().join("none.sock"));
    let error = client.gateway_status().await.unwrap_err();
    assert_eq!(error.reason(), reason::GATEWAY_UNREACHABLE);
    assert!(error.is_transport());
    assert!(error.next().unwrap().contains("gateway run"));
}

#[tokio::test]
async fn a_list_reads_every_page_and_no_more_than_is_taken() {
    use futures::TryStreamExt as _;
    let (served, client) = served().await;
    for n in 0..25 {
        served.fake.add(&format!("box-{n}"));
    }
    let all = client.list().page_size(10).all().await.unwrap();
    assert_eq!(all.len(), 25);
    assert_eq!(all[24].name(), "box-24");
    assert_eq!(std::mem::take(&mut served.fake.state().pages), 3);
    let first = client
        .list()
        .page_size(10)
        .stream()
        .try_next()
        .await
        .unwrap();
    assert_eq!(first.unwrap().name(), "box-0");
    assert_eq!(served.fake.state().pages, 1);
}

#[tokio::test]
async fn verbs_carry_a_key_of_their_own_and_an_operation_that_failed_is_an_error() {
    let (served, client) = served().await;
    client
        .create()
        .name("box")
        .image("busybox")
        .wait()
        .await
        .unwrap();
    let done = client
        .suspend("box")
        .depth(Depth::Freeze)
        .wait()
        .await
        .unwrap();
    assert_eq!(done.sandbox.phase(), Phase::Suspended);
    assert_eq!(done.sandbox.depth(), Some(Depth::Freeze));
    let keys = served.fake.state().keys.clone();
    assert!(keys.iter().all(|key| uuid::Uuid::try_parse(key).is_ok()));
    assert_ne!(keys[0], keys[1]);

    served.fake.add("stubborn");
    let accepted = client.suspend("stubborn").accept().await.unwrap();
    let operation = accepted.operation().unwrap();
    assert!(matches!(operation.outcome(), Some(Outcome::Failed { .. })));
    let error = client.suspend("stubborn").wait().await.unwrap_err();
    assert_eq!(error.reason(), "SUPERVISOR_UNREACHABLE");
    assert_eq!(error.next(), Some("suspend it at stop"));
}

#[tokio::test]
async fn a_file_comes_back_as_it_was_written_and_a_broken_source_writes_nothing() {
    let (served, client) = served().await;
    served.fake.add("box");
    let files = client.files("box");
    let contents: Vec<u8> = (0..3_500_000_u32).map(|n| (n % 253) as u8).collect();
    files
        .write("a")
        .from_reader(&mut &contents[..])
        .await
        .unwrap();
    let mut reader = files.read("a").await.unwrap();
    assert_eq!(reader.info().size, contents.len() as u64);
    let mut copy = Vec::new();
    reader.copy_to(&mut copy).await.unwrap();
    assert!(copy == contents);

    let (sender, source) = tokio::sync::mpsc::channel(4);
    sender
        .send(Ok(bytes::Bytes::from_static(b"half")))
        .await
        .unwrap();
    sender
        .send(Err(std::io::Error::other("torn")))
        .await
        .unwrap();
    drop(sender);
    let error = files.write("b").from_channel(source).await.unwrap_err();
    assert_eq!(error.reason(), reason::LOCAL_IO);
    assert!(!served.fake.state().files.contains_key("b"));
}

#[tokio::test]
async fn a_client_and_its_exec_outlive_a_restart_of_the_gateway() {
    let (served, client) = served().await;
    served.fake.add("box");
    let mut exec = client
        .command("box", ["cat"])
        .stdin(true)
        .exec()
        .await
        .unwrap();
    let stdin = exec.take_stdin().unwrap();
    assert!(stdin.send("before ").await);
    assert_eq!(exec.next().await, Some(ExecEvent::Stdout("before ".into())));

    served.stop().await;
    let lost = ExecEvent::Interrupted {
        reason: reason::CONNECTION_LOST.into(),
    };
    assert_eq!(exec.next().await, Some(lost));
    assert!(stdin.send("and after").await);
    drop(stdin);
    served.restart();

    let (output, rest) = read_all(&mut exec).await;
    assert_eq!(output, b"and after");
    assert_eq!(rest, [ExecEvent::Reattached]);
    assert_eq!(exec.wait().await.unwrap().code, 0);
    client.get("box").await.unwrap();
}

#[tokio::test]
async fn an_answer_that_breaks_in_its_middle_is_a_connection_that_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("gateway.sock");
    let listener = tokio::net::UnixListener::bind(&socket).unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let server = tokio::spawn(async move {
        loop {
            let (connection, _) = listener.accept().await.unwrap();
            let counted = counted.clone();
            let half = service_fn(move |_| {
                counted.fetch_add(1, Ordering::SeqCst);
                let begun = Ok(Frame::data(Bytes::from_static(b"\x0a")));
                let body = stream::iter([begun, Err(std::io::Error::other("killed"))]);
                let response = hyper::Response::builder()
                    .header("content-type", "application/proto")
                    .body(StreamBody::new(body));
                std::future::ready(response)
            });
            tokio::spawn(
                hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(connection), half),
            );
        }
    });
    let error = Client::connect(&socket).get("box").await.unwrap_err();
    assert!(error.is_transport(), "{error:?}");
    assert_eq!(error.reason(), reason::CONNECTION_LOST);
    assert_eq!(error.code(), Code::Unavailable);
    // A read may be repeated, and was, once.
    assert_eq!(calls.load(Ordering::SeqCst), 2);
    server.abort();
}

/// Calls that are repeated at the moment in which their connection ends. One that is handed to it
/// too late to be refused, and too early to be sent on another, has an answer as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_call_that_meets_the_end_of_its_connection_is_answered() {
    use std::time::Duration;
    use tokio::io::AsyncReadExt as _;

    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("gateway.sock");
    let listener = tokio::net::UnixListener::bind(&socket).unwrap();
    // Dies of each connection's first words.
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move { stream.read_u8().await });
        }
    });
    let client = Client::connect(&socket);
    let callers: Vec<_> = (0..16)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move {
                for _ in 0..400 {
                    let asked = client.get("box");
                    let answer = tokio::time::timeout(Duration::from_secs(30), asked).await;
                    assert!(answer.expect("stuck").unwrap_err().is_transport());
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.unwrap();
    }
}
