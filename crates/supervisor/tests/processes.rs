//! Processes, through the connection that the gateway has.

#![allow(clippy::unwrap_used)]

mod support;

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use overwinter_api::supervisor as wire;
use overwinter_api::supervisor::__buffa::oneof::exec_request::Message as Ask;
use overwinter_api::supervisor::__buffa::oneof::exec_response::Message as Tell;
use overwinter_api::supervisor::__buffa::oneof::process_event::Event;
use support::{Exec, Gateway, LONG, ask, reason, run, shell, start};

#[tokio::test]
async fn exit_codes_are_the_programs_own_or_say_why_it_never_ran() {
    let (gateway, session) = Gateway::attached().await;
    let client = &session.client;

    let (exec, exit) = run(client, "p1", shell("echo out; echo err >&2; exit 3")).await;
    assert_eq!(
        (exec.stdout, exec.stderr),
        (b"out\n".into(), b"err\n".into())
    );
    assert_eq!((exit.code, exit.signal, exit.stdout_bytes), (3, 0, 4));
    assert_eq!(exit.cause, wire::ExitCause::Own);

    let (_, exit) = run(client, "p2", shell("kill -9 $$")).await;
    assert_eq!((exit.code, exit.signal), (137, 9));

    let command = |name: &str| wire::ProcessSpec {
        command: vec![name.into()],
        ..Default::default()
    };
    let (_, exit) = run(client, "p3", command("no-such-program")).await;
    assert_eq!(exit.code, 127);
    assert!(exit.error.contains("no-such-program"), "{}", exit.error);

    std::fs::write(gateway.work().join("plain"), "text").unwrap();
    let (_, exit) = run(client, "p4", command("./plain")).await;
    assert_eq!(exit.code, 126, "{}", exit.error);

    let mut nowhere = shell("true");
    nowhere.workdir = "/no/such/folder".into();
    let (_, exit) = run(client, "p5", nowhere).await;
    assert_eq!(exit.code, 126);
    assert!(exit.error.contains("/no/such/folder"), "{}", exit.error);

    for user in ["no-such-user", "65535"] {
        let mut nobody = shell("true");
        nobody.user = user.into();
        let (_, exit) = run(client, &format!("p6-{user}"), nobody).await;
        assert_eq!(exit.code, 126);
        assert!(exit.error.contains(user), "{}", exit.error);
    }
}

#[tokio::test]
async fn a_program_starts_with_a_clean_slate() {
    let (gateway, session) = Gateway::attached().await;
    let mut spec = shell(
        "pwd; echo $PATH; echo $HOME; echo $GREETING; ls /proc/self/fd | tr '\\n' ' '; \
         grep -E 'SigBlk|SigIgn' /proc/self/status; grep -c . /proc/self/oom_score_adj",
    );
    spec.env.insert("GREETING".into(), "hello".into());
    let (exec, exit) = run(&session.client, "p1", spec).await;
    assert_eq!(exit.code, 0);
    let text = String::from_utf8(exec.stdout).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[0], gateway.work().to_str().unwrap());
    assert_eq!(
        lines[1],
        "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    );
    assert_eq!(lines[3], "hello");
    // 3 is ls reading the folder.
    assert!(
        lines[4].starts_with("0 1 2 3 SigBlk:\t0000000000000000"),
        "{text}"
    );
    assert!(lines[5].ends_with("0000000000000000"), "{text}");
}

