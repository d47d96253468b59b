//! Shows that something goes on, to a person who waits; silent in a pipe.

use std::io::{self, IsTerminal as _};
use std::pin::pin;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use overwinter_client::{Change, Client, SandboxRef, raw};

use crate::text::printable;

/// What takes less needs no spinner.
const PATIENCE: Duration = Duration::from_millis(300);
const TICK: Duration = Duration::from_millis(100);
/// Between two looks at an operation.
const AGAIN: Duration = Duration::from_secs(1);
/// Below this a transfer is over before a bar would help.
const LARGE: u64 = 64 << 20;

/// Waits for `work`. After a moment, on a terminal, with a spinner that says `label`, and of
/// `sandbox` (where there is one) the phase and step.
pub(crate) async fn waiting<T>(
    client: &Client,
    label: &str,
    sandbox: Option<&SandboxRef>,
    work: impl Future<Output = T>,
) -> T {
    let mut work = pin!(work);
    if !io::stderr().is_terminal() {
        return work.await;
    }
    if let Ok(done) = tokio::time::timeout(PATIENCE, &mut work).await {
        return done;
    }
    let spinner = ProgressBar::new_spinner().with_message(label.to_owned());
    spinner.enable_steady_tick(TICK);
    let done = tokio::select! {
        done = &mut work => done,
        never = follow(client, label, sandbox, &spinner) => match never {},
    };
    spinner.finish_and_clear();
    done
}

/// Shows the phase as it changes. A watch that fails shows nothing more: the work itself tells.
async fn follow(
    client: &Client,
    label: &str,
    sandbox: Option<&SandboxRef>,
    spinner: &ProgressBar,
) -> std::convert::Infallible {
    if let Some(sandbox) = sandbox
        && let Ok(mut watch) = client.watch(Some(sandbox.clone()), 0).await
    {
        let mut running = None;
        loop {
            let change = tokio::select! {
                change = watch.next() => change,
                text = further(client, label, running.as_ref()) => {
                    spinner.set_message(text);
                    continue;
                }
            };
            let Ok(Some(change)) = change else { break };
            let Change::Sandbox(sandbox) = change else {
                continue;
            };
            running = sandbox.raw().running.as_option().cloned();
            let mut text = format!("{label}: {}", sandbox.phase().as_str());
            if let Some(running) = &running {
                text.push_str(&format!(", {}", printable(&running.step)));
            }
            spinner.set_message(text);
        }
    }
    std::future::pending().await
}

/// What is new of an operation within its step, such as how much of an image has come. No watch tells of
/// it: it is no part of the record.
async fn further(client: &Client, label: &str, running: Option<&raw::Operation>) -> String {
    let Some(running) = running else {
        return std::future::pending().await;
    };
    loop {
        tokio::time::sleep(AGAIN).await;
        if let Ok(operation) = client.operation(&running.id).await {
            let progress = &operation.raw().progress;
            if !progress.is_empty() {
                return format!("{label}: {}", printable(progress));
            }
        }
    }
}

/// A bar for a transfer of so many bytes; hidden for small ones and in a pipe.
pub(crate) fn transfer(bytes: u64) -> ProgressBar {
    if bytes < LARGE || !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(bytes);
    if let Ok(style) = ProgressStyle::with_template(
        "{wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}",
    ) {
        bar.set_style(style);
    }
    bar
}
