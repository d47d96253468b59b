//! The command as its users see it: the real program, against a gateway in memory.

#![allow(clippy::unwrap_used)]

mod common;

use std::process::{Output, Stdio};

use common::support::{Fake, Served};
use common::{overwinter, send};
use rustix::process::Signal;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};

async fn run(served: &Served, arguments: &[&str]) -> Output {
    overwinter(served, arguments).output().await.unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_print_tables_names_and_the_messages_own_json() {
    let served = Fake::serve().await;
    served.fake.add("one");
    served.fake.add("two\u{1b}[2J");
    served.fake.set_phase(
        "one",
        overwinter_api::v1::Phase::Suspended,
        overwinter_api::v1::Depth::Freeze,
    );

    let table = run(&served, &["sandbox", "list"]).await;
    let lines: Vec<_> = text(&table.stdout).lines().collect();
    assert!(lines[0].starts_with("NAME"), "{lines:?}");
    let words: Vec<_> = lines[1].split_whitespace().collect();
    assert_eq!(
        words[..5],
        ["one", "suspended", "freeze", "fake", "busybox"]
    );
    assert!(lines[2].starts_with("two\\u{1b}[2J"), "{lines:?}");

    let names = run(&served, &["sandbox", "list", "-o", "name"]).await;
    assert_eq!(text(&names.stdout), "one\ntwo\\u{1b}[2J\n");

    let json = run(&served, &["sandbox", "get", "one", "-o", "json"]).await;
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["phase"], "PHASE_SUSPENDED");
    assert_eq!(json["retained"]["depth"], "DEPTH_FREEZE");
    let list = run(&served, &["sandbox", "list", "-o", "json"]).await;
    let list: serde_json::Value = serde_json::from_slice(&list.stdout).unwrap();
    assert_eq!(list[0], json);
    let empty = run(&served, &["operation", "list", "-o", "json"]).await;
    assert_eq!(text(&empty.stdout), "[]\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_may_be_left_out_where_there_is_just_one() {
    let served = Fake::serve().await;
    let none = run(&served, &["sandbox", "get"]).await;
    assert_eq!(none.status.code(), Some(1));
    assert!(text(&none.stderr).starts_with("error[NO_SANDBOX]: "));

    let created = run(&served, &["sandbox", "create", "one", "--image", "busybox"]).await;
    assert_eq!(text(&created.stdout), "one\n");
    let echo = run(&served, &["sandbox", "exec", "--", "echo", "hi"]).await;
    assert_eq!(text(&echo.stdout), "hi\n");

    served.fake.add("two");
    let which = run(&served, &["sandbox", "exec", "--", "echo", "hi"]).await;
    assert_eq!(which.status.code(), Some(125));
    let said = text(&which.stderr);
    assert!(said.contains("error[SANDBOX_AMBIGUOUS]"), "{said}");
    assert!(
        said.contains("one, two") && said.contains("next: "),
        "{said}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_names_are_a_line_each_and_one_failure_fails_the_command() {
    let served = Fake::serve().await;
    for name in ["one", "two", "stubborn"] {
        served.fake.add(name);
    }
    let verb = ["sandbox", "suspend", "--depth", "freeze"];
    let some = run(
        &served,
        &[&verb[..], &["one", "stubborn", "two", "nobody"]].concat(),
    )
    .await;
    assert_eq!(some.status.code(), Some(1));
    let mut lines: Vec<_> = text(&some.stdout).lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["one suspended (freeze)", "two suspended (freeze)"]);
    let said = text(&some.stderr);
    let stubborn = "error[SUPERVISOR_UNREACHABLE]: stubborn: the supervisor does not answer\n  \
                    next: suspend it at stop\n";
    assert!(said.contains(stubborn), "{said}");
    assert!(
        said.contains("error[SANDBOX_NOT_FOUND]: nobody: "),
        "{said}"
    );
    assert!(
        said.contains("error[SOME_FAILED]: 2 of 4 failed\n  next: "),
        "{said}"
    );
    // Nothing but lines: no spinner in a pipe.
    assert!(!said.contains('\r') && !said.contains('\u{1b}'), "{said:?}");

    let resumed = run(&served, &["sandbox", "resume", "one", "two"]).await;
    assert!(resumed.status.success());
    let deleted = run(&served, &["sandbox", "delete", "one"]).await;
    assert_eq!(text(&deleted.stdout), "one deleted\n");
    let gone = ["sandbox", "wait", "one", "--for", "deleted"];
    for (format, printed) in [("name", ""), ("table", ""), ("json", "null\n")] {
        let wait = [&gone[..], &["--timeout", "5", "-o", format]].concat();
        let waited = run(&served, &wait).await;
        assert!(waited.status.success());
        assert_eq!(text(&waited.stdout), printed);
    }
    for (format, printed) in [("name", "two\n"), ("json", "{\n"), ("table", "name: ")] {
        let waited = run(&served, &["sandbox", "wait", "two", "-o", format]).await;
        assert!(text(&waited.stdout).starts_with(printed), "{waited:?}");
    }
    let silent = run(&served, &["sandbox", "wait", "two"]).await;
    assert_eq!((silent.status.code(), text(&silent.stdout)), (Some(0), ""));
    let wait = [
        "sandbox",
        "wait",
        "two",
        "--for",
        "suspended",
        "--timeout",
        "50ms",
    ];
    let late = run(&served, &wait).await;
    assert!(
        text(&late.stderr).starts_with("error[WAIT_TIMEOUT]: "),
        "{late:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exec_ends_as_its_command_ends_and_with_125_when_it_fails_itself() {
    let served = Fake::serve().await;
    served.fake.add("box");
    let exec = ["sandbox", "exec", "box", "--"];
    let code = async |command: &[&str]| {
        let ended = run(&served, &[&exec[..], command].concat()).await;
        (ended.status.code().unwrap(), text(&ended.stderr).to_owned())
    };
    assert_eq!(code(&["exit", "0"]).await.0, 0);
    assert_eq!(code(&["exit", "42"]).await.0, 42);
    assert_eq!(code(&["exit", "143"]).await.0, 143);
    let (missing, said) = code(&["nonesuch"]).await;
    assert_eq!(missing, 127);
    assert!(
        said.starts_with("error[COMMAND_NOT_FOUND]: nonesuch: not found in PATH\n  next: "),
        "{said}"
    );

    let nobody = run(&served, &["sandbox", "exec", "nobody", "--", "true"]).await;
    assert_eq!(nobody.status.code(), Some(125));
    assert!(text(&nobody.stderr).starts_with("error[SANDBOX_NOT_FOUND]: "));
    let misspelt = run(
        &served,
        &["sandbox", "exec", "box", "--nonesuch", "--", "true"],
    )
    .await;
    assert_eq!(misspelt.status.code(), Some(125));

    let undashed = run(&served, &["sandbox", "exec", "box", "echo", "hi"]).await;
    assert_eq!(undashed.status.code(), Some(125));
    let said = text(&undashed.stderr);
    assert!(said.starts_with("error[NO_DASHES]: "), "{said}");
    assert!(
        said.contains("next: overwinter sandbox exec box -- echo hi\n"),
        "{said}"
    );

    let detached = run(&served, &["sandbox", "exec", "-d", "box", "--", "sleep"]).await;
    let id = text(&detached.stdout).trim();
    assert!(
        served.fake.state().processes.contains_key(id),
        "{detached:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exec_carries_stdin_through_a_suspension() {
    let served = Fake::serve().await;
    served.fake.add("box");
    served.fake.state().sleep_after_stdin = Some(200_000);
    let mut child = overwinter(&served, &["sandbox", "exec", "box", "--", "cat"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let input: Vec<u8> = (0..600_000_u32).map(|n| (n % 251) as u8).collect();
    let mut stdin = child.stdin.take().unwrap();
    let sent = input.clone();
    let feeding = tokio::spawn(async move { stdin.write_all(&sent).await });
    let ended = child.wait_with_output().await.unwrap();
    feeding.await.unwrap().unwrap();
    assert!(ended.status.success());
    assert!(
        ended.stdout == input,
        "{} bytes came back",
        ended.stdout.len()
    );
    assert!(text(&ended.stderr).contains("the sandbox sleeps"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupt_goes_to_the_process() {
    let served = Fake::serve().await;
    served.fake.add("box");
    let exec = ["sandbox", "exec", "box", "--", "sleep"];
    let child = overwinter(&served, &exec).spawn().unwrap();
    // Its stdin is closed from where it is carried, once it is known there to have started.
    let started = || {
        let process = served.fake.state().processes.values().next().cloned();
        process.is_some_and(|it| it.kept.lock().unwrap().stdin_closed)
    };
    while !started() {
        tokio::task::yield_now().await;
    }
    send(&child, Signal::INT);
    let ended = child.wait_with_output().await.unwrap();
    assert_eq!(ended.status.code(), Some(130));
    assert_eq!(served.fake.state().signals, [2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_pipe_ends_quietly_as_sigpipe_would() {
    let served = Fake::serve().await;
    served.fake.add("box");
    let exec = ["sandbox", "exec", "box", "--", "flood"];
    let mut child = overwinter(&served, &exec).spawn().unwrap();
    let mut reader = BufReader::new(child.stdout.take().unwrap());
    reader.fill_buf().await.unwrap();
    drop(reader);
    let mut said = String::new();
    let mut stderr = child.stderr.take().unwrap();
    stderr.read_to_string(&mut said).await.unwrap();
    assert_eq!(child.wait().await.unwrap().code(), Some(141));
    assert_eq!(said, "");
    assert_eq!(served.fake.state().signals, [13]);

    let mut list = overwinter(&served, &["sandbox", "list"]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let list = list.stdout(writer).spawn().unwrap();
    let ended = list.wait_with_output().await.unwrap();
    assert_eq!(ended.status.code(), Some(141));
    assert_eq!(text(&ended.stderr), "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_terminal_is_raw_while_a_command_runs_on_it_and_as_before_afterwards() {
    use rustix::{pty, termios};
    let served = Fake::serve().await;
    served.fake.add("box");
    let terminal = pty::openpt(pty::OpenptFlags::RDWR | pty::OpenptFlags::NOCTTY).unwrap();
    pty::grantpt(&terminal).unwrap();
    pty::unlockpt(&terminal).unwrap();
    let name = pty::ptsname(&terminal, Vec::new()).unwrap();
    let side = std::fs::File::options()
        .read(true)
        .write(true)
        .open(name.to_str().unwrap())
        .unwrap();
    let modes = || termios::tcgetattr(&side).unwrap().local_modes;
    let before = modes();
    assert!(before.contains(termios::LocalModes::ICANON));

    let exec = ["sandbox", "exec", "-t", "box", "--", "sleep"];
    let mut child = overwinter(&served, &exec)
        .stdin(side.try_clone().unwrap())
        .stdout(side.try_clone().unwrap())
        .stderr(side.try_clone().unwrap())
        .spawn()
        .unwrap();
    while modes().contains(termios::LocalModes::ICANON) {
        assert!(child.try_wait().unwrap().is_none());
        tokio::task::yield_now().await;
    }
    send(&child, Signal::INT);
    assert_eq!(child.wait().await.unwrap().code(), Some(130));
    assert_eq!(modes(), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_are_copied_both_ways() {
    let served = Fake::serve().await;
    served.fake.add("box");
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let contents: Vec<u8> = (0..2_500_000_u32).map(|n| (n % 253) as u8).collect();
    std::fs::write(path("in"), &contents).unwrap();

    let up = run(&served, &["sandbox", "cp", &path("in"), "box:/workspace/"]).await;
    assert!(up.status.success(), "{up:?}");
    assert!(served.fake.state().files["/workspace/in"] == contents);
    let down = run(
        &served,
        &["sandbox", "cp", "box:/workspace/in", &path("out")],
    )
    .await;
    assert!(down.status.success(), "{down:?}");
    assert!(std::fs::read(path("out")).unwrap() == contents);
    let to_stdout = run(&served, &["sandbox", "cp", ":/workspace/in", "-"]).await;
    assert!(to_stdout.stdout == contents);

    let missing = run(&served, &["sandbox", "cp", "box:/nonesuch", &path("out")]).await;
    assert!(text(&missing.stderr).starts_with("error[FILE_NOT_FOUND]: "));
    assert!(std::fs::read(path("out")).unwrap() == contents);
    let neither = run(&served, &["sandbox", "cp", &path("in"), &path("out")]).await;
    assert!(text(&neither.stderr).starts_with("error[COPY_BETWEEN]: "));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_gateway_it_says_how_to_start_one() {
    let served = Fake::serve().await;
    let mut command = overwinter(&served, &["gateway", "status"]);
    let nowhere = served.socket.with_file_name("none.sock");
    let ended = command.env("OVERWINTER_SOCKET", nowhere).output().await;
    let ended = ended.unwrap();
    assert_eq!(ended.status.code(), Some(1));
    let said = text(&ended.stderr);
    assert!(said.starts_with("error[GATEWAY_UNREACHABLE]: "), "{said}");
    assert!(
        said.contains("next: start it with `overwinter gateway run`"),
        "{said}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_times_of_a_policy_are_shown_as_they_can_be_typed_in() {
    let served = Fake::serve().await;
    served.fake.add("box");
    let times = ["--stop-grace", "1m 30s", "--hook-timeout", "1s 500ms"];
    let update = [&["sandbox", "update", "box"], &times[..]].concat();
    let shown = run(&served, &update).await;
    let lines: Vec<_> = text(&shown.stdout).lines().collect();
    for (name, time) in [("stop grace:", "1m 30s"), ("hook timeout:", "1s 500ms")] {
        let line = lines.iter().find_map(|line| line.strip_prefix(name));
        assert_eq!(line.map(str::trim), Some(time), "{lines:?}");
    }
}
