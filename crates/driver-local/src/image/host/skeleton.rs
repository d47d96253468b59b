//! A small tree that is made in memory first, so that it has a digest before it is anywhere.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use sha2::{Digest, Sha256};

use crate::error::{At, LocalError};
use crate::image::extract::ASIDE;
use crate::layout::hex;

static COUNT: AtomicU64 = AtomicU64::new(0);

/// The one user that is not the system's own.
pub(super) const USER: u32 = 1000;
pub(super) const USER_HOME: &str = "home/user";

/// Below the root, without a slash at the beginning. Owned by root, but for the user's home.
#[derive(Default)]
pub(super) struct Skeleton(BTreeMap<PathBuf, Entry>);

enum Entry {
    Folder { mode: u32, owner: u32 },
    File { mode: u32, bytes: Vec<u8> },
    Link(PathBuf),
}

impl Skeleton {
    pub(super) fn folder(&mut self, path: impl Into<PathBuf>, mode: u32) {
        self.0.insert(path.into(), Entry::Folder { mode, owner: 0 });
    }

    pub(super) fn file(&mut self, path: impl Into<PathBuf>, executable: bool, bytes: Vec<u8>) {
        let mode = if executable { 0o755 } else { 0o644 };
        self.0.insert(path.into(), Entry::File { mode, bytes });
    }

    pub(super) fn link(&mut self, path: impl Into<PathBuf>, target: PathBuf) {
        self.0.insert(path.into(), Entry::Link(target));
    }

    /// Makes the folders above `path` that are not there.
    pub(super) fn folders_above(&mut self, path: &Path) {
        for above in path.ancestors().skip(1) {
            if !above.as_os_str().is_empty() && !self.0.contains_key(above) {
                self.folder(above, 0o755);
            }
        }
    }

    pub(super) fn has(&self, path: &Path) -> bool {
        self.0.contains_key(path)
    }

    /// Those of a root that begin empty, or nearly.
    pub(super) fn empty_folders(&mut self) {
        for path in [
            "dev",
            "etc",
            "home",
            "mnt",
            "opt",
            "proc",
            "run",
            "srv",
            "sys",
            "usr",
            "var",
            "var/cache",
            "var/lib",
            "var/log",
        ] {
            self.folder(path, 0o755);
        }
        for path in ["tmp", "var/tmp"] {
            self.folder(path, 0o1777);
        }
        self.folder("root", 0o700);
        self.link("var/run", PathBuf::from("/run"));
        let home = Entry::Folder {
            mode: 0o700,
            owner: USER,
        };
        self.0.insert(PathBuf::from(USER_HOME), home);
    }

    pub(super) fn digest(&self) -> String {
        let mut hash = Sha256::new();
        for (path, entry) in &self.0 {
            let (kind, mode, owner, bytes) = match entry {
                Entry::Folder { mode, owner } => (0u8, *mode, *owner, &[][..]),
                Entry::File { mode, bytes } => (1, *mode, 0, &bytes[..]),
                Entry::Link(target) => (2, 0, 0, target.as_os_str().as_bytes()),
            };
            let path = path.as_os_str().as_bytes();
            hash.update((path.len() as u64).to_le_bytes());
            hash.update(path);
            hash.update([kind]);
            hash.update(mode.to_le_bytes());
            hash.update(owner.to_le_bytes());
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        }
        hex(&hash.finalize())
    }

    /// Writes it to `<target>/rootfs`, whole or not at all.
    pub(super) fn write(&self, target: &Path) -> Result<(), LocalError> {
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{ASIDE}host-{}-{count}", std::process::id());
        let aside = target.with_file_name(name);
        let done = self.lay_out(&aside.join("rootfs")).and_then(|()| {
            match fs::rename(&aside, target) {
                // Somebody else has made the same.
                Err(error)
                    if matches!(error.raw_os_error(), Some(libc::ENOTEMPTY | libc::EEXIST)) =>
                {
                    Ok(())
                }
                other => other.at("renaming", &aside),
            }
        });
        if aside.exists() {
            fs::remove_dir_all(&aside).at("removing", &aside)?;
        }
        done
    }

    fn lay_out(&self, root: &Path) -> Result<(), LocalError> {
        fs::create_dir_all(root).at("making", root)?;
        set_mode(root, 0o755)?;
        // Sorted: a folder comes before what is in it.
        for (path, entry) in &self.0 {
            let path = root.join(path);
            match entry {
                Entry::Folder { mode, owner } => {
                    fs::create_dir(&path).at("making", &path)?;
                    set_mode(&path, *mode)?;
                    chown(&path, Some(*owner), Some(*owner)).at("giving away", &path)?;
                }
                Entry::File { mode, bytes } => {
                    let mut file = File::create_new(&path).at("making", &path)?;
                    file.write_all(bytes).at("writing", &path)?;
                    set_mode(&path, *mode)?;
                }
                Entry::Link(to) => symlink(to, &path).at("linking", &path)?,
            }
        }
        // Before the rename that makes it count. Once for each state of the host's.
        let opened = File::open(root).at("opening", root)?;
        rustix::fs::syncfs(&opened).at("syncing", root)
    }
}

fn set_mode(path: &Path, mode: u32) -> Result<(), LocalError> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).at("setting the mode of", path)
}
