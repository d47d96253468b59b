//! The programs that there are inside. They are named as on any system, with or without a folder.
//!
//! | program | what it does |
//! |---|---|
//! | `true`, `false`, `exit N` | ends so |
//! | `echo WORDS…` | prints them |
//! | `cat` | copies stdin to stdout |
//! | `sleep MS` | milliseconds, by the injected clock |
//! | `counter [MS]` | counts in memory, and prints each number on a line, one every MS (10) |
//! | `write PATH WORDS…` | writes them to a file |

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use overwinter_api::supervisor as wire;

use super::guest::Guest;
use super::process::Process;
use crate::agent::AgentError;

enum Program {
    /// Ends at once.
    Ends {
        output: Bytes,
        code: i32,
    },
    Cat,
    Sleep(Duration),
    Counter(Duration),
    Write {
        path: Bytes,
        data: Bytes,
    },
    NotFound,
}

fn program(command: &[String]) -> Program {
    let words: Vec<&str> = command.iter().map(String::as_str).collect();
    let ends = |code| Program::Ends {
        output: Bytes::new(),
        code,
    };
    let Some((name, arguments)) = words.split_first() else {
        return Program::NotFound;
    };
    let number = |at: usize| arguments.get(at).and_then(|text| text.parse::<u64>().ok());
    let line = |words: &[&str]| Bytes::from(format!("{}\n", words.join(" ")));
    match (name.rsplit('/').next().unwrap_or_default(), arguments) {
        ("true", _) => ends(0),
        ("false", _) => ends(1),
        ("exit", _) => ends((number(0).unwrap_or(0) & 0xff) as i32),
        ("echo", _) => Program::Ends {
            output: line(arguments),
            code: 0,
        },
        ("cat", []) => Program::Cat,
        ("sleep", _) => Program::Sleep(Duration::from_millis(number(0).unwrap_or(0))),
        ("counter", _) => Program::Counter(Duration::from_millis(number(0).unwrap_or(10))),
        ("write", [path, rest @ ..]) => Program::Write {
            path: Bytes::copy_from_slice(path.as_bytes()),
            data: line(rest),
        },
        _ => Program::NotFound,
    }
}

/// Starts it; what ends at once has ended when this returns.
pub(super) fn run(guest: &Arc<Guest>, process: &Arc<Process>) {
    let task = match program(&process.start.process.command) {
        Program::Ends { output, code } => {
            process.write(&output);
            guest.finish(process, code, 0, wire::ExitCause::Own, "");
            return;
        }
        Program::NotFound => {
            let name = process.start.process.command.first();
            let error = format!("{}: not found in PATH", name.map_or("", String::as_str));
            guest.finish(process, 127, 0, wire::ExitCause::Own, &error);
            return;
        }
        Program::Write { path, data } => {
            let start = wire::WriteFileStart {
                path,
                ..Default::default()
            };
            match guest.put(&start, data) {
                Ok(_) => guest.finish(process, 0, 0, wire::ExitCause::Own, ""),
                Err(AgentError::Gone | AgentError::TimedOut | AgentError::Refused { .. }) => {
                    guest.finish(process, 1, 0, wire::ExitCause::Own, "");
                }
            }
            return;
        }
        Program::Cat => guest.spawn(cat(guest.clone(), process.clone())),
        Program::Sleep(time) => guest.spawn(sleep(guest.clone(), process.clone(), time)),
        Program::Counter(step) => guest.spawn(count(guest.clone(), process.clone(), step)),
    };
    process.runs_as(task);
}

async fn cat(guest: Arc<Guest>, process: Arc<Process>) {
    let mut changes = process.streams.subscribe();
    loop {
        guest.running().await;
        let ready = changes.wait_for(|it| !it.stdin.is_empty() || it.stdin_ended);
        if ready.await.is_err() {
            return;
        }
        guest.running().await;
        let mut data = Vec::new();
        let mut ended = false;
        process.streams.send_if_modified(|streams| {
            data = std::mem::take(&mut streams.stdin);
            ended = streams.stdin_ended;
            false
        });
        process.write(&data);
        if ended {
            guest.finish(&process, 0, 0, wire::ExitCause::Own, "");
            return;
        }
    }
}

async fn sleep(guest: Arc<Guest>, process: Arc<Process>, time: Duration) {
    guest.clock().sleep(time).await;
    guest.running().await;
    guest.finish(&process, 0, 0, wire::ExitCause::Own, "");
}

async fn count(guest: Arc<Guest>, process: Arc<Process>, step: Duration) {
    for number in 1u64.. {
        guest.clock().sleep(step).await;
        guest.running().await;
        process.write(format!("{number}\n").as_bytes());
    }
}
