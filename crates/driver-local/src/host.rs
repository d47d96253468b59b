//! This host as the driver uses it: its folders, control groups, runtime and ids. No sandbox's
//! state is held here, and nothing here is async.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use overwinter_driver::ComputeSpec;
use overwinter_lifecycle::ids::SandboxId;
use rustix::process::{Resource, geteuid, getrlimit};

use crate::artifact;
use crate::cgroup::Cgroups;
use crate::compute::{ComputeRecord, Look};
use crate::config::LocalConfig;
use crate::error::{At, LocalError, OpenError};
use crate::layout::{CONTAINER, Layout, SandboxDir};
use crate::lock::SandboxLock;
use crate::network::Networks;
use crate::quota::Quota;
use crate::ranges::Ranges;
use crate::runtime::{Call, Kind, Runtimes};
use crate::{image, mounts, supervisors};

/// How often a folder above one that is being made may go: some are shared with other gateways,
/// and whoever finds one empty at its end removes it.
const REMOVED_MEANWHILE: u32 = 1_000;

pub(crate) struct Host {
    pub(crate) config: LocalConfig,
    pub(crate) layout: Layout,
    pub(crate) cgroups: Cgroups,
    pub(crate) ranges: Ranges,
    pub(crate) runtimes: Runtimes,
    pub(crate) quota: Option<Quota>,
    pub(crate) networks: Networks,
    /// The folder of the supervisor that new computes get.
    pub(crate) supervisor: PathBuf,
    pub(crate) boot_id: String,
    /// The most open files that a sandbox can have.
    pub(crate) open_files: u64,
}

impl Host {
    pub(crate) fn open(config: LocalConfig) -> Result<Self, OpenError> {
        let uid = geteuid();
        if !uid.is_root() {
            return Err(OpenError::NotRoot { uid: uid.as_raw() });
        }
        let id = &config.gateway_id;
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if id.is_empty() || id.len() > 128 || id.starts_with('.') || !id.chars().all(plain) {
            return Err(OpenError::GatewayId(id.clone()));
        }
        folder(&config.state_dir, 0o711)?;
        let state = fs::canonicalize(&config.state_dir).at("resolving", &config.state_dir)?;
        let layout = Layout::new(state, config.host_root.clone());
        for path in [
            layout.images(),
            layout.images_by_digest(),
            layout.supervisors(),
            layout.ranges(),
            layout.runc_root(),
            layout.sandboxes(),
        ] {
            folder(&path, 0o700)?;
        }
        folder(&layout.mounts, 0o711)?;
        for path in [&layout.volatile, &layout.sentries] {
            folder(path, 0o711)?;
            mounts::in_memory(path)?;
        }
        let runtimes = Runtimes::find(&config.runtime, &config.also, config.runtime_concurrency)?;
        let cgroups = Cgroups::find(&config.gateway_id).ok_or(OpenError::NoFreezer)?;
        if !config.supervisor.is_file() {
            return Err(OpenError::NoSupervisor {
                path: config.supervisor.clone(),
            });
        }
        let supervisor = supervisors::keep(&layout.supervisors(), &config.supervisor)?;
        let named = Named::find(&layout, &supervisor)?;
        supervisors::sweep(&layout.supervisors(), &named.supervisors)?;
        image::sweep(&layout, &named.images)?;
        mounts::isolate(&layout.mounts)?;
        let boot = Path::new("/proc/sys/kernel/random/boot_id");
        Ok(Self {
            ranges: Ranges::open(layout.ranges(), config.uid_base, config.uid_count)?,
            quota: Quota::find(&layout.sandboxes()),
            networks: Networks::find(&config)?,
            boot_id: fs::read_to_string(boot)
                .at("reading", boot)?
                .trim()
                .to_owned(),
            open_files: getrlimit(Resource::Nofile)
                .maximum
                .unwrap_or(1 << 20)
                .min(1 << 20),
            config,
            layout,
            cgroups,
            runtimes,
            supervisor,
        })
    }

    pub(crate) fn look(&self, sandbox: SandboxId) -> Result<Look, LocalError> {
        Look::at(&self.layout, &self.cgroups, &self.boot_id, sandbox)
    }

