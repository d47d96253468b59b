//! Where the memory would go. Memory holds keys and secrets, so it goes only to what is memory itself
//! (zram) or is encrypted (dm-crypt): one swap that is neither, and nothing is moved, since the kernel
//! chooses.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{major, minor};
use rustix::thread::{CapabilitySet, capabilities};

const SWAPS: &str = "/proc/swaps";
const DEVICES: &str = "/sys/dev/block";

/// Why no memory is given back here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoReclaim {
    #[error(
        "there is no swap; memory of frozen sandboxes goes to swap on zram or on an encrypted device (dm-crypt)"
    )]
    NoSwap,
    #[error(
        "the swap {} is neither zram nor encrypted (dm-crypt), and would hold memory in the clear", .0.display()
    )]
    Plain(PathBuf),
    #[error("the gateway lacks CAP_SYS_NICE, without which the kernel moves no other's memory")]
    NotPermitted,
}

/// Swap that memory may go to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Swaps {
    /// The folders in sysfs of those that keep it in memory.
    zram: Vec<PathBuf>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Zram(PathBuf),
    Encrypted,
    Plain,
}

impl Swaps {
    /// As they are now. They may change at any time: looked for before each use.
    pub(crate) fn find() -> Result<Self, NoReclaim> {
        // Where it cannot be told, the kernel's refusal will be.
        let may =
            capabilities(None).map_or(true, |all| all.effective.contains(CapabilitySet::SYS_NICE));
        if !may {
            return Err(NoReclaim::NotPermitted);
        }
        let text = fs::read_to_string(SWAPS).unwrap_or_default();
        Self::of(&text, |path, is_file| {
            let Ok(found) = fs::metadata(path) else {
                return Kind::Plain;
            };
            let device = if is_file { found.dev() } else { found.rdev() };
            let name = format!("{}:{}", major(device), minor(device));
            kind(&Path::new(DEVICES).join(name))
        })
    }

    fn of(text: &str, kind: impl Fn(&Path, bool) -> Kind) -> Result<Self, NoReclaim> {
        let mut found = Self::default();
        let mut any = false;
        for line in text.lines().skip(1) {
            let mut words = line.split_whitespace();
            let (Some(path), Some(sort)) = (words.next(), words.next()) else {
                continue;
            };
            any = true;
            let path = PathBuf::from(unescaped(path));
            match kind(&path, sort == "file") {
                Kind::Zram(folder) => found.zram.push(folder),
                Kind::Encrypted => {}
                Kind::Plain => return Err(NoReclaim::Plain(path)),
            }
        }
        if any {
            Ok(found)
        } else {
            Err(NoReclaim::NoSwap)
        }
    }

    /// How much memory so many swapped bytes take: what zram packs them to, by what it makes of all
    /// that it holds. Where there is other swap too, as if all had gone to zram.
    pub(crate) fn room_of(&self, swapped: u64) -> u64 {
        let (mut plain, mut packed) = (0_u64, 0_u64);
        for folder in &self.zram {
            let text = fs::read_to_string(folder.join("mm_stat")).unwrap_or_default();
            let mut fields = text.split_whitespace().map(|it| it.parse().unwrap_or(0));
            // orig_data_size, compr_data_size, mem_used_total: the kernel's admin guide on zram.
            plain += fields.next().unwrap_or(0);
            packed += fields.nth(1).unwrap_or(0);
        }
        if plain == 0 {
            return 0;
        }
        let room = u128::from(swapped) * u128::from(packed) / u128::from(plain);
        u64::try_from(room).unwrap_or(u64::MAX)
    }
}

/// Of a block device, by its folder in sysfs. What is not known is plain.
fn kind(folder: &Path) -> Kind {
    let Ok(folder) = fs::canonicalize(folder) else {
        return Kind::Plain;
    };
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    if name.starts_with("zram") {
        // With a device behind it, it writes there what was not used for long.
        let behind = fs::read_to_string(folder.join("backing_dev")).unwrap_or_default();
        return match behind.trim() {
            "" | "none" => Kind::Zram(folder),
            _ => Kind::Plain,
        };
    }
    if is_encrypted(&folder) {
        Kind::Encrypted
    } else {
        Kind::Plain
    }
}

