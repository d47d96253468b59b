//! The end of everything inside: SIGTERM, a grace, SIGKILL, and each result with its cause.

use std::sync::Arc;
use std::time::Duration;

use overwinter_api::supervisor::ExitResult;
use tokio::time::Instant;

use crate::process::Table;

/// How long a killed process may take to be gone.
const KILL_LIMIT: Duration = Duration::from_secs(5);

/// Ends every process and returns the results of all that are kept. What had ended before keeps
/// the cause of its own; an end from here on is the suspension's.
///
/// As PID 1 "everything" is the pid namespace. Otherwise it is the process groups that this
/// supervisor has started.
pub(crate) async fn terminate(table: &Arc<Table>, pid1: bool, grace: Duration) -> Vec<ExitResult> {
    // Who has ended already ended by itself, even if nobody has looked yet.
    table.reap();
    let live = table.unreaped();
    for process in &live {
        process.mark_suspending();
    }
    for process in table.live() {
        process.mark_suspending();
    }
    let deadline = Instant::now() + grace;
    if !everything_is_gone(table, pid1) {
        if grace.is_zero() {
            send(table, pid1, libc::SIGKILL);
        } else {
            send(table, pid1, libc::SIGTERM);
            for process in &live {
                if process.description.program.tty.is_some() {
                    // Its terminal goes away, which an interactive shell heeds and SIGTERM is
                    // what it ignores. It may have ended meanwhile.
                    let _ = process.signal(libc::SIGHUP);
                }
            }
            // A stopped process would only see the signal once it goes on.
            send(table, pid1, libc::SIGCONT);
            let _ = tokio::time::timeout_at(deadline, all_gone(table, pid1)).await;
            send(table, pid1, libc::SIGKILL);
        }
        // What the kernel holds on to, or what was put here from outside and is not ours to reap,
        // goes with the compute.
        let _ = tokio::time::timeout(KILL_LIMIT, all_gone(table, pid1)).await;
    }
    let unreaped = table.unreaped();
    for process in table.live() {
        if !unreaped.iter().any(|other| Arc::ptr_eq(other, &process)) {
            process.exited().await;
        }
    }
    let mut results: Vec<_> = table
        .all()
        .into_iter()
        .filter_map(|process| process.exit())
        .collect();
    results.sort_by_key(|result| result.exited_at_ms);
    results
}

async fn all_gone(table: &Table, pid1: bool) {
    loop {
        let reaped = table.reaped.notified();
        tokio::pin!(reaped);
        reaped.as_mut().enable();
        if everything_is_gone(table, pid1) {
            return;
        }
        reaped.await;
    }
}

fn everything_is_gone(table: &Table, pid1: bool) -> bool {
    if pid1 {
        // SAFETY: plain numbers; signal 0 only asks.
        let asked = unsafe { libc::kill(-1, 0) };
        let none_left =
            asked < 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH);
        none_left && table.unreaped().is_empty()
    } else {
        table.unreaped().is_empty()
    }
}

fn send(table: &Table, pid1: bool, signal: i32) {
    if pid1 {
        // SAFETY: plain numbers; as PID 1 this reaches the namespace and not ourselves.
        unsafe { libc::kill(-1, signal) };
    } else {
        for process in table.unreaped() {
            // Ended in between: nothing to signal.
            let _ = process.signal(signal);
        }
    }
}
