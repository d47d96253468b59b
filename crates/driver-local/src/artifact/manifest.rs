//! What an artifact is and what it belongs to. All of the first half is bound to the chunks: one
//! changed letter, and none of them, or not the last, is authentic.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use overwinter_driver::ComputeSpec;
use overwinter_lifecycle::ids::{Incarnation, SandboxId};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{ArtifactError, IMAGE, MANIFEST, folder};
use crate::error::{At, LocalError};
use crate::layout::{Layout, SandboxDir};
use crate::runtime::Runtimes;

/// 2: the files are bound to the last chunk alone, since the first is sealed before they are whole.
pub(super) const FORMAT: u32 = 2;

/// What memory was taken from, and what alone can bring it back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Belongs {
    pub(crate) sandbox: SandboxId,
    /// Of the effect that took it.
    pub(crate) name: String,
    /// Of the storage when it was taken.
    pub(crate) generation: Incarnation,
    /// The exact build of the runtime.
    pub(crate) runtime: String,
    /// The supervisor's content id.
    pub(crate) supervisor: String,
    pub(crate) spec: ComputeSpec,
}

/// The first half. All of it is known when the last chunk is written, and all but the files before
/// the first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Head {
    pub(super) belongs: Belongs,
    /// Hex.
    pub(super) salt: String,
    /// The runtime's files, in the order of their bytes in the image.
    pub(super) files: Vec<Part>,
}

/// One file of the runtime's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Part {
    pub(super) name: String,
    pub(super) bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    pub(super) format: u32,
    pub(super) head: Head,
    /// Of the file `image`.
    pub(crate) size_bytes: u64,
    /// Over the authentication tags of all chunks, and so over every byte.
    pub(super) digest: String,
}

/// Read before the rest, whatever that is by then.
#[derive(Deserialize)]
struct Stamp {
    format: u32,
}

impl Head {
    /// What every chunk with memory is authenticated with.
    pub(super) fn bound(&self) -> Result<[u8; 32], LocalError> {
        digest_of(&(&self.belongs, &self.salt))
    }

    /// And the end of them, which says what files they come to.
    pub(super) fn bound_to_files(&self) -> Result<[u8; 32], LocalError> {
        digest_of(self)
    }
}

fn digest_of(what: &impl Serialize) -> Result<[u8; 32], LocalError> {
    let bytes = serde_json::to_vec(what)
        .map_err(io::Error::from)
        .at("writing", Path::new(MANIFEST))?;
    Ok(Sha256::digest(bytes).into())
}

impl Manifest {
    pub(crate) const fn belongs(&self) -> &Belongs {
        &self.head.belongs
    }

    /// Memory and all else that the runtime wrote, in bytes.
    pub(crate) fn plain_bytes(&self) -> u64 {
        let parts = self.head.files.iter().map(|part| part.bytes);
        parts.fold(0, u64::saturating_add)
    }

    pub(super) fn write(&self, folder: &Path) -> Result<(), LocalError> {
        let path = folder.join(MANIFEST);
        let bytes = serde_json::to_vec_pretty(self).at("writing", &path)?;
        let mut file = File::create(&path).at("making", &path)?;
        file.write_all(&bytes)
            .and_then(|()| file.sync_all())
            .at("writing", &path)
    }

    /// Reads the manifest of one and checks all that can be checked without the memory itself.
    pub(crate) fn read(
        dir: &SandboxDir,
        sandbox: SandboxId,
        name: &str,
    ) -> Result<Self, ArtifactError> {
        let folder = folder(dir, name);
        let path = folder.join(MANIFEST);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(ArtifactError::Missing);
            }
            Err(error) => return Err(error).at("reading", &path)?,
        };
        let unreadable = |_| ArtifactError::Damaged("its manifest cannot be read");
        let stamp: Stamp = serde_json::from_slice(&bytes).map_err(unreadable)?;
        if stamp.format != FORMAT {
            return Err(ArtifactError::Format {
                found: stamp.format,
            });
        }
        let manifest: Self = serde_json::from_slice(&bytes).map_err(unreadable)?;
        let belongs = manifest.belongs();
        if belongs.sandbox != sandbox || belongs.name != name {
            return Err(ArtifactError::Foreign);
        }
        let image = folder.join(IMAGE);
        match fs::metadata(&image) {
            Ok(meta) if meta.len() == manifest.size_bytes => Ok(manifest),
            Ok(meta) if meta.len() < manifest.size_bytes => Err(ArtifactError::Truncated),
            Ok(_) => Err(ArtifactError::Damaged("it is longer than it was")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(ArtifactError::Missing),
            Err(error) => Err(error).at("looking at", &image)?,
        }
    }

    /// The supervisor's folder, and that there is the runtime that wrote it.
    pub(crate) fn needs(
        &self,
        layout: &Layout,
        runtimes: &Runtimes,
    ) -> Result<PathBuf, ArtifactError> {
        let belongs = self.belongs();
        if runtimes.of_build(&belongs.runtime).is_none() {
            return Err(ArtifactError::Build {
                taken: belongs.runtime.clone(),
                here: runtimes.names(),
            });
        }
        let plain = |c: char| c.is_ascii_hexdigit();
        let supervisor = layout.supervisors().join(&belongs.supervisor);
        if !belongs.supervisor.chars().all(plain) || !supervisor.join("supervisor").is_file() {
            return Err(ArtifactError::Supervisor);
        }
        Ok(supervisor)
    }
}
