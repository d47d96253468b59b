//! `overwinter sandbox wait`

use std::time::Duration;

use clap::{Args, ValueEnum};
use overwinter_client::{Client, Code, Phase, Sandbox, SandboxRef};

use super::get;
use crate::context::Context;
use crate::failure::Failure;
use crate::output::{Format, say};
use crate::progress;
use crate::text::{coarse, parse_duration};

#[derive(Debug, Args)]
pub(crate) struct Wait {
    /// The sandbox; may be left out where there is just one
    name: Option<String>,
    /// What to wait for
    #[arg(long = "for", value_enum, default_value = "ready", value_name = "WHAT")]
    what: What,
    /// How long at most
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    timeout: Option<Duration>,
    /// Print it as it then stands, in this way; without it nothing is printed
    #[arg(short, long, value_name = "FORMAT", value_enum)]
    output: Option<Format>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum What {
    Ready,
    Suspended,
    Failed,
    Deleted,
}

impl What {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Suspended => "suspended",
            Self::Failed => "failed",
            Self::Deleted => "deleted",
        }
    }

    /// Whether a phase is what is waited for; `None` when it never will be, by itself.
    fn is(self, phase: Phase) -> Option<bool> {
        match (self, phase) {
            (Self::Ready, Phase::Ready)
            | (Self::Suspended, Phase::Suspended)
            | (Self::Failed, Phase::Failed)
            | (Self::Deleted, Phase::Tombstone) => Some(true),
            (Self::Ready | Self::Suspended, Phase::Failed | Phase::Deleting | Phase::Tombstone)
            | (Self::Failed, Phase::Deleting | Phase::Tombstone) => None,
            _ => Some(false),
        }
    }
}

pub(crate) async fn run(context: &Context, args: Wait) -> Result<u8, Failure> {
    let sandbox = context.sandbox(args.name).await?;
    let client = &context.client;
    let work = until(client, &sandbox, args.what);
    let work = progress::waiting(client, "waiting", Some(&sandbox), work);
    let reached = match args.timeout {
        None => work.await?,
        Some(limit) => match tokio::time::timeout(limit, work).await {
            Ok(ended) => ended?,
            Err(_) => {
                return Err(Failure::WaitTimeout {
                    name: sandbox.as_str().to_owned(),
                    what: args.what.as_str(),
                    limit: coarse(limit),
                });
            }
        },
    };
    match (args.output, reached) {
        (None, _) => {}
        (Some(format), Some(reached)) => get::show(&reached, format)?,
        // What is gone has neither a name nor anything else to be shown.
        (Some(Format::Json), None) => say("null")?,
        (Some(Format::Table | Format::Name), None) => {}
    }
    Ok(0)
}

/// The sandbox as it is then; `None` when it is gone without a trace.
async fn until(
    client: &Client,
    sandbox: &SandboxRef,
    what: What,
) -> Result<Option<Sandbox>, Failure> {
    let ended = watch(client, sandbox, what).await;
    match ended {
        // Gone for good, or never there: both are as wanted.
        Err(Failure::Gateway(error)) if what == What::Deleted && error.code() == Code::NotFound => {
            Ok(None)
        }
        ended => ended.map(Some),
    }
}

async fn watch(client: &Client, sandbox: &SandboxRef, what: What) -> Result<Sandbox, Failure> {
    // By its id: a name may be given to another when this one is gone.
    let now = client.get(sandbox).await?;
    let mut watch = client.watch(Some(SandboxRef::from(&now)), 0).await?;
    let mut latest = now;
    loop {
        match what.is(latest.phase()) {
            Some(true) => return Ok(latest),
            Some(false) => {}
            None => {
                return Err(Failure::WaitedInVain {
                    name: sandbox.as_str().to_owned(),
                    phase: latest.phase().as_str(),
                    reason: latest.failure().map(str::to_owned),
                });
            }
        }
        match watch.until(|_| true).await? {
            Some(next) => latest = next,
            // The gateway ended the watch; it has not changed what is waited for.
            None => watch = client.watch(Some(SandboxRef::from(&latest)), 0).await?,
        }
    }
}
