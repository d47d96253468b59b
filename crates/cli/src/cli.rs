//! The words of the command line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{CommandFactory as _, Parser, Subcommand};

use crate::commands::{completion, driver, gateway, operation, process, sandbox};

/// What exec and connect end with when they fail themselves; all other codes are the command's.
pub(crate) const OWN_FAILURE_OF_EXEC: u8 = 125;

/// What all others end with when their arguments could not be understood.
pub(crate) const MISUNDERSTOOD: u8 = 2;

/// Sandboxes that sleep.
#[derive(Debug, Parser)]
#[command(
    name = "overwinter",
    version,
    propagate_version = true,
    max_term_width = 100
)]
pub(crate) struct Cli {
    /// The gateway's socket [env: OVERWINTER_SOCKET] [default:
    /// $XDG_RUNTIME_DIR/overwinter/gateway.sock, for root /run/overwinter/gateway.sock]
    #[arg(long, global = true, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,

    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// The socket that is named, by the option or else by the environment. Not left to clap, which
    /// takes a variable that is empty for an option without its value.
    pub(crate) fn socket(&self) -> Option<PathBuf> {
        let variable = || std::env::var_os("OVERWINTER_SOCKET").filter(|it| !it.is_empty());
        self.socket
            .clone()
            .or_else(|| variable().map(PathBuf::from))
    }
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

/// What stands on the command line up to the command that it means, by the commands' own names; for
/// arguments that could not be understood.
pub(crate) struct Meant {
    words: Vec<String>,
}

impl Meant {
    pub(crate) fn by(arguments: impl IntoIterator<Item = OsString>) -> Self {
        let command = Cli::command();
        let mut words = vec![command.get_name().to_owned()];
        let mut here = &command;
        let mut before_dashes = arguments.into_iter().skip(1).take_while(|it| it != "--");
        while let Some(argument) = before_dashes.next() {
            if argument == "--socket" {
                // Its value may be called as a command is.
                before_dashes.next();
            } else if let Some(next) = here.find_subcommand(&argument) {
                words.push(next.get_name().to_owned());
                here = next;
            }
        }
        Self { words }
    }

    /// Whether its exit codes are those of the command that it runs.
    pub(crate) fn is_exec(&self) -> bool {
        matches!(&self.words[..], [_, sandbox, verb]
            if sandbox == "sandbox" && (verb == "exec" || verb == "connect"))
    }

    /// What explains it.
    pub(crate) fn help(&self) -> String {
        format!("{} --help", self.words.join(" "))
    }
}