#[tokio::test]
async fn another_user_ends_with_no_capability_and_with_its_own_groups() {
    if !is_root() {
        eprintln!("skipped: needs root");
        return;
    }
    let (_gateway, session) = Gateway::attached().await;
    let mut spec = shell("id -u; id -g; id -G; grep Cap /proc/self/status | grep -v Bnd");
    spec.user = "1234:77".into();
    spec.workdir = "/".into();
    let (exec, exit) = run(&session.client, "p1", spec).await;
    assert_eq!(exit.code, 0);
    let text = String::from_utf8(exec.stdout).unwrap();
    assert!(text.starts_with("1234\n77\n77\n"), "{text}");
    for line in text.lines().filter(|line| line.starts_with("Cap")) {
        assert!(line.ends_with("0000000000000000"), "{text}");
    }

    // Whether a working folder can be entered is the user's question, not the supervisor's.
    let mut spec = shell("true");
    spec.user = "1234".into();
    let closed = tempfile::tempdir().unwrap();
    std::fs::set_permissions(closed.path(), PermissionsExt::from_mode(0o700)).unwrap();
    spec.workdir = closed.path().to_str().unwrap().into();
    let (_, exit) = run(&session.client, "p2", spec).await;
    assert_eq!(exit.code, 126);
}

#[tokio::test]
async fn stdin_is_taken_once_by_offset_and_acknowledged() {
    let (_gateway, session) = Gateway::attached().await;
    let mut spec = shell("cat");
    spec.stdin = true;
    let stdin = |offset, data: &'static str, eof| wire::StdinData {
        offset,
        data: data.into(),
        eof,
    };
    let mut exec = Exec::start(&session.client, "p1", spec).await;
    exec.send(stdin(0, "hello ", false)).await;
    exec.until_acknowledged(6).await;
    exec.until_stdout("hello ").await;
    drop(exec);

    // As after a lost connection: the client repeats what it has no acknowledgement of.
    let mut exec = Exec::attach(&session.client, "p1", 0).await;
    assert_eq!(exec.started.stdin_offset, 6);
    exec.send(stdin(0, "hello world", false)).await;
    exec.send(stdin(11, "", true)).await;
    let exit = exec.exit().await;
    assert_eq!((exit.code, exec.stdout), (0, b"hello world".into()));

    let mut spec = shell("cat");
    spec.stdin = true;
    let mut exec = Exec::start(&session.client, "p2", spec).await;
    exec.send(stdin(10, "beyond", false)).await;
    let error = exec.next().await.unwrap_err();
    assert_eq!(reason(&error), "STDIN_GAP");
    let mut exec = Exec::attach(&session.client, "p2", 0).await;
    exec.send(stdin(0, "", true)).await;
    assert_eq!(exec.exit().await.code, 0);
}

#[tokio::test]
async fn a_start_is_idempotent_by_id_and_hash_and_a_reader_goes_on_where_it_was() {
    let (_gateway, session) = Gateway::attached().await;
    let client = &session.client;
    let spec = shell("echo one; read line; echo two");
    let spec = wire::ProcessSpec {
        stdin: true,
        ..spec
    };
    let mut first = Exec::start(client, "p1", spec.clone()).await;
    first.until_stdout("one\n").await;
    drop(first);

    // The same start again is the same process; another start under its id is refused.
    let mut again = Exec::start(client, "p1", spec.clone()).await;
    again.until_stdout("one\n").await;
    let other = Exec::open(client, ask(start("p1", shell("echo other")))).await;
    assert_eq!(reason(&other.err().unwrap()), "PROCESS_EXISTS");

    let mut behind = Exec::attach(client, "p1", 4).await;
    assert_eq!(behind.started.stdout_offset, 4);
    behind
        .send(wire::StdinData {
            offset: 0,
            data: "x\n".into(),
            eof: false,
        })
        .await;
    assert_eq!(behind.exit().await.code, 0);
    assert_eq!(behind.stdout, b"two\n");
    assert_eq!(again.exit().await.code, 0);
    assert_eq!(again.stdout, b"one\ntwo\n");

    // The result and the output stay after the end.
    let mut after = Exec::attach(client, "p1", 0).await;
    assert_eq!(after.exit().await.stdout_bytes, 8);
    assert_eq!(after.stdout, b"one\ntwo\n");
    let unknown = Exec::open(
        client,
        ask(wire::ExecAttach {
            process_id: "nobody".into(),
            ..Default::default()
        }),
    );
    assert_eq!(reason(&unknown.await.err().unwrap()), "PROCESS_NOT_FOUND");
}

