//! Attach, quiesce, detach, reattach and terminate, as a gateway goes through them.

#![allow(clippy::unwrap_used)]

mod support;

use std::time::{Duration, Instant};

use overwinter_api::supervisor as wire;
use overwinter_api::supervisor::__buffa::oneof::write_file_request::Message as Write;
use support::{Exec, Gateway, LONG, Session, ask, reason, run, shell, start};

/// Long enough to see that nothing comes: several polls and backoffs.
const PAUSE: Duration = Duration::from_millis(300);

#[tokio::test]
async fn a_reconnection_is_the_same_attach_and_a_new_token_proves_the_old_one() {
    let gateway = Gateway::start();
    // Refused, it comes again with the same secret.
    let (refused, _) = gateway.answer("401 Unauthorized").await;
    let first = gateway.accept().await;
    let secret = |session: &Session| {
        session
            .hello
            .header("overwinter-secret")
            .unwrap()
            .to_owned()
    };
    assert_eq!(refused.header("overwinter-secret").unwrap(), secret(&first));
    assert_eq!(secret(&first).len(), 64);
    assert_eq!(first.hello.header("authorization"), Some("Bearer one"));
    assert_eq!(first.hello.header("overwinter-sandbox"), Some("s-1"));
    assert_eq!(first.hello.header("overwinter-incarnation"), Some("1"));
    assert_eq!(first.hello.header("overwinter-previous-secret"), None);
    let old = secret(&first);

    // Lost without a detach: dialled again by itself, and what ran goes on.
    let mut exec = Exec::start(&first.client, "p1", shell("echo a; sleep 0.2; echo b")).await;
    exec.until_stdout("a\n").await;
    first.connection.abort();
    let _ = first.connection.await;
    drop((exec, first.client));
    let second = gateway.accept().await;
    assert_eq!(secret(&second), old);
    let mut exec = Exec::attach(&second.client, "p1", 2).await;
    assert_eq!(exec.exit().await.code, 0);
    assert_eq!(exec.stdout, b"b\n");

    gateway.write_attach(2, 0, "two");
    second.connection.abort();
    let _ = second.connection.await;
    drop((exec, second.client));
    let third = gateway.accept().await;
    assert_eq!(third.hello.header("authorization"), Some("Bearer two"));
    assert_eq!(
        third.hello.header("overwinter-previous-secret"),
        Some(&*old)
    );
    assert_ne!(secret(&third), old);
}

#[tokio::test]
async fn detach_answers_ends_the_connection_and_waits_for_a_higher_pair() {
    let (gateway, mut session) = Gateway::attached().await;
    let mut exec = Exec::start(
        &session.client,
        "p1",
        shell("n=0; while [ $n -lt 1000 ]; do echo $n; n=$((n+1)); sleep 0.01; done"),
    )
    .await;
    exec.until_stdout("3\n").await;
    // One that is not read at all holds nothing up.
    let unread = Exec::start(&session.client, "p2", shell("yes")).await;

    session.client.quiesce(Default::default()).await.unwrap();
    let answer = session.client.detach(Default::default()).await.unwrap();
    let mut live = answer.into_owned().live_process_ids;
    live.sort();
    assert_eq!(live, ["p1", "p2"]);
    let since = Instant::now();
    tokio::time::timeout(LONG, &mut session.connection)
        .await
        .unwrap()
        .unwrap();
    assert!(
        since.elapsed() < Duration::from_secs(1),
        "{:?}",
        since.elapsed()
    );
    // The stream ends with the reason, behind all that was said before.
    let error = loop {
        match exec.next().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("ended well"),
            Err(error) => break error,
        }
    };
    assert_eq!(reason(&error), "DETACHED");
    drop(unread);

    // The same pair, and a lower one, ask for nothing.
    gateway.write_attach(1, 0, "again");
    assert!(gateway.is_left_alone(PAUSE).await);
    gateway.write_attach(0, 7, "lower");
    assert!(gateway.is_left_alone(PAUSE).await);

    let since = Instant::now();
    gateway.write_attach(1, 1, "two");
    let session = gateway.accept().await;
    assert!(
        since.elapsed() < Duration::from_millis(200),
        "{:?}",
        since.elapsed()
    );
    assert!(session.hello.header("overwinter-previous-secret").is_some());
    // Still quiesced, until the gateway says otherwise; the process went on by offset.
    let refused = Exec::open(&session.client, ask(start("p3", shell("true")))).await;
    assert_eq!(reason(&refused.err().unwrap()), "QUIESCED");
    session.client.unquiesce(Default::default()).await.unwrap();
    let seen = exec.stdout.len() as u64;
    let mut exec = Exec::attach(&session.client, "p1", seen).await;
    assert_eq!(exec.started.stdout_offset, seen);
    exec.until_stdout("\n").await;

    // A second round, by incarnation.
    session.client.detach(Default::default()).await.unwrap();
    gateway.write_attach(2, 0, "three");
    let session = gateway.accept().await;
    let terminate = wire::TerminateRequest { grace_ms: 0 };
    session.client.terminate(terminate).await.unwrap();
}

