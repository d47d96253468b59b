//! A driver on this host with an image of busybox, and what the gateway would be to it.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use overwinter_driver::attach::{AttachProof, AttachRefused, Io};
use overwinter_driver::ledger::{LedgerUnavailable, Receipt};
use overwinter_driver::{
    Agent, AttachPort, ComputeSpec, Credentials, Driver, EffectContext, Ledger, Observed, Peer,
    PinnedImage, Token,
};
use overwinter_driver_local::{LocalConfig, LocalDriver};
use overwinter_lifecycle::config::Resources;
use overwinter_lifecycle::ids::{EffectKey, Fence, Incarnation, SandboxId, Serial};
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;
use uuid::Uuid;

pub type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Why the tests of a real host cannot run here; None: they can. Loud, so that a run that has
/// tested nothing does not look like one that has.
pub fn cannot_run() -> Option<&'static str> {
    let why = if !rustix_is_root() {
        Some("needs root")
    } else if !Path::new(BUSYBOX).exists() {
        Some("needs /bin/busybox (Debian: busybox-static)")
    } else if !["/usr/sbin/runc", "/usr/bin/runc", "/usr/local/sbin/runc"]
        .iter()
        .any(|path| Path::new(path).exists())
    {
        Some("needs runc")
    } else {
        None
    };
    skipped(why)
}

/// Says why a test is skipped. On the reference machine none may be.
pub fn skipped(why: Option<&'static str>) -> Option<&'static str> {
    if let Some(why) = why {
        assert!(
            std::env::var_os("OVERWINTER_REQUIRE_LOCAL").is_none(),
            "OVERWINTER_REQUIRE_LOCAL is set, and this test {why}"
        );
        eprintln!("SKIPPED: {why}");
    }
    why
}

/// gVisor's runtime, where it has been installed. Loud where it has not, as [`cannot_run`].
pub fn runsc() -> Option<PathBuf> {
    if cannot_run().is_some() {
        return None;
    }
    let named = std::env::var_os("OVERWINTER_RUNSC").map(PathBuf::from);
    let usual = ["/usr/local/bin/runsc", "/usr/bin/runsc"].map(PathBuf::from);
    let found = named.into_iter().chain(usual).find(|path| path.is_file());
    if found.is_none() {
        assert!(
            std::env::var_os("OVERWINTER_REQUIRE_LOCAL").is_none(),
            "OVERWINTER_REQUIRE_LOCAL is set, and runsc is not installed"
        );
        eprintln!("SKIPPED: needs runsc (make setup, or OVERWINTER_RUNSC)");
    }
    found
}

fn rustix_is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|meta| std::os::unix::fs::MetadataExt::uid(&meta) == 0)
}

pub const BUSYBOX: &str = "/bin/busybox";

#[derive(Default)]
pub struct Receipts(Mutex<HashMap<SandboxId, Receipt>>);

impl Receipts {
    pub fn record(&self, key: EffectKey) {
        let receipt = Receipt {
            key,
            kind: "test".to_owned(),
            outcome: None,
        };
        self.0.lock().unwrap().insert(key.sandbox, receipt);
    }
}

#[async_trait]
impl Ledger for Receipts {
    async fn newest(&self, sandbox: SandboxId) -> Result<Option<Receipt>, LedgerUnavailable> {
        Ok(self.0.lock().unwrap().get(&sandbox).cloned())
    }
}

pub type Connection = (SandboxId, Box<dyn Io>, Peer);

pub struct Port(mpsc::UnboundedSender<Connection>);

impl Port {
    pub fn new(sender: mpsc::UnboundedSender<Connection>) -> Self {
        Self(sender)
    }
}

impl AttachPort for Port {
    fn connection(&self, sandbox: SandboxId, io: Box<dyn Io>, peer: Peer) {
        let _ = self.0.send((sandbox, io, peer));
    }

    fn agent(&self, _: SandboxId, _: &AttachProof, _: Arc<dyn Agent>) -> Result<(), AttachRefused> {
        Err(AttachRefused::NoSuchSandbox)
    }
}

