//! The supervisor: the one program that Overwinter puts inside a sandbox.
//!
//! It is PID 1, so its end is the end of the compute. It dials the gateway, then serves
//! `overwinter.supervisor.v1` to it over the same connection: processes, files, and the steps of a
//! suspension. One thread runs everything but file system calls, which run on a few workers.

mod attach;
mod config;
mod credentials;
mod epoll;
mod error;
mod files;
mod gate;
mod pid1;
mod process;
mod pty;
mod readiness;
mod replay;
mod service;
mod spawn;
mod terminate;
mod users;

use std::io;
use std::time::Duration;

pub use config::{Config, ImageDefaults, UsageError};

/// File workers at most; each is started on demand.
const MAX_WORKERS: usize = 16;
const WORKER_STACK: usize = 256 << 10;
const WORKER_IDLE: Duration = Duration::from_secs(2);

/// Why the supervisor cannot run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("cannot become the user that it was told to be: {0}")]
    User(io::Error),
    #[error("cannot protect this process: {0}")]
    Protect(io::Error),
    #[error("cannot read this process's own identity: {0}")]
    Identity(io::Error),
    #[error("cannot start the runtime: {0}")]
    Runtime(io::Error),
    #[error("cannot receive signals: {0}")]
    Signals(io::Error),
}

/// Runs until the end of the sandbox. Returns only on a failure to start, or, when this is not
/// PID 1, on SIGTERM.
pub fn run(config: Config) -> Result<(), RunError> {
    if let Some(user) = config.user {
        credentials::settle_as(user).map_err(RunError::User)?;
    }
    let signals = pid1::protect().map_err(RunError::Protect)?;
    let own = credentials::Own::read().map_err(RunError::Identity)?;
    own.raise_open_files();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .max_blocking_threads(MAX_WORKERS)
        .thread_stack_size(WORKER_STACK)
        .thread_keep_alive(WORKER_IDLE)
        .build()
        .map_err(RunError::Runtime)?;
    let pid1 = config.pid1;
    let result = runtime.block_on(async {
        let sandbox = service::Sandbox::new(config, own);
        tokio::spawn(attach::run(sandbox.clone()));
        signals.serve(sandbox.table.clone(), pid1).await
    });
    // A worker may be in a system call that never returns.
    runtime.shutdown_background();
    result.map_err(RunError::Signals)
}
