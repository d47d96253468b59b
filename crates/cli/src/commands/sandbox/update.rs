//! `overwinter sandbox update`

use std::time::Duration;

use clap::Args;
use overwinter_client::Policy;

use super::{DepthArg, get};
use crate::context::Context;
use crate::failure::Failure;
use crate::output::OutputArgs;
use crate::text::{parse_duration, parse_pair};

#[derive(Debug, Args)]
pub(crate) struct Update {
    /// The sandbox; may be left out where there is just one
    name: Option<String>,
    /// Set a variable for processes started from now on; KEY= removes it
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = parse_pair)]
    env: Vec<(String, String)>,
    /// Set a label; KEY= removes it
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = parse_pair)]
    label: Vec<(String, String)>,
    /// How long processes get between SIGTERM and SIGKILL when it is stopped
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    stop_grace: Option<Duration>,
    /// How deep it sleeps when a suspend does not say
    #[arg(long, value_enum, value_name = "DEPTH")]
    default_depth: Option<DepthArg>,
    /// Only if its configuration still has this version
    #[arg(long, value_name = "N")]
    config_version: Option<u64>,
    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) async fn run(context: &Context, args: Update) -> Result<u8, Failure> {
    let policy_changes = args.stop_grace.is_some() || args.default_depth.is_some();
    if args.env.is_empty() && args.label.is_empty() && !policy_changes {
        return Err(Failure::NothingToChange);
    }
    let sandbox = context.sandbox(args.name).await?;
    let mut update = context.client.update(&sandbox);
    for (key, value) in args.env {
        update = update.env(key, value);
    }
    for (key, value) in args.label {
        update = update.label(key, value);
    }
    let mut version = args.config_version;
    if policy_changes {
        // An update replaces the policy as a whole, so it is changed from what it is now, and only
        // if nobody else changes it meanwhile.
        let now = context.client.get(&sandbox).await?;
        version = version.or(Some(now.raw().config.version));
        let mut policy = Policy::of(&now);
        if let Some(grace) = args.stop_grace {
            policy = policy.stop_grace(grace);
        }
        if let Some(depth) = args.default_depth {
            policy = policy.default_depth(depth.into());
        }
        update = update.policy(policy);
    }
    if let Some(version) = version {
        update = update.config_version(version);
    }
    let sandbox = update.send().await?;
    get::show(&sandbox, args.output.output)?;
    Ok(0)
}
