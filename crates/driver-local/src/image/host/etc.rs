//! `/etc` of the image `host`: what is written here, and copies of what is on a list.
//!
//! Of the list only what every user of the host may read, and nothing that holds a private key: a
//! file that does not belong there is left out, and is no error.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use super::skeleton::{Skeleton, USER, USER_HOME};
use super::unusable;
use crate::error::{At, LocalError};

/// What programs below `/usr` need to be found, to find each other and to speak to the world.
/// Nothing that names the host, its users, its services or its networks.
const FILES: [&str; 29] = [
    "arch-release",
    "ca-certificates.conf",
    "debian_version",
    "ethertypes",
    "fedora-release",
    "gai.conf",
    "host.conf",
    "inputrc",
    "ld.so.cache",
    "ld.so.conf",
    "locale.alias",
    "locale.conf",
    "localtime",
    "lsb-release",
    "magic",
    "magic.mime",
    "mime.types",
    "os-release",
    "pki/tls/cert.pem",
    "pki/tls/openssl.cnf",
    "protocols",
    "redhat-release",
    "rpc",
    "services",
    "shells",
    "ssl/cert.pem",
    "ssl/openssl.cnf",
    "system-release",
    "timezone",
];

const FOLDERS: [&str; 9] = [
    "alternatives",
    "crypto-policies",
    "fonts",
    "ld.so.conf.d",
    "perl",
    "pki/ca-trust/extracted",
    "pki/tls/certs",
    "ssl/certs",
    "terminfo",
];

/// A JDK's settings, which lie in a folder of its own version.
const BEGINS: [&str; 1] = ["java-"];

const DEPTH_AT_MOST: u32 = 8;
const FILE_AT_MOST: u64 = 16 << 20;
const ALL_AT_MOST: u64 = 128 << 20;

/// As it begins and as it is in every encoding that is text.
const PRIVATE: &[u8] = b"PRIVATE KEY-----";

const NSSWITCH: &str = "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\n\
    networks: files\nprotocols: files\nservices: files\nethers: files\nrpc: files\n";

/// Adds `/etc` of the host at `host`.
pub(super) fn fill(host: &Path, skeleton: &mut Skeleton) -> Result<(), LocalError> {
    let etc = host.join("etc");
    let mut copy = Copy {
        host,
        skeleton,
        bytes: 0,
    };
    for name in FILES.into_iter().chain(FOLDERS) {
        copy.one(&Path::new("etc").join(name), DEPTH_AT_MOST)?;
    }
    for name in sorted_names(&etc)? {
        let text = name.to_string_lossy();
        if BEGINS.iter().any(|begin| text.starts_with(begin)) {
            copy.one(&Path::new("etc").join(&name), DEPTH_AT_MOST)?;
        }
    }
    let shell = if host.join("usr/bin/bash").exists() {
        "/bin/bash"
    } else {
        "/bin/sh"
    };
    let passwd = format!(
        "root:x:0:0:root:/root:{shell}\n\
         user:x:{USER}:{USER}:user:/{USER_HOME}:{shell}\n\
         nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    );
    let group = format!("root:x:0:\ntty:x:5:\nuser:x:{USER}:\nnogroup:x:65534:\n");
    for (name, text) in [
        ("etc/passwd", passwd),
        ("etc/group", group),
        ("etc/nsswitch.conf", NSSWITCH.to_owned()),
    ] {
        skeleton.file(name, false, text.into_bytes());
    }
    Ok(())
}

struct Copy<'a> {
    host: &'a Path,
    skeleton: &'a mut Skeleton,
    bytes: u64,
}

impl Copy<'_> {
    /// `path` is relative to the root.
    fn one(&mut self, path: &Path, depth: u32) -> Result<(), LocalError> {
        let from = self.host.join(path);
        let meta = match fs::symlink_metadata(&from) {
            Ok(meta) => meta,
            Err(error) if is_absent(&error) => return Ok(()),
            Err(error) => return Err(error).at("looking at", &from),
        };
        if meta.is_symlink() {
            // Where it leads is found inside, or not.
            let target = fs::read_link(&from).at("reading", &from)?;
            self.skeleton.folders_above(path);
            self.skeleton.link(path, target);
        } else if meta.is_file() {
            if let Some((bytes, executable)) = self.public(&from)? {
                self.skeleton.folders_above(path);
                self.skeleton.file(path, executable, bytes);
            }
        } else if meta.is_dir() && meta.mode() & 0o005 == 0o005 && depth > 0 {
            self.skeleton.folders_above(path);
            if !self.skeleton.has(path) {
                self.skeleton.folder(path, 0o755);
            }
            for name in sorted_names(&from)? {
                self.one(&path.join(name), depth - 1)?;
            }
        }
        Ok(())
    }

    /// What a file holds, if all may read it, and whether it is a program.
    fn public(&mut self, from: &Path) -> Result<Option<(Vec<u8>, bool)>, LocalError> {
        let mut file = match open(from) {
            Ok(file) => file,
            // It was replaced by something else just now.
            Err(error) if is_absent(&error) || error.raw_os_error() == Some(libc::ELOOP) => {
                return Ok(None);
            }
            Err(error) => return Err(error).at("opening", from),
        };
        let meta = file.metadata().at("looking at", from)?;
        let mode = meta.permissions().mode();
        if !meta.is_file() || mode & 0o004 == 0 || meta.len() > FILE_AT_MOST {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        (&mut file)
            .take(FILE_AT_MOST)
            .read_to_end(&mut bytes)
            .at("reading", from)?;
        if bytes
            .windows(PRIVATE.len())
            .any(|part| part.first() == PRIVATE.first() && part == PRIVATE)
        {
            return Ok(None);
        }
        self.bytes += bytes.len() as u64;
        if self.bytes > ALL_AT_MOST {
            return Err(unusable(format!(
                "what is to be copied from {} is more than {} MiB",
                self.host.join("etc").display(),
                ALL_AT_MOST >> 20
            )));
        }
        Ok(Some((bytes, mode & 0o001 != 0)))
    }
}

/// Follows no link, and waits for nobody who might write to a pipe.
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)
}

fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

fn sorted_names(folder: &Path) -> Result<Vec<std::ffi::OsString>, LocalError> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if is_absent(&error) => return Ok(Vec::new()),
        Err(error) => return Err(error).at("reading", folder),
    };
    let mut names = Vec::new();
    for entry in entries {
        names.push(entry.at("reading", folder)?.file_name());
    }
    names.sort();
    Ok(names)
}
