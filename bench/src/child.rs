//! This program again, as a process that serves: with an address space, and so a size, of its own.
//!
//! It writes one line when it serves, and ends when its standard input does: with the run, however
//! that ends.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::Command;

use crate::{embedded, hop};

const START_TIME: Duration = Duration::from_secs(60);
const READY: &str = "ready";

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Child {
    /// A gateway on the simulated driver
    Gateway,
    /// The one-hop stream
    Hop,
}

/// What the child does.
///
/// # Errors
/// When it cannot serve.
pub async fn run(
    kind: Child,
    folder: &Path,
    socket: &Path,
    slow_deletes: Duration,
) -> anyhow::Result<()> {
    let end = async {
        let mut left = Vec::new();
        // End of file or an error: the run is over.
        let _ = tokio::io::stdin().read_to_end(&mut left).await;
    };
    match kind {
        Child::Gateway => {
            let (_store, open) = embedded::open(folder, socket, slow_deletes).await?;
            println!("{READY}");
            open.serve(end).await;
        }
        Child::Hop => {
            let listener = overwinter_gateway::server::bind(socket)?;
            println!("{READY}");
            overwinter_gateway::server::serve(listener, hop::services(), end).await;
        }
    }
    Ok(())
}

/// A child that serves.
pub struct Serving {
    child: tokio::process::Child,
    /// From before it was spawned until it said that it serves.
    pub start_up: Duration,
}

impl Serving {
    /// # Errors
    /// When it does not serve.
    pub async fn start(
        kind: Child,
        folder: &Path,
        socket: &Path,
        slow_deletes: Duration,
    ) -> anyhow::Result<Self> {
        let name = match kind {
            Child::Gateway => "gateway",
            Child::Hop => "hop",
        };
        let began = Instant::now();
        let mut child = Command::new(std::env::current_exe()?)
            .args(["--child", name, "--folder"])
            .arg(folder)
            .arg("--socket")
            .arg(socket)
            .arg("--slow-deletes-ms")
            .arg(slow_deletes.as_millis().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let mut line = String::new();
        let output = child.stdout.take().context("it has no output")?;
        tokio::time::timeout(START_TIME, BufReader::new(output).read_line(&mut line)).await??;
        ensure!(line.trim() == READY, "it does not serve");
        Ok(Self {
            child,
            start_up: began.elapsed(),
        })
    }

    /// Resident bytes, as the kernel counts them.
    ///
    /// # Errors
    /// When it has ended.
    pub fn resident_bytes(&self) -> anyhow::Result<u64> {
        let pid = self.child.id().context("it has ended")?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let line = status.lines().find(|line| line.starts_with("VmRSS:"));
        let number = line.and_then(|line| line.split_whitespace().nth(1));
        Ok(number.context("no VmRSS")?.parse::<u64>()? * 1024)
    }

    /// # Errors
    /// When it did not end well.
    pub async fn end(mut self) -> anyhow::Result<()> {
        drop(self.child.stdin.take());
        let status = tokio::time::timeout(START_TIME, self.child.wait()).await??;
        ensure!(status.success(), "it ended with {status}");
        Ok(())
    }
}
