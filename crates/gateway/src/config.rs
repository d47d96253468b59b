//! The gateway's configuration: a TOML file in which every key that is not known is an error, and
//! flags over it.

use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

use overwinter_lifecycle::capacity::Limits;
use overwinter_lifecycle::operation::Deadlines;
use serde::Deserialize;

/// As the file says it. Every key may be left out.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Records, storage, images. Default: `/var/lib/overwinter`, or below `$XDG_STATE_HOME`.
    pub data_dir: Option<PathBuf>,
    /// The API's socket. Default: `/run/overwinter/gateway.sock`, or below `$XDG_RUNTIME_DIR`.
    pub socket: Option<PathBuf>,
    pub limits: Limits,
    pub deadlines: DeadlinesConfig,
    pub local: LocalConfig,
    pub docker: EngineConfig,
    pub podman: EngineConfig,
}

/// How long one step of an operation may take, in milliseconds; none can do in no time. For operations accepted from the
/// next start on: one that is under way keeps its own.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DeadlinesConfig {
    /// One call of the driver; past it a runtime that hangs is killed. Of an image that is fetched: the
    /// time in which nothing comes. Default: 60,000.
    pub effect_ms: Option<NonZeroU64>,
    /// For the supervisor to attach. Default: 20,000.
    pub attach_ms: Option<NonZeroU64>,
    /// One call of the supervisor. Default: 10,000.
    pub agent_ms: Option<NonZeroU64>,
    /// The whole operation, without the fetching of an image: past it nothing is tried again. Default:
    /// twice `effect_ms`.
    pub operation_ms: Option<NonZeroU64>,
}

impl From<DeadlinesConfig> for Deadlines {
    fn from(config: DeadlinesConfig) -> Self {
        let default = Self::default();
        let or = |set: Option<NonZeroU64>, unset| set.map_or(unset, NonZeroU64::get);
        let effect_ms = or(config.effect_ms, default.effect_ms);
        Self {
            effect_ms,
            attach_ms: or(config.attach_ms, default.attach_ms),
            agent_ms: or(config.agent_ms, default.agent_ms),
            operation_ms: or(config.operation_ms, effect_ms.saturating_mul(2)),
        }
    }
}

/// The local driver.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LocalConfig {
    pub enabled: bool,
    /// The OCI runtime: a name looked up in `PATH`, or a path.
    pub runtime: String,
    /// The supervisor. Default: `overwinter-supervisor` beside the gateway.
    pub supervisor: Option<PathBuf>,
    /// Runtime processes at once. Default: as many as there are processors.
    pub runtime_concurrency: Option<usize>,
    pub network: NetworkConfig,
}

/// What sandboxes may reach.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NetworkConfig {
    /// Networks in CIDR notation that `internet` reaches although they are private, link-local or this
    /// host's own.
    pub allow: Vec<ipnet::IpNet>,
    /// Whether a sandbox may share this host's network. Default: no.
    pub host: bool,
    /// Name servers, as this host reaches them. Default: those of `/etc/resolv.conf`.
    pub dns: Vec<std::net::IpAddr>,
}

impl Default for LocalConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            runtime: "runc".to_owned(),
            supervisor: None,
            runtime_concurrency: None,
            network: NetworkConfig::default(),
        }
    }
}

/// A driver whose sandboxes are containers of a daemon: Docker, or Podman as root.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EngineConfig {
    /// Default: no. Nobody's daemon is used unasked.
    pub enabled: bool,
    /// The daemon's Unix socket. It need not be there when the gateway starts. Default: the usual one.
    pub socket: Option<PathBuf>,
    /// The supervisor. Default: that of the local driver.
    pub supervisor: Option<PathBuf>,
    pub pull: Pull,
    /// Credentials of registries, as `docker login` writes them. Default: `config.json` in
    /// `$DOCKER_CONFIG`, else in `~/.docker`, where it is there.
    pub registry_config: Option<PathBuf>,
}

/// When an image is fetched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pull {
    /// At each create.
    Always,
    /// Where the daemon does not have it.
    #[default]
    Missing,
    Never,
}

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("the configuration {path} cannot be read")]
    Unreadable {
        path: PathBuf,
        source: std::io::Error,
    },
    /// The message names the key and its line.
    #[error("the configuration {path} is invalid")]
    Invalid {
        path: PathBuf,
        source: Box<toml::de::Error>,
    },
}

impl Config {
    /// # Errors
    /// [`ConfigError`] names the file, and the key with its line.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Unreadable {
            path: path.to_owned(),
            source,
        })?;
        toml::from_str(&text).map_err(|source| ConfigError::Invalid {
            path: path.to_owned(),
            source: Box::new(source),
        })
    }

    #[must_use]
    pub fn data_dir(&self) -> PathBuf {
        self.data_dir
            .clone()
            .unwrap_or_else(|| match own("XDG_STATE_HOME") {
                Some(state) => state.join("overwinter"),
                None => PathBuf::from("/var/lib/overwinter"),
            })
    }

    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.socket
            .clone()
            .unwrap_or_else(|| match own("XDG_RUNTIME_DIR") {
                Some(runtime) => runtime.join("overwinter/gateway.sock"),
                None => PathBuf::from("/run/overwinter/gateway.sock"),
            })
    }
}

/// A folder of the user's own; root uses the system's. One that is no absolute path counts as unset:
/// XDG Base Directory Specification.
fn own(variable: &str) -> Option<PathBuf> {
    let root = std::fs::metadata("/proc/self")
        .map(|found| std::os::unix::fs::MetadataExt::uid(&found) == 0)
        .unwrap_or(false);
    if root {
        None
    } else {
        let folder = std::env::var_os(variable).map(PathBuf::from);
        folder.filter(|folder| folder.is_absolute())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_does_not_exist_is_an_error_that_names_it() {
        let folder = std::env::temp_dir().join(format!("overwinter-config-{}", std::process::id()));
        std::fs::write(&folder, "[local]\nruntimee = \"runc\"\n").unwrap();
        let error = Config::read(&folder).unwrap_err();
        let error = std::error::Error::source(&error).unwrap().to_string();
        std::fs::remove_file(&folder).unwrap();
        assert!(error.contains("runtimee"), "{error}");
        assert!(error.contains("line 2"), "{error}");
    }
}
