//! The attach folder: the file that tells a supervisor where to attach and as what, and the socket
//! that it finds there.
//!
//! Both belong to PID 1's user inside, which no workload gets; whoever connects is asked who it is.
//! For drivers whose compute is on this host: `base` is the host's number for its user 0.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use overwinter_lifecycle::ids::SandboxId;
use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, Uid, chmodat, chownat, openat, renameat};
use rustix::net::sockopt::set_socket_send_buffer_size;
use tokio::net::UnixListener;
use tokio::task::JoinHandle;

use crate::attach::{AttachFile, AttachPort, Credentials, Peer, Refusals};

/// Where the folder is mounted inside, read-only.
pub const INSIDE: &str = "/run/overwinter";
/// PID 1's user and group inside: no workload gets it.
pub const SUPERVISOR_ID: u32 = 65_535;

const FILE: &str = "attach";
/// The incarnation alone, for every program: one that kept its memory sees that it slept.
const INCARNATION: &str = "incarnation";
const INCARNATION_ASIDE: &str = ".incarnation.new";
const SOCKET: &str = "gateway.sock";
const FILE_ASIDE: &str = ".attach.new";
const SOCKET_ASIDE: &str = ".sock.new";
/// What the kernel takes of one connection before whoever is inside has read any, in bytes: the fewer
/// times two programs take turns, the quicker a large file goes in. Without privilege the kernel gives
/// some 400 KiB of it, twice the default.
const SENT_AT_ONCE: usize = 1 << 20;

/// What could not be done with the folder.
#[derive(Debug, thiserror::Error)]
#[error("{doing} {}: {source}", path.display())]
pub struct DoorError {
    pub doing: &'static str,
    pub path: PathBuf,
    pub source: io::Error,
}

