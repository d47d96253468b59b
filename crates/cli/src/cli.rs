//! The words of the command line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::commands::{completion, driver, gateway, operation, process, sandbox};

/// What exec and connect end with when they fail themselves; all other codes are the command's.
pub(crate) const OWN_FAILURE_OF_EXEC: u8 = 125;

/// Sandboxes that sleep.
#[derive(Debug, Parser)]
#[command(
    name = "overwinter",
    version,
    propagate_version = true,
    max_term_width = 100
)]
pub(crate) struct Cli {
    /// The gateway's socket [default: $XDG_RUNTIME_DIR/overwinter/gateway.sock, for root
    /// /run/overwinter/gateway.sock]
    #[arg(
        long,
        global = true,
        env = "OVERWINTER_SOCKET",
        value_name = "PATH",
        hide_env_values = true
    )]
    pub(crate) socket: Option<PathBuf>,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Make sandboxes, put them to sleep, wake them up, and work in them
    #[command(subcommand, visible_alias = "sb")]
    Sandbox(sandbox::Command),
    /// See the processes of a sandbox
    #[command(subcommand)]
    Process(process::Command),
    /// See operations, and wait for them
    #[command(subcommand, visible_alias = "op")]
    Operation(operation::Command),
    /// Run a gateway, or see how it is
    #[command(subcommand)]
    Gateway(gateway::Command),
    /// See the drivers and how deep each can put a sandbox to sleep
    #[command(subcommand)]
    Driver(driver::Command),
    /// Say what this host has and what to install
    Doctor(gateway::Doctor),
    /// Print a completion script for a shell
    Completion(completion::Completion),
}

impl Command {
    /// The exit code of a failure of our own.
    pub(crate) fn failure_code(&self) -> u8 {
        match self {
            Self::Sandbox(sandbox::Command::Exec(_) | sandbox::Command::Connect(_)) => {
                OWN_FAILURE_OF_EXEC
            }
            Self::Sandbox(_)
            | Self::Process(_)
            | Self::Operation(_)
            | Self::Gateway(_)
            | Self::Driver(_)
            | Self::Doctor(_)
            | Self::Completion(_) => 1,
        }
    }
}

/// Whether arguments that could not be understood were meant for an exec.
pub(crate) fn asks_for_exec(arguments: impl IntoIterator<Item = OsString>) -> bool {
    let words: Vec<_> = arguments
        .into_iter()
        .take_while(|word| word != "--")
        .collect();
    words.windows(2).any(|pair| {
        (pair[0] == "sandbox" || pair[0] == "sb") && (pair[1] == "exec" || pair[1] == "connect")
    })
}
