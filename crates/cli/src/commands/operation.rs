//! `overwinter operation list|get|wait`

use std::time::Duration;

use clap::{Args, Subcommand};
use futures::TryStreamExt as _;
use overwinter_client::{Achieved, Operation, Outcome, SandboxRef, raw};

use crate::context::Context;
use crate::failure::Failure;
use crate::output::{Format, Output, OutputArgs, Rows};
use crate::progress;
use crate::text::{age, fine, parse_duration};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List operations, newest first
    #[command(visible_alias = "ls")]
    List(List),
    /// Show one: where it stands, how it ended, how long each step took
    Get(Get),
    /// Wait until one has ended; fails when it did
    Wait(Wait),
}

#[derive(Debug, Args)]
pub(crate) struct List {
    /// Of this sandbox alone
    #[arg(value_name = "NAME")]
    sandbox: Option<String>,
    /// Only those that have not ended
    #[arg(long)]
    unfinished: bool,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct Get {
    /// The operation
    id: String,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct Wait {
    /// The operation
    id: String,
    /// How long at most
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    timeout: Option<Duration>,
    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) async fn run(context: &Context, command: Command) -> Result<u8, Failure> {
    match command {
        Command::List(args) => list(context, args).await,
        Command::Get(args) => {
            let operation = context.client.operation(&args.id).await?;
            show(&operation, args.output.output)?;
            Ok(0)
        }
        Command::Wait(args) => {
            let client = &context.client;
            let wait = client.wait_operation(&args.id, args.timeout);
            let operation = progress::waiting(client, "waiting", None, wait).await?;
            show(&operation, args.output.output)?;
            operation.achieved()?;
            Ok(0)
        }
    }
}

async fn list(context: &Context, args: List) -> Result<u8, Failure> {
    let client = &context.client;
    let sandbox = match args.sandbox {
        Some(name) => Some(client.get(SandboxRef::from(name)).await?),
        None => None,
    };
    let id = sandbox.as_ref().map(overwinter_client::Sandbox::id);
    let mut operations = client.operations(id, args.unfinished);
    let mut out = Output::new();
    match args.output.output {
        Format::Json => {
            let all: Vec<Operation> = operations.try_collect().await?;
            out.json(&all)?;
        }
        Format::Name => {
            while let Some(operation) = operations.try_next().await? {
                out.line(operation.id())?;
            }
        }
        Format::Table => {
            let header = ["ID", "KIND", "SANDBOX", "STEP", "OUTCOME", "TOOK", "AGE"];
            let mut rows = Rows::with_header(header);
            while let Some(operation) = operations.try_next().await? {
                let raw = operation.raw();
                rows.add([
                    raw.id.clone(),
                    kind(raw),
                    raw.sandbox_id.clone(),
                    raw.step.clone(),
                    outcome(&operation),
                    took(raw),
                    age(raw.created_at.seconds),
                ]);
            }
            out.rows(rows)?;
        }
    }
    out.finish()?;
    Ok(0)
}

fn show(operation: &Operation, format: Format) -> Result<(), Failure> {
    let mut out = Output::new();
    match format {
        Format::Json => out.json(operation)?,
        Format::Name => out.line(operation.id())?,
        Format::Table => {
            let raw = operation.raw();
            let mut rows = Rows::pairs();
            rows.pair("id", &raw.id);
            rows.pair("kind", kind(raw));
            rows.pair("sandbox", &raw.sandbox_id);
            let mut parameters: Vec<_> = raw.parameters.iter().collect();
            parameters.sort();
            for (name, value) in parameters {
                rows.pair("parameter", format!("{name}={value}"));
            }
            rows.pair("step", &raw.step);
            if !raw.progress.is_empty() {
                rows.pair("progress", &raw.progress);
            }
            rows.pair("outcome", outcome(operation));
            if let Some(Outcome::Failed { message, next, .. }) = operation.outcome() {
                rows.pair("message", message);
                rows.pair("next", next);
            }
            for remark in operation.remarks() {
                rows.pair("remark", remark);
            }
            rows.pair("fence", raw.fence.to_string());
            rows.pair("attempt", raw.attempt.to_string());
            rows.pair("requester", &raw.requester);
            rows.pair("age", age(raw.created_at.seconds));
            rows.pair("took", took(raw));
            for step in operation.steps() {
                rows.pair(&format!("  {}", step.0), fine(step.1));
            }
            out.rows(rows)?;
        }
    }
    out.finish()
}

pub(crate) fn kind(operation: &raw::Operation) -> String {
    raw::label(operation.kind, "OPERATION_KIND_")
}

fn outcome(operation: &Operation) -> String {
    match operation.outcome() {
        None => String::new(),
        Some(Outcome::Succeeded(Achieved::Memory)) => "succeeded (memory)".into(),
        Some(Outcome::Succeeded(Achieved::Storage)) => "succeeded (storage)".into(),
        Some(Outcome::Succeeded(_)) => "succeeded".into(),
        Some(Outcome::Failed { reason, .. }) => format!("failed: {reason}"),
        Some(Outcome::Superseded { by }) => format!("superseded by {by}"),
        Some(Outcome::TurnedBack { by: "" }) => "turned back".into(),
        Some(Outcome::TurnedBack { by }) => format!("turned back by {by}"),
        Some(_) => "ended".into(),
    }
}

fn took(operation: &raw::Operation) -> String {
    let (Some(began), Some(ended)) = (
        operation.began_at.as_option(),
        operation.ended_at.as_option(),
    ) else {
        return String::new();
    };
    let nanos = i128::from(ended.seconds - began.seconds) * 1_000_000_000
        + i128::from(ended.nanos - began.nanos);
    fine(Duration::from_nanos(u64::try_from(nanos).unwrap_or(0)))
}
