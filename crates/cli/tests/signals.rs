//! Signals as the command's users send them: the real program, against a gateway in memory.

#![allow(clippy::unwrap_used)]

mod common;

use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use common::support::{Fake, Served};
use common::{overwinter, send};
use rustix::process::Signal;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};

/// More than anything here takes: what is not done by then is stuck.
const LONG: Duration = Duration::from_secs(60);

/// As a shell has it.
fn code(status: ExitStatus) -> i32 {
    status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap())
}

async fn until(mut reached: impl FnMut() -> bool) {
    while !reached() {
        tokio::task::yield_now().await;
    }
}

/// Whether the one process is known to have started where it is carried from: its stdin was closed
/// from there.
fn has_started(served: &Served) -> bool {
    let process = served.fake.state().processes.values().next().cloned();
    process.is_some_and(|it| it.kept.lock().unwrap().stdin_closed)
}

async fn stderr_until(child: &mut Child, words: &str) -> String {
    let stderr = child.stderr.as_mut().unwrap();
    let mut said = Vec::new();
    while !String::from_utf8_lossy(&said).contains(words) {
        assert!(stderr.read_buf(&mut said).await.unwrap() > 0, "{said:?}");
    }
    String::from_utf8(said).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_signal_ends_an_exec_that_has_not_started() {
    let served = Fake::serve().await;
    served.fake.add("box");
    let exec = ["sandbox", "exec", "box", "--", "unanswered"];
    let ends = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];
    for (n, signal) in ends.into_iter().enumerate() {
        let child = overwinter(&served, &exec).spawn().unwrap();
        until(|| served.fake.state().processes.len() == n + 1).await;
        send(&child, signal);
        let ended = child.wait_with_output().await.unwrap();
        assert_eq!(code(ended.status), 128 + signal.as_raw());
        let said = String::from_utf8(ended.stderr).unwrap();
        let id = said.trim().rsplit(' ').next().unwrap();
        assert!(said.contains("before it had started"), "{said}");
        assert!(served.fake.state().processes.contains_key(id), "{said}");
    }
    assert!(served.fake.state().signals.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exec_whose_sandbox_sleeps_is_left_by_those_that_want_us_gone() {
    for signal in [Signal::TERM, Signal::HUP] {
        let served = Fake::serve().await;
        served.fake.add("box");
        served.fake.state().sleep_after_stdin = Some(1);
        served.fake.state().sleeps_on = true;
        let exec = ["sandbox", "exec", "box", "--", "cat"];
        let mut child = overwinter(&served, &exec)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(b"x").await.unwrap();
        stderr_until(&mut child, "the sandbox sleeps").await;
        send(&child, signal);
        let ended = child.wait_with_output().await.unwrap();
        assert_eq!(code(ended.status), 128 + signal.as_raw());
        let id = served.fake.state().processes.keys().next().unwrap().clone();
        assert_eq!(
            String::from_utf8(ended.stderr).unwrap(),
            format!("overwinter: left it running, as {id}\n")
        );
        assert!(served.fake.state().signals.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_signals_of_any_kind_leave_a_command_that_none_ends() {
    let served = Fake::serve().await;
    served.fake.add("box");
    let exec = ["sandbox", "exec", "box", "--", "deaf"];
    let child = overwinter(&served, &exec).spawn().unwrap();
    until(|| has_started(&served)).await;
    let three = [Signal::INT, Signal::TERM, Signal::HUP];
    for (n, signal) in three.into_iter().enumerate() {
        if n == 2 {
            // Longer than between two of a person who is quick, within what insisting takes.
            tokio::time::sleep(Duration::from_millis(1_500)).await;
        }
        send(&child, signal);
        if n < 2 {
            // Each is passed on.
            until(|| served.fake.state().signals.len() == n + 1).await;
        }
    }
    let ended = tokio::time::timeout(LONG, child.wait_with_output()).await;
    let ended = ended.unwrap().unwrap();
    assert_eq!(code(ended.status), 128 + Signal::HUP.as_raw());
    let said = String::from_utf8(ended.stderr).unwrap();
    assert!(
        said.starts_with("overwinter: left it running, as "),
        "{said}"
    );
}

/// Neither our output nor what we say of ourselves may be what keeps us.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_that_do_not_read_keep_nobody_from_leaving() {
    let served = Fake::serve().await;
    served.fake.add("box");
    let exec = ["sandbox", "exec", "box", "--", "flood"];
    let (reader, writer) = std::io::pipe().unwrap();
    let mut command = overwinter(&served, &exec);
    command.stdout(writer.try_clone().unwrap()).stderr(writer);
    let mut child = command.spawn().unwrap();
    let full = || {
        let known = served.fake.state().processes.values().next().cloned();
        known.is_some_and(|it| it.kept.lock().unwrap().output.len() >= 64 << 10)
    };
    until(full).await;
    // The pipe has less room than what was written by then.
    tokio::time::sleep(Duration::from_millis(200)).await;
    for _ in 0..2 {
        send(&child, Signal::TERM);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    send(&child, Signal::TERM);
    let ended = tokio::time::timeout(Duration::from_secs(10), child.wait()).await;
    assert_eq!(code(ended.unwrap().unwrap()), 143);
    drop(reader);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_verb_that_is_left_names_the_operation_that_goes_on() {
    for signal in [Signal::INT, Signal::TERM] {
        let served = Fake::serve().await;
        for name in ["slow", "slow-too"] {
            served.fake.add(name);
        }
        let verbs: [&[&str]; 6] = [
            &["suspend", "slow"],
            &["resume", "slow"],
            &["start", "slow"],
            &["delete", "slow"],
            &["create", "slow-new"],
            &["suspend", "slow", "slow-too"],
        ];
        for verb in verbs {
            served.fake.state().operations.clear();
            let names = verb.len() - 1;
            let arguments = [&["sandbox"], verb].concat();
            let child = overwinter(&served, &arguments).spawn().unwrap();
            until(|| served.fake.state().operations.len() == names).await;
            send(&child, signal);
            let ended = tokio::time::timeout(LONG, child.wait_with_output()).await;
            let ended = ended.unwrap().unwrap();
            assert_eq!(code(ended.status), 128 + signal.as_raw(), "{verb:?}");
            let mut said: Vec<_> = std::str::from_utf8(&ended.stderr)
                .unwrap()
                .lines()
                .collect();
            said.sort_unstable();
            let state = served.fake.state();
            // Asking again has made no other.
            assert_eq!(state.operations.len(), names, "{verb:?}");
            let mut told: Vec<_> = state
                .operations
                .iter()
                .map(|it| {
                    let id = &it.id;
                    format!(
                        "overwinter: operation {id} goes on; to follow it: overwinter operation wait {id}"
                    )
                })
                .collect();
            told.sort_unstable();
            assert_eq!(said, told, "{verb:?}");
        }
    }
}

/// A verb takes the signals while it is waited for, and no longer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_verb_that_is_done_is_ended_although_nobody_reads_what_it_says() {
    let served = Fake::serve().await;
    served.fake.add("box");
    let (reader, mut full) = std::io::pipe().unwrap();
    // As much as a pipe has room for.
    std::io::Write::write_all(&mut full, &[b'x'; 64 << 10]).unwrap();
    let mut command = overwinter(&served, &["sandbox", "suspend", "box"]);
    let mut child = command.stdout(full).spawn().unwrap();
    until(|| served.fake.state().operations.len() == 1).await;
    let ended = async {
        loop {
            send(&child, Signal::TERM);
            let moment = tokio::time::timeout(Duration::from_millis(50), child.wait());
            // Not before it has come to where it says it.
            if let Ok(ended) = moment.await {
                break ended.unwrap();
            }
        }
    };
    let ended = tokio::time::timeout(LONG, ended).await.unwrap();
    assert_eq!(code(ended), 143);
    drop(reader);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_ignored_when_we_were_started_stays_so() {
    let served = Fake::serve().await;
    served.fake.add("slow");
    let suspend = ["sandbox", "suspend", "slow"];
    let mut command = std::process::Command::new("nohup");
    command.arg(env!("CARGO_BIN_EXE_overwinter")).args(suspend);
    command.env("OVERWINTER_SOCKET", &served.socket);
    command.stdin(Stdio::null()).process_group(0);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = Command::from(command).kill_on_drop(true).spawn().unwrap();
    until(|| served.fake.state().operations.len() == 1).await;
    send(&child, Signal::HUP);
    tokio::time::sleep(Duration::from_millis(200)).await;
    send(&child, Signal::TERM);
    let ended = child.wait_with_output().await.unwrap();
    assert_eq!(code(ended.status), 143);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_that_is_interrupted_leaves_nothing_behind() {
    let served = Fake::serve().await;
    served.fake.add("box");
    served
        .fake
        .state()
        .files
        .insert("/workspace/endless".into(), vec![7; 3 << 20]);
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("copy");
    std::fs::write(&to, "before").unwrap();
    let copy = [
        "sandbox",
        "cp",
        "box:/workspace/endless",
        to.to_str().unwrap(),
    ];
    let child = overwinter(&served, &copy).spawn().unwrap();
    let entries = || std::fs::read_dir(folder.path()).unwrap().count();
    until(|| entries() == 2).await;
    send(&child, Signal::INT);
    let ended = child.wait_with_output().await.unwrap();
    assert_eq!(code(ended.status), 130);
    assert_eq!(entries(), 1);
    assert_eq!(std::fs::read(&to).unwrap(), b"before");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_only_waits_is_ended_at_once() {
    let served = Fake::serve().await;
    served.fake.add("slow");
    let suspend = ["sandbox", "suspend", "slow", "--no-wait"];
    let accepted = overwinter(&served, &suspend).output().await.unwrap();
    let accepted = String::from_utf8(accepted.stdout).unwrap();
    let operation = accepted.trim().rsplit(' ').next().unwrap().to_owned();
    let waits: [&[&str]; 2] = [
        &["operation", "wait", &operation],
        &["sandbox", "wait", "slow", "--for", "suspended"],
    ];
    for wait in waits {
        for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
            let waiting = served.fake.state().waiting;
            let child = overwinter(&served, wait).spawn().unwrap();
            until(|| served.fake.state().waiting > waiting).await;
            send(&child, signal);
            let ended = child.wait_with_output().await.unwrap();
            assert_eq!(code(ended.status), 128 + signal.as_raw(), "{wait:?}");
        }
    }
}
