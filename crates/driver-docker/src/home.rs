//! The folders.
//!
//! ```text
//! <state>/daemon.json                     which daemon has the containers
//!        /supervisors/<sha256>/supervisor
//!        /sandboxes/<id>/attach/          mounted at /run/overwinter
//!                       /supervisor/      mounted at /.overwinter: a link to one of the above, unless nothing
//!                                         may be started
//!                       /workspace/       mounted at /workspace
//!                       /receipt.json     which effect started what runs
//! ```

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use overwinter_driver::door;
use overwinter_lifecycle::ids::SandboxId;
use sha2::{Digest, Sha256};

use crate::error::{At, DockerError};

const SUPERVISOR: &str = "supervisor";

pub(crate) struct Home {
    state: PathBuf,
    /// The supervisor that whatever starts from now on gets.
    supervisor: PathBuf,
}

/// Of one sandbox.
#[derive(Clone, Debug)]
pub(crate) struct SandboxDir(PathBuf);

impl SandboxDir {
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn attach(&self) -> PathBuf {
        self.0.join("attach")
    }

    pub(crate) fn supervisor(&self) -> PathBuf {
        self.0.join(SUPERVISOR)
    }

    pub(crate) fn workspace(&self) -> PathBuf {
        self.0.join("workspace")
    }

    pub(crate) fn receipt(&self) -> PathBuf {
        self.0.join("receipt.json")
    }
}

impl Home {
    /// Makes what is the same for all, and keeps the supervisor by its content.
    pub(crate) fn open(state: &Path, supervisor: &Path) -> Result<Self, DockerError> {
        folder(state, 0o711)?;
        let state = fs::canonicalize(state).at("resolving", state)?;
        // The daemon looks up what it mounts as root, and a remapped root inside walks through.
        folder(&state.join("sandboxes"), 0o711)?;
        let kept = state.join("supervisors");
        folder(&kept, 0o711)?;
        Ok(Self {
            supervisor: keep(&kept, supervisor)?,
            state,
        })
    }

    pub(crate) fn daemon(&self) -> PathBuf {
        self.state.join("daemon.json")
    }

    pub(crate) fn sandbox(&self, sandbox: SandboxId) -> SandboxDir {
        SandboxDir(self.state.join("sandboxes").join(sandbox.to_string()))
    }

    pub(crate) fn has_storage(&self, sandbox: SandboxId) -> bool {
        self.sandbox(sandbox).workspace().is_dir()
    }

    /// Folders of a sandbox. `root`: user and group of the container's user 0.
    pub(crate) fn make(&self, sandbox: SandboxId, root: (u32, u32)) -> Result<(), DockerError> {
        let dir = self.sandbox(sandbox);
        folder(&dir.0, 0o711)?;
        let workspace = dir.workspace();
        if !workspace.is_dir() {
            folder(&workspace, 0o755)?;
            chown(&workspace, Some(root.0), Some(root.1)).at("giving away", &workspace)?;
            // A sandbox whose create was answered is there after a power loss.
            let all = dir.0.parent().map(Path::to_owned);
            for path in [workspace, dir.0].into_iter().chain(all) {
                let opened = fs::File::open(&path).at("opening", &path)?;
                opened.sync_all().at("syncing", &path)?;
            }
        }
        Ok(())
    }

    /// What must be there before each start: the folders that are mounted beside the workspace. `base` is as
    /// [`door`] has it.
    pub(crate) fn furnish(&self, sandbox: SandboxId, base: u32) -> Result<(), DockerError> {
        let dir = self.sandbox(sandbox);
        folder(&dir.attach(), 0o711)?;
        door::give(&dir.attach(), base)?;
        folder(&dir.supervisor(), 0o755)
    }

    /// Lets the container be started: the supervisor of today is where its PID 1 is to be.
    pub(crate) fn allow_start(&self, sandbox: SandboxId) -> Result<(), DockerError> {
        let dir = self.sandbox(sandbox);
        let aside = dir.supervisor().join(".new");
        ignore_missing(fs::remove_file(&aside)).at("removing", &aside)?;
        fs::hard_link(&self.supervisor, &aside).at("linking", &aside)?;
        fs::rename(&aside, dir.supervisor().join(SUPERVISOR)).at("renaming", &aside)
    }

    /// From now on no start of the container has anything to run, whoever asked for it, and when. What
    /// runs goes on with the file that it was started from.
    pub(crate) fn forbid_start(&self, sandbox: SandboxId) -> Result<(), DockerError> {
        let file = self.sandbox(sandbox).supervisor().join(SUPERVISOR);
        ignore_missing(fs::remove_file(&file)).at("removing", &file)
    }

    pub(crate) fn remove(&self, sandbox: SandboxId) -> Result<(), DockerError> {
        let dir = self.sandbox(sandbox);
        ignore_missing(fs::remove_dir_all(&dir.0)).at("removing", &dir.0)
    }
}

/// Copies `binary` to `<folder>/<sha256>/supervisor`, unless it is there. Older ones go: a sandbox holds
/// a link of its own.
fn keep(folder_of_all: &Path, binary: &Path) -> Result<PathBuf, DockerError> {
    let bytes = fs::read(binary).at("reading", binary)?;
    let digest: String = Sha256::digest(&bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let kept = folder_of_all.join(&digest);
    let file = kept.join(SUPERVISOR);
    if !file.exists() {
        folder(&kept, 0o711)?;
        let aside = kept.join(".new");
        fs::write(&aside, &bytes).at("writing", &aside)?;
        fs::set_permissions(&aside, fs::Permissions::from_mode(0o755))
            .at("setting the mode of", &aside)?;
        let written = fs::File::open(&aside).at("opening", &aside)?;
        written.sync_all().at("syncing", &aside)?;
        fs::rename(&aside, &file).at("renaming", &aside)?;
    }
    for entry in fs::read_dir(folder_of_all).at("reading", folder_of_all)? {
        let path = entry.at("reading", folder_of_all)?.path();
        if path != kept {
            fs::remove_dir_all(&path).at("removing", &path)?;
        }
    }
    Ok(file)
}

/// Makes a folder with exactly this mode, unless it is there.
fn folder(path: &Path, mode: u32) -> Result<(), DockerError> {
    DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(path)
        .at("making", path)?;
    // The process's umask has no say.
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).at("setting the mode of", path)
}

/// Replaces a file as a whole.
pub(crate) fn write_aside(path: &Path, bytes: &[u8]) -> Result<(), DockerError> {
    let aside = path.with_extension("new");
    let written = fs::write(&aside, bytes).and_then(|()| fs::rename(&aside, path));
    if written.is_err() {
        let _ = fs::remove_file(&aside);
    }
    written.at("writing", path)
}

fn ignore_missing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
