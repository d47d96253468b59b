//! The gateway's program. `overwinter gateway run` and `overwinter doctor` start it.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Parser, Subcommand, ValueEnum};
use overwinter_driver_local::{Status, doctor};
use overwinter_gateway::config::Config;
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
        Command::Doctor { data_dir, output } => look(data_dir, output),
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
    let mut config = config
        .map(|path| Config::read(&path))
        .transpose()?
        .unwrap_or_default();
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

fn look(data_dir: Option<PathBuf>, output: Output) -> Result<ExitCode, Failed> {
    let config = Config {
        data_dir,
        ..Config::default()
    };
    let checks = doctor(
        &config.data_dir().join("local"),
        config.local.runtime.as_ref(),
    );
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