/// Names what was done and where, beside an I/O error.
trait At<T> {
    fn at(self, doing: &'static str, path: &Path) -> Result<T, DoorError>;
}

impl<T, E: Into<io::Error>> At<T> for Result<T, E> {
    fn at(self, doing: &'static str, path: &Path) -> Result<T, DoorError> {
        self.map_err(|source| DoorError {
            doing,
            path: path.to_owned(),
            source: source.into(),
        })
    }
}

/// Puts new credentials where PID 1 finds them. With the incarnation that was there already it is a
/// _reattach_: the supervisor sees that something has changed.
///
/// # Errors
/// [`DoorError`]; what was there before is untouched.
pub fn write(folder: &Path, base: u32, credentials: &Credentials) -> Result<(), DoorError> {
    let before = fs::read(folder.join(FILE))
        .ok()
        .and_then(|bytes| serde_json::from_slice::<AttachFile>(&bytes).ok());
    let reattach = match before {
        Some(before) if before.incarnation == credentials.incarnation => before.reattach + 1,
        Some(_) | None => 0,
    };
    let file = AttachFile {
        version: AttachFile::VERSION,
        endpoint: format!("unix:{INSIDE}/{SOCKET}"),
        sandbox_id: credentials.sandbox,
        incarnation: credentials.incarnation,
        reattach,
        token: credentials.token.clone(),
    };
    let folder_fd = open(folder)?;
    let written = serde_json::to_vec(&file)
        .map_err(io::Error::from)
        .and_then(|bytes| {
            // First: who sees the new file sees the new number.
            fs::write(
                folder.join(INCARNATION_ASIDE),
                format!("{}\n", credentials.incarnation),
            )?;
            hand_over(&folder_fd, INCARNATION_ASIDE, base, 0o444)?;
            renameat(&folder_fd, INCARNATION_ASIDE, &folder_fd, INCARNATION)?;
            fs::write(folder.join(FILE_ASIDE), bytes)?;
            hand_over(&folder_fd, FILE_ASIDE, base, 0o400)?;
            renameat(&folder_fd, FILE_ASIDE, &folder_fd, FILE)?;
            Ok(())
        });
    if written.is_err() {
        for aside in [FILE_ASIDE, INCARNATION_ASIDE] {
            let _ = fs::remove_file(folder.join(aside));
        }
    }
    written.at("writing the attach file in", folder)
}

fn open(folder: &Path) -> Result<OwnedFd, DoorError> {
    openat(
        CWD,
        folder,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .at("opening", folder)
}

fn hand_over(folder: &OwnedFd, name: &str, base: u32, mode: u32) -> io::Result<()> {
    let id = base + SUPERVISOR_ID;
    let (uid, gid) = (Uid::from_raw(id), Gid::from_raw(id));
    chmodat(folder, name, Mode::from_raw_mode(mode), AtFlags::empty())?;
    chownat(
        folder,
        name,
        Some(uid),
        Some(gid),
        AtFlags::SYMLINK_NOFOLLOW,
    )?;
    Ok(())
}

/// Makes the folder the supervisor's. What is in it but the incarnation is for PID 1 alone, and nobody
/// else can list it. Its owner is a number of this host's: not every kernel of a supported host can map
/// the ids of a folder in memory.
///
/// # Errors
/// When it is not there, or cannot be given away.
pub fn give(folder: &Path, base: u32) -> Result<(), DoorError> {
    let open = fs::Permissions::from_mode(0o711);
    fs::set_permissions(folder, open).at("setting the mode of", folder)?;
    let id = Some(base + SUPERVISOR_ID);
    chown(folder, id, id).at("giving away", folder)
}

/// A bound socket with the task that accepts. Closed, and gone from the folder, when dropped.
#[derive(Debug)]
pub struct Door {
    folder: PathBuf,
    accepting: JoinHandle<()>,
}

impl Door {
    /// Binds aside and renames, so that whoever finds the socket may connect. One of an earlier
    /// gateway is replaced. `user`: as whom this host sees PID 1 dial. Within a runtime.
    ///
    /// # Errors
    /// [`DoorError`]; then nothing is bound.
    pub fn open(
        folder: &Path,
        sandbox: SandboxId,
        base: u32,
        user: u32,
        port: Arc<dyn AttachPort>,
    ) -> Result<Self, DoorError> {
        let folder_fd = open(folder)?;
        match fs::remove_file(folder.join(SOCKET_ASIDE)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => other.at("removing the socket in", folder)?,
        }
        // A socket's address holds 107 bytes, which the path of a folder may exceed.
        let address = format!("/proc/self/fd/{}/{SOCKET_ASIDE}", folder_fd.as_raw_fd());
        let listener = StdListener::bind(address)
            .and_then(|listener| {
                listener.set_nonblocking(true)?;
                hand_over(&folder_fd, SOCKET_ASIDE, base, 0o600)?;
                renameat(&folder_fd, SOCKET_ASIDE, &folder_fd, SOCKET)?;
                UnixListener::from_std(listener)
            })
            .at("binding the socket in", folder)?;
        Ok(Self {
            folder: folder.to_owned(),
            accepting: tokio::spawn(accept(listener, sandbox, user, port)),
        })
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.accepting.abort();
        // Gone with the folder, or replaced by nobody: one gateway owns it.
        let _ = fs::remove_file(self.folder.join(SOCKET));
    }
}

async fn accept(listener: UnixListener, sandbox: SandboxId, uid: u32, port: Arc<dyn AttachPort>) {
    let mut refusals = Refusals::default();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of descriptors, which others will give back; nothing tells when.
                tracing::warn!(%sandbox, %error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        match stream.peer_cred() {
            Ok(peer) if peer.uid() == uid => {
                // What the kernel allows is fine, and what it refuses costs only speed.
                let _ = set_socket_send_buffer_size(&stream, SENT_AT_ONCE);
                let peer = Peer {
                    uid: Some(peer.uid()),
                    pid: peer.pid(),
                };
                port.connection(sandbox, Box::new(stream), peer);
            }
            Ok(peer) => {
                if let Some(times) = refusals.note() {
                    let uid = peer.uid();
                    tracing::warn!(%sandbox, uid, times, "refused: not the supervisor's user");
                }
            }
            Err(error) => {
                if let Some(times) = refusals.note() {
                    tracing::warn!(%sandbox, %error, times, "refused: the peer is not known");
                }
            }
        }
    }
}
