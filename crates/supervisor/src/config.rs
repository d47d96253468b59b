//! The command line: a few flags, parsed by hand because nothing of a parser's size belongs inside
//! every sandbox.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

/// Where the supervisor finds its attach file, and what relative paths mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The mounted folder that holds `attach` and the gateway's socket.
    pub run_dir: PathBuf,
    /// What relative file paths are relative to, and the default working folder of processes.
    pub workspace: PathBuf,
    /// Whether this process owns its whole pid namespace: `terminate` then reaches everything
    /// in it, and no signal ends this process.
    pub pid1: bool,
    /// The user that this process makes itself at its start, keeping its capabilities.
    pub user: Option<u32>,
    /// Whether the kernel here may keep the end of a connection to itself: it is then looked for.
    pub poll_connection: bool,
    pub image: ImageDefaults,
}

/// What the image says of the programs in it, where a daemon that reads images tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageDefaults {
    /// For every process, below what it is started with.
    pub env: BTreeMap<String, String>,
    /// Whom the main process acts as, where nobody was named; empty: as any other.
    pub main_user: String,
    /// Where the main process works, where no folder was named; empty: where any other does.
    pub main_workdir: String,
}

/// A command line that is not understood.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum UsageError {
    #[error("{flag} needs a value")]
    MissingValue { flag: String },
    #[error("{flag}: {value} is no number")]
    NoNumber { flag: String, value: String },
    #[error("unknown argument {argument}")]
    Unknown { argument: String },
}

impl Config {
    /// Parses `--run-dir DIR`, `--workspace DIR`, `--user ID`, `--poll-connection`, `--no-pid1`,
    /// and what the image says: `--inherit-env` (as this process has it), `--main-user USER`,
    /// `--main-workdir DIR`.
    /// `OVERWINTER_RUN_DIR` and `OVERWINTER_WORKSPACE` are the defaults of the first two, where set.
    pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, UsageError> {
        let folder = |variable: &str, default: &str| {
            PathBuf::from(std::env::var_os(variable).unwrap_or_else(|| default.into()))
        };
        let mut config = Self {
            run_dir: folder("OVERWINTER_RUN_DIR", "/run/overwinter"),
            workspace: folder("OVERWINTER_WORKSPACE", "/workspace"),
            pid1: std::process::id() == 1,
            user: None,
            poll_connection: false,
            image: ImageDefaults::default(),
        };
        let mut arguments = arguments.into_iter();
        while let Some(argument) = arguments.next() {
            let mut value = || {
                arguments.next().ok_or_else(|| UsageError::MissingValue {
                    flag: argument.to_string_lossy().into_owned(),
                })
            };
            match argument.to_str() {
                Some("--run-dir") => config.run_dir = value()?.into(),
                Some("--workspace") => config.workspace = value()?.into(),
                Some("--user") => {
                    let id = value()?.to_string_lossy().into_owned();
                    config.user = Some(id.parse().map_err(|_| UsageError::NoNumber {
                        flag: "--user".to_owned(),
                        value: id,
                    })?);
                }
                Some("--poll-connection") => config.poll_connection = true,
                Some("--inherit-env") => config.image.env = inherited(std::env::vars_os()),
                Some("--main-user") => {
                    config.image.main_user = value()?.to_string_lossy().into_owned();
                }
                Some("--main-workdir") => {
                    config.image.main_workdir = value()?.to_string_lossy().into_owned();
                }
                Some("--no-pid1") => config.pid1 = false,
                Some(_) | None => {
                    return Err(UsageError::Unknown {
                        argument: argument.to_string_lossy().into_owned(),
                    });
                }
            }
        }
        Ok(config)
    }
}

/// But what is this process's own, and the home folder of its user. What is no text is left out.
fn inherited(variables: impl Iterator<Item = (OsString, OsString)>) -> BTreeMap<String, String> {
    variables
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| name != "HOME" && !name.starts_with("OVERWINTER_"))
        .collect()
}