/// A gateway's worth of driver. `driver` may be replaced: that is a restart.
pub struct Bed {
    pub driver: Arc<LocalDriver>,
    pub receipts: Arc<Receipts>,
    pub connections: mpsc::UnboundedReceiver<Connection>,
    pub config: LocalConfig,
    pub image: PinnedImage,
    sweep: Sweep,
    /// Last: what the driver has mounted in it goes first.
    pub folder: tempfile::TempDir,
}

impl Bed {
    /// A folder with an image in it, and settings of a gateway of its own.
    pub fn place() -> Result<(tempfile::TempDir, LocalConfig), Box<dyn std::error::Error>> {
        let folder = tempfile::Builder::new().prefix("ow-local-").tempdir()?;
        // The runtime's child, an ordinary user, walks through.
        fs::set_permissions(
            folder.path(),
            std::os::unix::fs::PermissionsExt::from_mode(0o755),
        )?;
        busybox_image(&folder.path().join("image"))?;
        let gateway = format!("test-{}", Uuid::now_v7().simple());
        let state = folder.path().join("state");
        Ok((
            folder,
            LocalConfig::new(state, PathBuf::from(BUSYBOX), gateway),
        ))
    }

    /// PID 1 is `init`, run by the image's shell.
    pub async fn new(init: &str) -> Result<Self, Box<dyn std::error::Error>> {
        Self::on(Path::new("runc"), init).await
    }

    /// The same with a runtime of one's choice.
    pub async fn on(runtime: &Path, init: &str) -> Result<Self, Box<dyn std::error::Error>> {
        let (folder, config) = Self::place()?;
        let image = format!("file:{}", folder.path().join("image").display());
        Self::made(folder, config, &image, runtime, init).await
    }

    /// With the image `host`, of a host that lies in the folder `host`.
    pub async fn on_host(runtime: &Path, init: &str) -> Result<Self, Box<dyn std::error::Error>> {
        let (folder, mut config) = Self::place()?;
        config.host_root = folder.path().join("host");
        host_root(&config.host_root)?;
        Self::made(folder, config, "host", runtime, init).await
    }

    async fn made(
        folder: tempfile::TempDir,
        mut config: LocalConfig,
        image: &str,
        runtime: &Path,
        init: &str,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        config.runtime = runtime.to_owned();
        config.init_args = Some(["/bin/sh", "-c", init].map(str::to_owned).to_vec());
        let (driver, receipts, connections) = open(&config, Arc::default())?;
        let image = driver.pin(image).await?;
        Ok(Self {
            driver,
            receipts,
            connections,
            sweep: Sweep(config.clone()),
            config,
            image,
            folder,
        })
    }

    /// Another gateway process finds what this one left: nothing of it is tidied up first.
    pub fn restart(&mut self) -> Outcome {
        std::mem::forget(Arc::clone(&self.driver));
        self.reopen()
    }

    /// As after an orderly end.
    pub fn reopen(&mut self) -> Outcome {
        let (driver, _, connections) = open(&self.config, Arc::clone(&self.receipts))?;
        (self.driver, self.connections) = (driver, connections);
        Ok(())
    }

    pub fn spec(&self) -> ComputeSpec {
        ComputeSpec {
            name: "winter".to_owned(),
            image: self.image.clone(),
            resources: Resources {
                memory_bytes: 256 << 20,
                cpu_millis: 1000,
                ..Resources::default()
            },
            network: "none".to_owned(),
            runtime: String::new(),
        }
    }

    /// The next effect on `sandbox`, its receipt written.
    pub fn effect(&self, sandbox: SandboxId, fence: u64, incarnation: u64) -> EffectContext {
        let key = EffectKey {
            sandbox,
            fence: Fence(fence),
            serial: Serial(1),
        };
        self.receipts.record(key);
        EffectContext {
            key,
            incarnation: Incarnation(incarnation),
            deadline: Duration::from_secs(20),
            options: overwinter_driver::EffectOptions::default(),
        }
    }

    pub async fn observed(
        &self,
        sandbox: SandboxId,
    ) -> Result<Observed, Box<dyn std::error::Error>> {
        Ok(self.driver.observe(sandbox).await?.observed)
    }

