//! A sandbox that does as it is told, by a file in its workspace, as its root.

use std::fs;
use std::path::Path;

use overwinter_driver::{ComputeSpec, Driver};
use overwinter_lifecycle::ids::SandboxId;

use crate::common::{Bed, credentials, sandbox, skipped, until};

type Error = Box<dyn std::error::Error>;

/// PID 1 is not root; a program that it starts with another user is. Its shell is a new copy each time,
/// because start-stop-daemon takes what runs already for started.
pub(crate) const TOLD: &str = "mkdir -p /own; n=0; while true; do if [ -f /workspace/run ]; then \
    n=$((n+1)); mkdir /own/$n; busybox cp /bin/busybox /own/$n/sh; mv /workspace/run /workspace/now$n; \
    busybox start-stop-daemon -S -q -c 0:0 -x /own/$n/sh -- /workspace/now$n > /workspace/said 2>&1 < /dev/null; \
    mv /workspace/said /workspace/answer; fi; sleep 0.02; done";

/// Why the tests of networks cannot run here; None: they can.
pub(crate) fn cannot_run() -> Option<&'static str> {
    if let Some(why) = crate::common::cannot_run() {
        return Some(why);
    }
    let missing = ["pasta", "nft", "ip"].iter().find(|name| {
        let folders = ["/usr/bin", "/usr/sbin", "/sbin", "/bin", "/usr/local/bin"];
        !folders
            .iter()
            .any(|folder| Path::new(folder).join(name).exists())
    });
    let why = missing.map(|_| "needs pasta, nft and ip (Debian: passt, nftables, iproute2)");
    skipped(why)
}

pub(crate) fn spec(bed: &Bed, network: &str) -> ComputeSpec {
    ComputeSpec {
        network: network.to_owned(),
        ..bed.spec()
    }
}

pub(crate) async fn made(bed: &Bed, network: &str) -> Result<SandboxId, Error> {
    let id = sandbox();
    bed.driver
        .create(
            &bed.effect(id, 1, 1),
            &spec(bed, network),
            &credentials(id, 1),
        )
        .await?;
    Ok(id)
}

/// What a script of the sandbox's root says.
pub(crate) async fn tell(bed: &Bed, id: SandboxId, script: &str) -> Result<String, Error> {
    let workspace = bed.sandbox_dir(id).join("workspace");
    let answer = workspace.join("answer");
    let _ = fs::remove_file(&answer);
    let aside = workspace.join("aside");
    fs::write(&aside, script)?;
    fs::rename(&aside, workspace.join("run"))?;
    if until("it answers", || answer.exists()).await.is_err() {
        let so_far = fs::read_to_string(workspace.join("said")).unwrap_or_default();
        return Err(format!("no answer to {script:?}, only {so_far:?}").into());
    }
    Ok(fs::read_to_string(&answer)?)
}

/// Whether something greets there.
pub(crate) async fn reaches(
    bed: &Bed,
    id: SandboxId,
    address: &str,
    port: u16,
) -> Result<bool, Error> {
    // Debian 12's pasta repeats what comes to one that closes its own side at once.
    let script = format!("busybox sleep 0.3 | busybox nc -w 2 {address} {port}; echo ended");
    let said = tell(bed, id, &script).await?;
    assert!(said.contains("ended"), "{said}");
    Ok(said.contains("hello"))
}

/// The processes in the sandbox's group, or in the one beside it.
pub(crate) fn pids(bed: &Bed, id: SandboxId, beside: bool) -> Vec<i32> {
    let ours = format!("overwinter/{}", bed.config.gateway_id);
    let root = ["/sys/fs/cgroup", "/sys/fs/cgroup/freezer"]
        .map(|root| Path::new(root).join(&ours))
        .into_iter()
        .find(|group| group.exists());
    let groups = root.and_then(|root| fs::read_dir(root).ok());
    let name = id.0.simple().to_string();
    let groups = groups.into_iter().flatten().flatten().filter(|group| {
        let group = group.file_name().to_string_lossy().into_owned();
        group.starts_with(&name) && group.ends_with(".net") == beside
    });
    groups
        .flat_map(|group| {
            let pids = fs::read_to_string(group.path().join("cgroup.procs")).unwrap_or_default();
            pids.lines()
                .filter_map(|pid| pid.parse().ok())
                .collect::<Vec<i32>>()
        })
        .collect()
}

/// Its PID 1: the first of its group.
pub(crate) fn first(bed: &Bed, id: SandboxId) -> Result<i32, Error> {
    let pids = pids(bed, id, false);
    pids.into_iter().min().ok_or_else(|| "nothing runs".into())
}
