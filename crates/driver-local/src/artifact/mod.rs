//! Memory on disk: what a checkpoint leaves, and what a restore is made from.
//!
//! ```text
//! <sandbox>/key                       32 bytes, 0600: destroyed by delete
//! <sandbox>/generation                of the storage, from the first artifact on
//! <sandbox>/artifacts/<native name>/  by the key of the effect that took it
//!     manifest.json                   what it is, and what it belongs to
//!     image                           chunks: compressed, encrypted, authenticated
//! <sandbox>/artifacts/.new.<name>/    being written; swept
//! <sandbox>/artifacts/.plain.<name>/  as the runtime writes and reads it, where memory is short; swept
//! ```
//!
//! An artifact is there when its folder has its name: by then all in it is synced. Nothing of it is
//! handed to the runtime before all of it was authenticated, under a key of this sandbox alone, as
//! belonging to exactly this manifest.

mod behind;
mod chunk;
mod generation;
mod key;
mod manifest;
mod open;
mod seal;
mod source;
mod staging;

use std::fs;
use std::path::{Path, PathBuf};

use overwinter_driver::{DriverError, Unusable};
use overwinter_lifecycle::ids::{Incarnation, SandboxId};

use crate::error::{At, LocalError, ignore_missing};
use crate::host::names as entries;
use crate::layout::SandboxDir;

pub(crate) use generation::Generation;
pub(crate) use key::destroy as destroy_key;
pub(crate) use manifest::{Belongs, Manifest};
pub(crate) use open::open;
pub(crate) use seal::Sealing;
pub(crate) use staging::Staging;

const ASIDE: &str = ".new.";
const IMAGE: &str = "image";
const MANIFEST: &str = "manifest.json";

/// Why an artifact cannot be restored, found out before the runtime was started: nothing ran.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ArtifactError {
    #[error("the memory that was written to disk is not there any more")]
    Missing,
    #[error(
        "the memory on disk is in format {found}, and this version of the driver reads {}",
        manifest::FORMAT
    )]
    Format { found: u32 },
    #[error("the memory on disk is another sandbox's")]
    Foreign,
    #[error(
        "the memory on disk belongs to generation {taken} of the storage, which is at {now}: something has run since"
    )]
    Generation {
        taken: Incarnation,
        now: Incarnation,
    },
    #[error(
        "the memory on disk was written by {taken}, and no other build can restore it; there are: {here}"
    )]
    Build { taken: String, here: String },
    #[error("the supervisor that runs in the memory on disk is not kept any more")]
    Supervisor,
    #[error("the memory on disk is shorter than when it was written")]
    Truncated,
    #[error("the memory on disk is damaged: {0}")]
    Damaged(&'static str),
    #[error(transparent)]
    Local(#[from] LocalError),
}

impl ArtifactError {
    pub(crate) fn without_effect(self) -> DriverError {
        match self {
            Self::Missing => DriverError::Missing(self.to_string()),
            // The memory is there: what is missing is what it was taken over.
            Self::Local(LocalError::ImageMissing { .. }) => self.unusable(Unusable::OtherImage),
            Self::Local(error) => error.without_effect(),
            Self::Format { .. } | Self::Build { .. } | Self::Supervisor => {
                self.unusable(Unusable::OtherBuild)
            }
            Self::Foreign => self.unusable(Unusable::Foreign),
            Self::Generation { .. } => self.unusable(Unusable::Stale),
            Self::Truncated | Self::Damaged(_) => self.unusable(Unusable::Damaged),
        }
    }

    fn unusable(&self, why: Unusable) -> DriverError {
        DriverError::Unusable {
            why,
            message: self.to_string(),
        }
    }
}

/// Where the artifact of the effect with this native name is, or will be.
pub(crate) fn folder(dir: &SandboxDir, name: &str) -> PathBuf {
    dir.artifacts().join(name)
}

fn aside(dir: &SandboxDir, name: &str) -> PathBuf {
    dir.artifacts().join(format!("{ASIDE}{name}"))
}

/// The names of those that are whole.
pub(crate) fn names(dir: &SandboxDir) -> Result<Vec<String>, LocalError> {
    let mut names = entries(&dir.artifacts())?;
    names.retain(|name| !name.starts_with('.'));
    Ok(names)
}

/// The manifest of one. None: it is not there, or could not be restored either.
///
/// # Errors
/// When the host cannot tell, which is not the same.
pub(crate) fn found(
    dir: &SandboxDir,
    sandbox: SandboxId,
    name: &str,
) -> Result<Option<Manifest>, LocalError> {
    match Manifest::read(dir, sandbox, name) {
        Ok(manifest) => Ok(Some(manifest)),
        Err(ArtifactError::Local(error)) => Err(error),
        Err(
            ArtifactError::Missing
            | ArtifactError::Format { .. }
            | ArtifactError::Foreign
            | ArtifactError::Generation { .. }
            | ArtifactError::Build { .. }
            | ArtifactError::Supervisor
            | ArtifactError::Truncated
            | ArtifactError::Damaged(_),
        ) => Ok(None),
    }
}

/// The manifests of all that can be read.
pub(crate) fn whole(dir: &SandboxDir, sandbox: SandboxId) -> Result<Vec<Manifest>, LocalError> {
    let mut whole = Vec::new();
    for name in names(dir)? {
        whole.extend(found(dir, sandbox, &name)?);
    }
    Ok(whole)
}

/// The names of those that were taken of the compute with this birth.
pub(crate) fn taken_of(
    dir: &SandboxDir,
    sandbox: SandboxId,
    birth: Incarnation,
) -> Result<Vec<String>, LocalError> {
    let whole = whole(dir, sandbox)?.into_iter();
    let belongs = whole.map(|manifest| manifest.belongs().clone());
    let taken = belongs.filter(|belongs| belongs.generation == birth);
    Ok(taken.map(|belongs| belongs.name).collect())
}

/// Removes what was not finished: half an artifact, plain memory.
pub(crate) fn sweep(dir: &SandboxDir) -> Result<(), LocalError> {
    staging::sweep(dir)?;
    for name in entries(&dir.artifacts())? {
        if name.starts_with('.') {
            remove_folder(&dir.artifacts().join(name))?;
        }
    }
    Ok(())
}

/// Removes one artifact. None there is fine. First it loses its name, so that half of one never
/// counts.
pub(crate) fn remove(dir: &SandboxDir, name: &str) -> Result<(), LocalError> {
    let going = aside(dir, name);
    remove_folder(&going)?;
    let path = folder(dir, name);
    ignore_missing(fs::rename(&path, &going)).at("renaming", &path)?;
    remove_folder(&going)
}

fn remove_folder(path: &Path) -> Result<(), LocalError> {
    ignore_missing(fs::remove_dir_all(path)).at("removing", path)
}

fn sync_folder(path: &Path) -> Result<(), LocalError> {
    let folder = fs::File::open(path).at("opening", path)?;
    folder.sync_all().at("syncing", path)
}
