//! Requests as they come off the wire, to the core's terms and back.

#![no_main]

use buffa::Message as _;
use libfuzzer_sys::fuzz_target;
use overwinter_api::v1;
use overwinter_gateway::api::convert;

fuzz_target!(|bytes: &[u8]| {
    let Some((&kind, bytes)) = bytes.split_first() else {
        return;
    };
    match kind % 3 {
        0 => {
            let Ok(spec) = v1::SandboxSpec::decode_from_slice(bytes) else {
                return;
            };
            let spec = convert::to_spec(spec, "local");
            assert!(!spec.driver.is_empty() && !spec.network.is_empty());
        }
        1 => {
            let Ok(config) = v1::SandboxConfig::decode_from_slice(bytes) else {
                return;
            };
            if let Ok(config) = convert::to_config(config, "somebody") {
                assert!(!config.owner.is_empty());
                for (name, value) in &config.env {
                    assert!(!name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0'));
                }
            }
        }
        _ => {
            let Ok(policy) = v1::Policy::decode_from_slice(bytes) else {
                return;
            };
            if let Ok(once) = convert::to_policy(policy) {
                // As a reader is shown it, it means the same.
                let twice = convert::to_policy(convert::policy(&once));
                assert_eq!(twice.ok(), Some(once));
            }
        }
    }
});
