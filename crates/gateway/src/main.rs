//! The gateway's program. `overwinter gateway run` and `overwinter doctor` start it.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Parser, Subcommand, ValueEnum};
use overwinter_driver_docker::{Finding, Flavor};
use overwinter_driver_local::{Check, Status, doctor};
use overwinter_gateway::config::{Config, EngineConfig};
use overwinter_gateway::crash::EnvCrashPoints;
use overwinter_gateway::ports::Ports;
use overwinter_gateway::run;
use overwinter_gateway::telemetry::{LogFormat, start_logging};

#[derive(Parser)]
#[command(
    name = "overwinter-gateway",
    version,
    about = "The gateway of Overwinter"
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve the API until SIGTERM
    Run {
        /// Records, storage and images
        #[arg(long)]
        data_dir: Option<PathBuf>,
        /// The API's Unix socket
        #[arg(long)]
        socket: Option<PathBuf>,
        /// A TOML file; a key that does not exist is an error
        #[arg(long)]
        config: Option<PathBuf>,
        #[arg(long, value_enum, default_value_t)]
        log: LogFormat,
    },
    /// Say what this host has, and what to install
    Doctor {
        #[arg(long)]
        data_dir: Option<PathBuf>,
        /// What a gateway with this configuration needs
        #[arg(long)]
        config: Option<PathBuf>,
        #[arg(short, long, value_enum, default_value = "table")]
        output: Output,
    },
}

#[derive(Clone, Copy, ValueEnum)]
enum Output {
    Table,
    Json,
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Run {
            data_dir,
            socket,
            config,
            log,
        } => serve(data_dir, socket, config, log),
        Command::Doctor {
            data_dir,
            config,
            output,
        } => look(data_dir, config, output),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            eprintln!("overwinter-gateway: {error}");
            let mut source = error.source();
            while let Some(cause) = source {
                eprintln!("  because: {cause}");
                source = cause.source();
            }
            ExitCode::FAILURE
        }
    }
}

type Failed = Box<dyn std::error::Error>;

fn serve(
    data_dir: Option<PathBuf>,
    socket: Option<PathBuf>,
    config: Option<PathBuf>,
    log: LogFormat,
) -> Result<ExitCode, Failed> {
    start_logging(log);
    let mut config = read(config)?;
    config.data_dir = data_dir.or(config.data_dir);
    config.socket = socket.or(config.socket);
    let crash = EnvCrashPoints::from_env()?;
    let ports = Ports {
        crash: crash.map(|points| Arc::new(points) as _),
        ..Ports::default()
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(run::run(config, ports))?;
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    Ok(ExitCode::SUCCESS)
}

fn read(config: Option<PathBuf>) -> Result<Config, Failed> {
    let config = config.map(|path| Config::read(&path)).transpose()?;
    Ok(config.unwrap_or_default())
}

fn look(
    data_dir: Option<PathBuf>,
    config: Option<PathBuf>,
    output: Output,
) -> Result<ExitCode, Failed> {
    let mut config = read(config)?;
    config.data_dir = data_dir.or(config.data_dir);
    let mut checks = Vec::new();
    if config.local.enabled {
        let state = config.data_dir().join("local");
        checks.extend(doctor(&state, config.local.runtime.as_ref()));
    }
    checks.extend(engine(Flavor::Docker, "Docker", &config.docker)?);
    checks.extend(engine(Flavor::Podman, "Podman", &config.podman)?);
    let missing = checks.iter().any(|check| check.status == Status::Missing);
    let word = |status| match status {
        Status::Ok => "ok",
        Status::Warn => "warn",
        Status::Missing => "missing",
    };
    match output {
        Output::Json => {
            let rows: Vec<_> = checks
                .iter()
                .map(|check| {
                    serde_json::json!({
                        "name": check.name,
                        "status": word(check.status),
                        "detail": check.detail,
                        "fix": check.fix,
                    })
                })
                .collect();
            println!("{}", serde_json::to_string_pretty(&rows)?);
        }
        Output::Table => {
            let width = checks
                .iter()
                .map(|check| check.name.len())
                .max()
                .unwrap_or(0);
            for check in &checks {
                println!(
                    "{:<7}  {:<width$}  {}",
                    word(check.status),
                    check.name,
                    check.detail
                );
                if !check.fix.is_empty() {
                    println!("{:<7}  {:<width$}  → {}", "", "", check.fix);
                }
            }
        }
    }
    Ok(if missing {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// Asked for, it must be there; else it is named where it happens to be.
fn engine(
    flavor: Flavor,
    name: &'static str,
    config: &EngineConfig,
) -> Result<Option<Check>, Failed> {
    let socket = config.socket.as_deref().unwrap_or(flavor.socket());
    if !config.enabled && !socket.exists() {
        return Ok(None);
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let finding = runtime.block_on(overwinter_driver_docker::doctor(flavor, socket));
    let (status, detail, fix) = match (finding, config.enabled) {
        (Finding::Usable(detail), true) => (Status::Ok, detail, String::new()),
        (Finding::Usable(detail), false) => (
            Status::Ok,
            format!("{detail}; not used: {}.enabled is not set", flavor.name()),
            String::new(),
        ),
        (Finding::Unusable { why, fix }, true) => (Status::Missing, why, fix),
        (Finding::Unusable { why, .. }, false) => {
            (Status::Ok, format!("not used; {why}"), String::new())
        }
    };
    Ok(Some(Check {
        name,
        status,
        detail,
        fix,
    }))
}
