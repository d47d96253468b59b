//! Records as messages, and messages as what the core takes.

use std::time::Duration;

use buffa::{Inline, MessageField};
use buffa_types::google::protobuf::{Duration as WireDuration, Timestamp};
use overwinter_api::v1;
use overwinter_driver::{Description, Reclaim, RuntimeOffer, SuspensionMode};
use overwinter_lifecycle::config::{Config, Policy, Resources, Spec};
use overwinter_lifecycle::ids::Millis;
use overwinter_lifecycle::operation::{Achieved, Operation, Outcome, Step, Verb};
use overwinter_lifecycle::record::{Compute, Desired, Failure, Retained, RetainedStatus, Sandbox};
use overwinter_lifecycle::{Depth, Phase};

use super::{ApiError, checks};
use crate::dataplane::process::timestamp;

/// What only the running gateway knows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Live {
    pub attached: bool,
    pub debts: u32,
    pub open_calls: u32,
}

fn when(at: Option<Millis>) -> MessageField<Timestamp, Inline<Timestamp>> {
    at.map_or_else(MessageField::none, |at| timestamp(at.0))
}

/// The longest that `google.protobuf.Duration` allows, some 10,000 years: beyond it there is no JSON.
const LONGEST_SECONDS: i64 = 315_576_000_000;

#[must_use]
pub fn duration(time: Duration) -> WireDuration {
    WireDuration {
        seconds: i64::try_from(time.as_secs())
            .map_or(LONGEST_SECONDS, |it| it.min(LONGEST_SECONDS)),
        nanos: i32::try_from(time.subsec_nanos()).unwrap_or(0),
        ..Default::default()
    }
}

/// # Errors
/// A negative one.
pub fn to_duration(time: &WireDuration, field: &str) -> Result<Duration, ApiError> {
    match (u64::try_from(time.seconds), u32::try_from(time.nanos)) {
        (Ok(seconds), Ok(nanos)) if nanos < 1_000_000_000 => Ok(Duration::new(seconds, nanos)),
        _ => Err(ApiError::invalid(format!(
            "{field}: a duration is not negative"
        ))),
    }
}

#[must_use]
pub const fn depth(depth: Depth) -> v1::Depth {
    match depth {
        Depth::Freeze => v1::Depth::DEPTH_FREEZE,
        Depth::Checkpoint => v1::Depth::DEPTH_CHECKPOINT,
        Depth::Stop => v1::Depth::DEPTH_STOP,
    }
}

/// # Errors
/// A number that this release does not know.
pub fn to_depth(depth: buffa::EnumValue<v1::Depth>) -> Result<Option<Depth>, ApiError> {
    match depth.as_known() {
        Some(v1::Depth::DEPTH_UNSPECIFIED) => Ok(None),
        Some(v1::Depth::DEPTH_FREEZE) => Ok(Some(Depth::Freeze)),
        Some(v1::Depth::DEPTH_CHECKPOINT) => Ok(Some(Depth::Checkpoint)),
        Some(v1::Depth::DEPTH_STOP) => Ok(Some(Depth::Stop)),
        None => Err(ApiError::invalid("depth: not one that this release knows")),
    }
}

#[must_use]
pub const fn phase(phase: Phase) -> v1::Phase {
    match phase {
        Phase::Creating => v1::Phase::PHASE_CREATING,
        Phase::Ready => v1::Phase::PHASE_READY,
        Phase::Suspending(_) => v1::Phase::PHASE_SUSPENDING,
        Phase::Suspended(_) => v1::Phase::PHASE_SUSPENDED,
        Phase::Resuming => v1::Phase::PHASE_RESUMING,
        Phase::Failed => v1::Phase::PHASE_FAILED,
        Phase::Deleting => v1::Phase::PHASE_DELETING,
        Phase::Tombstone => v1::Phase::PHASE_TOMBSTONE,
    }
}

/// For filters, which leave the depth out; none for "unspecified" and for what this release does not
/// know.
#[must_use]
pub fn to_phase(phase: buffa::EnumValue<v1::Phase>) -> Option<Phase> {
    match phase.as_known()? {
        v1::Phase::PHASE_UNSPECIFIED => None,
        v1::Phase::PHASE_CREATING => Some(Phase::Creating),
        v1::Phase::PHASE_READY => Some(Phase::Ready),
        v1::Phase::PHASE_SUSPENDING => Some(Phase::Suspending(Depth::Stop)),
        v1::Phase::PHASE_SUSPENDED => Some(Phase::Suspended(Depth::Stop)),
        v1::Phase::PHASE_RESUMING => Some(Phase::Resuming),
        v1::Phase::PHASE_FAILED => Some(Phase::Failed),
        v1::Phase::PHASE_DELETING => Some(Phase::Deleting),
        v1::Phase::PHASE_TOMBSTONE => Some(Phase::Tombstone),
    }
}

