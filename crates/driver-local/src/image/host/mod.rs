//! The image `host`: a minimal root around this host's own `/usr`.
//!
//! ```text
//! /usr                      of this host, as any user of it may read it; writes go to the sandbox's layer
//! /bin /sbin /lib*          the links of a merged root
//! /etc                      synthesised, and copied from a list of what is public (see `etc`)
//! /home /root /var /tmp …   empty
//! ```
//!
//! Its digest has two parts. The first is a fingerprint of what `/usr` is now: it cannot be pinned
//! without a copy, so a changed one is seen, and it is the caller's to say what then. The second is
//! that of the skeleton, all that is not `/usr`: a folder of the driver's own, made once by the
//! digest of what it holds.

mod etc;
mod skeleton;

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use sha2::{Digest, Sha256};

use super::{Root, fingerprint};
use crate::error::{At, LocalError};
use crate::layout::{Layout, hex};
use crate::mounts;
use skeleton::Skeleton;

/// What is asked for.
pub(super) const NAME: &str = "host";
const DIGEST: &str = "host:";
/// Begins the name of a skeleton's folder among the extracted images.
const FOLDER: &str = "host-";

/// What a merged root has as links to below `/usr`. Those that are there must be.
const LINKS: [&str; 7] = ["bin", "sbin", "lib", "lib32", "lib64", "libo32", "libx32"];

/// What package managers rewrite whenever they have changed something. The first kind is small and
/// read; of the others, it is enough what identifies an unchanged file.
const READ: [&str; 2] = ["var/lib/dpkg/status", "lib/apk/db/installed"];
const LOOKED_AT: [&str; 4] = [
    "var/lib/rpm/rpmdb.sqlite",
    "usr/lib/sysimage/rpm/rpmdb.sqlite",
    "var/lib/rpm/Packages.db",
    "var/lib/pacman/local",
];

/// Below `/usr`, and below `/usr/local`, of which no package manager keeps a record: interpreters
/// have the folder of their packages three levels down there.
const LEVELS: u32 = 2;
const LOCAL_LEVELS: u32 = 3;

/// The two parts of a digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pin {
    usr: String,
    skeleton: String,
}

impl Pin {
    /// None: a digest of another kind of image, or of none.
    pub(super) fn read(digest: &str) -> Option<Self> {
        let (usr, skeleton) = digest.strip_prefix(DIGEST)?.split_once('-')?;
        let plain = |part: &str| part.len() == 64 && part.bytes().all(|b| b.is_ascii_hexdigit());
        (plain(usr) && plain(skeleton)).then(|| Self {
            usr: usr.to_owned(),
            skeleton: skeleton.to_owned(),
        })
    }

    pub(super) fn digest(&self) -> String {
        format!("{DIGEST}{}-{}", self.usr, self.skeleton)
    }

    /// The name of the skeleton's folder.
    pub(super) fn folder(&self) -> String {
        format!("{FOLDER}{}", self.skeleton)
    }
}

/// Whether a folder among the extracted images is a skeleton.
pub(super) fn is_skeleton(folder: &str) -> bool {
    folder.starts_with(FOLDER)
}

/// What the image is now. Its skeleton is there when this returns.
pub(super) fn pin(layout: &Layout) -> Result<Pin, LocalError> {
    let usr = usr(layout)?;
    mounts::try_mapping(&usr).map_err(|error| {
        unusable(format!(
            "the filesystem of {} cannot have its user ids mapped ({error})",
            usr.display()
        ))
    })?;
    let skeleton = now(layout)?;
    let pin = Pin {
        usr: fingerprint(layout)?,
        skeleton: skeleton.digest(),
    };
    let folder = layout.images_by_digest().join(pin.folder());
    if !folder.exists() {
        skeleton.write(&folder)?;
    }
    Ok(pin)
}

/// The root, if this host is still what was pinned.
pub(super) fn root(layout: &Layout, pin: &Pin) -> Result<Root, LocalError> {
    let changed = |what: &str| LocalError::ImageMissing {
        image: NAME.to_owned(),
        message: format!(
            "{what} is not what it was: packages of this host were installed, upgraded or removed"
        ),
    };
    if fingerprint(layout)? != pin.usr {
        return Err(changed("/usr of this host"));
    }
    let folder = layout.images_by_digest().join(pin.folder());
    if !folder.exists() {
        let skeleton = now(layout)?;
        if skeleton.digest() != pin.skeleton {
            return Err(changed("/etc of this host"));
        }
        skeleton.write(&folder)?;
    }
    made(layout, pin)
}

/// The root, where all of it is known to be there.
pub(super) fn made(layout: &Layout, pin: &Pin) -> Result<Root, LocalError> {
    let folder = layout.images_by_digest().join(pin.folder());
    Ok(Root {
        lower: folder.join("rootfs"),
        usr: Some(usr(layout)?),
    })
}

