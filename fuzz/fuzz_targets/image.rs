//! A rootfs tar that nobody trusts. It is extracted whole or not at all, never beside its folder, and
//! never with a device or a set-user-id bit.

#![no_main]

use std::fs::{self, File};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use libfuzzer_sys::fuzz_target;
use overwinter_driver_local::fuzz::extract;

fuzz_target!(|bytes: &[u8]| {
    let folder = tempfile::Builder::new()
        .prefix("overwinter-fuzz-")
        .tempdir_in("/dev/shm")
        .expect("a folder");
    let beside = folder.path().join("beside");
    fs::create_dir(&beside).expect("a neighbour");
    fs::write(beside.join("file"), "untouched").expect("its file");
    let tar = folder.path().join("image.tar");
    fs::write(&tar, bytes).expect("the tar");
    let images = folder.path().join("images");
    fs::create_dir(&images).expect("the folder of images");
    let target = images.join("target");

    let done = extract(&tar, &target);
    assert_eq!(done.is_ok(), target.join("rootfs").is_dir(), "{done:?}");
    let made: Vec<_> = fs::read_dir(&images).expect("images").flatten().collect();
    assert_eq!(made.len(), usize::from(done.is_ok()), "something is left aside");
    if done.is_ok() {
        tame(&target);
    }
    assert_eq!(names(folder.path()), ["beside", "image.tar", "images"]);
    assert_eq!(names(&beside), ["file"]);
    assert_eq!(fs::read(beside.join("file")).expect("its file"), b"untouched");
    assert_eq!(fs::read(&tar).expect("the tar"), bytes);
});

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder").flatten();
    let mut names: Vec<String> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

fn tame(path: &Path) {
    let found = fs::symlink_metadata(path).expect("it was listed");
    let kind = found.file_type();
    assert!(!kind.is_block_device() && !kind.is_char_device() && !kind.is_socket());
    if kind.is_symlink() {
        return;
    }
    assert_eq!(found.mode() & 0o6000, 0, "{} {:o}", path.display(), found.mode());
    if kind.is_dir() {
        for entry in fs::read_dir(path).expect("a folder").flatten() {
            tame(&entry.path());
        }
    } else if kind.is_file() {
        File::open(path).expect("root may open it");
    }
}
