//! The calls of gVisor's runsc.
//!
//! `pause` halts every task and is counted: two need two `resume`s, and one `resume` too many kills
//! the sandbox. runsc guards against both with its state file, which it writes _after_ the call; so
//! when one was cut short, only the stacks of the tasks tell ([`Runtime::tasks`]).

use std::fs::{self, File};
use std::path::Path;

use tokio::process::Command;

use super::{Call, Kind, Runtime};
use crate::error::{At, LocalError};

/// * `overlay2=none`: what is written to the root is written to our own upper layer. By default it
///   goes with the container.
/// * `host-uds=open`: the gateway's socket can be dialled. The attach folder is the only mount that
///   holds one.
/// * `systrap` needs nothing of the host; kvm may be there and not work.
const FLAGS: [&str; 4] = [
    "--platform=systrap",
    "--network=none",
    "--overlay2=none",
    "--host-uds=open",
];

/// Whether the tasks inside run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tasks {
    Running,
    Halted,
}

impl Runtime {
    fn gvisor(&self, call: &Call<'_>) -> Command {
        let mut command = self.command(call);
        command.args(FLAGS);
        command
    }

    /// Makes and starts a container. When this returns, PID 1 runs.
    ///
    /// On an error a container may be there, half-made or whole.
    pub(crate) async fn run(&self, call: &Call<'_>) -> Result<(), LocalError> {
        match self.kind {
            Kind::Runc => self.runc_run(call).await,
            Kind::Gvisor => {
                let mut command = self.gvisor(call);
                command
                    .args(["run", "--detach", "--bundle"])
                    .arg(&call.bundle)
                    .arg(&call.container);
                self.to_its_end(command, call).await
            }
        }
    }

    /// Halts every task. Not idempotent: see above.
    pub(crate) async fn pause(&self, call: &Call<'_>) -> Result<(), LocalError> {
        let mut command = self.gvisor(call);
        command.arg("pause").arg(&call.container);
        self.to_its_end(command, call).await
    }

    /// Lets them run again. Not idempotent.
    pub(crate) async fn resume(&self, call: &Call<'_>) -> Result<(), LocalError> {
        let mut command = self.gvisor(call);
        command.arg("resume").arg(&call.container);
        self.to_its_end(command, call).await
    }

    /// Writes the memory of halted tasks to files in `to`; they are, and stay, halted.
    ///
    /// When the call is cut short the sentry goes on writing.
    pub(crate) async fn checkpoint(&self, call: &Call<'_>, to: &Path) -> Result<(), LocalError> {
        let mut command = self.gvisor(call);
        command
            .arg("checkpoint")
            // It is compressed, by more than one CPU, when it is sealed.
            .args(["--compression", "none", "--exclude-committed-zero-pages"])
            .args(["--leave-running", "--image-path"])
            .arg(to)
            .arg(&call.container);
        self.to_its_end(command, call).await
    }

    /// Makes a container in which nothing runs.
    pub(crate) async fn create(&self, call: &Call<'_>) -> Result<(), LocalError> {
        let mut command = self.gvisor(call);
        command
            .args(["create", "--bundle"])
            .arg(&call.bundle)
            .arg(&call.container);
        self.to_its_end(command, call).await
    }

    /// Fills a container that was only made with the memory in `from`. Its tasks run when this
    /// returns, whether they were halted or not.
    ///
    /// # Errors
    /// [`LocalError::Runtime`]: nothing ran. Any other: something may have.
    pub(crate) async fn restore(&self, call: &Call<'_>, from: &Path) -> Result<(), LocalError> {
        let mut command = self.gvisor(call);
        command
            .args(["restore", "--detach", "--bundle"])
            .arg(&call.bundle)
            .arg("--image-path")
            .arg(from)
            .arg(&call.container);
        self.to_its_end(command, call).await
    }

    /// Asks the sentry itself, by what its tasks are at.
    pub(crate) async fn tasks(&self, call: &Call<'_>) -> Result<Tasks, LocalError> {
        let path = call.bundle.join("stacks");
        let written = self.stacks(call, &path).await;
        let tasks = written.and_then(|()| {
            let text = fs::read_to_string(&path).at("reading", &path)?;
            Ok(tasks_in(&text))
        });
        let _ = fs::remove_file(&path);
        tasks
    }

    async fn stacks(&self, call: &Call<'_>, path: &Path) -> Result<(), LocalError> {
        let mut command = self.gvisor(call);
        command.args(["debug", "--stacks"]).arg(&call.container);
        let output = File::create(path).at("making", path)?;
        let errors = output.try_clone().at("duplicating", path)?;
        command.stdout(output).stderr(errors);
        self.finish(command, call).await
    }
}

/// A halted task stands in `doStop`, below its `run`.
fn tasks_in(stacks: &str) -> Tasks {
    let halted = stacks.contains("kernel.(*Task).doStop(");
    if halted {
        Tasks::Halted
    } else {
        Tasks::Running
    }
}
