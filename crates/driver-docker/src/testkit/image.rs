//! The image of the tests.

use std::fs;
use std::io;

pub(super) const BUSYBOX: &str = "/bin/busybox";

/// A root with busybox, the links to it and these files.
pub(super) fn image(files: &[(&str, &str)]) -> io::Result<Vec<u8>> {
    let mut tar = tar::Builder::new(Vec::new());
    let header = |kind, mode| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_size(0);
        header
    };
    for (folder, mode) in [
        ("bin", 0o755),
        ("etc", 0o755),
        ("home", 0o755),
        ("tmp", 0o1777),
    ] {
        let mut header = header(tar::EntryType::Directory, mode);
        tar.append_data(&mut header, folder, io::empty())?;
    }
    let busybox = fs::read(BUSYBOX)?;
    let mut file = header(tar::EntryType::Regular, 0o755);
    file.set_size(busybox.len() as u64);
    tar.append_data(&mut file, "bin/busybox", &busybox[..])?;
    for applet in [
        "true", "false", "sh", "cat", "sleep", "id", "echo", "ls", "kill", "touch", "env", "date",
        "grep", "mkdir", "rm", "stat", "wc",
    ] {
        let mut link = header(tar::EntryType::Symlink, 0o777);
        tar.append_link(&mut link, format!("bin/{applet}"), "busybox")?;
    }
    let passwd = (
        "etc/passwd",
        "root:x:0:0:root:/:/bin/sh\nuser:x:1000:1000::/home:/bin/sh\n",
    );
    for (path, text) in files.iter().chain([&passwd]) {
        let mut file = header(tar::EntryType::Regular, 0o644);
        file.set_size(text.len() as u64);
        tar.append_data(&mut file, path, text.as_bytes())?;
    }
    tar.into_inner()
}