#[tokio::test]
async fn a_slow_reader_holds_up_its_own_process_alone_and_loses_nothing() {
    let (_gateway, session) = Gateway::attached().await;
    let client = &session.client;
    const BYTES: usize = 8 << 20;
    let mut slow = Vec::new();
    for n in 0..4 {
        let flood = shell(&format!(
            "head -c {BYTES} /dev/zero; touch done-{n}; echo end >&2"
        ));
        slow.push(Exec::start(client, &format!("slow-{n}"), flood).await);
    }
    // Detached: drained, so it ends, and only the tail is kept.
    let mut events = client.watch_processes(Default::default()).await.unwrap();
    let request = wire::StartProcessRequest {
        start: start(
            "drained",
            shell(&format!("head -c {BYTES} /dev/zero; echo end")),
        )
        .into(),
    };
    client.start_process(request).await.unwrap();
    let since = Instant::now();
    let (_, exit) = run(client, "quick", shell("sleep 0.3; echo hi")).await;
    assert_eq!(exit.code, 0);
    assert!(since.elapsed() < Duration::from_secs(5));
    let (_, exit) = run(
        client,
        "look",
        shell("test ! -e done-0 && test ! -e done-3"),
    )
    .await;
    assert_eq!(exit.code, 0, "a process with an unread reader ran ahead");

    let ended = async {
        loop {
            let event = events.message::<wire::ProcessEvent>().await.unwrap();
            match event.unwrap().to_owned_message().event.unwrap() {
                Event::Exited(exited) if exited.process_id == "drained" => break,
                _ => {}
            }
        }
    };
    // A machine that has much to do takes its time.
    tokio::time::timeout(LONG, ended).await.unwrap();
    let mut drained = Exec::attach(client, "drained", 0).await;
    assert_eq!(drained.exit().await.stdout_bytes, BYTES as u64 + 4);
    assert_eq!(drained.started.stdout_offset, BYTES as u64 + 4 - (64 << 10));
    assert!(drained.stdout.ends_with(b"\0end\n"));

    for exec in &mut slow {
        let exit = exec.exit().await;
        assert_eq!((exit.code, exit.stdout_bytes), (0, BYTES as u64));
        assert_eq!(
            (exec.stdout.len(), &exec.stderr[..]),
            (BYTES, &b"end\n"[..])
        );
    }
}

#[tokio::test]
async fn a_grandchild_that_keeps_the_pipe_does_not_keep_the_exit() {
    let (_gateway, session) = Gateway::attached().await;
    let since = Instant::now();
    let (mut exec, exit) = run(
        &session.client,
        "p1",
        shell("sleep 30 & echo $! ; yes forever & echo $!; echo last; exit 5"),
    )
    .await;
    assert_eq!(exit.code, 5);
    assert!(since.elapsed() < Duration::from_secs(2));
    exec.stdout.truncate(60);
    let text = String::from_utf8_lossy(&exec.stdout);
    let pid: i32 = text.lines().next().unwrap().parse().unwrap();
    // SAFETY: the grandchild's own number; `yes` has met a closed pipe.
    unsafe { libc::kill(pid, libc::SIGKILL) };
}

#[tokio::test]
async fn a_terminal_has_a_size_a_controlling_process_and_its_interrupt() {
    let (_gateway, session) = Gateway::attached().await;
    let spec = wire::ProcessSpec {
        tty: wire::WindowSize {
            rows: 33,
            columns: 99,
        }
        .into(),
        stdin: true,
        ..shell(
            "trap 'echo caught; stty size; exit 7' INT; stty size; echo $TERM; while :; do sleep 0.05; done",
        )
    };
    let mut exec = Exec::start(&session.client, "p1", spec).await;
    exec.until_stdout("33 99\r\nxterm\r\n").await;
    exec.send(wire::WindowSize {
        rows: 10,
        columns: 20,
    })
    .await;
    exec.send(wire::StdinData {
        offset: 0,
        data: "\x03".into(),
        eof: false,
    })
    .await;
    let exit = exec.exit().await;
    assert_eq!(exit.code, 7);
    let text = String::from_utf8(exec.stdout).unwrap();
    assert!(text.ends_with("caught\r\n10 20\r\n"), "{text:?}");
}

