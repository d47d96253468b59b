//! `overwinter gateway run|status|drain`, `overwinter doctor`
//!
//! The gateway is a program of its own, which lies beside this one: `run` and `doctor` become it.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use crate::context::Context;
use crate::failure::Failure;
use crate::output::{Format, Output, OutputArgs, Rows, say};
use crate::text::{coarse, parse_duration, size};

const PROGRAM: &str = "overwinter-gateway";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a gateway here, in the foreground
    Run(Run),
    /// Say how the gateway is
    Status(OutputArgs),
    /// Let it accept no more work and bring what runs to an end or a recorded step
    Drain(Drain),
}

#[derive(Debug, Args)]
pub(crate) struct Run {
    /// Where it keeps its records and its sandboxes' storage
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Its configuration
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// How it logs
    #[arg(long, value_name = "FORMAT")]
    log: Option<String>,
    /// Further arguments, passed on as they are
    #[arg(last = true, value_name = "ARG")]
    rest: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct Drain {
    /// How long at most
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    timeout: Option<Duration>,
}

#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Where the gateway keeps its records and storage, if not in the usual place
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// Its configuration: what that asks for is looked for
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) async fn run(socket: Option<PathBuf>, command: Command) -> Result<u8, Failure> {
    match command {
        Command::Run(run) => {
            let mut arguments = vec![OsString::from("run")];
            let data_dir = run.data_dir.map(PathBuf::into_os_string);
            let config = run.config.map(PathBuf::into_os_string);
            for (option, value) in [
                ("--data-dir", data_dir),
                ("--socket", socket.map(PathBuf::into_os_string)),
                ("--config", config),
                ("--log", run.log.map(OsString::from)),
            ] {
                if let Some(value) = value {
                    arguments.extend([OsString::from(option), value]);
                }
            }
            arguments.extend(run.rest);
            Err(become_gateway(&arguments))
        }
        Command::Status(args) => status(&Context::new(socket), args.output).await,
        Command::Drain(drain) => {
            let context = Context::new(socket);
            let left = context.client.drain_gateway(drain.timeout).await?;
            if left.is_empty() {
                say("drained: no operation runs")?;
            } else {
                say(&format!(
                    "drained: {} stand at a recorded step and go on when it is started again",
                    left.len()
                ))?;
                for id in left {
                    say(&id)?;
                }
            }
            Ok(0)
        }
    }
}

pub(crate) fn doctor(doctor: &Doctor) -> Result<u8, Failure> {
    let mut arguments = ["doctor", "-o", doctor.output.output.as_str()]
        .map(OsString::from)
        .to_vec();
    if let Some(data_dir) = &doctor.data_dir {
        arguments.extend(["--data-dir".into(), data_dir.into()]);
    }
    if let Some(config) = &doctor.config {
        arguments.extend(["--config".into(), config.into()]);
    }
    Err(become_gateway(&arguments))
}

/// Replaces this process; returns only when that fails.
fn become_gateway(arguments: &[OsString]) -> Failure {
    let beside = std::env::current_exe()
        .ok()
        // `overwinter` may be a link to where both lie.
        .and_then(|it| it.canonicalize().ok())
        .map(|it| it.with_file_name(PROGRAM))
        .filter(|it| it.is_file());
    let program = beside.unwrap_or_else(|| PathBuf::from(PROGRAM));
    let error = std::process::Command::new(&program).args(arguments).exec();
    Failure::Program { program, error }
}

async fn status(context: &Context, format: Format) -> Result<u8, Failure> {
    let status = context.client.gateway_status().await?;
    let mut out = Output::new();
    match format {
        Format::Json => out.json(&status)?,
        Format::Name => out.line(&status.gateway_id)?,
        Format::Table => {
            let mut rows = Rows::pairs();
            rows.pair("gateway", &status.gateway_id);
            rows.pair("version", &status.version);
            let state = if status.draining {
                "draining"
            } else {
                "serving"
            };
            rows.pair("state", state);
            let uptime = Duration::from_secs(status.uptime.seconds.max(0) as u64);
            rows.pair("up", coarse(uptime));
            let mut phases: Vec<_> = status.sandboxes.iter().collect();
            phases.sort();
            let phases: Vec<_> = phases
                .iter()
                .map(|(phase, n)| format!("{n} {phase}"))
                .collect();
            let phases = if phases.is_empty() {
                "none".to_owned()
            } else {
                phases.join(", ")
            };
            rows.pair("sandboxes", phases);
            rows.pair(
                "attached",
                format!("{} supervisors", status.attached_supervisors),
            );
            rows.pair(
                "operations",
                format!("{} unfinished", status.unfinished_operations),
            );
            rows.pair("debts", status.debts.to_string());
            let commits = format!(
                "{} transactions in {} commits, schema {}, epoch {}",
                status.store_transactions,
                status.store_commits,
                status.schema_version,
                status.epoch
            );
            rows.pair("store", commits);
            rows.pair("memory", size(status.resident_bytes));
            out.rows(rows)?;
        }
    }
    out.finish()?;
    Ok(0)
}
