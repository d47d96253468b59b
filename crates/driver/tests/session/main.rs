//! One supervisor connection, both ends of it in memory: what the gateway's side makes of what a
//! supervisor says and of how it goes away.

#![allow(clippy::unwrap_used, refining_impl_trait)]

mod fake;

use std::time::Duration;

use bytes::Bytes;
use fake::{Fake, Leave};
use futures::StreamExt as _;
use overwinter_api::supervisor as wire;
use overwinter_driver::agent::{Agent as _, AgentError, RefusedKind};
use overwinter_driver::attach::{AttachRefused, Io};
use overwinter_driver::session;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use wire::__buffa::oneof::{exec_request, exec_response, read_file_response, write_file_request};

const SANDBOX: &str = "0198c7a2-0000-7000-8000-000000000001";

fn head(secret: &str) -> String {
    format!(
        "POST /attach HTTP/1.1\r\nHost: overwinter\r\nConnection: Upgrade\r\n\
         Upgrade: overwinter-supervisor/1\r\nContent-Length: 0\r\nAuthorization: Bearer t0k\r\n\
         Overwinter-Secret: {secret}\r\nOverwinter-Sandbox: {SANDBOX}\r\n\
         Overwinter-Incarnation: 3\r\nOverwinter-Version: 0.1.0\r\n\r\n"
    )
}

async fn read(head: &str) -> Result<session::AttachRequest, AttachRefused> {
    let (ours, mut theirs) = tokio::io::duplex(64 << 10);
    let mut io: Box<dyn Io> = Box::new(ours);
    theirs.write_all(head.as_bytes()).await.unwrap();
    drop(theirs);
    session::read_request(&mut io).await
}

#[tokio::test]
async fn a_head_is_read_as_it_was_written_and_nothing_else_passes() {
    let good = head(&"0f".repeat(32));
    let request = read(&good).await.unwrap();
    assert_eq!(request.sandbox.to_string(), SANDBOX);
    assert_eq!(request.proof.incarnation.0, 3);
    assert_eq!(request.proof.token.0, "t0k");
    assert_eq!(request.proof.secret, [0x0f; 32]);
    assert_eq!(request.proof.previous_secret, None);
    assert_eq!(request.version, "0.1.0");

    let twice = "Authorization: Bearer t0k\r\nAuthorization: Bearer other\r\n";
    for bad in [
        head("0f"),
        head(&"zz".repeat(32)),
        good.replace("/attach", "/other"),
        good.replace("POST", "GET"),
        good.replace("supervisor/1", "supervisor/2"),
        good.replace("Incarnation: 3", "Incarnation: -3"),
        good.replace("Authorization: Bearer t0k\r\n", twice),
        good.replace("Bearer t0k", "t0k"),
        good.trim_end().to_owned(),
        // HTTP/2 before the 101: nobody has agreed to it yet.
        format!("{good}PRI * HTTP/2.0"),
        good.replace("t0k", &"t".repeat(9 << 10)),
    ] {
        assert_eq!(read(&bad).await, Err(AttachRefused::Malformed), "{bad}");
    }
}

#[tokio::test]
async fn a_refusal_is_a_status_a_word_and_the_end() {
    for (why, status) in [
        (AttachRefused::WrongToken, "401"),
        (AttachRefused::NoSuchSandbox, "403"),
        (AttachRefused::Revoked, "409"),
    ] {
        let (ours, mut theirs) = tokio::io::duplex(4096);
        session::refuse(Box::new(ours), why).await;
        let mut answer = String::new();
        theirs.read_to_string(&mut answer).await.unwrap();
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{answer}"
        );
    }
}

fn start(command: &[&str]) -> wire::ExecRequest {
    let start = wire::ExecStart {
        process_id: "p".into(),
        process: wire::ProcessSpec {
            command: command.iter().map(|&word| word.into()).collect(),
            ..Default::default()
        }
        .into(),
    };
    wire::ExecRequest {
        message: Some(start.into()),
    }
}

#[tokio::test]
async fn stdin_comes_back_as_output_and_the_stream_ends_with_the_exit() {
    let fake = Fake::default();
    let agent = fake.attach().await;
    let data = Bytes::from_static(b"hello");
    let stdin = wire::StdinData {
        data: data.clone(),
        ..Default::default()
    };
    let stdin = wire::ExecRequest {
        message: Some(exec_request::Message::from(stdin)),
    };
    let input = futures::stream::iter([start(&["cat"]), stdin]).boxed();
    let mut output = agent.exec(input).await.unwrap();
    let mut seen = Vec::new();
    while let Some(message) = output.next().await {
        seen.push(message.unwrap().message.unwrap());
    }
    assert!(matches!(seen[0], exec_response::Message::Started(_)));
    assert!(matches!(&seen[1], exec_response::Message::Output(it) if it.data == data));
    assert!(matches!(&seen[2], exec_response::Message::Exited(it) if it.code == 7));
    assert_eq!(seen.len(), 3);
}

#[tokio::test]
async fn dropping_the_stream_of_an_exec_ends_the_call_on_the_other_side() {
    let fake = Fake::default();
    let agent = fake.attach().await;
    // An input that never ends, as of a client that still holds its stdin open.
    let input = futures::stream::iter([start(&["cat"])])
        .chain(futures::stream::pending())
        .boxed();
    let mut output = agent.exec(input).await.unwrap();
    output.next().await.unwrap().unwrap();
    drop(output);
    tokio::time::timeout(Duration::from_secs(5), fake.exec_ended())
        .await
        .expect("the call goes on without anyone listening");
}

