//! From a spec to the container that the daemon is asked to make.

use std::collections::HashMap;

use bollard::models::{
    ContainerCreateBody, HealthConfig, HostConfig, HostConfigLogConfig, ImageConfig, Mount,
    MountType, RestartPolicy, RestartPolicyNameEnum,
};
use overwinter_driver::door::{INSIDE, SUPERVISOR_ID};
use overwinter_driver::{ComputeSpec, EffectContext};
use overwinter_lifecycle::ids::SandboxId;

use crate::home::SandboxDir;

pub(crate) const GATEWAY: &str = "io.overwinter.gateway";
pub(crate) const SANDBOX: &str = "io.overwinter.sandbox";
/// The incarnation that the container was made for.
pub(crate) const BIRTH: &str = "io.overwinter.incarnation";
/// Where the supervisor's folder is inside.
const SUPERVISOR_INSIDE: &str = "/.overwinter";

/// The name of a sandbox's container, known before any call; the daemon gives it once.
pub(crate) fn name_of(sandbox: SandboxId) -> String {
    format!("overwinter-{}", sandbox.0.simple())
}

/// Which sandbox a container's name is of.
pub(crate) fn sandbox_of(name: &str) -> Option<SandboxId> {
    name.trim_start_matches('/')
        .strip_prefix("overwinter-")?
        .parse()
        .ok()
}

pub(crate) fn body(
    ctx: &EffectContext,
    spec: &ComputeSpec,
    image: &ImageConfig,
    dir: &SandboxDir,
    gateway: &str,
    default_pids: u32,
) -> ContainerCreateBody {
    let mut supervisor = [
        &format!("{SUPERVISOR_INSIDE}/supervisor"),
        "--run-dir",
        INSIDE,
        // It becomes its own user itself: a daemon gives capabilities to nobody but root.
        "--user",
        &SUPERVISOR_ID.to_string(),
        // The daemon gives PID 1 what the image says, and the supervisor its processes.
        "--inherit-env",
    ]
    .map(str::to_owned)
    .to_vec();
    for (option, value) in [
        ("--main-user", &image.user),
        ("--main-workdir", &image.working_dir),
    ] {
        if let Some(value) = value.as_ref().filter(|it| !it.is_empty()) {
            supervisor.extend([option.to_owned(), value.clone()]);
        }
    }
    let labels = [
        (GATEWAY, gateway.to_owned()),
        (SANDBOX, ctx.sandbox().to_string()),
        (BIRTH, ctx.incarnation.to_string()),
    ];
    ContainerCreateBody {
        hostname: Some(spec.name.clone()),
        image: Some(spec.image.digest.clone()),
        // With an entrypoint of ours, nothing of the image's is started by the daemon.
        entrypoint: Some(supervisor),
        cmd: Some(Vec::new()),
        user: Some("0:0".to_owned()),
        working_dir: Some("/".to_owned()),
        // PID 1 ignores every signal that can be: who stops the container by hand need not wait.
        stop_signal: Some("SIGKILL".to_owned()),
        healthcheck: Some(HealthConfig {
            test: Some(vec!["NONE".to_owned()]),
            ..HealthConfig::default()
        }),
        labels: Some(labels.map(|(name, value)| (name.to_owned(), value)).into()),
        host_config: Some(host_config(spec, dir, default_pids)),
        ..ContainerCreateBody::default()
    }
}

fn host_config(spec: &ComputeSpec, dir: &SandboxDir, default_pids: u32) -> HostConfig {
    let asked = &spec.resources;
    let pids = if asked.pids == 0 {
        default_pids
    } else {
        asked.pids
    };
    HostConfig {
        mounts: Some(vec![
            mount(dir.supervisor(), SUPERVISOR_INSIDE, true),
            mount(dir.attach(), INSIDE, true),
            mount(dir.workspace(), "/workspace", false),
        ]),
        network_mode: Some(if spec.network.is_empty() {
            "none".to_owned()
        } else {
            spec.network.clone()
        }),
        memory: (asked.memory_bytes > 0)
            .then(|| i64::try_from(asked.memory_bytes).unwrap_or(i64::MAX)),
        nano_cpus: (asked.cpu_millis > 0).then(|| i64::from(asked.cpu_millis) * NANOS_A_MILLI),
        pids_limit: Some(i64::from(pids)),
        cap_drop: Some(vec!["NET_RAW".to_owned()]),
        // Whether and when it runs again is the gateway's to say.
        restart_policy: Some(RestartPolicy {
            name: Some(RestartPolicyNameEnum::NO),
            maximum_retry_count: None,
        }),
        // The supervisor says little, and what it says must not fill a disk.
        log_config: Some(HostConfigLogConfig {
            typ: Some("json-file".to_owned()),
            config: Some(HashMap::from([
                ("max-size".to_owned(), "1m".to_owned()),
                ("max-file".to_owned(), "1".to_owned()),
            ])),
        }),
        init: Some(false),
        ..HostConfig::default()
    }
}

/// Of a CPU.
const NANOS_A_MILLI: i64 = 1_000_000;

fn mount(source: std::path::PathBuf, target: &str, read_only: bool) -> Mount {
    Mount {
        typ: Some(MountType::BIND),
        source: Some(source.to_string_lossy().into_owned()),
        target: Some(target.to_owned()),
        read_only: Some(read_only),
        ..Mount::default()
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn the_name_says_whose_it_is() {
        let sandbox = SandboxId(Uuid::now_v7());
        assert_eq!(sandbox_of(&name_of(sandbox)), Some(sandbox));
        assert_eq!(sandbox_of(&format!("/{}", name_of(sandbox))), Some(sandbox));
        assert_eq!(sandbox_of("/overwinter-db"), None);
        assert_eq!(sandbox_of("/postgres"), None);
    }
}
