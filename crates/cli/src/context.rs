//! The client, and which sandbox is meant when none is named.

use std::path::PathBuf;

use futures::TryStreamExt as _;
use overwinter_client::{Client, Phase, SandboxRef};

use crate::failure::Failure;

/// How many names an error lists before it says how many more there are.
const NAMES: usize = 10;

pub(crate) struct Context {
    pub(crate) client: Client,
}

impl Context {
    pub(crate) fn new(socket: Option<PathBuf>) -> Self {
        let socket = socket.unwrap_or_else(overwinter_client::default_socket);
        Self {
            client: Client::connect(socket),
        }
    }

    /// The one that is named, else the only one there is.
    pub(crate) async fn sandbox(&self, name: Option<String>) -> Result<SandboxRef, Failure> {
        match name {
            Some(name) => Ok(SandboxRef::from(name)),
            None => self.only_sandbox().await,
        }
    }

    /// Those that are named, else the only one there is.
    pub(crate) async fn sandboxes(&self, names: Vec<String>) -> Result<Vec<SandboxRef>, Failure> {
        if names.is_empty() {
            return Ok(vec![self.only_sandbox().await?]);
        }
        Ok(names.into_iter().map(SandboxRef::from).collect())
    }

    async fn only_sandbox(&self) -> Result<SandboxRef, Failure> {
        let mut all = self.client.list().page_size(100).stream();
        let mut names = Vec::new();
        let mut more = false;
        while let Some(sandbox) = all.try_next().await? {
            // One that is being deleted cannot be meant.
            if matches!(sandbox.phase(), Phase::Deleting | Phase::Tombstone) {
                continue;
            }
            if names.len() == NAMES {
                more = true;
                break;
            }
            names.push(sandbox.name().to_owned());
        }
        match names.len() {
            0 => Err(Failure::NoSandbox),
            1 => Ok(SandboxRef::from(names.remove(0))),
            _ => {
                if more {
                    names.push("…".to_owned());
                }
                Err(Failure::WhichSandbox {
                    names: names.join(", "),
                })
            }
        }
    }
}
