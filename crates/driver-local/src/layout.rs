//! Where everything lies.
//!
//! ```text
//! <state>/                       0711 root
//!   images/<name>                what the user put there
//!   images/by-digest/<sha256>/   extracted tars; `host-<sha256>`: of the image `host`, all but /usr
//!   supervisors/<sha256>/        one binary each, kept while compute names it
//!   ranges/<index>               a file a user-id range, holding the sandbox's id
//!   runc/<native name>/          the runtime's own state (--root)
//!   sandboxes/<id>/              0700
//!     lock                       flock over every effect
//!     compute.json               the compute of the newest create or start
//!     root/{upper,work}          the root layer
//!     root/usr/{upper,work}      with the image `host`: the layer over its /usr
//!     workspace/
//!     artifacts/, key, generation  memory on disk: see `artifact`
//! <volatile>/<id>/               0700, in memory: what a reboot of the host ends with the compute
//!     attach/{attach,gateway.sock}
//!     bundle/{config.json,spec.json,runtime.log,console.log}
//!     memory/                    a file system in memory, while memory is written to disk or read
//! <mounts>/<native name>/        only while the runtime starts it
//! <sentries>/<native name>/      what gVisor's runtime keeps of one compute (--root), its socket too
//! ```
//!
//! In memory, because a file that is replaced on a disk waits for that (ext4 writes out what takes
//! another's name at once), and a resume replaces two; and because a token has no business on a disk.
//! Where the host's `/run` is on a disk, these folders are file systems of their own.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use overwinter_lifecycle::ids::SandboxId;
use sha2::{Digest, Sha256};

use crate::runtime::Kind;

/// The folders of one driver.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    /// The root of what the image `host` is made of.
    pub(crate) host: PathBuf,
    pub(crate) state: PathBuf,
    pub(crate) mounts: PathBuf,
    pub(crate) volatile: PathBuf,
    pub(crate) sentries: PathBuf,
}

/// What a compute is called below a runtime's folder of its own: short, because a socket's address
/// holds 107 bytes.
pub(crate) const CONTAINER: &str = "c";

impl Layout {
    /// `state` is absolute and exists.
    pub(crate) fn new(state: PathBuf, host: PathBuf) -> Self {
        let hash = hex(&Sha256::digest(state.as_os_str().as_encoded_bytes()));
        let run = Path::new("/run/overwinter");
        let mounts = if may_hold_mounts(&state) {
            state.join("mnt")
        } else {
            run.join("mnt").join(&hash[..16])
        };
        let volatile = run.join("sandboxes").join(&hash[..16]);
        let sentries = run.join("runsc").join(&hash[..16]);
        Self {
            host,
            sentries,
            state,
            mounts,
            volatile,
        }
    }

    pub(crate) fn images(&self) -> PathBuf {
        self.state.join("images")
    }

    pub(crate) fn images_by_digest(&self) -> PathBuf {
        self.images().join("by-digest")
    }

    pub(crate) fn supervisors(&self) -> PathBuf {
        self.state.join("supervisors")
    }

    pub(crate) fn ranges(&self) -> PathBuf {
        self.state.join("ranges")
    }

    pub(crate) fn runc_root(&self) -> PathBuf {
        self.state.join("runc")
    }

    /// `--root` of a runtime. gVisor's has one for each compute, so that what it leaves is known.
    pub(crate) fn runtime_root(&self, kind: Kind, native: &str) -> PathBuf {
        match kind {
            Kind::Runc => self.runc_root(),
            Kind::Gvisor => self.sentries.join(native),
        }
    }

    /// Everything that runtimes keep of one compute.
    pub(crate) fn runtime_states(&self, native: &str) -> [PathBuf; 2] {
        [self.runc_root().join(native), self.sentries.join(native)]
    }

    pub(crate) fn sandboxes(&self) -> PathBuf {
        self.state.join("sandboxes")
    }

    pub(crate) fn sandbox(&self, id: SandboxId) -> SandboxDir {
        let name = id.to_string();
        SandboxDir {
            kept: self.sandboxes().join(&name),
            volatile: self.volatile.join(name),
        }
    }

    pub(crate) fn mounts_of(&self, native: &str) -> PathBuf {
        self.mounts.join(native)
    }
}

/// The folders of one sandbox.
#[derive(Clone, Debug)]
pub(crate) struct SandboxDir {
    pub(crate) kept: PathBuf,
    pub(crate) volatile: PathBuf,
}

impl SandboxDir {
    pub(crate) fn lock(&self) -> PathBuf {
        self.kept.join("lock")
    }
    pub(crate) fn compute(&self) -> PathBuf {
        self.kept.join("compute.json")
    }
    pub(crate) fn root(&self) -> PathBuf {
        self.kept.join("root")
    }
    pub(crate) fn workspace(&self) -> PathBuf {
        self.kept.join("workspace")
    }
    pub(crate) fn attach(&self) -> PathBuf {
        self.volatile.join("attach")
    }
    /// Artifacts of checkpoints.
    pub(crate) fn artifacts(&self) -> PathBuf {
        self.kept.join("artifacts")
    }
    pub(crate) fn key(&self) -> PathBuf {
        self.kept.join("key")
    }
    pub(crate) fn generation(&self) -> PathBuf {
        self.kept.join("generation")
    }
    /// What the compute was made from.
    pub(crate) fn spec(&self) -> PathBuf {
        self.bundle().join("spec.json")
    }
    /// Where memory is plain, in memory, for as long as an effect.
    pub(crate) fn staging(&self) -> PathBuf {
        self.volatile.join("memory")
    }
    pub(crate) fn bundle(&self) -> PathBuf {
        self.volatile.join("bundle")
    }
}

/// The runtime's child walks to its root as an unprivileged user, so every folder above must let
/// others through; and overlay's options have signs of their own.
fn may_hold_mounts(state: &Path) -> bool {
    let plain = state
        .to_str()
        .is_some_and(|text| text.len() < 1024 && !text.contains([',', ':', '\\', '"']));
    plain
        && state
            .ancestors()
            .skip(1)
            .all(|above| above.metadata().is_ok_and(|meta| meta.mode() & 0o001 != 0))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
            for nibble in [byte >> 4, byte & 15] {
                text.push(char::from_digit(u32::from(nibble), 16).unwrap_or('0'));
            }
            text
        })
}