    /// A call of the runtime for one compute.
    pub(crate) fn call<'a>(
        &self,
        dir: &SandboxDir,
        record: &ComputeRecord,
        lock: &'a SandboxLock,
        until: Instant,
    ) -> Call<'a> {
        let native = &record.native;
        Call {
            root: self.layout.runtime_root(record.runtime, native),
            bundle: dir.bundle(),
            container: match record.runtime {
                Kind::Runc => native.clone(),
                Kind::Gvisor => CONTAINER.to_owned(),
            },
            lock,
            until,
        }
    }

    /// Whether a sandbox's storage is there.
    pub(crate) fn has_storage(&self, sandbox: SandboxId) -> bool {
        let dir = self.layout.sandbox(sandbox);
        dir.workspace().is_dir() && dir.root().is_dir()
    }

    /// Every native name of this gateway's that has left something outside its sandbox's folder.
    pub(crate) fn natives(&self) -> Result<BTreeSet<String>, LocalError> {
        let mut natives = self.cgroups.own()?;
        natives.extend(names(&self.layout.runc_root())?);
        natives.extend(names(&self.layout.sentries)?);
        natives.extend(names(&self.layout.mounts)?);
        Ok(natives)
    }

    /// Whose compute a native name is of.
    pub(crate) fn sandbox_of(native: &str) -> Option<SandboxId> {
        native.get(..32)?.parse().ok()
    }

    /// Every sandbox that has a folder.
    pub(crate) fn sandboxes(&self) -> Result<Vec<SandboxId>, LocalError> {
        let names = names(&self.layout.sandboxes())?;
        Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
    }

    /// What an orderly end leaves to nobody.
    pub(crate) fn close(&self) {
        self.prune();
        mounts::release(&self.layout.mounts);
        mounts::leave_memory(&self.layout.volatile);
        mounts::leave_memory(&self.layout.sentries);
        // Empty when nothing is being started, and when there is no sandbox. The folders above them
        // are shared with other gateways, and removed by the last.
        for own in [
            &self.layout.mounts,
            &self.layout.volatile,
            &self.layout.sentries,
        ] {
            for folder in own.ancestors().take(2) {
                if fs::remove_dir(folder).is_err() {
                    break;
                }
            }
        }
    }

    /// Removes what belongs to no sandbox, once there is none. While nothing is being started.
    pub(crate) fn prune(&self) {
        self.cgroups.prune();
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.close();
    }
}

/// What compute and memory on disk need as long as they are there.
struct Named {
    supervisors: Vec<PathBuf>,
    /// Digests.
    images: Vec<String>,
}

impl Named {
    fn find(layout: &Layout, current: &Path) -> Result<Self, LocalError> {
        let mut named = Self {
            supervisors: vec![current.to_owned()],
            images: Vec::new(),
        };
        for name in names(&layout.sandboxes())? {
            let Ok(sandbox) = name.parse() else { continue };
            let dir = layout.sandbox(sandbox);
            if let Some(record) = ComputeRecord::read(&dir)? {
                named.supervisors.push(record.supervisor);
            }
            // Written before anything is made from it: where it is not whole, nothing was.
            if let Ok(spec) = read_spec(&dir) {
                named.images.push(spec.image.digest);
            }
            for artifact in artifact::names(&dir)? {
                // One that is damaged is not restored either.
                if let Some(manifest) = artifact::found(&dir, sandbox, &artifact)? {
                    let belongs = manifest.belongs();
                    let supervisor = layout.supervisors().join(&belongs.supervisor);
                    named.supervisors.push(supervisor);
                    named.images.push(belongs.spec.image.digest.clone());
                }
            }
        }
        Ok(named)
    }
}

/// What the compute was made from, and with memory on disk is made from again.
pub(crate) fn read_spec(dir: &SandboxDir) -> Result<ComputeSpec, LocalError> {
    let path = dir.spec();
    let bytes = fs::read(&path).at("reading", &path)?;
    serde_json::from_slice(&bytes).map_err(|source| LocalError::Damaged { path, source })
}

/// Of what a folder holds. None where it is not there.
///
/// # Errors
/// When it cannot be read: who finds nothing there ends nothing, and believes that nothing lives.
pub(crate) fn names(folder: &Path) -> Result<Vec<String>, LocalError> {
    match entries(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        found => found.at("reading", folder),
    }
}

/// The same, of a folder that is there.
pub(crate) fn entries(folder: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        names.extend(entry?.file_name().into_string().ok());
    }
    Ok(names)
}

/// Makes a folder, and those above it, and sets its mode whatever the umask.
pub(crate) fn folder(path: &Path, mode: u32) -> Result<(), LocalError> {
    let mut made = DirBuilder::new().recursive(true).mode(0o755).create(path);
    for _ in 0..REMOVED_MEANWHILE {
        match made {
            // What is above it was there, or was not, and has gone since.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::AlreadyExists
                ) =>
            {
                made = DirBuilder::new().recursive(true).mode(0o755).create(path);
            }
            _ => break,
        }
    }
    made.at("making", path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).at("setting the mode of", path)
}
