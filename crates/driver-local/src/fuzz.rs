//! A door for the fuzzer; not part of any build but its own.

use std::path::Path;

/// Extracts a rootfs tar to `<target>/rootfs`.
///
/// # Errors
/// Why it is no whole rootfs tar, in words.
pub fn extract(tar: &Path, target: &Path) -> Result<(), String> {
    crate::image::extract::tar("fuzz", tar, target).map_err(|error| error.to_string())
}
