//! Ending a compute and removing all of it but the storage.
//!
//! The runtime is not asked: its `delete` is a process to spawn, and of a container that it was
//! killed in the middle of making it leaves the control groups behind. What it has put down is known.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use overwinter_lifecycle::ids::SandboxId;

use crate::artifact;
use crate::cgroup::{Freezer, companion_of};
use crate::error::{At, LocalError, ignore_missing};
use crate::host::Host;
use crate::mounts;
use crate::process::{self, Identity};
use crate::runtime::RuntimeState;

/// Ends the compute `native`, whatever there is of it. Idempotent; nothing there is fine.
///
/// On an error something of it may be left, and the next call goes on from there.
pub(crate) fn end(host: &Host, native: &str, until: Instant) -> Result<(), LocalError> {
    let first = RuntimeState::read(&host.layout, native)?;
    end_from(
        host,
        native,
        first.and_then(|state| state.identity()),
        until,
    )
}

/// The same, where PID 1 is known.
pub(crate) fn end_from(
    host: &Host,
    native: &str,
    first: Option<Identity>,
    until: Instant,
) -> Result<(), LocalError> {
    end_processes(host, native, first, until)?;
    host.cgroups.remove(native, until)?;
    end_companion(host, native, until)?;
    mounts::detach(&host.layout.mounts_of(native))?;
    for state in host.layout.runtime_states(native) {
        ignore_missing(fs::remove_dir_all(&state)).at("removing", &state)?;
    }
    Ok(())
}

/// Ends what serves a compute from outside: its way to the internet.
pub(crate) fn end_companion(host: &Host, native: &str, until: Instant) -> Result<(), LocalError> {
    let companion = companion_of(native);
    end_processes(host, &companion, None, until)?;
    host.networks.forget(native);
    host.cgroups.remove(&companion, until)
}

fn end_processes(
    host: &Host,
    native: &str,
    first: Option<Identity>,
    until: Instant,
) -> Result<(), LocalError> {
    // PID 1 first: with it the kernel ends everything in its namespace, though not at the same moment.
    let first = first.map(process::open).transpose()?.flatten();
    if let Some(pidfd) = &first {
        process::kill(pidfd);
        match host.cgroups.state(native)? {
            // What is frozen together is thawed together, and on v1 dies only then: each must have its
            // signal before, or it runs until PID 1 has gone. Nothing that is frozen forks.
            Some(Freezer::Frozen | Freezer::Freezing) => {
                kill_group(host, native)?;
                host.cgroups.thaw(native)?;
            }
            Some(Freezer::Thawed) | None => {}
        }
        process::wait(pidfd, until);
    }
    loop {
        // What is in the group and not in PID 1's namespace: a runtime's own child.
        let Some(killed) = kill_group(host, native)? else {
            return Ok(());
        };
        host.cgroups.thaw(native)?;
        for pidfd in &killed {
            process::wait(
                pidfd,
                until.min(Instant::now() + Duration::from_millis(100)),
            );
        }
        if Instant::now() >= until {
            return Err(LocalError::StillThere {
                left: host.cgroups.pids(native)?.len(),
            });
        }
    }
}

/// Signals everything in the group, and answers with what was found. None: nothing is in it.
fn kill_group(host: &Host, native: &str) -> Result<Option<Vec<OwnedFd>>, LocalError> {
    let pids = host.cgroups.pids(native)?;
    if pids.is_empty() {
        return Ok(None);
    }
    host.cgroups.kill(native).at("killing", Path::new(native))?;
    let mut found = Vec::new();
    for pid in &pids {
        found.extend(process::open_pid(*pid)?);
    }
    // The descriptors are of whoever had the numbers now; still in the group means still ours.
    let still = host.cgroups.pids(native)?;
    if pids.is_subset(&still) {
        found.iter().for_each(process::kill);
    }
    Ok(Some(found))
}

/// Ends every compute of a sandbox but `keep`: also those that no record names any more.
pub(crate) fn end_others(
    host: &Host,
    sandbox: SandboxId,
    keep: Option<&str>,
    until: Instant,
) -> Result<(), LocalError> {
    for native in host.natives()? {
        if Host::sandbox_of(&native) == Some(sandbox) && keep != Some(native.as_str()) {
            end(host, &native, until)?;
        }
    }
    Ok(())
}

/// Removes the note of a compute that has ended.
pub(crate) fn forget(host: &Host, sandbox: SandboxId) -> Result<(), LocalError> {
    let dir = host.layout.sandbox(sandbox);
    artifact::sweep(&dir)?;
    let bundle = dir.bundle();
    ignore_missing(fs::remove_dir_all(&bundle)).at("removing", &bundle)?;
    let note = dir.compute();
    ignore_missing(fs::remove_file(&note)).at("removing", &note)
}
