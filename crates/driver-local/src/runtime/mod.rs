//! The container runtimes of this host: which there are, and which a sandbox gets.
//!
//! | module | its one idea |
//! |---|---|
//! | `command` | a runtime as a subprocess: with the sandbox's lock, with a deadline, never on a pipe |
//! | `runc` | the calls of runc, and of what has its command line |
//! | `gvisor` | the calls of gVisor's runsc |
//! | `state` | what a runtime has written of a container |

mod command;
mod gvisor;
mod runc;
mod state;

use std::env;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

use crate::error::OpenError;
use crate::layout::hex;
use crate::userns::SUPERVISOR_ID;

pub(crate) use command::Call;
pub(crate) use gvisor::Tasks;
pub(crate) use state::{RuntimeState, Status};

/// How a runtime is called, and what it leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// Processes of the host in namespaces: runc, crun.
    #[default]
    Runc,
    /// A kernel in user space, whose tasks it can halt and whose memory it can write to a file.
    Gvisor,
}

impl Kind {
    /// As whom this host sees PID 1 dial. Out of gVisor another process dials for all that are
    /// inside, as the sandbox's root; its kernel has then looked at the socket's mode, which lets in
    /// PID 1's user and root.
    pub(crate) const fn peer(self, base: u32) -> u32 {
        match self {
            Self::Runc => base + SUPERVISOR_ID,
            Self::Gvisor => base,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Runtime {
    pub(crate) kind: Kind,
    /// As a sandbox names it: the program's own name.
    pub(crate) name: String,
    path: PathBuf,
    /// The same program, sealed in memory.
    sealed: Option<File>,
    /// As it says itself, e.g. `runc 1.1.5`.
    pub(crate) version: String,
    build: OnceLock<String>,
    slots: Arc<Semaphore>,
}

impl Runtime {
    fn find(name: &Path, slots: &Arc<Semaphore>) -> Option<Self> {
        let path = which(name)?;
        let version = version(&path).unwrap_or_else(|| path.display().to_string());
        let kind = if version.starts_with("runsc ") {
            Kind::Gvisor
        } else {
            Kind::Runc
        };
        Some(Self {
            kind,
            name: path.file_name()?.to_string_lossy().into_owned(),
            sealed: seal(&path),
            version,
            path,
            build: OnceLock::new(),
            slots: Arc::clone(slots),
        })
    }

    /// The exact build, by its bytes: what one has written to disk, no other reads.
    pub(crate) fn build(&self) -> &str {
        self.build.get_or_init(|| {
            let mut hasher = Sha256::new();
            let hashed = match &self.sealed {
                // Where it stands in the copy is nobody's: each reader has a descriptor of its own.
                Some(_) => File::open(self.program()),
                None => File::open(&self.path),
            }
            .and_then(|mut program| io::copy(&mut program, &mut HashWriter(&mut hasher)));
            match hashed {
                Ok(_) => format!("{} sha256:{}", self.version, hex(&hasher.finalize())),
                // Equal to no other, nor to itself at another time.
                Err(_) => format!("{} pid:{}", self.version, std::process::id()),
            }
        })
    }
}

/// sha2 does not write.
struct HashWriter<'a>(&'a mut Sha256);

impl io::Write for HashWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Those that were found when the driver was opened.
#[derive(Debug)]
pub(crate) struct Runtimes {
    /// The first is the default.
    all: Vec<Arc<Runtime>>,
}

impl Runtimes {
    /// The default must be there; the others may be.
    pub(crate) fn find(
        default: &Path,
        also: &[PathBuf],
        concurrency: usize,
    ) -> Result<Self, OpenError> {
        let slots = Arc::new(Semaphore::new(concurrency.max(1)));
        let first = Runtime::find(default, &slots).ok_or_else(|| OpenError::NoRuntime {
            runtime: default.display().to_string(),
        })?;
        let mut all = vec![Arc::new(first)];
        for name in also {
            if let Some(runtime) = Runtime::find(name, &slots)
                && all.iter().all(|it| it.name != runtime.name)
            {
                all.push(Arc::new(runtime));
            }
        }
        Ok(Self { all })
    }

    pub(crate) fn default(&self) -> &Arc<Runtime> {
        &self.all[0]
    }

    /// As a sandbox's configuration names it; empty: the default.
    pub(crate) fn named(&self, name: &str) -> Option<&Arc<Runtime>> {
        if name.is_empty() {
            return Some(self.default());
        }
        self.all.iter().find(|it| it.name == name)
    }

    /// One that knows what another of its kind has made.
    pub(crate) fn of(&self, kind: Kind) -> Option<&Arc<Runtime>> {
        self.all.iter().find(|it| it.kind == kind)
    }

    /// The one that has written what is on disk.
    pub(crate) fn of_build(&self, build: &str) -> Option<&Arc<Runtime>> {
        let mut able = self.all.iter().filter(|it| it.kind == Kind::Gvisor);
        able.find(|it| it.build() == build)
    }

    /// The default first.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Runtime> {
        self.all.iter().map(Arc::as_ref)
    }

    /// For people: `runc, runsc`.
    pub(crate) fn names(&self) -> String {
        let names: Vec<_> = self.all.iter().map(|it| it.name.as_str()).collect();
        names.join(", ")
    }
}

/// A copy in memory that nobody can write to, the gateway included. So that a container cannot
/// overwrite the program by way of /proc/PID/exe (CVE-2019-5736), runc makes such a copy of itself
/// each time that it starts one, and leaves that out when it is one: a tenth of a create.
///
/// None: not possible here, or a script, whose interpreter could not open it.
fn seal(path: &Path) -> Option<File> {
    let mut program = File::open(path).ok()?;
    let mut magic = [0; 4];
    io::Read::read_exact(&mut program, &mut magic).ok()?;
    if magic != *b"\x7fELF" {
        return None;
    }
    io::Seek::rewind(&mut program).ok()?;
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut sealed = File::from(memfd_create("runtime", flags).ok()?);
    io::copy(&mut program, &mut sealed).ok()?;
    let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    fcntl_add_seals(&sealed, seals).ok()?;
    Some(sealed)
}

/// As execvp(3) looks for it.
pub(crate) fn which(name: &Path) -> Option<PathBuf> {
    use std::os::unix::fs::PermissionsExt;
    let runs = |path: &PathBuf| {
        path.metadata()
            .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    if name.components().count() > 1 {
        return std::path::absolute(name).ok().filter(runs);
    }
    // Where a service's PATH leaves the system's folders out.
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|folder| folder.join(name))
        .find(runs)
}

/// The first line of `--version`, without the word.
pub(crate) fn version(path: &Path) -> Option<String> {
    let output = std::process::Command::new(path)
        .arg("--version")
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().next()?.trim();
    Some(line.replace(" version ", " "))
}
