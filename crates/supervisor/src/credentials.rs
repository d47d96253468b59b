//! Acting as another user: for one worker thread while it works on files, and for good in a child
//! before it becomes the user's program.
//!
//! Raw system calls throughout: they act on the calling thread alone, whereas libc's wrappers
//! change every thread of the process (and take locks, which a forked child must not).

use std::io;

use libc::{c_int, c_long};

use crate::users::User;

const CAPABILITY_VERSION_3: u32 = 0x2008_0522;
const CAP_SETGID: u32 = 6;
const CAP_SETUID: u32 = 7;

#[repr(C)]
struct CapHeader {
    version: u32,
    pid: c_int,
}

/// One thread's capability sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Capabilities {
    pub effective: u64,
    pub permitted: u64,
    pub inheritable: u64,
}

fn check(result: c_long) -> io::Result<c_long> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

impl Capabilities {
    const NONE: Self = Self {
        effective: 0,
        permitted: 0,
        inheritable: 0,
    };

    /// Of the calling thread.
    pub(crate) fn current() -> io::Result<Self> {
        let mut header = CapHeader {
            version: CAPABILITY_VERSION_3,
            pid: 0,
        };
        let mut words = [[0u32; 3]; 2];
        // SAFETY: the header and the two data records have the layout of version 3.
        check(unsafe { libc::syscall(libc::SYS_capget, &raw mut header, words.as_mut_ptr()) })?;
        let join = |n: usize| u64::from(words[0][n]) | u64::from(words[1][n]) << 32;
        Ok(Self {
            effective: join(0),
            permitted: join(1),
            inheritable: join(2),
        })
    }

    fn apply(self) -> io::Result<()> {
        let header = CapHeader {
            version: CAPABILITY_VERSION_3,
            pid: 0,
        };
        let low = [self.effective, self.permitted, self.inheritable].map(|set| set as u32);
        let high = [self.effective, self.permitted, self.inheritable].map(|set| (set >> 32) as u32);
        let words = [low, high];
        // SAFETY: the header and the two data records have the layout of version 3.
        check(unsafe { libc::syscall(libc::SYS_capset, &raw const header, words.as_ptr()) })?;
        Ok(())
    }
}

/// Who the supervisor itself is, read once at the start.
#[derive(Clone, Debug)]
pub(crate) struct Own {
    pub uid: u32,
    pub gid: u32,
    groups: Vec<u32>,
    capabilities: Capabilities,
    /// The limit on open files that this process was started with, and its children get.
    open_files: libc::rlimit,
}

impl Own {
    /// Reads the calling thread's identity.
    pub(crate) fn read() -> io::Result<Self> {
        let mut groups = vec![0u32; 1024];
        // SAFETY: the buffer has the length that is passed; the rest only return numbers.
        unsafe {
            let count = check(libc::syscall(
                libc::SYS_getgroups,
                groups.len() as c_int,
                groups.as_mut_ptr(),
            ))?;
            groups.truncate(count as usize);
            let mut open_files: libc::rlimit = std::mem::zeroed();
            if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut open_files) < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(Self {
                open_files,
                uid: libc::geteuid(),
                gid: libc::getegid(),
                groups,
                capabilities: Capabilities::current()?,
            })
        }
    }

    /// Lets this process open as many files as its hard limit says: each child costs it four or
    /// five. Where that is refused, fewer children run at once.
    pub(crate) fn raise_open_files(&self) {
        let raised = libc::rlimit {
            rlim_cur: self.open_files.rlim_max,
            ..self.open_files
        };
        // SAFETY: a record of the kernel's size.
        if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) } < 0 {
            eprintln!(
                "overwinter-supervisor: open files: {}",
                io::Error::last_os_error()
            );
        }
    }

    /// In a forked child: back to what a program expects.
    pub(crate) fn restore_open_files(&self) {
        // SAFETY: a record of the kernel's size.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const self.open_files) };
    }

    /// Whether this process may become other users at all.
    pub(crate) fn can_switch(&self) -> bool {
        let needed = 1 << CAP_SETUID | 1 << CAP_SETGID;
        self.capabilities.effective & needed == needed
    }

    /// Who an unnamed user is: root, or oneself where nobody else can be had.
    pub(crate) fn default_user(&self) -> (u32, u32) {
        if self.can_switch() {
            (0, 0)
        } else {
            (self.uid, self.gid)
        }
    }

    fn is(&self, user: &User) -> bool {
        !self.can_switch() && self.uid == user.uid
    }
}

