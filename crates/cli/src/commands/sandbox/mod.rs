//! `overwinter sandbox …`, one file a command.

mod connect;
mod cp;
mod create;
mod exec;
mod get;
mod list;
mod update;
mod verbs;
mod wait;

use clap::Subcommand;

use crate::context::Context;
use crate::failure::Failure;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Make a sandbox
    Create(create::Create),
    /// List sandboxes
    #[command(visible_alias = "ls")]
    List(list::List),
    /// Show a sandbox: what it is, what it does, what to do when it failed
    Get(get::Get),
    /// Change labels, variables and policy
    Update(update::Update),
    /// Put sandboxes to sleep
    Suspend(verbs::Suspend),
    /// Wake sandboxes up: exactly what was kept, or not at all
    Resume(verbs::Resume),
    /// Start sandboxes cold on their storage, discarding memory that was kept
    Start(verbs::Start),
    /// Remove sandboxes with all that they keep
    #[command(visible_alias = "rm")]
    Delete(verbs::Delete),
    /// Wait until a sandbox is ready, suspended, failed or deleted
    Wait(wait::Wait),
    /// Run a command inside, and end as it ends
    #[command(after_help = exec::SIGNALS)]
    Exec(exec::Exec),
    /// Open a shell inside
    #[command(after_help = exec::SIGNALS)]
    Connect(connect::Connect),
    /// Copy a file in or out
    Cp(cp::Cp),
}

pub(crate) async fn run(context: &Context, command: Command) -> Result<u8, Failure> {
    match command {
        Command::Create(args) => create::run(context, args).await,
        Command::List(args) => list::run(context, args).await,
        Command::Get(args) => get::run(context, args).await,
        Command::Update(args) => update::run(context, args).await,
        Command::Suspend(args) => verbs::suspend(context, args).await,
        Command::Resume(args) => verbs::resume(context, args).await,
        Command::Start(args) => verbs::start(context, args).await,
        Command::Delete(args) => verbs::delete(context, args).await,
        Command::Wait(args) => wait::run(context, args).await,
        Command::Exec(args) => exec::run(context, args).await,
        Command::Connect(args) => connect::run(context, args).await,
        Command::Cp(args) => cp::run(context, args).await,
    }
}

/// The depths as the command line writes them.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum DepthArg {
    /// Processes halted, memory kept in memory; does not survive a power loss
    Freeze,
    /// Memory kept on disk
    Checkpoint,
    /// Storage alone; processes are ended
    Stop,
}

impl From<DepthArg> for overwinter_client::Depth {
    fn from(depth: DepthArg) -> Self {
        match depth {
            DepthArg::Freeze => Self::Freeze,
            DepthArg::Checkpoint => Self::Checkpoint,
            DepthArg::Stop => Self::Stop,
        }
    }
}
