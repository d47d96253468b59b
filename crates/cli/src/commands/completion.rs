//! `overwinter completion SHELL`

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use crate::cli::Cli;
use crate::failure::Failure;
use crate::output::Output;

#[derive(Debug, Args)]
pub(crate) struct Completion {
    /// The shell to complete in
    shell: Shell,
    /// Complete this command, for one that was renamed or linked
    #[arg(long, default_value = "overwinter", value_name = "NAME")]
    command: String,
}

pub(crate) fn run(completion: &Completion) -> Result<u8, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(
        completion.shell,
        &mut Cli::command(),
        &completion.command,
        &mut script,
    );
    let mut out = Output::new();
    out.bytes(&script)?;
    out.finish()?;
    Ok(0)
}
