//! Why the program ended: what happened, its reason code and what to do next; and the exit code.
//! The words are those of the `overwinter` command, which starts this program.

use std::error::Error as _;
use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;

use overwinter_driver_docker as docker;
use overwinter_driver_local as local;
use overwinter_gateway::config::ConfigError;
use overwinter_gateway::run::StartError;
use overwinter_gateway::server::ServerError;
use overwinter_store::StoreError;

/// As a shell reports a command that SIGPIPE ended.
const BROKEN_PIPE: u8 = 128 + 13;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Start(#[from] StartError),
    #[error("the file that OVERWINTER_CRASH_TRACE names cannot be opened: {0}")]
    CrashPoints(io::Error),
    #[error("cannot set up: {0}")]
    Runtime(io::Error),
    #[error("cannot write the output: {0}")]
    Output(io::Error),
    /// Whoever read our output has closed it: nothing to say, and nobody to say it to.
    #[error("the output was closed")]
    BrokenPipe,
}

/// A stable code, and what to do next.
type Advice = (&'static str, &'static str);

const LOOK: &str = "`overwinter doctor` says what this host has and what to install";
const FOLDER: &str = "give the folder to this user, or name another with --data-dir or `data_dir`";
const SUPERVISOR: &str = "put overwinter-supervisor beside overwinter-gateway, or name it as \
     `local.supervisor` (or the driver's own `supervisor`) in the configuration";

impl Failure {
    /// Writing to our own output failed.
    pub(crate) fn output(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            Self::BrokenPipe
        } else {
            Self::Output(error)
        }
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Self::BrokenPipe => ExitCode::from(BROKEN_PIPE),
            Self::Config(_)
            | Self::Start(_)
            | Self::CrashPoints(_)
            | Self::Runtime(_)
            | Self::Output(_) => ExitCode::FAILURE,
        }
    }

    /// Tells it on stderr, on lines that a program can cut.
    pub(crate) fn report(&self) {
        if matches!(self, Self::BrokenPipe) {
            return;
        }
        let (code, next) = self.advice();
        let mut text = format!("error[{code}]: {self}");
        // A message that holds its cause already does not say it again.
        let mut source = self.source();
        while let Some(cause) = source {
            let cause_text = cause.to_string();
            let cause_text = cause_text.trim_end();
            if !text.contains(cause_text) {
                // Writing to a string does not fail.
                let _ = write!(text, ": {cause_text}");
            }
            source = cause.source();
        }
        let _ = write!(text, "\n  next: {next}\n");
        // There is no third place to tell that this could not be told.
        let _ = io::stderr().lock().write_all(text.as_bytes());
    }

    fn advice(&self) -> Advice {
        match self {
            Self::Config(error) => of_config(error),
            Self::Start(error) => of_start(error),
            Self::CrashPoints(_) => ("LOCAL_IO", "name a file that can be written, or unset it"),
            Self::Runtime(_) => (
                "RUNTIME",
                "raise what this user may have of processes and open files (ulimit -u, ulimit -n)",
            ),
            Self::Output(error) => of_output(error),
            Self::BrokenPipe => ("BROKEN_PIPE", ""),
        }
    }
}

/// Help and the version, which were asked for, and arguments that could not be understood.
pub(crate) fn misunderstood(error: &clap::Error) -> ExitCode {
    let stderr = io::stderr();
    if error.exit_code() == 0 || stderr.is_terminal() {
        // There is no third place to tell that this could not be told.
        let _ = error.print();
    } else {
        let said = error.render().to_string();
        let said = match said.strip_prefix("error: ") {
            Some(said) => said.to_owned(),
            // The help alone, where a command was left out.
            None => format!("a command is missing\n\n{said}"),
        };
        // What was typed in may hold what a terminal would act on.
        let line = |line: &str| -> String {
            let each = line.chars();
            each.flat_map(|c| match c.is_control() {
                true => c.escape_default().collect::<Vec<_>>(),
                false => vec![c],
            })
            .collect()
        };
        let lines: Vec<_> = said.trim_end().lines().map(line).collect();
        let text = format!(
            "error[USAGE]: {}\n  next: overwinter-gateway --help\n",
            lines.join("\n")
        );
        let _ = stderr.lock().write_all(text.as_bytes());
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

fn of_output(error: &io::Error) -> Advice {
    let next = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "make room where the output goes, or send it elsewhere"
        }
        _ => "send the output elsewhere",
    };
    ("LOCAL_IO", next)
}

