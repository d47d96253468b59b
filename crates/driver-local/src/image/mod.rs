//! Images: what a sandbox's root lies over.
//!
//! | asked for | is |
//! |---|---|
//! | an absolute path, also after `file:` | a folder, used in place, or a tar (`.tar`, `.tar.gz`, `.tgz`) |
//! | a name | the folder or tar of that name under `<state>/images` |
//!
//! A tar is extracted once, by the digest of its bytes. A folder is pinned by its identity and a
//! fingerprint of its upper levels: a cold start takes what was pinned, or says that it is missing.

pub(crate) mod extract;
mod fingerprint;

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use overwinter_driver::PinnedImage;
use sha2::{Digest, Sha256};

use crate::error::{At, LocalError};
use crate::layout::{Layout, hex};

const TAR_DIGEST: &str = "sha256:";
const FOLDER_DIGEST: &str = "folder:";

/// What an image's name leads to.
enum Source {
    Folder(PathBuf),
    Tar(PathBuf),
}

/// Resolves, extracts where needed, and answers with what is now there.
pub(crate) fn pin(layout: &Layout, image: &str) -> Result<PinnedImage, LocalError> {
    let digest = match find(layout, image)? {
        Source::Folder(folder) => {
            refuse_empty(image, &folder)?;
            format!("{FOLDER_DIGEST}{}", fingerprint::of(image, &folder)?)
        }
        Source::Tar(tar) => {
            let digest = digest_of(layout, &tar)?;
            let target = layout.images_by_digest().join(&digest);
            if !target.exists() {
                extract::tar(image, &tar, &target)?;
            }
            refuse_empty(image, &target.join("rootfs"))?;
            format!("{TAR_DIGEST}{digest}")
        }
    };
    Ok(PinnedImage {
        image: image.to_owned(),
        digest,
    })
}

/// The root of an image as it was pinned.
pub(crate) fn root(layout: &Layout, pinned: &PinnedImage) -> Result<PathBuf, LocalError> {
    let missing = |message: String| LocalError::ImageMissing {
        image: pinned.image.clone(),
        message,
    };
    if let Some(digest) = pinned.digest.strip_prefix(TAR_DIGEST) {
        let plain = digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
        let root = layout.images_by_digest().join(digest).join("rootfs");
        if plain && root.is_dir() {
            return Ok(root);
        }
        // The tar may still be there, unchanged.
        return match pin(layout, &pinned.image) {
            Ok(again) if again.digest == pinned.digest => Ok(root),
            Ok(_) => Err(missing(
                "what was pinned at create is gone, and the tar has changed since".to_owned(),
            )),
            Err(error) => Err(missing(format!(
                "what was pinned at create is gone ({error})"
            ))),
        };
    }
    let Some(expected) = pinned.digest.strip_prefix(FOLDER_DIGEST) else {
        return Err(missing(format!(
            "`{}` is no digest of this driver's",
            pinned.digest
        )));
    };
    match find(layout, &pinned.image)? {
        Source::Folder(folder) if fingerprint::of(&pinned.image, &folder)? == expected => {
            Ok(folder)
        }
        Source::Folder(_) | Source::Tar(_) => Err(missing(
            "the folder is not the one that was pinned at create: it was replaced or changed; put it \
             back as it was, the sandbox's own storage is intact"
                .to_owned(),
        )),
    }
}

/// Nothing could be run on it: a file that is still to be written, or the wrong folder.
fn refuse_empty(image: &str, root: &Path) -> Result<(), LocalError> {
    let mut entries = fs::read_dir(root).at("reading", root)?;
    if entries.next().is_some() {
        return Ok(());
    }
    Err(LocalError::Image {
        image: image.to_owned(),
        message: "it is empty".to_owned(),
    })
}

fn find(layout: &Layout, image: &str) -> Result<Source, LocalError> {
    let missing = |path: &Path| LocalError::ImageMissing {
        image: image.to_owned(),
        message: format!("{} is not there", path.display()),
    };
    let path = image.strip_prefix("file:").unwrap_or(image);
    let candidates = if path.starts_with('/') {
        vec![PathBuf::from(path)]
    } else if is_name(path) {
        let folder = layout.images();
        ["", ".tar", ".tar.gz", ".tgz"]
            .iter()
            .map(|end| folder.join(format!("{path}{end}")))
            .collect()
    } else {
        return Err(LocalError::Image {
            image: image.to_owned(),
            message: "give an absolute path, or a name of letters, digits, `.`, `_`, `-` and `:`"
                .to_owned(),
        });
    };
    for candidate in &candidates {
        match fs::metadata(candidate) {
            // Without links, so that a later look finds the same folder.
            Ok(meta) if meta.is_dir() => {
                return fs::canonicalize(candidate)
                    .at("resolving", candidate)
                    .map(Source::Folder);
            }
            Ok(meta) if meta.is_file() => return Ok(Source::Tar(candidate.clone())),
            Ok(_) => {
                return Err(LocalError::Image {
                    image: image.to_owned(),
                    message: format!("{} is neither a folder nor a file", candidate.display()),
                });
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).at("looking at", candidate),
        }
    }
    Err(missing(
        candidates.first().map_or(Path::new(path), PathBuf::as_path),
    ))
}

fn is_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | ':');
    !text.is_empty() && !text.starts_with('.') && text != "by-digest" && text.chars().all(plain)
}

/// The digest of a tar's bytes. Remembered by what identifies an unchanged file, since reading all
/// of it takes a second a gigabyte.
fn digest_of(layout: &Layout, tar: &Path) -> Result<String, LocalError> {
    let mut file = File::open(tar).at("opening", tar)?;
    let meta = file.metadata().at("looking at", tar)?;
    let identity = format!(
        "{}-{}-{}-{}.{}-{}.{}",
        meta.dev(),
        meta.ino(),
        meta.size(),
        meta.mtime(),
        meta.mtime_nsec(),
        meta.ctime(),
        meta.ctime_nsec()
    );
    let note = layout.images_by_digest().join(format!(".known-{identity}"));
    if let Ok(known) = fs::read_to_string(&note)
        && known.len() == 64
    {
        return Ok(known);
    }
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        match file.read(&mut buffer).at("reading", tar)? {
            0 => break,
            count => hash.update(buffer.get(..count).unwrap_or_default()),
        }
    }
    let digest = hex(&hash.finalize());
    // Only saves time: without it the tar is read again.
    let _ = fs::write(&note, &digest);
    Ok(digest)
}

/// Removes what an extraction left that was cut short. Before anything is pinned.
pub(crate) fn sweep(layout: &Layout) -> Result<(), LocalError> {
    let folder = layout.images_by_digest();
    for entry in fs::read_dir(&folder).at("reading", &folder)? {
        let entry = entry.at("reading", &folder)?;
        if entry
            .file_name()
            .to_string_lossy()
            .starts_with(extract::ASIDE)
        {
            let path = entry.path();
            fs::remove_dir_all(&path).at("removing", &path)?;
        }
    }
    Ok(())
}
