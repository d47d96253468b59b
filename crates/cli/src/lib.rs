//! The `overwinter` command, also installed as `ow`.
//!
//! ```text
//!   cli.rs        the words: commands, options
//!   commands/     what each does, one file a command
//!   context.rs    the client, and which sandbox is meant when none is named
//!   output.rs     tables, JSON, names; a pipe that closes
//!   signals.rs    those that a command takes itself
//!   failure.rs    what went wrong, its code, what to do next, and the exit code
//! ```

mod cli;
mod commands;
mod context;
mod failure;
mod output;
mod progress;
mod signals;
mod terminal;
mod text;

use std::process::ExitCode;

use clap::Parser as _;

use crate::cli::{Cli, MISUNDERSTOOD, Meant, OWN_FAILURE_OF_EXEC};
use crate::failure::Failure;

/// Runs the command that the process's arguments ask for.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return ExitCode::from(misunderstood(&error)),
    };
    let own_failure = cli.command.failure_code();
    let ended = run(cli);
    let code = match ended {
        Ok(code) => code,
        Err(failure) => {
            failure.report();
            failure.exit_code().unwrap_or(own_failure)
        }
    };
    ExitCode::from(code)
}

/// Help and the version, which were asked for, and arguments that could not be understood. Answers
/// with the exit code.
fn misunderstood(error: &clap::Error) -> u8 {
    if error.exit_code() == 0 {
        // Nobody is left to tell when this cannot be printed.
        let _ = error.print();
        return 0;
    }
    let meant = Meant::by(std::env::args_os());
    failure::report_usage(error, &meant.help());
    if meant.is_exec() {
        // Its other codes are the command's own.
        OWN_FAILURE_OF_EXEC
    } else {
        MISUNDERSTOOD
    }
}

fn run(cli: Cli) -> Result<u8, Failure> {
    // One thread: the command waits more than it works, and starts in a few milliseconds.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Failure::Runtime)?;
    let ended = runtime.block_on(commands::run(cli));
    // A thread may still be reading from a terminal; it must not be waited for.
    runtime.shutdown_background();
    ended
}
