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
    /// Run by /bin/sh inside before a suspend; '' removes it
    #[arg(long, value_name = "COMMAND")]
    pre_suspend_hook: Option<String>,
    /// Run by /bin/sh inside after a resume; '' removes it
    #[arg(long, value_name = "COMMAND")]
    post_resume_hook: Option<String>,
    /// How long a hook may take
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    hook_timeout: Option<Duration>,
    /// Only if its configuration still has this version
    #[arg(long, value_name = "N")]
    config_version: Option<u64>,
    #[command(flatten)]
    output: OutputArgs,
}

/// A hook as it is kept: an argv, or none.
fn shell(hook: String) -> Vec<String> {
    if hook.is_empty() {
        return Vec::new();
    }
    vec!["/bin/sh".to_owned(), "-c".to_owned(), hook]
}

pub(crate) async fn run(context: &Context, args: Update) -> Result<u8, Failure> {
    let policy_changes = args.stop_grace.is_some()
        || args.default_depth.is_some()
        || args.pre_suspend_hook.is_some()
        || args.post_resume_hook.is_some()
        || args.hook_timeout.is_some();
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
        if let Some(hook) = args.pre_suspend_hook {
            policy = policy.pre_suspend_hook(shell(hook));
        }
        if let Some(hook) = args.post_resume_hook {
            policy = policy.post_resume_hook(shell(hook));
        }
        if let Some(timeout) = args.hook_timeout {
            policy = policy.hook_timeout(timeout);
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
