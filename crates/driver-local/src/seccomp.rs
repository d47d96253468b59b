//! The system calls that a sandbox may make. The runtime brings no profile of its own.
//!
//! Made from the profile of containers-common (see `seccomp/NOTICE`) with rules of ours: no
//! new namespaces, no hold on the limits of PID 1, no sockets that reach past the network namespace.

use serde_json::Value;
use std::sync::LazyLock;

static PROFILE: LazyLock<Value> = LazyLock::new(|| {
    // The file is a part of the program; the test below reads it. Were it damaged, Null would make
    // the runtime refuse the configuration.
    let mut profile: Value =
        serde_json::from_str(include_str!("../seccomp/profile.json")).unwrap_or_default();
    // One architecture alone: a runtime that must build the filter for three takes 20 ms longer.
    let arch = if cfg!(target_arch = "x86_64") {
        "SCMP_ARCH_X86_64"
    } else {
        "SCMP_ARCH_AARCH64"
    };
    if let Some(fields) = profile.as_object_mut() {
        fields.insert("architectures".to_owned(), Value::from(vec![arch]));
    }
    profile
});

/// For `linux.seccomp` of the runtime's configuration.
pub(crate) fn profile() -> &'static Value {
    &PROFILE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unconditional_rule_never_hides_a_conditional_one() {
        // libseccomp drops the narrower of the two without a word.
        let rules = profile()["syscalls"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        assert!(rules.len() > 50, "the profile is not there");
        let names = |conditional: bool| {
            rules
                .iter()
                .filter(move |rule| rule.get("args").is_some() == conditional)
                .flat_map(|rule| rule["names"].as_array().cloned().unwrap_or_default())
                .collect::<Vec<_>>()
        };
        let unconditional = names(false);
        for name in names(true) {
            assert!(!unconditional.contains(&name), "{name}");
        }
    }
}
