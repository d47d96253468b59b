//! The gateway's program. `overwinter gateway run` and `overwinter doctor` start it.
//!
//! ```text
//!   main.rs      the words: commands and options
//!   doctor.rs    what this host has
//!   failure.rs   why it ended, as error[CODE] with what to do next
//! ```

mod doctor;
mod failure;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Parser, Subcommand};
use overwinter_gateway::config::Config;
use overwinter_gateway::crash::EnvCrashPoints;
use overwinter_gateway::ports::Ports;
use overwinter_gateway::run;
use overwinter_gateway::telemetry::{LogFormat, start_logging};

use crate::failure::Failure;

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
        output: doctor::Output,
    },
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return failure::misunderstood(&error),
    };
    let done = match arguments.command {
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
    done.unwrap_or_else(|failure| {
        failure.report();
        failure.exit_code()
    })
}

fn serve(
    data_dir: Option<PathBuf>,
    socket: Option<PathBuf>,
    config: Option<PathBuf>,
    log: LogFormat,
) -> Result<ExitCode, Failure> {
    start_logging(log);
    let mut config = read(config)?;
    config.data_dir = data_dir.or(config.data_dir);
    config.socket = socket.or(config.socket);
    let crash = EnvCrashPoints::from_env().map_err(Failure::CrashPoints)?;
    let ports = Ports {
        crash: crash.map(|points| Arc::new(points) as _),
        ..Ports::default()
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(Failure::Runtime)?;
    runtime.block_on(run::run(config, ports))?;
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    Ok(ExitCode::SUCCESS)
}

fn read(config: Option<PathBuf>) -> Result<Config, Failure> {
    let config = config.map(|path| Config::read(&path)).transpose()?;
    Ok(config.unwrap_or_default())
}

fn look(
    data_dir: Option<PathBuf>,
    config: Option<PathBuf>,
    output: doctor::Output,
) -> Result<ExitCode, Failure> {
    let mut config = read(config)?;
    config.data_dir = data_dir.or(config.data_dir);
    doctor::run(&config, output)
}