/// By its own uuid, as cryptsetup sets it; or each device that it lies on is (LVM on LUKS).
fn is_encrypted(folder: &Path) -> bool {
    let uuid = fs::read_to_string(folder.join("dm/uuid")).unwrap_or_default();
    if uuid.starts_with("CRYPT-") {
        return true;
    }
    let below: Vec<PathBuf> = fs::read_dir(folder.join("slaves"))
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect();
    !below.is_empty() && below.iter().all(|device| is_encrypted(device))
}

/// The kernel writes spaces and the like as `\040`.
fn unescaped(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let code = after
            .get(..3)
            .and_then(|digits| std::str::from_utf8(digits).ok());
        let code = code.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match (first, code) {
            (b'\\', Some(byte)) => {
                out.push(byte);
                rest = &after[3..];
            }
            _ => {
                out.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const HEAD: &str = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n";

    #[test]
    fn one_swap_in_the_clear_is_enough_to_move_nothing() {
        let of = |lines: &str| {
            Swaps::of(&format!("{HEAD}{lines}"), |path, _| {
                match path.to_str().unwrap_or_default() {
                    "/dev/zram0" => Kind::Zram("/sys/zram0".into()),
                    "/dev/dm-0" => Kind::Encrypted,
                    _ => Kind::Plain,
                }
            })
        };
        let zram = "/dev/zram0                              partition\t1\t0\t-2\n";
        let crypt = "/dev/dm-0                               partition\t1\t0\t-3\n";
        assert_eq!(of(""), Err(NoReclaim::NoSwap));
        let both = of(&format!("{zram}{crypt}"));
        assert_eq!(both.map(|it| it.zram), Ok(vec!["/sys/zram0".into()]));
        let file = of(&format!("{zram}/swap\\040file file\t1\t0\t-4\n{crypt}"));
        assert_eq!(file, Err(NoReclaim::Plain("/swap file".into())));
    }

    #[test]
    fn devices_are_told_apart_by_what_sysfs_says() -> std::io::Result<()> {
        let root = tempfile::tempdir()?;
        let at = |path: &str| root.path().join(path);
        let write = |path: &str, text: &str| {
            let path = at(path);
            fs::create_dir_all(path.parent().unwrap_or(root.path()))?;
            fs::write(path, text)
        };
        write("zram0/backing_dev", "none\n")?;
        write("zram1/mm_stat", "0 0 0\n")?;
        write("zram2/backing_dev", "/dev/vda3\n")?;
        write("dm-0/dm/uuid", "CRYPT-PLAIN-swap\n")?;
        write("dm-1/dm/uuid", "LVM-abc\n")?;
        write("dm-2/dm/uuid", "LVM-def\n")?;
        fs::create_dir_all(at("vda"))?;
        for (on, below) in [("dm-1", "dm-0"), ("dm-2", "dm-0"), ("dm-2", "vda")] {
            fs::create_dir_all(at(on).join("slaves"))?;
            symlink(at(below), at(on).join("slaves").join(below))?;
        }
        let root = fs::canonicalize(root.path())?;
        assert_eq!(kind(&at("zram0")), Kind::Zram(root.join("zram0")));
        assert_eq!(kind(&at("zram1")), Kind::Zram(root.join("zram1")));
        assert_eq!(kind(&at("zram2")), Kind::Plain, "it writes to a disk");
        assert_eq!(kind(&at("dm-0")), Kind::Encrypted);
        assert_eq!(kind(&at("dm-1")), Kind::Encrypted, "it lies on one that is");
        assert_eq!(kind(&at("dm-2")), Kind::Plain, "a part of it is not");
        assert_eq!(kind(&at("vda")), Kind::Plain);
        assert_eq!(kind(&at("not-there")), Kind::Plain);
        Ok(())
    }

    #[test]
    fn a_copy_takes_what_zram_packs_it_to() -> std::io::Result<()> {
        let folder = tempfile::tempdir()?;
        fs::write(
            folder.path().join("mm_stat"),
            "  4000 900 1000 0 1000 0 0 0 0\n",
        )?;
        let swaps = Swaps {
            zram: vec![folder.path().to_owned()],
        };
        assert_eq!(swaps.room_of(400), 100);
        assert_eq!(Swaps::default().room_of(400), 0);
        Ok(())
    }
}
