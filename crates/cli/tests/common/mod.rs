//! The real program, against a gateway in memory.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

#[path = "../../../client/tests/support/mod.rs"]
pub mod support;

use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use support::Served;
use tokio::process::{Child, Command};

pub fn overwinter(served: &Served, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_overwinter"));
    command
        .args(arguments)
        .env("OVERWINTER_SOCKET", &served.socket)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

pub fn send(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(child.id().unwrap() as i32).unwrap();
    kill_process(pid, signal).unwrap();
}
