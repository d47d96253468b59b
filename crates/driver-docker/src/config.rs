//! How the driver is set up.

use std::path::PathBuf;

use crate::flavor::Flavor;

/// Settings of one driver of this crate.
#[derive(Clone, Debug)]
pub struct DockerConfig {
    pub flavor: Flavor,
    /// The daemon's Unix socket. It need not be there yet.
    pub socket: PathBuf,
    /// Workspaces, attach folders and receipts. The daemon mounts from it, so the path must be the same
    /// for both.
    pub state_dir: PathBuf,
    /// The supervisor's binary, static. Copied: it may be replaced while sandboxes live.
    pub supervisor: PathBuf,
    /// Names the gateway on what it makes.
    pub gateway_id: String,
    pub pull: PullPolicy,
    /// Credentials of registries, as `docker login` writes them. None: `config.json` in the folder that
    /// `DOCKER_CONFIG` names, else in `~/.docker`, where it is there.
    pub registry_config: Option<PathBuf>,
    /// Processes and threads of a sandbox that names no limit.
    pub default_pids: u32,
}

/// When an image is fetched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PullPolicy {
    /// At each create.
    Always,
    /// Where the daemon does not have it.
    #[default]
    Missing,
    Never,
}

impl DockerConfig {
    /// The usual socket; images are fetched where they are missing.
    #[must_use]
    pub fn new(
        flavor: Flavor,
        state_dir: PathBuf,
        supervisor: PathBuf,
        gateway_id: String,
    ) -> Self {
        Self {
            flavor,
            socket: flavor.socket().to_owned(),
            state_dir,
            supervisor,
            gateway_id,
            pull: PullPolicy::default(),
            registry_config: None,
            default_pids: 1024,
        }
    }
}