    pub fn state(&self) -> PathBuf {
        self.config.state_dir.clone()
    }

    pub fn sandbox_dir(&self, sandbox: SandboxId) -> PathBuf {
        self.state().join("sandboxes").join(sandbox.to_string())
    }

    /// Artifacts of checkpoints.
    pub fn artifacts(&self, sandbox: SandboxId) -> PathBuf {
        self.sandbox_dir(sandbox).join("artifacts")
    }

    /// A number that something inside writes to a file of the workspace; 0: none yet.
    pub fn number(&self, sandbox: SandboxId, file: &str) -> u64 {
        let path = self.sandbox_dir(sandbox).join("workspace").join(file);
        let text = fs::read_to_string(path).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    }

    /// What of a sandbox is in memory: below a folder named by that of the state.
    pub fn volatile_dir(&self, sandbox: SandboxId) -> PathBuf {
        volatile(&self.config).join(sandbox.to_string())
    }

    pub fn left(&self) -> Vec<String> {
        host_leftovers(&self.config)
    }
}

/// Ends what a test that has failed left running. One that has passed left nothing.
pub struct Sweep(pub LocalConfig);

impl Drop for Sweep {
    fn drop(&mut self) {
        let roots = fs::read_dir("/sys/fs/cgroup")
            .into_iter()
            .flatten()
            .flatten();
        let ours: Vec<_> = roots
            .map(|root| root.path().join("overwinter").join(&self.0.gateway_id))
            .filter(|group| group.exists())
            .collect();
        let computes = || {
            let groups = ours
                .iter()
                .flat_map(|group| fs::read_dir(group).into_iter().flatten());
            groups
                .flatten()
                .map(|entry| entry.path())
                .filter(|path| path.is_dir())
        };
        for _ in 0..50 {
            for compute in computes() {
                let _ = fs::write(compute.join("freezer.state"), "THAWED");
                let pids = fs::read_to_string(compute.join("cgroup.procs")).unwrap_or_default();
                for pid in pids.lines().filter_map(|pid| pid.parse().ok()) {
                    // SAFETY: a signal to a process in a control group of the test's own.
                    unsafe { libc::kill(pid, libc::SIGKILL) };
                }
                let _ = fs::remove_dir(compute);
            }
            if computes().next().is_none() {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        ours.iter().for_each(|group| drop(fs::remove_dir(group)));
        let volatile = volatile(&self.0);
        for sandbox in fs::read_dir(&volatile).into_iter().flatten().flatten() {
            detach(&sandbox.path().join("memory"));
        }
        for folder in [volatile, sentries(&self.0)] {
            detach(&folder);
            let _ = fs::remove_dir_all(folder);
        }
    }
}

fn detach(folder: &Path) {
    if let Ok(path) = std::ffi::CString::new(folder.as_os_str().as_encoded_bytes()) {
        // SAFETY: a path of the test's own, ended with NUL.
        unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
    }
}

/// What is left on the host of this gateway: mounts, control groups, folders.
/// Where the driver has what a reboot ends: of its own, and of gVisor's runtime.
pub fn volatile(config: &LocalConfig) -> PathBuf {
    Path::new("/run/overwinter/sandboxes").join(short_name(config))
}

pub fn sentries(config: &LocalConfig) -> PathBuf {
    Path::new("/run/overwinter/runsc").join(short_name(config))
}

fn short_name(config: &LocalConfig) -> String {
    let state = config.state_dir.canonicalize();
    let state = state.unwrap_or_else(|_| config.state_dir.clone());
    let digest = Sha256::digest(state.as_os_str().as_encoded_bytes());
    digest[..8]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

pub fn host_leftovers(config: &LocalConfig) -> Vec<String> {
    let state = &config.state_dir;
    let text = state
        .canonicalize()
        .unwrap_or_else(|_| state.clone())
        .display()
        .to_string();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut left: Vec<String> = mounts
        .lines()
        .filter(|line| line.contains(&text) && !line.contains(&format!(" {text}/mnt ")))
        .map(str::to_owned)
        .collect();
    for root in fs::read_dir("/sys/fs/cgroup")
        .into_iter()
        .flatten()
        .flatten()
    {
        let group = root.path().join("overwinter").join(&config.gateway_id);
        if group.exists() {
            left.push(group.display().to_string());
        }
    }
    let kept = ["sandboxes", "ranges", "runc", "mnt"].map(|folder| state.join(folder));
    for folder in kept.into_iter().chain([volatile(config), sentries(config)]) {
        let entries = fs::read_dir(folder);
        for entry in entries.into_iter().flatten().flatten() {
            left.push(entry.path().display().to_string());
        }
    }
    left
}

pub type Opened = (
    Arc<LocalDriver>,
    Arc<Receipts>,
    mpsc::UnboundedReceiver<Connection>,
);

pub fn open(
    config: &LocalConfig,
    receipts: Arc<Receipts>,
) -> Result<Opened, Box<dyn std::error::Error>> {
    let (sender, connections) = mpsc::unbounded_channel();
    let ledger: Arc<dyn Ledger> = Arc::clone(&receipts) as _;
    let driver = LocalDriver::open(config.clone(), Arc::new(Port(sender)), ledger)?;
    Ok((driver, receipts, connections))
}

pub fn sandbox() -> SandboxId {
    SandboxId(Uuid::now_v7())
}

pub fn credentials(sandbox: SandboxId, incarnation: u64) -> Credentials {
    Credentials {
        sandbox,
        incarnation: Incarnation(incarnation),
        token: Token(format!("token-{incarnation}")),
    }
}

/// Waits for what another process does to a file; there is no event that crosses to a test.
pub async fn until(what: &str, mut is_so: impl FnMut() -> bool) -> Outcome {
    for _ in 0..400 {
        if is_so() {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    Err(format!("not within 10 s: {what}").into())
}

/// The static supervisor, where it has been built: what `make supervisor` makes.
pub fn supervisor() -> Option<PathBuf> {
    let target = std::env::current_exe().ok()?.ancestors().nth(3)?.to_owned();
    let built = [
        std::env::var_os("OVERWINTER_SUPERVISOR").map(PathBuf::from),
        Some(target.join("supervisor/overwinter-supervisor")),
    ];
    let found = built.into_iter().flatten().find(|path| path.is_file());
    if found.is_none() {
        assert!(
            std::env::var_os("OVERWINTER_REQUIRE_LOCAL").is_none(),
            "OVERWINTER_REQUIRE_LOCAL is set, and the static supervisor is not built"
        );
        eprintln!(
            "SKIPPED: needs the static supervisor (make supervisor, or OVERWINTER_SUPERVISOR)"
        );
    }
    found
}

/// A host with a merged root: busybox below `/usr`, and a list of what is installed.
pub fn host_root(root: &Path) -> Outcome {
    for folder in [
        "usr/bin",
        "usr/lib",
        "usr/local/share",
        "etc",
        "var/lib/dpkg",
    ] {
        fs::create_dir_all(root.join(folder))?;
    }
    busybox(&root.join("usr/bin"))?;
    for (name, target) in [("bin", "usr/bin"), ("sbin", "usr/bin"), ("lib", "/usr/lib")] {
        symlink(target, root.join(name))?;
    }
    fs::write(root.join("var/lib/dpkg/status"), "Package: busybox\n")?;
    Ok(())
}

/// A root with busybox and the links to it.
pub fn busybox_image(root: &Path) -> Outcome {
    for folder in ["bin", "tmp", "etc", "home"] {
        fs::create_dir_all(root.join(folder))?;
    }
    busybox(&root.join("bin"))?;
    fs::write(root.join("etc/passwd"), "root:x:0:0:root:/:/bin/sh\n")?;
    Ok(())
}

fn busybox(folder: &Path) -> Outcome {
    fs::copy(BUSYBOX, folder.join("busybox"))?;
    for applet in [
        "true", "false", "unshare", "mount", "mknod", "ls", "sh", "cat", "sleep", "touch", "mkdir",
        "rm", "id", "echo", "stat", "mv", "head", "dd", "od", "tr", "[", "date", "grep", "kill",
        "chmod", "chown", "cp", "ln", "find",
    ] {
        symlink("busybox", folder.join(applet))?;
    }
    Ok(())
}
