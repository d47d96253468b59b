//! `overwinter sandbox list`

use clap::{Args, ValueEnum};
use futures::TryStreamExt as _;
use overwinter_client::{Phase, Sandbox};

use crate::context::Context;
use crate::failure::Failure;
use crate::output::{Format, Output, OutputArgs, Rows};
use crate::text::{age, parse_pair};

#[derive(Debug, Args)]
pub(crate) struct List {
    /// Only those with this label, and all others given
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = parse_pair)]
    label: Vec<(String, String)>,
    /// Only those in this phase, or another given
    #[arg(long, value_enum)]
    phase: Vec<PhaseArg>,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum PhaseArg {
    Creating,
    Ready,
    Suspending,
    Suspended,
    Resuming,
    Failed,
    Deleting,
    Deleted,
}

impl From<PhaseArg> for Phase {
    fn from(phase: PhaseArg) -> Self {
        match phase {
            PhaseArg::Creating => Self::Creating,
            PhaseArg::Ready => Self::Ready,
            PhaseArg::Suspending => Self::Suspending,
            PhaseArg::Suspended => Self::Suspended,
            PhaseArg::Resuming => Self::Resuming,
            PhaseArg::Failed => Self::Failed,
            PhaseArg::Deleting => Self::Deleting,
            PhaseArg::Deleted => Self::Tombstone,
        }
    }
}

pub(crate) async fn run(context: &Context, args: List) -> Result<u8, Failure> {
    let mut list = context.client.list();
    for (key, value) in args.label {
        list = list.label(key, value);
    }
    for phase in args.phase {
        list = list.phase(phase.into());
    }
    let mut sandboxes = list.stream();
    let mut out = Output::new();
    match args.output.output {
        Format::Json => {
            let all: Vec<Sandbox> = sandboxes.try_collect().await?;
            out.json(&all)?;
        }
        Format::Name => {
            while let Some(sandbox) = sandboxes.try_next().await? {
                out.line(sandbox.name())?;
            }
        }
        Format::Table => {
            let header = ["NAME", "PHASE", "DEPTH", "DRIVER", "IMAGE", "AGE"];
            let mut rows = Rows::with_header(header);
            while let Some(sandbox) = sandboxes.try_next().await? {
                let raw = sandbox.raw();
                rows.add([
                    raw.name.clone(),
                    phase(&sandbox),
                    depth(&sandbox),
                    raw.spec.driver.clone(),
                    raw.spec.image.clone(),
                    age(raw.created_at.seconds),
                ]);
            }
            out.rows(rows)?;
        }
    }
    out.finish()?;
    Ok(0)
}

/// The phase, of a failed one with its reason.
pub(crate) fn phase(sandbox: &Sandbox) -> String {
    match (sandbox.phase(), sandbox.failure()) {
        (Phase::Failed, Some(reason)) => format!("failed ({reason})"),
        (phase, _) => phase.as_str().to_owned(),
    }
}

/// How deep it sleeps, and what it lost.
pub(crate) fn depth(sandbox: &Sandbox) -> String {
    let depth = sandbox.depth().map_or("", |depth| depth.as_str());
    match sandbox.lost() {
        Some(lost) => format!("{depth} (lost {})", lost.as_str()),
        None => depth.to_owned(),
    }
}
