//! Supervisor binaries, kept by content: a folder each, which is mounted into the sandbox. A running
//! PID 1 goes on with the one that it was started with, whatever the gateway brings now.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::error::{At, LocalError};
use crate::layout::hex;

/// Copies `binary` to `<folder>/<sha256>/supervisor`, unless it is there, and answers with its folder.
pub(crate) fn keep(folder: &Path, binary: &Path) -> Result<PathBuf, LocalError> {
    let bytes = fs::read(binary).at("reading", binary)?;
    let digest = hex(&Sha256::digest(&bytes));
    let kept = folder.join(&digest);
    if kept.join("supervisor").exists() {
        return Ok(kept);
    }
    let aside = folder.join(format!(".{digest}"));
    fs::create_dir_all(&aside).at("making", &aside)?;
    let file = aside.join("supervisor");
    fs::write(&file, &bytes).at("writing", &file)?;
    for path in [&file, &aside] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))
            .at("setting the mode of", path)?;
    }
    // Whole before it counts: once a version of the program.
    let written = fs::File::open(&file).at("opening", &file)?;
    written.sync_all().at("syncing", &file)?;
    match fs::rename(&aside, &kept) {
        Err(_) if kept.join("supervisor").exists() => Ok(kept),
        other => other.at("renaming", &aside).map(|()| kept),
    }
}

/// Removes every binary that is not among `named`.
pub(crate) fn sweep(folder: &Path, named: &[PathBuf]) -> Result<(), LocalError> {
    for entry in fs::read_dir(folder).at("reading", folder)? {
        let path = entry.at("reading", folder)?.path();
        if !named.contains(&path) {
            fs::remove_dir_all(&path).at("removing", &path)?;
        }
    }
    Ok(())
}