#[must_use]
pub fn sandbox(sandbox: &Sandbox, live: Live) -> v1::Sandbox {
    let at = sandbox.phase();
    let desired = match sandbox.desired {
        Desired::Running => v1::Desired::DESIRED_RUNNING,
        Desired::Suspended(_) => v1::Desired::DESIRED_SUSPENDED,
        Desired::Deleted => v1::Desired::DESIRED_DELETED,
    };
    v1::Sandbox {
        id: sandbox.id.to_string(),
        name: sandbox.name.as_str().to_owned(),
        tenant: sandbox.tenant.clone(),
        labels: sandbox.labels.clone().into_iter().collect(),
        spec: MessageField::some(spec(&sandbox.spec)),
        config: MessageField::some(config(&sandbox.config)),
        desired: desired.into(),
        phase: phase(at).into(),
        retained: sandbox.retained.as_ref().map(retained).into(),
        failure: sandbox
            .failure
            .as_ref()
            .map(|failure| self::failure(failure, sandbox.compute))
            .into(),
        running: sandbox.running.as_ref().map(operation).into(),
        waiting: sandbox.waiting.as_ref().map(operation).into(),
        incarnation_issued: sandbox.issued.0,
        incarnation_held: sandbox.compute.held().map(|held| held.0),
        disk_generation: sandbox.generation.0,
        why_awake: why_awake(at, live),
        created_at: timestamp(sandbox.created_at.0),
        updated_at: timestamp(sandbox.updated_at.0),
        revision: sandbox.revision,
        attached: live.attached,
        debts: live.debts,
        main_exit: sandbox
            .main_exit
            .map(|exit| v1::MainExit {
                code: exit.code,
                signal: exit.signal,
                at: timestamp(exit.at.0),
            })
            .into(),
    }
}

/// There is no idle timer yet, so what is awake stays awake; open calls are told apart all the same.
fn why_awake(phase: Phase, live: Live) -> Vec<String> {
    use overwinter_lifecycle::idle::{IdlePolicy, Use, why_awake};
    if phase != Phase::Ready {
        return Vec::new();
    }
    let policy = IdlePolicy {
        timeout_ms: None,
        background_counts: true,
    };
    let used = Use {
        open_calls: live.open_calls,
        running_processes: 0,
        quiet_ms: 0,
    };
    why_awake(policy, used)
        .into_iter()
        .map(|why| why.as_str().to_owned())
        .collect()
}

fn spec(spec: &Spec) -> v1::SandboxSpec {
    v1::SandboxSpec {
        driver: spec.driver.clone(),
        image: spec.image.clone(),
        image_digest: spec.image_digest.clone().unwrap_or_default(),
        resources: MessageField::some(v1::Resources {
            cpu_millis: spec.resources.cpu_millis,
            memory_bytes: spec.resources.memory_bytes,
            pids: spec.resources.pids,
            disk_bytes: spec.resources.disk_bytes,
        }),
        main: spec.main.clone(),
        network: spec.network.clone(),
        runtime: spec.runtime.clone(),
    }
}

#[must_use]
pub fn to_spec(spec: v1::SandboxSpec, default_driver: &str) -> Spec {
    let resources = spec.resources.into_option().unwrap_or_default();
    let network = if spec.network.is_empty() {
        "none".to_owned()
    } else {
        spec.network
    };
    Spec {
        driver: if spec.driver.is_empty() {
            default_driver.to_owned()
        } else {
            spec.driver
        },
        image: spec.image,
        image_digest: None,
        resources: Resources {
            cpu_millis: resources.cpu_millis,
            memory_bytes: resources.memory_bytes,
            pids: resources.pids,
            disk_bytes: resources.disk_bytes,
        },
        main: spec.main,
        network,
        runtime: spec.runtime,
    }
}

fn config(config: &Config) -> v1::SandboxConfig {
    v1::SandboxConfig {
        version: config.version,
        owner: config.owner.clone(),
        env: config.env.clone().into_iter().collect(),
        policy: MessageField::some(policy(&config.policy)),
    }
}

/// The policy as a message.
#[must_use]
pub fn policy(policy: &Policy) -> v1::Policy {
    let time = |time| MessageField::some(duration(time));
    v1::Policy {
        default_depth: depth(policy.default_depth).into(),
        stop_grace: time(policy.stop_grace()),
        pre_suspend_hook: policy.pre_suspend_hook.clone(),
        post_resume_hook: policy.post_resume_hook.clone(),
        hook_timeout: time(policy.hook_timeout()),
    }
}

