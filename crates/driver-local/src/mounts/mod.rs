//! The mounts that a runtime finds when it starts a sandbox, made with system calls.
//!
//! They are needed only while the runtime starts: the sandbox's own mount namespace then holds its
//! copies. So they are detached again right after, nothing is left for a stop to unmount, and the
//! host's mount table stays as short as it was however many sandboxes live.

mod usr;

use std::ffi::CString;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, chown};
use std::path::{Path, PathBuf};

use rustix::fs::CWD;
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount,
    mount_bind, mount_change, move_mount, open_tree, unmount,
};

use crate::error::{At, LocalError, ignore_missing};
use crate::userns;

/// What is to be mounted for one compute.
pub(crate) struct Plan<'a> {
    /// Where: a folder of this compute alone.
    pub(crate) at: PathBuf,
    /// First host id of its range.
    pub(crate) base: u32,
    /// The image's root; never written.
    pub(crate) lower: &'a Path,
    /// This host's `/usr`, if the sandbox's is made of it. Then `root` holds `usr/upper` and
    /// `usr/work` too.
    pub(crate) usr: Option<&'a Path>,
    /// Holds `upper` and `work`.
    pub(crate) root: &'a Path,
    pub(crate) workspace: &'a Path,
    pub(crate) attach: &'a Path,
    pub(crate) supervisor: &'a Path,
}

/// The paths that the runtime's configuration names. Detached when dropped.
pub(crate) struct Mounted {
    at: PathBuf,
    has_usr: bool,
}

/// Mount points.
const POINTS: [&str; 7] = [
    "lower",
    "data",
    "workspace",
    "attach",
    "supervisor",
    "root",
    "sysfs",
];

const READ_ONLY: u64 = libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;

impl Mounted {
    pub(crate) fn root(&self) -> PathBuf {
        self.at.join("root")
    }
    /// What is to be mounted on `/usr`, if the root has none of its own.
    pub(crate) fn usr(&self) -> Option<PathBuf> {
        self.has_usr.then(|| self.at.join(usr::POINT))
    }
    pub(crate) fn workspace(&self) -> PathBuf {
        self.at.join("workspace")
    }
    pub(crate) fn attach(&self) -> PathBuf {
        self.at.join("attach")
    }
    pub(crate) fn supervisor(&self) -> PathBuf {
        self.at.join("supervisor")
    }

    pub(crate) fn sysfs(&self) -> PathBuf {
        self.at.join("sysfs")
    }

