//! Crash points as they are reached: the gateway writes them into a pipe.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use overwinter_tests::Gateway;
use rustix::fs::{CWD, Mode};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::unix::pipe::{OpenOptions, Receiver};

/// How long a gateway may take from one point to the next.
const NEXT: Duration = Duration::from_secs(20);
/// Commits of the gateway's own housekeeping, which come when they come.
const HOUSEKEEPING: [&str; 6] = [
    "commit.recover",
    "commit.loss",
    "commit.main_exit",
    "commit.exits",
    "commit.debt",
    "commit.sweep",
];

/// The reading end.
pub(crate) struct Trace {
    path: PathBuf,
    lines: tokio::io::Lines<BufReader<Receiver>>,
}

impl Trace {
    /// Points of every start of this gateway from now on.
    pub(crate) fn of(gateway: &mut Gateway) -> anyhow::Result<Self> {
        let path = gateway.folder().join("points");
        let _ = std::fs::remove_file(&path);
        rustix::fs::mkfifoat(CWD, &path, Mode::RUSR | Mode::WUSR)?;
        // Held open for writing as well: it does not end between two gateways.
        let pipe = OpenOptions::new().read_write(true).open_receiver(&path)?;
        gateway.set_env("OVERWINTER_CRASH_TRACE", path.display().to_string());
        Ok(Self {
            path,
            lines: BufReader::new(pipe).lines(),
        })
    }

    /// The next point of a verb.
    pub(crate) async fn next(&mut self) -> anyhow::Result<String> {
        loop {
            let line = tokio::time::timeout(NEXT, self.lines.next_line())
                .await
                .context("no further point is reached")??;
            let Some(point) = line else {
                bail!("the trace ended")
            };
            let (what, _) = point.split_once(':').context("a point has a side")?;
            if !HOUSEKEEPING.contains(&what) {
                return Ok(point);
            }
        }
    }

    /// Every point up to this one, each once.
    pub(crate) async fn up_to(
        &mut self,
        is_last: impl Fn(&str) -> bool,
    ) -> anyhow::Result<Vec<String>> {
        let mut points = Vec::new();
        loop {
            let point = self.next().await?;
            let last = is_last(&point);
            if !points.contains(&point) {
                points.push(point);
            }
            if last {
                return Ok(points);
            }
        }
    }

    /// No more from the next start on.
    pub(crate) fn stop(self, gateway: &mut Gateway) {
        gateway.unset_env("OVERWINTER_CRASH_TRACE");
        let _ = std::fs::remove_file(self.path);
    }
}
