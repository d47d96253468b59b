//! What a sandbox is made from ([`Spec`]) and what may change in its life ([`Config`]).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Depth;

/// Fixed at create.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Spec {
    pub driver: String,
    /// As asked for: a folder, a rootfs tar or a name that the driver knows.
    pub image: String,
    /// What it was pinned to, once the create has looked.
    pub image_digest: Option<String>,
    pub resources: Resources,
    /// The main process: argv; empty for none. Once the create has looked, what the image runs by
    /// itself where nothing was named.
    pub main: Vec<String>,
    /// "none" today.
    pub network: String,
    /// Names one of the driver's runtimes; empty: its default.
    #[serde(default)]
    pub runtime: String,
}

/// 0 is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Resources {
    /// Thousandths of a CPU.
    pub cpu_millis: u32,
    pub memory_bytes: u64,
    /// Processes and threads; 0: the driver's default.
    pub pids: u32,
    pub disk_bytes: u64,
}

/// Versioned, with the owner of the newest version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Config {
    pub version: u64,
    pub owner: String,
    pub env: BTreeMap<String, String>,
    pub policy: Policy,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Policy {
    /// For a suspend that names no depth.
    pub default_depth: Depth,
    pub stop_grace_ms: u64,
    /// argv; empty for none.
    pub pre_suspend_hook: Vec<String>,
    /// argv; empty for none.
    pub post_resume_hook: Vec<String>,
    pub hook_timeout_ms: u64,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            default_depth: Depth::Stop,
            stop_grace_ms: 10_000,
            pre_suspend_hook: Vec::new(),
            post_resume_hook: Vec::new(),
            hook_timeout_ms: 10_000,
        }
    }
}
