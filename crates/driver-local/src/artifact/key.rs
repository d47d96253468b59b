//! The key of one sandbox, and what is derived from it for one artifact.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;

use ring::aead::{AES_256_GCM, LessSafeKey, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Salt};
use ring::rand::{SecureRandom, SystemRandom};

use super::{ArtifactError, sync_folder};
use crate::error::{At, LocalError, ignore_missing};
use crate::layout::SandboxDir;

const BYTES: usize = 32;

/// Random bytes from the kernel.
pub(super) fn random() -> Result<[u8; BYTES], LocalError> {
    let mut bytes = [0; BYTES];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| LocalError::Cipher("the kernel gives no random bytes"))?;
    Ok(bytes)
}

/// The sandbox's key; made, durably, when it has none.
pub(super) fn make_or_read(dir: &SandboxDir) -> Result<[u8; BYTES], LocalError> {
    let path = dir.key();
    if let Some(key) = read(dir)? {
        return Ok(key);
    }
    let key = random()?;
    let aside = path.with_extension("new");
    ignore_missing(fs::remove_file(&aside)).at("removing", &aside)?;
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&aside)
        .at("making", &aside)?;
    file.write_all(&key)
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::rename(&aside, &path))
        .at("writing", &path)?;
    sync_folder(&dir.kept)?;
    Ok(key)
}

/// None: there is none, or not all of one.
pub(super) fn read(dir: &SandboxDir) -> Result<Option<[u8; BYTES]>, LocalError> {
    let path = dir.key();
    match fs::read(&path) {
        Ok(bytes) => Ok(bytes.try_into().ok()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).at("reading", &path),
    }
}

/// Overwrites it, then removes it: without it the artifacts are noise, wherever copies of them are.
pub(crate) fn destroy(dir: &SandboxDir) -> Result<(), LocalError> {
    let path = dir.key();
    match File::options().write(true).open(&path) {
        Ok(mut file) => file
            .write_all(&[0; BYTES])
            .and_then(|()| file.sync_all())
            .at("overwriting", &path)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).at("opening", &path),
    }
    ignore_missing(fs::remove_file(&path)).at("removing", &path)
}

/// A key that seals one artifact and nothing else, so that its chunks may be numbered from 0.
pub(super) fn derive(key: &[u8; BYTES], salt: &[u8]) -> Result<LessSafeKey, ArtifactError> {
    let refused = || ArtifactError::Damaged("no key could be derived for it");
    let secret = Salt::new(HKDF_SHA256, salt).extract(key);
    let derived = secret
        .expand(&[b"overwinter local artifact"], &AES_256_GCM)
        .map_err(|_| refused())?;
    Ok(LessSafeKey::new(UnboundKey::from(derived)))
}
