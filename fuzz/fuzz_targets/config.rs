//! The configuration file of a gateway.

#![no_main]

use libfuzzer_sys::fuzz_target;
use overwinter_gateway::config::Config;

fuzz_target!(|text: &str| {
    let Ok(config) = toml::from_str::<Config>(text) else {
        return;
    };
    assert!(!config.data_dir().as_os_str().is_empty() || text.contains("data_dir"));
    let _ = config.socket();
    // What is known is all that is taken: a key of no meaning is refused wherever it stands.
    let more = format!("no-such-key = 1\n{text}");
    assert!(toml::from_str::<Config>(&more).is_err());
});
