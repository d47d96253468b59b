//! The container runtime as a subprocess: with the sandbox's lock, with a deadline, never on a pipe.

use std::env;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use serde::Deserialize;
use tokio::process::Command;
use tokio::sync::Semaphore;

use crate::error::{At, LocalError, OpenError};

#[derive(Debug)]
pub(crate) struct Runtime {
    path: PathBuf,
    /// The same program, sealed in memory.
    sealed: Option<File>,
    /// As it says itself, e.g. `runc 1.1.5`.
    pub(crate) version: String,
    root: PathBuf,
    slots: Semaphore,
}

impl Runtime {
    pub(crate) fn find(name: &Path, root: PathBuf, concurrency: usize) -> Result<Self, OpenError> {
        let path = which(name).ok_or_else(|| OpenError::NoRuntime {
            runtime: name.display().to_string(),
        })?;
        Ok(Self {
            version: version(&path).unwrap_or_else(|| path.display().to_string()),
            sealed: seal(&path),
            path,
            root,
            slots: Semaphore::new(concurrency.max(1)),
        })
    }

    /// Makes and starts a container. When this returns, PID 1 runs.
    ///
    /// On an error a container may be there, half-made or whole.
    pub(crate) async fn run(
        &self,
        bundle: &Path,
        native: &str,
        lock: &File,
        until: Instant,
    ) -> Result<(), LocalError> {
        // Closed only with the driver, which this borrows.
        let _slot = self.slots.acquire().await;
        let log = bundle.join("runtime.log");
        let mut command = match &self.sealed {
            Some(program) => Command::new(format!("/proc/self/fd/{}", program.as_raw_fd())),
            None => Command::new(&self.path),
        };
        command
            .arg0(&self.path)
            .arg("--root")
            .arg(&self.root)
            .arg("--log")
            .arg(&log)
            .args(["--log-format", "json", "run", "--detach", "--bundle"])
            .arg(bundle)
            .arg(native)
            .current_dir(bundle);
        // PID 1 inherits these, so a pipe would never end.
        let console_path = bundle.join("console.log");
        let console = File::options()
            .create(true)
            .append(true)
            .open(&console_path)
            .at("opening", &console_path)?;
        let errors = console.try_clone().at("duplicating", &console_path)?;
        command.stdin(Stdio::null()).stdout(console).stderr(errors);
        self.finish(command, lock, &log, until).await
    }

    async fn finish(
        &self,
        mut command: Command,
        lock: &File,
        log: &Path,
        until: Instant,
    ) -> Result<(), LocalError> {
        let inherited = lock.as_raw_fd();
        // SAFETY: fcntl(2) alone is called between fork and exec. `lock` outlives the spawn.
        unsafe {
            command.pre_exec(move || {
                // In the child's table only: no other child of ours gets it. The runtime closes what
                // it does not know before it executes the workload.
                if libc::fcntl(inherited, libc::F_SETFD, 0) == -1 {
                    return Err(io::Error::last_os_error());
                }
                Ok(())
            });
        }
        let begun = Instant::now();
        let mut child = command
            .kill_on_drop(true)
            .spawn()
            .at("starting", &self.path)?;
        let status = match tokio::time::timeout_at(until.into(), child.wait()).await {
            Ok(status) => status.at("waiting for", &self.path)?,
            Err(_) => {
                // It is our unreaped child, so the number is its own.
                let _ = child.start_kill();
                let _ = tokio::time::timeout(Duration::from_secs(5), child.wait()).await;
                return Err(LocalError::RuntimeHung {
                    runtime: self.version.clone(),
                    after: begun.elapsed(),
                });
            }
        };
        if status.success() {
            return Ok(());
        }
        Err(LocalError::Runtime {
            runtime: self.version.clone(),
            message: last_error(log).unwrap_or_else(|| format!("{status}")),
        })
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

/// The last thing that it has logged, for people to read.
fn last_error(log: &Path) -> Option<String> {
    #[derive(Deserialize)]
    struct Line {
        msg: String,
    }
    let text = fs::read_to_string(log).ok()?;
    text.lines()
        .rev()
        .find_map(|line| serde_json::from_str::<Line>(line).ok())
        .map(|line| line.msg)
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
