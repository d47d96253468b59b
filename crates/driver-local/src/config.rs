//! How the driver is set up.

use std::net::IpAddr;
use std::path::PathBuf;

use ipnet::IpNet;

/// Settings of one local driver. Two gateways on one host need state folders and uid ranges of
/// their own.
#[derive(Clone, Debug)]
pub struct LocalConfig {
    /// Storage, images and everything else that must outlive the gateway.
    pub state_dir: PathBuf,
    /// What runs a sandbox that names no runtime: gVisor's `runsc`, or one with runc's command line; a
    /// path, or a name that is looked up in PATH.
    pub runtime: PathBuf,
    /// Others that a sandbox may name by the program's name. Those that are not installed are left
    /// out.
    pub also: Vec<PathBuf>,
    /// The supervisor's binary, static. Copied: it may be replaced while sandboxes live.
    pub supervisor: PathBuf,
    /// Names the gateway on what it makes; part of the cgroup path.
    pub gateway_id: String,
    /// First host id of the first sandbox.
    pub uid_base: u32,
    /// How many host ids are this gateway's: 65,536 to a sandbox, and as many for what runs on behalf of
    /// all.
    pub uid_count: u32,
    /// Runtime subprocesses at a time.
    pub runtime_concurrency: usize,
    /// Processes and threads of a sandbox that names no limit.
    pub default_pids: u32,
    pub network: NetworkConfig,
    /// The root of what the image `host` is made of: `/`, unless the gateway sees the host elsewhere.
    pub host_root: PathBuf,
    /// PID 1 in place of the supervisor; for tests of the driver alone.
    pub init_args: Option<Vec<String>>,
}

/// What sandboxes may reach.
#[derive(Clone, Debug)]
pub struct NetworkConfig {
    /// Addresses that sandboxes with the network `internet` reach although they are private, link-local
    /// or of this host.
    pub allow: Vec<IpNet>,
    /// Whether a sandbox may have this host's own network.
    pub host: bool,
    /// Name servers, as this host reaches them. Empty: those of `/etc/resolv.conf`.
    pub dns: Vec<IpAddr>,
    /// What carries packets: a path, or a name that is looked up in PATH.
    pub pasta: PathBuf,
    /// What sets up the filter, in the same way.
    pub nft: PathBuf,
}

impl Default for NetworkConfig {
    fn default() -> Self {
        Self {
            allow: Vec::new(),
            host: false,
            dns: Vec::new(),
            pasta: PathBuf::from("pasta"),
            nft: PathBuf::from("nft"),
        }
    }
}

/// 2²⁸: beyond what systems give to users and to containers.
pub(crate) const DEFAULT_UID_BASE: u32 = 0x1000_0000;
pub(crate) const DEFAULT_UID_COUNT: u32 = 0x6000_0000;

impl LocalConfig {
    #[must_use]
    pub fn new(state_dir: PathBuf, supervisor: PathBuf, gateway_id: String) -> Self {
        Self {
            state_dir,
            runtime: PathBuf::from("runc"),
            also: ["runc", "runsc"].map(PathBuf::from).to_vec(),
            supervisor,
            gateway_id,
            uid_base: DEFAULT_UID_BASE,
            uid_count: DEFAULT_UID_COUNT,
            runtime_concurrency: std::thread::available_parallelism().map_or(2, usize::from),
            default_pids: 1024,
            network: NetworkConfig::default(),
            host_root: PathBuf::from("/"),
            init_args: None,
        }
    }
}