/// # Errors
/// A field that cannot be.
pub fn to_policy(policy: v1::Policy) -> Result<Policy, ApiError> {
    let default = Policy::default();
    Ok(Policy {
        default_depth: to_depth(policy.default_depth)?.unwrap_or(default.default_depth),
        stop_grace_ms: match policy.stop_grace.as_option() {
            Some(time) => checks::stop_grace_ms(time)?,
            None => default.stop_grace_ms,
        },
        pre_suspend_hook: policy.pre_suspend_hook,
        post_resume_hook: policy.post_resume_hook,
        hook_timeout_ms: match policy.hook_timeout.as_option() {
            Some(time) => checks::hook_timeout_ms(time)?,
            None => default.hook_timeout_ms,
        },
    })
}

/// # Errors
/// As [`to_policy`].
pub fn to_config(config: v1::SandboxConfig, owner: &str) -> Result<Config, ApiError> {
    let policy = config.policy.into_option().map(to_policy).transpose()?;
    Ok(Config {
        version: 1,
        owner: if config.owner.is_empty() {
            owner.to_owned()
        } else {
            config.owner
        },
        env: checks::env(config.env.into_iter().collect())?,
        policy: policy.unwrap_or_default(),
    })
}

fn retained(retained: &Retained) -> v1::RetainedState {
    let (status, consumed_by) = match retained.status {
        RetainedStatus::Available => (v1::RetainedStatus::RETAINED_STATUS_AVAILABLE, None),
        RetainedStatus::BeingConsumed(by) => {
            (v1::RetainedStatus::RETAINED_STATUS_BEING_CONSUMED, Some(by))
        }
        RetainedStatus::Consumed => (v1::RetainedStatus::RETAINED_STATUS_CONSUMED, None),
        RetainedStatus::Discarding => (v1::RetainedStatus::RETAINED_STATUS_DISCARDING, None),
    };
    v1::RetainedState {
        depth: depth(retained.depth).into(),
        status: status.into(),
        consumed_by: consumed_by.map(|by| by.to_string()).unwrap_or_default(),
        disk_generation: retained.generation.0,
        size_bytes: retained.size_bytes,
        since: timestamp(retained.since.0),
        expires_at: when(retained.expires_at),
        lost: retained
            .lost
            .map_or(v1::Depth::DEPTH_UNSPECIFIED, depth)
            .into(),
        quiesced: retained.quiesced,
        reclaimed: (retained.reclaimed)
            .map(|reclaimed| v1::Reclaimed {
                freed_bytes: reclaimed.freed_bytes,
                left_bytes: reclaimed.left_bytes,
            })
            .into(),
    }
}

fn failure(failure: &Failure, compute: Compute) -> v1::Failure {
    let compute = match compute {
        Compute::Absent => v1::ComputeState::COMPUTE_STATE_ABSENT,
        Compute::Live { .. } | Compute::Frozen { .. } => v1::ComputeState::COMPUTE_STATE_LIVE,
        Compute::Unknown => v1::ComputeState::COMPUTE_STATE_UNKNOWN,
    };
    v1::Failure {
        reason: failure.fault.reason.code().to_owned(),
        message: failure.fault.message.clone(),
        operation_id: failure
            .operation
            .map(|id| id.to_string())
            .unwrap_or_default(),
        at: timestamp(failure.at.0),
        compute: compute.into(),
    }
}

#[must_use]
pub fn operation(op: &Operation) -> v1::Operation {
    let (kind, parameters): (_, Vec<(&str, String)>) = match op.verb {
        Verb::Create => (v1::OperationKind::OPERATION_KIND_CREATE, Vec::new()),
        Verb::Suspend {
            depth,
            idle,
            reclaim,
        } => (
            v1::OperationKind::OPERATION_KIND_SUSPEND,
            vec![
                ("depth", depth.to_string()),
                ("idle", idle.to_string()),
                ("reclaim", reclaim.to_string()),
            ],
        ),
        Verb::Resume { fallback, prefetch } => (
            v1::OperationKind::OPERATION_KIND_RESUME,
            vec![
                ("restart_if_restore_fails", fallback.to_string()),
                ("prefetch", prefetch.to_string()),
            ],
        ),
        Verb::Start => (v1::OperationKind::OPERATION_KIND_START, Vec::new()),
        Verb::Delete { abandon } => (
            v1::OperationKind::OPERATION_KIND_DELETE,
            vec![("abandon", abandon.to_string())],
        ),
    };
    v1::Operation {
        id: op.id.to_string(),
        sandbox_id: op.sandbox.to_string(),
        kind: kind.into(),
        parameters: parameters
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value))
            .collect(),
        step: op.step.as_str().to_owned(),
        fence: op.fence.0,
        attempt: op.attempt,
        requester: op.requester.clone(),
        created_at: timestamp(op.created_at.0),
        began_at: when(op.began_at),
        ended_at: when(op.ended_at),
        outcome: match (&op.outcome, op.step) {
            (Some(result), Step::Ended) => MessageField::some(outcome(result, &op.timings)),
            (Some(_) | None, _) => MessageField::none(),
        },
        // Whoever has it beside the record adds it.
        progress: String::new(),
    }
}