#[tokio::test]
async fn a_signal_reaches_the_whole_group() {
    let (_gateway, session) = Gateway::attached().await;
    let mut exec = Exec::start(
        &session.client,
        "p1",
        shell("trap 'wait; echo parent; exit 9' TERM; \
             sh -c 'trap \"echo child; exit\" TERM; echo ready; while :; do sleep 0.05; done' & wait"),
    )
    .await;
    exec.until_stdout("ready").await;
    let signal = wire::SignalProcessRequest {
        process_id: "p1".into(),
        signal: libc::SIGTERM,
    };
    session.client.signal_process(signal.clone()).await.unwrap();
    assert_eq!(exec.exit().await.code, 9);
    let text = String::from_utf8(exec.stdout).unwrap();
    assert!(
        text.contains("child\n") && text.contains("parent\n"),
        "{text}"
    );
    let late = session.client.signal_process(signal).await.unwrap_err();
    assert_eq!(reason(&late), "PROCESS_ENDED");

    // On the stream itself, too.
    let mut exec = Exec::start(&session.client, "p2", shell("echo ready; sleep 20")).await;
    exec.until_stdout("ready").await;
    exec.send(Ask::Signal(libc::SIGKILL)).await;
    assert_eq!(exec.exit().await.signal, libc::SIGKILL);
}

#[tokio::test]
async fn a_watcher_sees_the_state_then_each_start_and_exit() {
    let (_gateway, session) = Gateway::attached().await;
    let client = &session.client;
    run(client, "before", shell("exit 4")).await;
    let mut events = client.watch_processes(Default::default()).await.unwrap();
    let mut next = async || {
        let event = tokio::time::timeout(LONG, events.message::<wire::ProcessEvent>());
        let event = event.await.unwrap().unwrap().unwrap();
        event.to_owned_message().event.unwrap()
    };
    match next().await {
        Event::Snapshot(snapshot) => {
            assert_eq!(snapshot.processes.len(), 1);
            assert_eq!(snapshot.processes[0].exit.as_option().unwrap().code, 4);
        }
        other => panic!("{other:?}"),
    }
    run(client, "after", shell("exit 6")).await;
    match (next().await, next().await) {
        (Event::Started(started), Event::Exited(exited)) => {
            assert_eq!(started.process_id, "after");
            assert_eq!((&*exited.process_id, exited.code), ("after", 6));
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_start_in_the_background_tells_whether_the_program_runs() {
    let (_gateway, session) = Gateway::attached().await;
    let background = async |id: &str, command: &str| {
        let spec = wire::ProcessSpec {
            command: vec![command.into(), "20".into()],
            ..Default::default()
        };
        let request = wire::StartProcessRequest {
            start: start(id, spec).into(),
        };
        let answer = session.client.start_process(request).await.unwrap();
        answer.into_owned().process.into_option().unwrap()
    };
    let info = background("p1", "sleep").await;
    assert!(info.running && info.pid > 0);
    let info = background("p2", "no-such-program").await;
    assert!(!info.running);
    assert_eq!(info.exit.as_option().unwrap().code, 127);
    let mut exec = Exec::attach(&session.client, "p1", 0).await;
    exec.send(Ask::Signal(libc::SIGKILL)).await;
    while !matches!(exec.next().await.unwrap(), Some(Tell::Exited(_))) {}
}

fn is_root() -> bool {
    // SAFETY: takes nothing, returns a number.
    unsafe { libc::geteuid() == 0 }
}
