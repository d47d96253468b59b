//! What differs between the daemons that speak Docker's API. Nothing else of the crate asks which one
//! it is.

use std::path::Path;

use bollard::models::SystemInfo;

/// Whose daemon it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavor {
    Docker,
    /// Through its Docker-compatible API.
    Podman,
}

impl Flavor {
    /// Of the driver, also on references.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Podman => "podman",
        }
    }

    /// As its makers write it.
    pub(crate) const fn product(self) -> &'static str {
        match self {
            Self::Docker => "Docker",
            Self::Podman => "Podman",
        }
    }

    /// Where the daemon usually listens.
    #[must_use]
    pub fn socket(self) -> &'static Path {
        Path::new(match self {
            Self::Docker => "/var/run/docker.sock",
            Self::Podman => "/run/podman/podman.sock",
        })
    }

    pub(crate) const fn how_to_start(self) -> &'static str {
        match self {
            Self::Docker => {
                "start the daemon (Debian: apt-get install docker.io), or set docker.socket in the configuration"
            }
            Self::Podman => {
                "start its service (systemctl start podman.socket, or podman system service), or set podman.socket in the configuration"
            }
        }
    }

    /// What it says of a layer that it has whole.
    pub(crate) const fn layer_done(self) -> &'static [&'static str] {
        match self {
            Self::Docker => &["Pull complete", "Already exists"],
            // Of what comes after the download it says nothing.
            Self::Podman => &["Download complete", "Pull complete", "Already exists"],
        }
    }

    /// The network that its own command gives to a container.
    pub(crate) const fn network(self) -> &'static str {
        match self {
            Self::Docker => "bridge",
            Self::Podman => "podman",
        }
    }

    /// What stays the same as long as a daemon has its containers, beside the folder of its data.
    pub(crate) fn id(self, info: &SystemInfo) -> String {
        match self {
            Self::Docker => info.id.clone().unwrap_or_default(),
            // Another at each question.
            Self::Podman => String::new(),
        }
    }
}