/// Takes `id` as user and group of this process for good and keeps its capabilities: for runtimes
/// that give capabilities to nobody but root. Must run before any other thread exists, and before
/// what the kernel undoes when a process changes its user ([`crate::pid1::protect`]).
///
/// The flag that keeps them stays set for every thread, and is lost by the exec of a child.
pub(crate) fn settle_as(id: u32) -> io::Result<()> {
    let held = Capabilities::current()?;
    // SAFETY: plain numbers.
    unsafe {
        check(libc::prctl(libc::PR_SET_KEEPCAPS, 1, 0, 0, 0).into())?;
        set_groups(&[])?;
        check(libc::syscall(libc::SYS_setresgid, id, id, id))?;
        check(libc::syscall(libc::SYS_setresuid, id, id, id))?;
    }
    held.apply()
}

/// Runs `work` on this thread with `user`'s file credentials. The thread has its own credentials
/// back when this returns.
///
/// The thread keeps its real and effective ids, so nothing of `user`'s can signal it or read its
/// memory meanwhile; only what the kernel asks of file access changes.
pub(crate) fn act_as<T>(
    own: &Own,
    user: &User,
    work: impl FnOnce() -> io::Result<T>,
) -> io::Result<T> {
    if own.is(user) {
        return work();
    }
    if !own.can_switch() {
        return Err(io::Error::from_raw_os_error(libc::EPERM));
    }
    let _back = Restore(own);
    set_groups(&user.groups)?;
    set_file_ids(user.uid, user.gid)?;
    if user.uid != 0 {
        // From the reserved user the kernel drops nothing by itself. Permitted stays: it is the
        // way back.
        Capabilities {
            effective: 0,
            ..own.capabilities
        }
        .apply()?;
    }
    work()
}

struct Restore<'a>(&'a Own);

impl Drop for Restore<'_> {
    fn drop(&mut self) {
        let own = self.0;
        let restored = own
            .capabilities
            .apply()
            .and_then(|()| set_groups(&own.groups));
        let restored = restored.and_then(|()| set_file_ids(own.uid, own.gid));
        // Leaving user 0 lowers effective capabilities, and going there raises them.
        if restored.is_err() || own.capabilities.apply().is_err() {
            // A worker with a user's credentials must serve nobody else, and ending the process
            // would end the sandbox: this thread waits for ever.
            loop {
                std::thread::park();
            }
        }
    }
}

/// Sets whom the kernel asks about this thread's file accesses.
///
/// Without setfsuid(2) (gVisor has none) the effective ids do: they decide whom this thread may
/// signal, never who may signal or trace it, which the real and saved ones do.
fn set_file_ids(uid: u32, gid: u32) -> io::Result<()> {
    // SAFETY: plain numbers. Neither of the first two reports failure; the second round reads back.
    unsafe {
        libc::syscall(libc::SYS_setfsgid, gid);
        if libc::syscall(libc::SYS_setfsuid, uid) < 0
            && io::Error::last_os_error().raw_os_error() == Some(libc::ENOSYS)
        {
            const SAME: u32 = u32::MAX;
            check(libc::syscall(libc::SYS_setresgid, SAME, gid, SAME))?;
            check(libc::syscall(libc::SYS_setresuid, SAME, uid, SAME))?;
            return Ok(());
        }
        let now_gid = libc::syscall(libc::SYS_setfsgid, u32::MAX);
        let now_uid = libc::syscall(libc::SYS_setfsuid, u32::MAX);
        if now_gid as u32 != gid || now_uid as u32 != uid {
            return Err(io::Error::from_raw_os_error(libc::EPERM));
        }
    }
    Ok(())
}

fn set_groups(groups: &[u32]) -> io::Result<()> {
    // SAFETY: the pointer and the length belong together.
    check(unsafe { libc::syscall(libc::SYS_setgroups, groups.len() as c_long, groups.as_ptr()) })?;
    Ok(())
}

/// Becomes `user` for good. For a forked child: no allocation, no lock.
///
/// Root keeps the bounding set, which is what the runtime granted the sandbox; any other user ends
/// with no capability at all. `no_new_privs` is left alone, so that setuid programs work.
pub(crate) fn become_user(own: &Own, user: &User) -> io::Result<()> {
    if own.is(user) {
        return Ok(());
    }
    set_groups(&user.groups)?;
    // SAFETY: plain numbers.
    unsafe {
        check(libc::syscall(
            libc::SYS_setresgid,
            user.gid,
            user.gid,
            user.gid,
        ))?;
        check(libc::syscall(
            libc::SYS_setresuid,
            user.uid,
            user.uid,
            user.uid,
        ))?;
    }
    // Emptying the inheritable set empties the ambient one with it, which would otherwise survive
    // the exec.
    if user.uid == 0 {
        let now = Capabilities::current()?;
        Capabilities {
            effective: now.permitted,
            inheritable: 0,
            ..now
        }
        .apply()
    } else {
        Capabilities::NONE.apply()
    }
}
