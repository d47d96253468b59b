//! What each command does.

pub(crate) mod completion;
pub(crate) mod driver;
pub(crate) mod gateway;
pub(crate) mod operation;
pub(crate) mod process;
pub(crate) mod sandbox;

use crate::cli::{Cli, Command};
use crate::context::Context;
use crate::failure::Failure;

/// Runs a command; answers with the exit code.
pub(crate) async fn run(cli: Cli) -> Result<u8, Failure> {
    let socket = cli.socket();
    match cli.command {
        Command::Sandbox(command) => sandbox::run(&Context::new(socket), command).await,
        Command::Process(command) => process::run(&Context::new(socket), command).await,
        Command::Operation(command) => operation::run(&Context::new(socket), command).await,
        Command::Gateway(command) => gateway::run(socket, command).await,
        Command::Driver(command) => driver::run(&Context::new(socket), command).await,
        Command::Doctor(doctor) => gateway::doctor(&doctor),
        Command::Completion(completion) => completion::run(&completion),
    }
}
