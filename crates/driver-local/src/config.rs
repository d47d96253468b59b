//! How the driver is set up.

use std::path::PathBuf;

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
    /// How many host ids may be given out, 65,536 to a sandbox.
    pub uid_count: u32,
    /// Runtime subprocesses at a time.
    pub runtime_concurrency: usize,
    /// Processes and threads of a sandbox that names no limit.
    pub default_pids: u32,
    /// The root of what the image `host` is made of: `/`, unless the gateway sees the host elsewhere.
    pub host_root: PathBuf,
    /// PID 1 in place of the supervisor; for tests of the driver alone.
    pub init_args: Option<Vec<String>>,
}

impl LocalConfig {
    #[must_use]
    pub fn new(state_dir: PathBuf, supervisor: PathBuf, gateway_id: String) -> Self {
        Self {
            state_dir,
            runtime: PathBuf::from("runc"),
            also: ["runc", "runsc"].map(PathBuf::from).to_vec(),
            supervisor,
            gateway_id,
            uid_base: 0x1000_0000,
            uid_count: 0x6000_0000,
            runtime_concurrency: std::thread::available_parallelism().map_or(2, usize::from),
            default_pids: 1024,
            host_root: PathBuf::from("/"),
            init_args: None,
        }
    }
}