    /// Puts a mount that was made elsewhere where the others are.
    pub(crate) fn add_sysfs(&self, tree: &OwnedFd) -> Result<(), LocalError> {
        let to = self.sysfs();
        move_mount(tree, "", CWD, &to, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
            .at("mounting on", &to)
    }

    /// Mounts everything of `plan`, or nothing.
    pub(crate) fn make(plan: &Plan<'_>) -> Result<Self, LocalError> {
        let namespace = userns::for_mounts(plan.base)?;
        private_folder(&plan.at, 0o700)?;
        let mounted = Self {
            at: plan.at.clone(),
            has_usr: plan.usr.is_some(),
        };
        // One mount below which all others lie, so that one call detaches them all: each waits for
        // every CPU.
        let flags = MountFlags::NODEV | MountFlags::NOSUID | MountFlags::NOEXEC;
        mount("tmpfs", &plan.at, "tmpfs", flags, c"size=64k,mode=0700")
            .at("mounting on", &plan.at)?;
        for name in POINTS {
            private_folder(&plan.at.join(name), 0o700)?;
        }
        let mapped = Some(&namespace);
        bind(plan.lower, &plan.at.join("lower"), READ_ONLY, mapped)?;
        bind(
            plan.root,
            &plan.at.join("data"),
            libc::MOUNT_ATTR_NODEV,
            mapped,
        )?;
        bind(
            plan.workspace,
            &mounted.workspace(),
            libc::MOUNT_ATTR_NODEV,
            mapped,
        )?;
        bind(
            plan.attach,
            &mounted.attach(),
            READ_ONLY | libc::MOUNT_ATTR_NOEXEC,
            None,
        )?;
        bind(plan.supervisor, &mounted.supervisor(), READ_ONLY, None)?;
        upper_over(&plan.at, "lower", "data", "root", MountFlags::empty())?;
        if let Some(usr) = plan.usr {
            usr::mount_at(&plan.at, usr, plan.base)?;
        }
        // The runtime's child passes through as the sandbox's root, and nobody else does.
        chown(&plan.at, Some(plan.base), Some(plan.base)).at("giving away", &plan.at)?;
        Ok(mounted)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(error) = detach(&self.at) {
            tracing::warn!(%error, "mounts of a start are left behind until the next one");
        }
    }
}

/// Detaches all that is mounted at `at` and removes the folder. Nothing there is fine, and so is
/// another that does the same at the same time.
pub(crate) fn detach(at: &Path) -> Result<(), LocalError> {
    loop {
        match unmount(at, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            // Once more: an earlier start that was killed may have mounted below.
            Ok(()) => continue,
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => break,
            Err(error) => return Err(error).at("unmounting", at),
        }
    }
    ignore_missing(fs::remove_dir(at)).at("removing", at)
}

/// Makes `folder` a mount of its own whose changes no other mount namespace is told of.
pub(crate) fn isolate(folder: &Path) -> Result<(), LocalError> {
    if !is_mount_point(folder)? {
        mount_bind(folder, folder).at("mounting", folder)?;
    }
    mount_change(folder, MountPropagationFlags::PRIVATE).at("making private", folder)
}

/// Has `folder` in memory from now on. It is already where the host's `/run` is, as on most; and where
/// it holds something, computes use that, and it stays as it is.
pub(crate) fn in_memory(folder: &Path) -> Result<(), LocalError> {
    let stat = rustix::fs::statfs(folder).at("looking at", folder)?;
    if stat.f_type == libc::TMPFS_MAGIC || !is_empty(folder)? {
        return Ok(());
    }
    let flags = MountFlags::NODEV | MountFlags::NOSUID | MountFlags::NOEXEC;
    mount("tmpfs", folder, "tmpfs", flags, c"mode=0711").at("mounting on", folder)?;
    mount_change(folder, MountPropagationFlags::PRIVATE).at("making private", folder)
}

/// Undoes [`in_memory`] where nothing is left in it.
pub(crate) fn leave_memory(folder: &Path) {
    if is_empty(folder).is_ok_and(|is| is) && is_mount_point(folder).is_ok_and(|is| is) {
        // Whoever still has one of its folders open, as a supervisor that is ending, keeps nobody waiting.
        let _ = unmount(folder, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
    }
}

fn is_empty(folder: &Path) -> Result<bool, LocalError> {
    let mut entries = fs::read_dir(folder).at("reading", folder)?;
    Ok(entries.next().is_none())
}

/// Undoes [`isolate`], unless something is mounted in it still.
pub(crate) fn release(folder: &Path) {
    if is_mount_point(folder).is_ok_and(|is| is) {
        // Busy while another start is under way: then it stays.
        let _ = unmount(folder, UnmountFlags::NOFOLLOW);
    }
}

fn is_mount_point(folder: &Path) -> Result<bool, LocalError> {
    let stat = rustix::fs::statx(
        CWD,
        folder,
        rustix::fs::AtFlags::SYMLINK_NOFOLLOW,
        rustix::fs::StatxFlags::BASIC_STATS,
    )
    .at("looking at", folder)?;
    Ok(stat
        .stx_attributes
        .contains(rustix::fs::StatxAttributes::MOUNT_ROOT))
}

fn private_folder(path: &Path, mode: u32) -> Result<(), LocalError> {
    match DirBuilder::new().mode(mode).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other.at("making", path),
    }
}

fn bind(from: &Path, to: &Path, attributes: u64, mapped: Option<&File>) -> Result<(), LocalError> {
    // Not recursive: what happens to be mounted below an image or a sandbox is none of its.
    let tree = open_tree(
        CWD,
        from,
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC,
    )
    .at("cloning the mount of", from)?;
    set_attributes(&tree, attributes, mapped).at("mapping the ids of", from)?;
    move_mount(&tree, "", CWD, to, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).at("mounting on", to)
}

/// rustix has no mount_setattr(2) yet.
fn set_attributes(tree: &OwnedFd, attributes: u64, mapped: Option<&File>) -> io::Result<()> {
    let mut attr = libc::mount_attr {
        attr_set: attributes,
        attr_clr: 0,
        propagation: libc::MS_PRIVATE,
        userns_fd: 0,
    };
    if let Some(namespace) = mapped {
        attr.attr_set |= libc::MOUNT_ATTR_IDMAP;
        attr.userns_fd = u64::try_from(namespace.as_raw_fd()).unwrap_or(u64::MAX);
    }
    let empty = CString::default();
    // SAFETY: the descriptor, the path and the struct live through the call; the size is the struct's.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_fd().as_raw_fd(),
            empty.as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attr,
            size_of::<libc::mount_attr>(),
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Mounts on `to` what `upper` of `data` holds over `lower`; all of them lie in `at`.
fn upper_over(
    at: &Path,
    lower: &str,
    data: &str,
    to: &str,
    flags: MountFlags,
) -> Result<(), LocalError> {
    let text = at
        .to_str()
        .ok_or(LocalError::Layers("the path is not UTF-8"))?;
    // index=off: the upper layer may come to lie over an equal image at another place.
    let options = CString::new(format!(
        "lowerdir={text}/{lower},upperdir={text}/{data}/upper,workdir={text}/{data}/work,index=off,redirect_dir=off,metacopy=off"
    ))
    .map_err(|_| LocalError::Layers("the path holds a NUL"))?;
    let to = at.join(to);
    let flags = flags | MountFlags::NODEV;
    mount("overlay", &to, "overlay", flags, options.as_c_str())
        .at("mounting the layers on", &to)?;
    // Where the mounter may not write to the work folder, overlay mounts read-only and says nothing.
    let writable = rustix::fs::statvfs(&to).at("looking at", &to)?;
    if writable
        .f_flag
        .contains(rustix::fs::StatVfsMountFlags::RDONLY)
    {
        return Err(LocalError::Layers(
            "overlay came up read-only; the filesystem of the state folder cannot hold its upper layer",
        ));
    }
    Ok(())
}

/// Whether the filesystem of `folder` can map ids, by trying it on a mount that is nowhere.
pub(crate) fn try_mapping(folder: &Path) -> Result<(), LocalError> {
    let namespace = userns::for_mounts(1 << 28)?;
    let tree = open_tree(
        CWD,
        folder,
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC,
    )
    .at("cloning the mount of", folder)?;
    set_attributes(&tree, 0, Some(&namespace)).at("mapping the ids of", folder)
}