#[tokio::test]
async fn a_file_comes_back_as_it_was_sent() {
    let fake = Fake::default();
    let agent = fake.attach().await;
    let contents: Vec<u8> = (0..5 << 20).map(|n: u32| (n % 251) as u8).collect();
    let mut parts = vec![write_file_request::Message::from(wire::WriteFileStart {
        path: Bytes::from_static(b"/workspace/\xff"),
        ..Default::default()
    })];
    for piece in contents.chunks(1 << 20) {
        parts.push(write_file_request::Message::Data(Bytes::copy_from_slice(
            piece,
        )));
    }
    let unfinished = parts.clone();
    parts.push(wire::WriteFileEnd::default().into());
    let messages = |parts: Vec<write_file_request::Message>| {
        futures::stream::iter(parts)
            .map(|part| wire::WriteFileRequest {
                message: Some(part),
            })
            .boxed()
    };
    let info = agent.write_file(messages(parts)).await.unwrap();
    assert_eq!(info.size, contents.len() as u64);

    let broken = agent.write_file(messages(unfinished)).await.unwrap_err();
    assert!(
        matches!(&broken, AgentError::Refused { kind: RefusedKind::FailedPrecondition, reason, .. }
            if reason == "UPLOAD_BROKEN"),
        "{broken:?}"
    );

    let request = wire::ReadFileRequest {
        path: Bytes::from_static(b"/workspace/\xff"),
        ..Default::default()
    };
    let mut stream = agent.read_file(request).await.unwrap();
    let mut back = Vec::new();
    while let Some(message) = stream.next().await {
        match message.unwrap().message.unwrap() {
            read_file_response::Message::Info(info) => assert_eq!(info.size, 5 << 20),
            read_file_response::Message::Data(data) => back.extend_from_slice(&data),
        }
    }
    assert!(back == contents);
}

#[tokio::test]
async fn errors_are_told_apart_by_code_and_reason() {
    let fake = Fake::default();
    let agent = fake.attach().await;
    let missing = agent
        .stat_file(wire::StatFileRequest::default())
        .await
        .unwrap_err();
    assert_eq!(
        missing,
        AgentError::Refused {
            kind: RefusedKind::NotFound,
            reason: "FILE_NOT_FOUND".into(),
            message: "no such file".into(),
        }
    );
    let mut stream = agent
        .read_file(wire::ReadFileRequest::default())
        .await
        .unwrap();
    let missing = stream.next().await.unwrap().unwrap_err();
    assert!(matches!(missing, AgentError::Refused { reason, .. } if reason == "FILE_NOT_FOUND"));
    assert!(stream.next().await.is_none());
    let unknown = agent.unquiesce().await.unwrap_err();
    assert!(
        matches!(&unknown, AgentError::Refused { kind: RefusedKind::Unimplemented, reason, .. }
            if reason.is_empty()),
        "{unknown:?}"
    );
}

#[tokio::test]
async fn when_the_connection_breaks_every_call_says_gone() {
    let fake = Fake::default();
    let agent = fake.attach().await;
    let input = futures::stream::iter([start(&["cat"])])
        .chain(futures::stream::pending())
        .boxed();
    let mut output = agent.exec(input).await.unwrap();
    output.next().await.unwrap().unwrap();
    let waiting = tokio::spawn({
        let agent = agent.clone();
        async move { agent.terminate(Duration::ZERO).await }
    });
    fake.terminate_called().await;
    fake.hang_up();
    assert_eq!(waiting.await.unwrap().unwrap_err(), AgentError::Gone);
    assert_eq!(output.next().await.unwrap().unwrap_err(), AgentError::Gone);
    agent.gone().await;
    assert_eq!(agent.list_processes().await.unwrap_err(), AgentError::Gone);
}

#[tokio::test]
async fn detach_answers_only_after_end_of_file() {
    // Whether HTTP/2 ends in order, by a GOAWAY, or with the stream.
    for leave in [Leave::Gracefully, Leave::Abruptly] {
        let fake = Fake::default();
        let agent = fake.attach().await;
        fake.leave_when_detached(leave);
        let mut detach = tokio::spawn({
            let agent = agent.clone();
            async move { agent.detach().await }
        });
        fake.detach_answered().await;
        // It keeps its socket open: a freeze now would freeze it with the socket.
        let early = tokio::time::timeout(Duration::from_millis(100), &mut detach).await;
        assert!(early.is_err(), "{leave:?}: {early:?}");
        fake.hang_up();
        assert_eq!(detach.await.unwrap().unwrap(), ["p".to_owned()]);
        agent.gone().await;
    }
}

/// Calls that are made just as the connection ends. One that is handed over too late to be refused,
/// and too early to be seen, has an answer as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_call_that_meets_the_end_of_the_connection_is_answered() {
    for _ in 0..1000 {
        let (ours, mut theirs) = tokio::net::UnixStream::pair().unwrap();
        let agent = session::accept(Box::new(ours)).await.unwrap();
        let callers: Vec<_> = (0..8)
            .map(|_| {
                let agent = agent.clone();
                tokio::spawn(async move {
                    // Until it is seen to have ended.
                    for _ in 0..20 {
                        let asked = agent.list_processes();
                        let answer = tokio::time::timeout(Duration::from_secs(30), asked).await;
                        assert_eq!(answer.expect("stuck").unwrap_err(), AgentError::Gone);
                    }
                })
            })
            .collect();
        // Dies of its first words, after the 101.
        tokio::spawn(async move { theirs.read(&mut [0; 4096]).await });
        for caller in callers {
            caller.await.unwrap();
        }
    }
}
