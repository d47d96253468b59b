//! `overwinter sandbox connect`: a shell inside.

use std::io::{self, IsTerminal as _};

use clap::Args;

use super::exec::{How, attached};
use crate::context::Context;
use crate::failure::Failure;

#[derive(Debug, Args)]
pub(crate) struct Connect {
    /// The sandbox; may be left out where there is just one
    name: Option<String>,
    #[command(flatten)]
    how: How,
}

pub(crate) async fn run(context: &Context, args: Connect) -> Result<u8, Failure> {
    let sandbox = context.sandbox(args.name).await?;
    // Tried before anything of our stdin is read, which would be lost with a shell that is not
    // there.
    let bash = context.client.command(&sandbox, ["bash", "-c", ":"]);
    let shell = match args.how.apply(bash).run().await?.exit.code {
        0 => "bash",
        _ => "sh",
    };
    let command = context.client.command(&sandbox, [shell]);
    attached(args.how.apply(command), io::stdin().is_terminal(), true).await
}
