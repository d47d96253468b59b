//! What a request may ask for, before anything is written.

use std::collections::BTreeMap;
use std::time::Duration;

use buffa_types::google::protobuf::Duration as WireDuration;
use overwinter_lifecycle::config::{Policy, Resources};

use super::ApiError;
use super::convert::to_duration;

/// The longest that a label's key or value may be, in bytes.
const LABEL_BYTES: usize = 1_024;
/// Below it no supervisor starts.
const LEAST_MEMORY: u64 = 6 << 20;
/// The kernel counts memory in pages of a signed word.
const MOST_MEMORY: u64 = i64::MAX as u64;
/// The kernel gives no less than 1 ms of every 100.
const LEAST_CPU_MILLIS: u32 = 10;

/// The policy's time between SIGTERM and SIGKILL, in milliseconds.
///
/// # Errors
/// Longer than anything waits for user code.
pub(super) fn stop_grace_ms(time: &WireDuration) -> Result<u64, ApiError> {
    millis(time, "policy.stop_grace", Duration::ZERO)
}

/// The policy's time for a hook, in milliseconds.
///
/// # Errors
/// None at all, in which no hook can end, or longer than anything waits for one.
pub(super) fn hook_timeout_ms(time: &WireDuration) -> Result<u64, ApiError> {
    millis(time, "policy.hook_timeout", Duration::from_millis(1))
}

fn millis(time: &WireDuration, field: &str, least: Duration) -> Result<u64, ApiError> {
    let time = to_duration(time, field)?;
    match u64::try_from(time.as_millis()) {
        Ok(ms) if (least..=Policy::LONGEST).contains(&time) => Ok(ms),
        Ok(_) | Err(_) => Err(ApiError::invalid(format!(
            "{field}: {least:?} to {:?} can be given",
            Policy::LONGEST
        ))),
    }
}

/// As much of a text as names it in a message, which goes where there is little room: into headers.
fn beginning(text: &str) -> &str {
    const SHOWN: usize = 64;
    &text[..text.floor_char_boundary(SHOWN)]
}

/// Variables as they can be given to a process.
///
/// # Errors
/// A name or a value that no environment can hold.
pub(super) fn env(env: BTreeMap<String, String>) -> Result<BTreeMap<String, String>, ApiError> {
    for (key, value) in &env {
        if key.is_empty() || key.contains(['=', '\0']) || value.contains('\0') {
            let key = beginning(key);
            return Err(ApiError::invalid(format!("env: {key:?} cannot be set")));
        }
    }
    Ok(env)
}

/// Labels as they are kept.
///
/// # Errors
/// A label that `--label KEY=VALUE` could not name or a list could not show.
pub(super) fn labels(labels: &BTreeMap<String, String>) -> Result<(), ApiError> {
    for (key, value) in labels {
        let texts = [key, value];
        let bare = texts.iter().all(|text| !text.contains(char::is_control));
        if key.is_empty() || key.contains('=') || !bare {
            let key = beginning(key);
            return Err(ApiError::invalid(format!(
                "labels: {key:?} cannot be set: a key is not empty and has no `=`, and neither it nor \
                 its value has control characters"
            )));
        }
        if texts.iter().any(|text| text.len() > LABEL_BYTES) {
            let key = beginning(key);
            return Err(ApiError::invalid(format!(
                "labels: {key:?} is too long: keys and values have up to {LABEL_BYTES} bytes"
            )));
        }
    }
    Ok(())
}

/// Limits as they are kept; 0 is none.
///
/// # Errors
/// A limit within which nothing can run, or that no kernel can hold.
pub(super) fn resources(resources: Resources) -> Result<Resources, ApiError> {
    let Resources {
        cpu_millis,
        memory_bytes,
        pids: _,
        disk_bytes: _,
    } = resources;
    if memory_bytes != 0 && !(LEAST_MEMORY..=MOST_MEMORY).contains(&memory_bytes) {
        return Err(ApiError::invalid(format!(
            "spec.resources.memory_bytes: {LEAST_MEMORY} to {MOST_MEMORY} can be given, or 0 for no limit"
        )));
    }
    if cpu_millis != 0 && cpu_millis < LEAST_CPU_MILLIS {
        return Err(ApiError::invalid(format!(
            "spec.resources.cpu_millis: at least {LEAST_CPU_MILLIS} can be given, or 0 for no limit"
        )));
    }
    Ok(resources)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wire(seconds: i64, nanos: i32) -> WireDuration {
        WireDuration {
            seconds,
            nanos,
            ..Default::default()
        }
    }

    #[test]
    fn times_have_bounds() {
        assert_eq!(stop_grace_ms(&wire(0, 0)).unwrap(), 0);
        assert_eq!(stop_grace_ms(&wire(3_600, 0)).unwrap(), 3_600_000);
        assert_eq!(hook_timeout_ms(&wire(0, 1_000_000)).unwrap(), 1);
        for bad in [wire(3_600, 1), wire(i64::MAX, 0), wire(-1, 0)] {
            let refused = format!("{:?}", stop_grace_ms(&bad).unwrap_err());
            assert!(refused.contains("policy.stop_grace"), "{refused}");
            assert!(hook_timeout_ms(&bad).is_err(), "{bad:?}");
        }
        for short in [wire(0, 0), wire(0, 999_999)] {
            assert!(hook_timeout_ms(&short).is_err(), "{short:?}");
        }
    }

    #[test]
    fn labels_and_variables_can_be_named() {
        let one = |key: &str, value: &str| BTreeMap::from([(key.to_owned(), value.to_owned())]);
        labels(&one("team", "")).unwrap();
        labels(&one("größe", "a=b")).unwrap();
        for (key, value) in [("", "x"), ("a=b", "x"), ("a\nb", "x"), ("a", "\x1b[2J")] {
            assert!(labels(&one(key, value)).is_err(), "{key:?}");
        }
        assert!(labels(&one("a", &"x".repeat(1_025))).is_err());
        env(one("PATH", "a=b\n")).unwrap();
        for (key, value) in [("", "x"), ("a=b", "x"), ("a", "\0")] {
            assert!(env(one(key, value)).is_err(), "{key:?}");
        }
    }

    #[test]
    fn limits_leave_room_to_run() {
        let of = |cpu_millis, memory_bytes| Resources {
            cpu_millis,
            memory_bytes,
            ..Resources::default()
        };
        for good in [of(0, 0), of(10, 6 << 20), of(u32::MAX, i64::MAX as u64)] {
            resources(good).unwrap();
        }
        for bad in [of(9, 0), of(0, 1), of(0, (6 << 20) - 1), of(0, u64::MAX)] {
            assert!(resources(bad).is_err(), "{bad:?}");
        }
    }
}
