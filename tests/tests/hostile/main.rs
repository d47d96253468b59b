//! A hostile tenant: what it tries is refused or contained, and its neighbour and the gateway are
//! unharmed. Real sandboxes on this host, with programs that do nothing else.
//!
//! | file | who attacks |
//! |---|---|
//! | `kernel` | a program, the kernel and PID 1: tracing, signals, namespaces, forbidden calls |
//! | `reach` | a program, whatever lies outside: sockets, loopback, other sandboxes, host files |
//! | `network` | a program with a way out: what lies near, and the filter itself |
//! | `attach` | whoever has stolen what a supervisor shows, and whoever dials without it |
//! | `supervisor` | a PID 1 that lies, floods and stalls; a hundred of them at once |
//! | `files` | what is found when its files are read, listed, copied and used as an image |
//! | `resources` | whoever takes all there is |
//! | `records` | names, labels, ids |
//!
//! Each file has one gateway, with a neighbour that is asked after each case.
#![allow(clippy::unwrap_used)]

mod attach;
mod attack;
mod dial;
mod files;
mod kernel;
mod liar;
mod network;
mod reach;
mod records;
mod resources;
mod stage;
mod supervisor;
// A machine beyond this one, as the driver's own tests have it.
#[path = "../../../crates/driver-local/tests/network/target.rs"]
#[allow(dead_code, reason = "those have more use for it")]
mod target;
