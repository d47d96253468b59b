//! The generation of the storage: the incarnation of the newest compute that may have written to it.
//! Kept from the first artifact on, and durable before any later compute starts: memory of before
//! does not fit what that has written.

use std::fs::{self, File};
use std::io::{self, Write};

use overwinter_lifecycle::ids::Incarnation;

use super::sync_folder;
use crate::error::{At, LocalError};
use crate::layout::SandboxDir;

#[derive(Debug)]
pub(crate) struct Generation;

impl Generation {
    /// None: nothing was ever taken of this sandbox. A file that cannot be read fits no artifact.
    pub(crate) fn read(dir: &SandboxDir) -> Result<Option<Incarnation>, LocalError> {
        let path = dir.generation();
        match fs::read_to_string(&path) {
            Ok(text) => Ok(Some(Incarnation(text.trim().parse().unwrap_or(u64::MAX)))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).at("reading", &path),
        }
    }

    /// Durable when this returns.
    pub(crate) fn write(dir: &SandboxDir, generation: Incarnation) -> Result<(), LocalError> {
        let path = dir.generation();
        let aside = path.with_extension("new");
        let mut file = File::create(&aside).at("making", &aside)?;
        file.write_all(generation.0.to_string().as_bytes())
            .and_then(|()| file.sync_all())
            .and_then(|()| fs::rename(&aside, &path))
            .at("writing", &path)?;
        sync_folder(&dir.kept)
    }

    /// New compute is about to start. A sandbox that never slept so has nothing to note.
    pub(crate) fn raise(dir: &SandboxDir, to: Incarnation) -> Result<(), LocalError> {
        match Self::read(dir)? {
            Some(now) if now != to => Self::write(dir, to),
            Some(_) | None => Ok(()),
        }
    }
}
