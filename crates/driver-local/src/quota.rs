//! Limits on the bytes and inodes of a sandbox's storage, by project quotas (ext4, xfs), where the
//! filesystem is mounted with them.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use crate::error::{At, LocalError};

/// `PRJQUOTA` of linux/quota.h.
const PROJECT: u32 = 2;
/// `Q_GETINFO`, `Q_GETQUOTA`, `Q_SETQUOTA` of linux/quota.h.
const GET_INFO: u32 = 0x80_0005;
const GET_QUOTA: u32 = 0x80_0007;
const SET_QUOTA: u32 = 0x80_0008;
/// `QIF_BLIMITS` and `QIF_ILIMITS`.
const LIMITS: u32 = 1 | 4;
/// `FS_IOC_FSGETXATTR`, `FS_IOC_FSSETXATTR`, `FS_XFLAG_PROJINHERIT` of linux/fs.h.
const FS_GET_XATTR: libc::c_ulong = 0x801c_581f;
const FS_SET_XATTR: libc::c_ulong = 0x401c_5820;
const PROJECT_INHERIT: u32 = 0x200;
/// Quota blocks.
const BLOCK: u64 = 1024;
/// One inode for so many bytes: what mkfs.ext4 gives a filesystem.
const BYTES_PER_INODE: u64 = 16_384;

/// `struct if_dqblk`.
#[repr(C)]
#[derive(Default)]
struct Block {
    hard_blocks: u64,
    soft_blocks: u64,
    /// Bytes.
    space: u64,
    hard_inodes: u64,
    soft_inodes: u64,
    inodes: u64,
    block_time: u64,
    inode_time: u64,
    valid: u32,
}

/// `struct fsxattr`.
#[repr(C)]
#[derive(Default)]
struct FsXattr {
    flags: u32,
    extent_size: u32,
    extents: u32,
    project: u32,
    cow_extent_size: u32,
    padding: [u8; 8],
}

/// Project quotas are on.
#[derive(Debug)]
pub(crate) struct Quota(());

impl Quota {
    /// None: the filesystem of `folder` has none.
    pub(crate) fn find(folder: &Path) -> Option<Self> {
        let file = File::open(folder).ok()?;
        let mut info = [0_u64; 8];
        quotactl(&file, GET_INFO, 0, info.as_mut_ptr().cast()).ok()?;
        Some(Self(()))
    }

    /// Counts `folder` and all that will be made in it under `project`, at most `bytes` (0: no limit).
    #[allow(clippy::unused_self)] // Having one is the proof that quotas are on.
    pub(crate) fn limit(&self, folder: &Path, project: u32, bytes: u64) -> Result<(), LocalError> {
        let file = File::open(folder).at("opening", folder)?;
        count(&file, folder, project)?;
        let mut block = Block {
            hard_blocks: bytes.div_ceil(BLOCK),
            hard_inodes: if bytes == 0 {
                0
            } else {
                (bytes / BYTES_PER_INODE).max(1024)
            },
            valid: LIMITS,
            ..Block::default()
        };
        quotactl(&file, SET_QUOTA, project, (&raw mut block).cast()).at("limiting", folder)
    }

    /// Counts what will be made in `folder`, which is empty, under nobody.
    #[allow(clippy::unused_self)]
    pub(crate) fn exempt(&self, folder: &Path) -> Result<(), LocalError> {
        count(&File::open(folder).at("opening", folder)?, folder, 0)
    }

    /// Bytes under `project`.
    #[allow(clippy::unused_self)]
    pub(crate) fn used(&self, folder: &Path, project: u32) -> Result<u64, LocalError> {
        let file = File::open(folder).at("opening", folder)?;
        let mut block = Block::default();
        quotactl(&file, GET_QUOTA, project, (&raw mut block).cast())
            .at("reading the quota of", folder)?;
        Ok(block.space)
    }
}

fn count(file: &File, folder: &Path, project: u32) -> Result<(), LocalError> {
    let mut attributes = FsXattr::default();
    ioctl(file, FS_GET_XATTR, &raw mut attributes).at("reading the project of", folder)?;
    attributes.project = project;
    attributes.flags |= PROJECT_INHERIT;
    ioctl(file, FS_SET_XATTR, &raw mut attributes).at("setting the project of", folder)
}

fn quotactl(file: &File, command: u32, id: u32, data: *mut libc::c_void) -> io::Result<()> {
    // QCMD of linux/quota.h.
    let command = command << 8 | PROJECT;
    // SAFETY: `data` points to what the command reads or writes, which its callers give by type.
    let result = unsafe {
        libc::syscall(
            libc::SYS_quotactl_fd,
            file.as_raw_fd(),
            libc::c_long::from(command),
            libc::c_long::from(id),
            data,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn ioctl(file: &File, request: libc::c_ulong, attributes: *mut FsXattr) -> io::Result<()> {
    // SAFETY: both requests take a struct fsxattr, which lives through the call.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), request as libc::Ioctl, attributes) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
