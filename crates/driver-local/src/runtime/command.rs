//! A runtime as a subprocess: with the sandbox's lock, with a deadline, never on a pipe.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;
use tokio::process::Command;

use super::Runtime;
use crate::error::{At, LocalError};
use crate::lock::SandboxLock;

/// What every call of a runtime for one compute needs.
pub(crate) struct Call<'a> {
    /// `--root`: where it keeps its own state.
    pub(crate) root: PathBuf,
    pub(crate) bundle: PathBuf,
    /// The container's name below the root.
    pub(crate) container: String,
    /// Inherited by the subprocess.
    pub(crate) lock: &'a SandboxLock,
    pub(crate) until: Instant,
}

impl Call<'_> {
    fn log(&self) -> PathBuf {
        self.bundle.join("runtime.log")
    }
}

impl Runtime {
    /// The program, as the kernel is told of it. Good for as long as this lives.
    pub(super) fn program(&self) -> PathBuf {
        match &self.sealed {
            Some(program) => format!("/proc/self/fd/{}", program.as_raw_fd()).into(),
            None => self.path.clone(),
        }
    }

    /// With what all calls have in common.
    pub(super) fn command(&self, call: &Call<'_>) -> Command {
        let mut command = Command::new(self.program());
        command
            .arg0(&self.path)
            .arg("--root")
            .arg(&call.root)
            .arg("--log")
            .arg(call.log())
            .args(["--log-format", "json"])
            .current_dir(&call.bundle)
            .stdin(Stdio::null());
        command
    }

    /// Runs it to its end with its output in a file: what it starts inherits that, so a pipe would
    /// never end.
    pub(super) async fn to_its_end(
        &self,
        mut command: Command,
        call: &Call<'_>,
    ) -> Result<(), LocalError> {
        let path = call.bundle.join("console.log");
        let console = File::options()
            .create(true)
            .append(true)
            .open(&path)
            .at("opening", &path)?;
        let errors = console.try_clone().at("duplicating", &path)?;
        command.stdout(console).stderr(errors);
        self.finish(command, call).await
    }

    /// Runs it to its end.
    ///
    /// # Errors
    /// [`LocalError::Runtime`]: it ended by itself, with an error. [`LocalError::RuntimeHung`],
    /// [`LocalError::RuntimeKilled`]: what it was about may have happened.
    pub(super) async fn finish(
        &self,
        mut command: Command,
        call: &Call<'_>,
    ) -> Result<(), LocalError> {
        // Closed only with the driver, which this borrows.
        let _slot = self.slots.acquire().await;
        let inherited = call.lock.lend();
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
        // Of its own, to be killed with all that it has started for itself; what becomes of the sandbox
        // is in sessions of its own by then.
        command.process_group(0);
        let begun = Instant::now();
        let mut child = match command.kill_on_drop(true).spawn() {
            Ok(child) => child,
            Err(error) => {
                call.lock.returned();
                return Err(error).at("starting", &self.path);
            }
        };
        let status = match tokio::time::timeout_at(call.until.into(), child.wait()).await {
            Ok(status) => status.at("waiting for", &self.path)?,
            Err(_) => {
                // It is our unreaped child, so the number is its own, and its group's. What is left of
                // the group would keep the lock.
                if let Some(group) = child.id().and_then(|id| Pid::from_raw(id.cast_signed())) {
                    let _ = kill_process_group(group, Signal::KILL);
                }
                let _ = child.start_kill();
                let _ = tokio::time::timeout(Duration::from_secs(5), child.wait()).await;
                return Err(LocalError::RuntimeHung {
                    runtime: self.version.clone(),
                    after: begun.elapsed(),
                });
            }
        };
        if status.code().is_some() {
            call.lock.returned();
        }
        if status.success() {
            return Ok(());
        }
        if status.code().is_none() {
            return Err(LocalError::RuntimeKilled {
                runtime: self.version.clone(),
                after: begun.elapsed(),
            });
        }
        Err(LocalError::Runtime {
            runtime: self.version.clone(),
            message: last_error(&call.log()).unwrap_or_else(|| format!("{status}")),
        })
    }
}

/// The last thing that it has logged, for people to read.
fn last_error(log: &Path) -> Option<String> {
    /// A program that has crashed logs pages.
    const LONGEST: usize = 500;
    #[derive(Deserialize)]
    struct Line {
        msg: String,
    }
    let text = fs::read_to_string(log).ok()?;
    let lines: Vec<Line> = serde_json::Deserializer::from_str(&text)
        .into_iter::<Line>()
        .map_while(Result::ok)
        .collect();
    let message = &lines.last()?.msg;
    let line = message.lines().next()?;
    Some(line.chars().take(LONGEST).collect())
}
