//! Swap in memory, and swap in the clear, for a test that needs them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

const CONTROL: &str = "/sys/class/zram-control";

/// Why there can be none here. None: there can.
#[must_use]
pub fn missing() -> Option<&'static str> {
    if !Path::new(CONTROL).exists() {
        // Where it is a module; where it is not there at all, this changes nothing.
        let _ = Command::new("modprobe").arg("zram").output();
    }
    (!Path::new(CONTROL).exists()).then_some("needs a kernel with zram")
}

/// Swap on a compressed device in memory of its own. Taken back when it is dropped.
pub struct Zram {
    number: u32,
}

impl Zram {
    /// # Errors
    /// When it cannot be set up.
    pub fn new(bytes: u64) -> anyhow::Result<Self> {
        let added = fs::read_to_string(Path::new(CONTROL).join("hot_add"))?;
        let zram = Self {
            number: added.trim().parse()?,
        };
        fs::write(zram.folder().join("disksize"), bytes.to_string())?;
        swap_on(&zram.device())?;
        Ok(zram)
    }

    fn folder(&self) -> PathBuf {
        PathBuf::from(format!("/sys/block/zram{}", self.number))
    }

    #[must_use]
    pub fn device(&self) -> PathBuf {
        PathBuf::from(format!("/dev/zram{}", self.number))
    }

    /// Bytes of pages in it, as the kernel counts them.
    ///
    /// # Errors
    /// When it is no swap any more.
    pub fn used(&self) -> anyhow::Result<u64> {
        let device = self.device().display().to_string();
        let swaps = fs::read_to_string("/proc/swaps")?;
        let line = (swaps
            .lines()
            .find(|line| line.split(' ').next() == Some(&device)))
        .context("it is no swap")?;
        let kib: u64 = (line.split_whitespace().nth(3).context("no size")?).parse()?;
        Ok(kib << 10)
    }
}

impl Drop for Zram {
    fn drop(&mut self) {
        swap_off(&self.device());
        let _ = fs::write(self.folder().join("reset"), "1");
        let _ = fs::write(
            Path::new(CONTROL).join("hot_remove"),
            self.number.to_string(),
        );
    }
}

/// Swap in a file that is not encrypted; of the lowest priority, so that nothing goes there.
pub struct PlainSwap(PathBuf);

impl PlainSwap {
    /// # Errors
    /// When it cannot be set up: not every file system can have one.
    pub fn new(path: PathBuf) -> anyhow::Result<Self> {
        fs::write(&path, vec![0; 1 << 20])?;
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
        swap_on(&path)?;
        Ok(Self(path))
    }
}

impl Drop for PlainSwap {
    fn drop(&mut self) {
        swap_off(&self.0);
    }
}

fn swap_on(path: &Path) -> anyhow::Result<()> {
    for program in ["mkswap", "swapon"] {
        let ran = Command::new(program).arg(path).output().context(program)?;
        ensure!(ran.status.success(), "{program}: {ran:?}");
    }
    Ok(())
}

fn swap_off(path: &Path) {
    let _ = Command::new("swapoff").arg(path).output();
}