fn outcome(outcome: &Outcome, timings: &[(String, u64)]) -> v1::Outcome {
    let result = match outcome {
        Outcome::Succeeded { achieved, remarks } => {
            let achieved = match achieved {
                Achieved::Done => v1::Achieved::ACHIEVED_DONE,
                Achieved::Memory => v1::Achieved::ACHIEVED_MEMORY,
                Achieved::Storage => v1::Achieved::ACHIEVED_STORAGE,
            };
            let timings = timings
                .iter()
                .map(|(step, micros)| v1::StepTiming {
                    step: step.clone(),
                    took: MessageField::some(duration(Duration::from_micros(*micros))),
                })
                .collect();
            v1::Succeeded {
                achieved: achieved.into(),
                timings,
                remarks: remarks.clone(),
            }
            .into()
        }
        Outcome::Failed(fault) => v1::OperationError {
            reason: fault.reason.code().to_owned(),
            message: fault.message.clone(),
            next: fault.reason.next().to_owned(),
        }
        .into(),
        Outcome::SupersededBy(by) => v1::SupersededBy {
            operation_id: by.to_string(),
        }
        .into(),
        Outcome::TurnedBack(by) => v1::TurnedBack {
            operation_id: by.map(|by| by.to_string()).unwrap_or_default(),
        }
        .into(),
    };
    v1::Outcome {
        result: Some(result),
    }
}

#[must_use]
pub fn driver(description: &Description, is_default: bool) -> v1::Driver {
    v1::Driver {
        name: description.name.clone(),
        version: description.version.clone(),
        features: description.features.clone(),
        modes: (description.modes.iter())
            .map(|it| v1::SuspensionMode {
                not_on: lacking(description, |runtime| {
                    let mut lacks = runtime.lacks.iter();
                    lacks.find(|(depth, _)| *depth == it.depth)
                }),
                ..mode(it)
            })
            .collect(),
        is_default,
        unavailable: description
            .unavailable
            .iter()
            .map(|(depth, why)| (depth.as_str().to_owned(), why.clone()))
            .collect(),
        networks: (description.networks.iter())
            .map(|offer| v1::NetworkOffer {
                name: offer.name.clone(),
                missing: offer.missing.clone().unwrap_or_default(),
                not_on: lacking(description, |runtime| {
                    let mut without = runtime.without.iter();
                    without.find(|(name, _)| *name == offer.name)
                }),
            })
            .collect(),
    }
}

/// The driver's runtimes that lack something, and why.
fn lacking<'a, M: 'a, C: FromIterator<(String, String)>>(
    description: &'a Description,
    lack: impl Fn(&'a RuntimeOffer) -> Option<&'a (M, String)>,
) -> C {
    let runtimes = description.runtimes.iter();
    let lacking = runtimes.filter_map(|it| Some((it.name.clone(), lack(it)?.1.clone())));
    lacking.collect()
}

fn mode(mode: &SuspensionMode) -> v1::SuspensionMode {
    let named = |flags: &[(bool, &str)]| {
        flags
            .iter()
            .filter(|(set, _)| *set)
            .map(|(_, name)| (*name).to_owned())
            .collect()
    };
    v1::SuspensionMode {
        // Of the driver, and not of the mode alone.
        not_on: Default::default(),
        depth: depth(mode.depth).into(),
        preserves: named(&[
            (mode.preserves.processes, "processes"),
            (mode.preserves.memory, "memory"),
            (mode.preserves.root, "root"),
            (mode.preserves.workspace, "workspace"),
            (mode.preserves.addresses, "addresses"),
        ]),
        releases: named(&[(mode.releases.cpu, "cpu"), (mode.releases.memory, "memory")]),
        survives: named(&[
            (mode.survives.gateway_restart, "gateway_restart"),
            (mode.survives.host_reboot, "host_reboot"),
            (mode.survives.power_loss, "power_loss"),
        ]),
        same_compute: mode.same_compute,
        lost_request_life: MessageField::some(duration(mode.lost_request_life)),
        can_reclaim: mode.reclaim == Reclaim::Offered,
        no_reclaim: match &mode.reclaim {
            Reclaim::No | Reclaim::Offered => String::new(),
            Reclaim::Missing(why) => why.clone(),
        },
    }
}