fn of_config(error: &ConfigError) -> Advice {
    match error {
        ConfigError::Unreadable { .. } => (
            "CONFIG_UNREADABLE",
            "name a file that is there and that this user may read with --config",
        ),
        ConfigError::Invalid { .. } => (
            "CONFIG_INVALID",
            "correct the line; docs/configuration.md lists every key",
        ),
    }
}

fn of_start(error: &StartError) -> Advice {
    match error {
        StartError::Store(error) => of_store(error),
        StartError::Server(error) => of_server(error),
        StartError::Local(error) => of_local(error),
        StartError::Engine { source, .. } => of_engine(source),
        StartError::NoDriver => (
            "NO_DRIVER",
            "enable one in the configuration: local.enabled, docker.enabled or podman.enabled",
        ),
        StartError::DriverGone(_) => (
            "DRIVER_GONE",
            "enable it again in the configuration, and delete its sandboxes before it is taken out",
        ),
        StartError::NoSupervisor => ("SUPERVISOR_MISSING", SUPERVISOR),
        StartError::Signals(_) => (
            "RUNTIME",
            "look whether this user may open more files (ulimit -n)",
        ),
    }
}

fn of_store(error: &StoreError) -> Advice {
    match error {
        StoreError::Locked { .. } => (
            "DATA_DIR_IN_USE",
            "use the gateway that runs, end it first, or name another folder with --data-dir and \
             another socket with --socket",
        ),
        StoreError::Full => ("DISK_FULL", "make room on the disk of the data folder"),
        StoreError::NewerSchema { .. } => (
            "SCHEMA_NEWER",
            "run the release that wrote it, or a newer one",
        ),
        StoreError::UnfinishableOperation { .. } => (
            "OPERATION_UNFINISHABLE",
            "run the release that began it, `overwinter gateway drain` there, then this one",
        ),
        StoreError::Corrupt { .. } => (
            "STORE_CORRUPT",
            "stop, keep a copy of the data folder, and restore it from a backup",
        ),
        StoreError::Io { kind, .. } => (
            "DATA_DIR_UNUSABLE",
            match kind {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                    "make room on the disk of the data folder"
                }
                io::ErrorKind::ReadOnlyFilesystem => {
                    "name a folder on a disk that can be written with --data-dir or `data_dir`"
                }
                io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => {
                    "something else lies there: name another folder with --data-dir or `data_dir`"
                }
                _ => FOLDER,
            },
        ),
        // The enum is open; what has no advice of its own is the database's.
        _ => (
            "STORE_FAILED",
            "look at the disk of the data folder; if it is sound, restore from a backup",
        ),
    }
}

fn of_server(error: &ServerError) -> Advice {
    match error {
        ServerError::InUse { .. } => (
            "SOCKET_IN_USE",
            "use the gateway that runs, end it first, or name another socket with --socket",
        ),
        ServerError::Io { .. } => (
            "SOCKET_UNUSABLE",
            "name a socket in a folder that this user may write with --socket or `socket`",
        ),
        ServerError::PathTooLong { .. } => (
            "SOCKET_PATH_TOO_LONG",
            "name a shorter one with --socket, OVERWINTER_SOCKET or `socket`",
        ),
        ServerError::Reflection(_) => ("INTERNAL", "install this release anew"),
    }
}

fn of_local(error: &local::OpenError) -> Advice {
    match error {
        local::OpenError::NotRoot { .. } => (
            "NOT_ROOT",
            "run it as root (`sudo overwinter gateway run`), or with another driver",
        ),
        local::OpenError::NoRuntime { .. } => ("RUNTIME_MISSING", LOOK),
        local::OpenError::NoSupervisor { .. } => ("SUPERVISOR_MISSING", SUPERVISOR),
        local::OpenError::NoFreezer => ("FREEZER_MISSING", LOOK),
        local::OpenError::Closed(_) => (
            "CONFIG_INVALID",
            "take that network out of `local.network.allow`",
        ),
        local::OpenError::GatewayId(_) => (
            "STORE_CORRUPT",
            "stop, keep a copy of the data folder, and restore it from a backup",
        ),
        local::OpenError::Local(_) => ("DRIVER_UNUSABLE", LOOK),
    }
}

fn of_engine(error: &docker::OpenError) -> Advice {
    match error {
        docker::OpenError::NoSupervisor { .. } => ("SUPERVISOR_MISSING", SUPERVISOR),
        docker::OpenError::NotRoot { .. } => (
            "NOT_ROOT",
            "run it as root (`sudo overwinter gateway run`), or beside your own Podman in its user namespace (`podman unshare overwinter gateway run`)",
        ),
        docker::OpenError::Docker(_) => (
            "DRIVER_UNUSABLE",
            "`overwinter doctor --config FILE` says what that driver needs",
        ),
    }
}
