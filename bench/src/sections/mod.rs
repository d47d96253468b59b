//! What is measured, a section a file. Each can be asked for alone.

mod checkpoint;
pub mod commits;
mod delete;
mod engine;
mod exec;
mod files;
mod freeze;
mod many;
mod noise;
mod pairs;
mod reclaim;
mod stop;

use std::fmt;
use std::path::PathBuf;

use clap::ValueEnum;
use overwinter_driver_docker::Flavor;

use crate::report::Report;
use crate::stats::Steps;

/// How a run is made.
#[derive(Clone, Debug)]
pub struct Plan {
    pub quick: bool,
    /// Notes with the median of each step.
    pub steps: bool,
    /// Below which each section makes a folder of its own.
    pub folder: PathBuf,
}

impl Plan {
    /// `full`, or a tenth of it.
    #[must_use]
    pub const fn rounds(&self, full: usize) -> usize {
        if self.quick { full.div_ceil(10) } else { full }
    }

    /// The steps, where they are asked for.
    fn note(&self, steps: &Steps) -> String {
        if self.steps {
            steps.medians()
        } else {
            String::new()
        }
    }

    /// A folder that goes when dropped.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn folder(&self) -> std::io::Result<tempfile::TempDir> {
        tempfile::Builder::new()
            .prefix("overwinter-bench-")
            .tempdir_in(&self.folder)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Section {
    /// `true` in a sandbox, beside the runtime's own exec
    Exec,
    /// Suspend at freeze; resume until an exec has answered
    Freeze,
    /// Suspend at stop; resume and create, beside the runtime's create and start
    Stop,
    /// Checkpoint and resume, beside the runtime's own
    Checkpoint,
    /// A freeze that gives its memory back, and the way back with and without prefetch
    Reclaim,
    /// Containers of Docker, beside its API and its command
    Docker,
    /// Containers of Podman, beside its API and its command
    Podman,
    /// Durable commits of a suspend and resume, and the time that the gateway adds
    Commits,
    /// Pairs of suspend and resume a second, 64 clients
    Pairs,
    /// 100,000 sleeping sandboxes: memory, start-up, a page of a list
    Many,
    /// 1 GiB in and out, beside the one-hop stream
    Files,
    /// An exec while 50 others suspend
    Noise,
    /// An exec, a suspend and a resume while a delete elsewhere takes 10 s
    Delete,
}

impl Section {
    /// In the order in which they are measured.
    #[must_use]
    pub fn all() -> Vec<Self> {
        Self::value_variants().to_vec()
    }
}

impl fmt::Display for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.to_possible_value() {
            Some(value) => f.write_str(value.get_name()),
            None => Ok(()),
        }
    }
}

/// # Errors
/// When something that is measured fails; and where a count that is asserted is another.
pub async fn measure(section: Section, plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    match section {
        Section::Exec => exec::measure(plan, report).await,
        Section::Freeze => freeze::measure(plan, report).await,
        Section::Stop => stop::measure(plan, report).await,
        Section::Checkpoint => checkpoint::measure(plan, report).await,
        Section::Reclaim => reclaim::measure(plan, report).await,
        Section::Docker => engine::measure(Flavor::Docker, plan, report).await,
        Section::Podman => engine::measure(Flavor::Podman, plan, report).await,
        Section::Commits => commits::measure(plan, report).await,
        Section::Pairs => pairs::measure(plan, report).await,
        Section::Many => many::measure(plan, report).await,
        Section::Files => files::measure(plan, report).await,
        Section::Noise => noise::measure(plan, report).await,
        Section::Delete => delete::measure(plan, report).await,
    }
}

/// Runs `true` to its end.
async fn run_true(client: &overwinter_client::Client, sandbox: &str) -> anyhow::Result<()> {
    let ran = client.command(sandbox, ["/bin/true"]).run().await?;
    anyhow::ensure!(ran.exit.code == 0, "`true` ended with {}", ran.exit.code);
    Ok(())
}
