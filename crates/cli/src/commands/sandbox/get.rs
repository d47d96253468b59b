//! `overwinter sandbox get`

use std::collections::HashMap;
use std::hash::BuildHasher;

use clap::Args;
use overwinter_client::{Depth, Phase, Sandbox, raw};

use super::list;
use crate::commands::operation;
use crate::context::Context;
use crate::failure::Failure;
use crate::output::{Format, Output, OutputArgs, Rows};
use crate::text::{self, age, setting, size};

#[derive(Debug, Args)]
pub(crate) struct Get {
    /// The sandbox, by name or id; may be left out where there is just one
    name: Option<String>,
    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) async fn run(context: &Context, args: Get) -> Result<u8, Failure> {
    let sandbox = context.sandbox(args.name).await?;
    let sandbox = context.client.get(sandbox).await?;
    show(&sandbox, args.output.output)?;
    Ok(0)
}

pub(crate) fn show(sandbox: &Sandbox, format: Format) -> Result<(), Failure> {
    let mut out = Output::new();
    match format {
        Format::Json => out.json(sandbox)?,
        Format::Name => out.line(sandbox.name())?,
        Format::Table => out.rows(table(sandbox))?,
    }
    out.finish()
}

fn table(sandbox: &Sandbox) -> Rows {
    let raw = sandbox.raw();
    let mut rows = Rows::pairs();
    rows.pair("name", &raw.name);
    rows.pair("id", &raw.id);
    rows.pair("phase", list::phase(sandbox));
    rows.pair("desired", raw::label(raw.desired, "DESIRED_"));
    add_retained(&mut rows, sandbox);
    if let Some(failure) = raw.failure.as_option() {
        rows.pair(
            "failure",
            format!("{}: {}", failure.reason, failure.message),
        );
        rows.pair("  since", age(failure.at.seconds));
        rows.pair("  compute", raw::label(failure.compute, "COMPUTE_STATE_"));
    }
    for (what, running) in [("running", &raw.running), ("waiting", &raw.waiting)] {
        if let Some(it) = running.as_option() {
            let text = format!("{} {}, at {}", operation::kind(it), it.id, it.step);
            rows.pair(what, text);
        }
    }
    rows.pair("why awake", raw.why_awake.join("; "));
    rows.pair("attached", if raw.attached { "yes" } else { "no" });
    let held = raw
        .incarnation_held
        .map_or_else(|| "none held".to_owned(), |held| format!("{held} held"));
    rows.pair(
        "incarnation",
        format!("{} issued, {held}", raw.incarnation_issued),
    );
    rows.pair("generation", format!("{} of the disk", raw.disk_generation));
    if raw.debts > 0 {
        rows.pair("debts", format!("{} still to be removed", raw.debts));
    }
    rows.pair("driver", &raw.spec.driver);
    rows.pair("image", &raw.spec.image);
    rows.pair("  digest", &raw.spec.image_digest);
    rows.pair("main", raw.spec.main.join(" "));
    if let Some(exit) = raw.main_exit.as_option() {
        let text = format!("{}, {} ago", exit.code, age(exit.at.seconds));
        rows.pair("  last exit", text);
    }
    rows.pair("network", &raw.spec.network);
    if !raw.spec.runtime.is_empty() {
        rows.pair("runtime", &raw.spec.runtime);
    }
    add_resources(&mut rows, &raw.spec.resources);
    add_policy(&mut rows, &raw.config.policy);
    rows.pair("config", format!("version {}", raw.config.version));
    add_map(&mut rows, "env", &raw.config.env);
    add_map(&mut rows, "label", &raw.labels);
    rows.pair("age", age(raw.created_at.seconds));
    rows.pair("changed", format!("{} ago", age(raw.updated_at.seconds)));
    rows.pair("next", next(sandbox));
    rows
}

fn add_retained(rows: &mut Rows, sandbox: &Sandbox) {
    let Some(retained) = sandbox.raw().retained.as_option() else {
        return;
    };
    let mut text = raw::label(retained.depth, "DEPTH_");
    if retained.since.is_set() {
        text.push_str(&format!(", since {}", age(retained.since.seconds)));
    }
    let status = raw::label(retained.status, "RETAINED_STATUS_");
    if status != "unspecified" {
        text.push_str(&format!(", {}", status.replace('_', " ")));
    }
    if retained.size_bytes > 0 {
        text.push_str(&format!(", {}", size(retained.size_bytes)));
    }
    rows.pair("retained", text);
    if let Some(reclaimed) = retained.reclaimed.as_option() {
        rows.pair("  memory", text::reclaimed(reclaimed));
    }
    if let Some(lost) = sandbox.lost() {
        rows.pair("  lost", format!("{}: its memory is gone", lost.as_str()));
    }
    if sandbox.phase() == Phase::Suspended
        && sandbox.depth() == Some(Depth::Stop)
        && !retained.quiesced
    {
        rows.pair("  quiesced", "no: the supervisor could not be asked");
    }
}

fn add_resources(rows: &mut Rows, resources: &raw::Resources) {
    if resources.cpu_millis > 0 {
        rows.pair(
            "cpus",
            (f64::from(resources.cpu_millis) / 1000.0).to_string(),
        );
    }
    if resources.memory_bytes > 0 {
        rows.pair("memory", size(resources.memory_bytes));
    }
    if resources.pids > 0 {
        rows.pair("pids", resources.pids.to_string());
    }
    if resources.disk_bytes > 0 {
        rows.pair("disk", size(resources.disk_bytes));
    }
}

fn add_policy(rows: &mut Rows, policy: &raw::Policy) {
    if let Some(depth) = Depth::from_message(policy.default_depth) {
        rows.pair("default depth", depth.as_str());
    }
    if let Some(it) = policy.stop_grace.as_option() {
        rows.pair("stop grace", setting(it.seconds, it.nanos));
    }
    rows.pair("before suspend", policy.pre_suspend_hook.join(" "));
    rows.pair("after resume", policy.post_resume_hook.join(" "));
    if let Some(it) = policy.hook_timeout.as_option() {
        rows.pair("hook timeout", setting(it.seconds, it.nanos));
    }
}

fn add_map<S: BuildHasher>(rows: &mut Rows, what: &str, map: &HashMap<String, String, S>) {
    let mut all: Vec<_> = map.iter().collect();
    all.sort();
    for (key, value) in all {
        rows.pair(what, format!("{key}={value}"));
    }
}

/// What to do about one that needs something.
fn next(sandbox: &Sandbox) -> String {
    let name = sandbox.name();
    match sandbox.phase() {
        Phase::Failed => format!(
            "overwinter sandbox resume {name} brings back what is kept; \
             start {name} begins cold on its storage; delete {name} removes it"
        ),
        Phase::Suspended if sandbox.lost().is_some() => {
            format!("overwinter sandbox start {name} begins cold on its storage, which is kept")
        }
        _ => String::new(),
    }
}
