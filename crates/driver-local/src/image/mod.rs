//! Images: what a sandbox's root lies over.
//!
//! | asked for | is |
//! |---|---|
//! | an absolute path, also after `file:` | a folder, used in place, or a tar (`.tar`, `.tar.gz`, `.tgz`) |
//! | `host` | a minimal root around this host's own `/usr` (see [`host`]) |
//! | another name | the folder or tar of that name under `<state>/images` |
//!
//! A tar is extracted once, by the digest of its bytes. A folder is pinned by its identity and a
//! fingerprint of its upper levels: a cold start takes what was pinned, or says that it is missing.
//! `host` is what this host is: a cold start takes it as it is now and tells when that has changed.
//! Memory is only ever put back over what it was taken from.

pub(crate) mod extract;
mod fingerprint;
pub(crate) mod host;

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

/// What a sandbox's root lies over.
pub(crate) struct Root {
    /// Everything, or all but `/usr`.
    pub(crate) lower: PathBuf,
    /// This host's own, of which no more is shown than any user of the host may read.
    pub(crate) usr: Option<PathBuf>,
}

/// What a cold start is made from.
pub(crate) struct Current {
    pub(crate) image: PinnedImage,
    pub(crate) root: Root,
    /// That it is another than what was pinned at create.
    pub(crate) remark: Option<String>,
}

/// What an image's name leads to.
enum Source {
    Host,
    Folder(PathBuf),
    Tar(PathBuf),
}

/// Resolves, extracts where needed, and answers with what is now there.
pub(crate) fn pin(layout: &Layout, image: &str) -> Result<PinnedImage, LocalError> {
    let digest = match find(layout, image)? {
        Source::Host => host::pin(layout)?.digest(),
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
        main: Vec::new(),
    })
}

/// What a cold start is made from: what was pinned at create. Of `host`, what this host is now: it
/// cannot be put back as it was, and what is started anew needs nothing of what it was.
pub(crate) fn current(layout: &Layout, pinned: &PinnedImage) -> Result<Current, LocalError> {
    let was = host::Pin::read(&pinned.digest);
    let Some(was) = was.filter(|_| pinned.image == host::NAME) else {
        return Ok(Current {
            image: pinned.clone(),
            root: root(layout, pinned)?,
            remark: None,
        });
    };
    let now = host::pin(layout)?;
    let remark = (now != was).then(|| {
        "the packages of this host have changed since the sandbox was created: it was started on \
         what they are now"
            .to_owned()
    });
    Ok(Current {
        image: PinnedImage {
            image: pinned.image.clone(),
            digest: now.digest(),
            main: Vec::new(),
        },
        root: host::made(layout, &now)?,
        remark,
    })
}

/// The root of an image exactly as it was pinned.
pub(crate) fn root(layout: &Layout, pinned: &PinnedImage) -> Result<Root, LocalError> {
    if let Some(pin) = host::Pin::read(&pinned.digest) {
        return host::root(layout, &pin);
    }
    folder_or_tar(layout, pinned).map(|lower| Root { lower, usr: None })
}

fn folder_or_tar(layout: &Layout, pinned: &PinnedImage) -> Result<PathBuf, LocalError> {
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
        Source::Folder(_) | Source::Tar(_) | Source::Host => Err(missing(
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
    if image == host::NAME {
        return Ok(Source::Host);
    }
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
    if path.starts_with('/') {
        return Err(missing(Path::new(path)));
    }
    Err(LocalError::ImageMissing {
        image: image.to_owned(),
        message: format!(
            "there is none of that name in {}, and this driver fetches none: give the path of a folder or \
             a rootfs tar, as ./{path}, or `host`",
            layout.images().display()
        ),
    })
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

/// Removes what an extraction left that was cut short, and skeletons of `host` that no digest of
/// `named` needs. Before anything is pinned.
pub(crate) fn sweep(layout: &Layout, named: &[String]) -> Result<(), LocalError> {
    let needed: Vec<_> = named
        .iter()
        .filter_map(|digest| host::Pin::read(digest))
        .map(|pin| pin.folder())
        .collect();
    let folder = layout.images_by_digest();
    for entry in fs::read_dir(&folder).at("reading", &folder)? {
        let entry = entry.at("reading", &folder)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with(extract::ASIDE) || (host::is_skeleton(&name) && !needed.contains(&name))
        {
            let path = entry.path();
            fs::remove_dir_all(&path).at("removing", &path)?;
        }
    }
    Ok(())
}