#[tokio::test]
async fn quiesce_refuses_what_is_new_and_runs_its_hook_once() {
    let (gateway, session) = Gateway::attached().await;
    let client = &session.client;
    std::fs::write(gateway.work().join("file"), "content").unwrap();
    let request = wire::QuiesceRequest {
        hook: vec!["sh".into(), "-c".into(), "echo ran >> hook; exit 3".into()],
        hook_timeout_ms: 5000,
    };
    for _ in 0..2 {
        let answer = client.quiesce(request.clone()).await.unwrap().into_owned();
        assert_eq!(answer.hook.as_option().unwrap().code, 3);
    }
    let hook = gateway.work().join("hook");
    assert_eq!(std::fs::read_to_string(&hook).unwrap(), "ran\n");

    let refused = Exec::open(client, ask(start("p1", shell("true")))).await;
    assert_eq!(reason(&refused.err().unwrap()), "QUIESCED");
    let make = wire::MakeDirectoryRequest {
        path: "new".into(),
        ..Default::default()
    };
    let error = client.make_directory(make.clone()).await.unwrap_err();
    assert_eq!(reason(&error), "QUIESCED");
    let stat = wire::StatFileRequest {
        path: "file".into(),
        ..Default::default()
    };
    client.stat_file(stat).await.unwrap();
    assert!(
        client
            .get_info(Default::default())
            .await
            .unwrap()
            .into_owned()
            .quiesced
    );

    client.unquiesce(Default::default()).await.unwrap();
    client.make_directory(make).await.unwrap();
    assert_eq!(run(client, "p1", shell("true")).await.1.code, 0);
    client.quiesce(request).await.unwrap();
    assert_eq!(std::fs::read_to_string(&hook).unwrap(), "ran\nran\n");
    // The hook is nobody's process.
    let all = client.list_processes(Default::default()).await.unwrap();
    assert_eq!(all.into_owned().processes.len(), 1);
}

#[tokio::test]
async fn a_hook_past_its_deadline_is_killed_and_said_so() {
    let (_gateway, session) = Gateway::attached().await;
    let request = wire::QuiesceRequest {
        hook: vec!["sleep".into(), "30".into()],
        hook_timeout_ms: 100,
    };
    let since = Instant::now();
    let answer = session.client.quiesce(request).await.unwrap().into_owned();
    assert!(since.elapsed() < Duration::from_secs(5));
    let hook = answer.hook.into_option().unwrap();
    assert_eq!(hook.signal, libc::SIGKILL);
    assert!(hook.error.contains("100 ms"), "{}", hook.error);
}

#[tokio::test]
async fn quiesce_waits_for_a_write_in_flight() {
    let (gateway, session) = Gateway::attached().await;
    let (sender, receiver) = futures::channel::mpsc::unbounded();
    let send = |message: Write| {
        let request = wire::WriteFileRequest {
            message: Some(message),
        };
        sender.unbounded_send(request).unwrap();
    };
    send(Write::from(wire::WriteFileStart {
        path: "slow".into(),
        ..Default::default()
    }));
    let client = session.client.clone();
    let upload = tokio::spawn(async move { client.write_file(receiver).await.map(|_| ()) });
    while std::fs::read_dir(gateway.work()).unwrap().count() == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let client = session.client.clone();
    let quiesce = tokio::spawn(async move { client.quiesce(Default::default()).await.map(|_| ()) });
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!quiesce.is_finished());
    send(Write::Data("content".into()));
    send(Write::from(wire::WriteFileEnd::default()));
    upload.await.unwrap().unwrap();
    tokio::time::timeout(LONG, quiesce)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    assert_eq!(
        std::fs::read(gateway.work().join("slow")).unwrap(),
        b"content"
    );
}

#[tokio::test]
async fn terminate_tags_what_it_ended_and_kills_what_will_not() {
    let (_gateway, session) = Gateway::attached().await;
    let client = &session.client;
    run(client, "own", shell("exit 2")).await;
    let mut polite = Exec::start(
        client,
        "polite",
        shell("trap 'echo bye; exit 8' TERM; echo up; while :; do sleep 0.02; done"),
    )
    .await;
    polite.until_stdout("up").await;
    let mut stubborn = Exec::start(
        client,
        "stubborn",
        shell("trap '' TERM; echo up; while :; do sleep 0.02; done"),
    )
    .await;
    stubborn.until_stdout("up").await;
    let flood = Exec::start(client, "unread", shell("yes")).await;

    let since = Instant::now();
    let request = wire::TerminateRequest { grace_ms: 400 };
    let answer = client
        .terminate(request.clone())
        .await
        .unwrap()
        .into_owned();
    assert!(since.elapsed() >= Duration::from_millis(400));
    assert!(since.elapsed() < Duration::from_secs(5));
    let find = |id: &str| {
        let found = answer.results.iter().find(|result| result.process_id == id);
        found.unwrap().clone()
    };
    let own = find("own");
    assert_eq!((own.code, own.cause), (2, wire::ExitCause::Own.into()));
    let suspension = wire::ExitCause::Suspension.into();
    assert_eq!((find("polite").code, find("polite").cause), (8, suspension));
    assert_eq!(
        (find("stubborn").signal, find("stubborn").cause),
        (9, suspension)
    );
    assert_eq!(find("unread").cause, suspension);
    assert_eq!(polite.exit().await.cause, wire::ExitCause::Suspension);
    assert!(polite.stdout.ends_with(b"bye\n"));
    drop(flood);

    // Again, with nothing left: at once, and the same results.
    let since = Instant::now();
    let again = client.terminate(request).await.unwrap().into_owned();
    assert!(since.elapsed() < Duration::from_millis(200));
    assert_eq!(again.results.len(), 4);
    let refused = Exec::open(client, ask(start("late", shell("true")))).await;
    assert_eq!(reason(&refused.err().unwrap()), "QUIESCED");
}