/// This host's `/usr`.
fn usr(layout: &Layout) -> Result<PathBuf, LocalError> {
    let usr = layout.host.join("usr");
    let meta = fs::symlink_metadata(&usr).at("looking at", &usr)?;
    if meta.is_dir() {
        Ok(usr)
    } else {
        Err(unusable(format!("{} is not a folder", usr.display())))
    }
}

/// All that is not `/usr`, from what is there now.
fn now(layout: &Layout) -> Result<Skeleton, LocalError> {
    let mut skeleton = Skeleton::default();
    for (name, target) in links(&layout.host)? {
        skeleton.link(name, target);
    }
    skeleton.empty_folders();
    etc::fill(&layout.host, &mut skeleton)?;
    Ok(skeleton)
}

/// The links of a merged root.
fn links(host: &Path) -> Result<Vec<(&'static str, PathBuf)>, LocalError> {
    let mut links = Vec::new();
    for name in LINKS {
        let path = host.join(name);
        let meta = match fs::symlink_metadata(&path) {
            Ok(meta) => meta,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error).at("looking at", &path),
        };
        let target = if meta.is_symlink() {
            Some(fs::read_link(&path).at("reading", &path)?)
        } else {
            None
        };
        match target {
            Some(target) if is_below_usr(&target) => links.push((name, target)),
            Some(_) | None => {
                return Err(unusable(format!(
                    "it needs a host whose programs are all below /usr, and {} is no link to there \
                     (Debian: apt-get install usrmerge)",
                    path.display()
                )));
            }
        }
    }
    if links.iter().any(|(name, _)| *name == "bin") {
        Ok(links)
    } else {
        Err(unusable(format!("{} has no /bin", host.display())))
    }
}

/// Of a link that lies in `/`.
fn is_below_usr(target: &Path) -> bool {
    let mut parts = target
        .components()
        .filter(|part| *part != Component::RootDir);
    parts.next() == Some(Component::Normal("usr".as_ref()))
        && parts.all(|part| matches!(part, Component::Normal(_)))
}

/// What tells that `/usr` was changed by a package manager, or in its upper levels by anybody.
///
/// Not seen: what is written in place, or changed further down without one. Device numbers are left
/// out, since a reboot may give others to the same disks.
fn fingerprint(layout: &Layout) -> Result<String, LocalError> {
    let mut hash = Sha256::new();
    for name in READ {
        hash.update(name.as_bytes());
        read_into(&mut hash, &layout.host.join(name))?;
    }
    for name in LOOKED_AT {
        hash.update(name.as_bytes());
        let path = layout.host.join(name);
        match fs::symlink_metadata(&path) {
            Ok(meta) => {
                for number in [meta.ino(), meta.size(), meta.mtime().cast_unsigned()] {
                    hash.update(number.to_le_bytes());
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).at("looking at", &path),
        }
    }
    let usr = usr(layout)?;
    fingerprint::here(NAME, &usr, LEVELS, &mut hash)?;
    let local = usr.join("local");
    if local.is_dir() {
        hash.update(local.as_os_str().as_bytes());
        fingerprint::here(NAME, &local, LOCAL_LEVELS, &mut hash)?;
    }
    Ok(hex(&hash.finalize()))
}

/// Nothing where the file is not there.
fn read_into(hash: &mut Sha256, path: &Path) -> Result<(), LocalError> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).at("opening", path),
    };
    let mut buffer = vec![0; 1 << 16];
    loop {
        match file.read(&mut buffer).at("reading", path)? {
            0 => return Ok(()),
            count => hash.update(buffer.get(..count).unwrap_or_default()),
        }
    }
}

fn unusable(message: String) -> LocalError {
    LocalError::Image {
        image: NAME.to_owned(),
        message,
    }
}

/// Whether this host can be an image, by looking.
pub(crate) fn check(host: &Path) -> Result<(), LocalError> {
    links(host).map(drop)?;
    mounts::try_mapping(&host.join("usr"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_of_a_merged_root_stays_below_usr() {
        for good in ["usr/bin", "/usr/lib", "usr/lib/x86_64"] {
            assert!(is_below_usr(Path::new(good)), "{good}");
        }
        for bad in [
            "",
            "/",
            "bin",
            "../usr/bin",
            "usr/../etc",
            "/opt/usr",
            "usrbin",
        ] {
            assert!(!is_below_usr(Path::new(bad)), "{bad}");
        }
    }

    #[test]
    fn a_digest_is_read_back_and_a_strange_one_is_none() {
        let pin = Pin {
            usr: "a".repeat(64),
            skeleton: "0".repeat(64),
        };
        assert_eq!(Pin::read(&pin.digest()), Some(pin.clone()));
        let other = pin.digest().replace("00", "/.");
        for strange in ["host:", "host:a-b", "folder:x", &other] {
            assert_eq!(Pin::read(strange), None, "{strange}");
        }
    }
}
