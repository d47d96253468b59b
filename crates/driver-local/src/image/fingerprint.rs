//! Whether a folder is still the one that was pinned, at the cost of a few hundred lstat(2).
//!
//! It covers the folder itself and some levels below: who replaces an image, or installs into it,
//! changes those; moving it away and back does not. A change deep inside a shared lower layer is the user's own doing and not seen.

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::error::{At, LocalError};
use crate::layout::hex;
use crate::userns::SUPERVISOR_ID;

const LEVELS: u32 = 2;

/// Whether the number of the device counts.
#[derive(Clone, Copy)]
enum Device {
    Counts,
    /// The folder is wherever it is: it goes by no other name.
    Any,
}

pub(super) fn of(image: &str, folder: &Path) -> Result<String, LocalError> {
    let mut hash = Sha256::new();
    hash.update(folder.as_os_str().as_bytes());
    let meta = fs::symlink_metadata(folder).at("looking at", folder)?;
    add(&mut hash, &meta, Device::Counts);
    walk(image, folder, LEVELS, Device::Counts, &mut hash)?;
    Ok(hex(&hash.finalize()))
}

/// Of what lies at a place of this host's, whatever disk that is on today.
pub(super) fn here(
    image: &str,
    folder: &Path,
    levels: u32,
    hash: &mut Sha256,
) -> Result<(), LocalError> {
    let meta = fs::symlink_metadata(folder).at("looking at", folder)?;
    add(hash, &meta, Device::Any);
    walk(image, folder, levels, Device::Any, hash)
}

fn walk(
    image: &str,
    folder: &Path,
    levels: u32,
    device: Device,
    hash: &mut Sha256,
) -> Result<(), LocalError> {
    let mut entries = BTreeMap::new();
    let listed = match fs::read_dir(folder) {
        Ok(listed) => listed,
        // It has just been removed, and the folder above tells.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).at("reading", folder),
    };
    for entry in listed {
        let entry = entry.at("reading", folder)?;
        match entry.metadata() {
            Ok(meta) => drop(entries.insert(entry.file_name(), meta)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).at("looking at", &entry.path()),
        }
    }
    for (name, meta) in entries {
        if meta.is_file() && meta.uid() == SUPERVISOR_ID && meta.mode() & 0o4000 != 0 {
            return Err(LocalError::Image {
                image: image.to_owned(),
                message: format!(
                    "{} would run as user {SUPERVISOR_ID}, which is the supervisor's own",
                    folder.join(&name).display()
                ),
            });
        }
        hash.update(name.as_bytes());
        hash.update([0]);
        add(hash, &meta, device);
        if meta.is_dir() && levels > 1 {
            walk(image, &folder.join(&name), levels - 1, device, hash)?;
        }
    }
    Ok(())
}

fn add(hash: &mut Sha256, meta: &Metadata, device: Device) {
    let device = match device {
        Device::Counts => Some(meta.dev()),
        Device::Any => None,
    };
    let numbers = [
        meta.ino(),
        u64::from(meta.mode()),
        u64::from(meta.uid()),
        u64::from(meta.gid()),
        meta.size(),
        meta.mtime().cast_unsigned(),
        meta.mtime_nsec().cast_unsigned(),
    ];
    for number in device.into_iter().chain(numbers) {
        hash.update(number.to_le_bytes());
    }
}
