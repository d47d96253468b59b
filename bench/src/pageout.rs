//! The bare way: a stopped process with memory, and one `process_madvise` for each of its ranges.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

const BLOCK: usize = 16 << 20;

/// A `dd` that has read all of its input into one buffer, and cannot write it. Killed when dropped.
pub struct Holder {
    child: Child,
    pid: Pid,
}

impl Holder {
    /// With 16 MiB of noise and 16 of a program in turns.
    ///
    /// # Errors
    /// When it cannot be filled.
    pub fn start(mib: u32) -> anyhow::Result<Self> {
        let mut child = Command::new("/bin/busybox")
            .args(["dd", &format!("bs={mib}M"), "count=1", "iflag=fullblock"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("busybox")?;
        let pid = Pid::from_child(&child);
        let input = child.stdin.take();
        let mut output = child.stdout.take();
        let holder = Self { child, pid };
        let mut input = input.context("no input")?;
        let mut noise = vec![0; BLOCK];
        let program = std::fs::read("/bin/busybox")?;
        let text: Vec<u8> = program.iter().copied().cycle().take(BLOCK).collect();
        for _ in 0..mib.div_ceil(32) {
            std::fs::File::open("/dev/urandom")?.read_exact(&mut noise)?;
            input.write_all(&noise)?;
            input.write_all(&text)?;
        }
        // It writes when it has all.
        let mut first = [0];
        output
            .as_mut()
            .context("no output")?
            .read_exact(&mut first)?;
        let mut holder = holder;
        holder.child.stdout = output;
        kill_process(holder.pid, Signal::STOP)?;
        Ok(holder)
    }

    /// # Errors
    /// When the kernel refuses.
    pub fn page_out(&self) -> anyhow::Result<Duration> {
        let pidfd = pidfd_open(self.pid, PidfdFlags::empty())?;
        let maps = std::fs::read_to_string(self.file("maps"))?;
        let began = Instant::now();
        for line in maps.lines() {
            let words: Vec<_> = line.split_whitespace().collect();
            let [range, permissions, _, _, "0", name @ ..] = &words[..] else {
                continue;
            };
            if !permissions.contains('w') || name.first().is_some_and(|it| it.starts_with("[v")) {
                continue;
            }
            let (start, end) = range.split_once('-').context("no range")?;
            let start = usize::from_str_radix(start, 16)?;
            let range = libc::iovec {
                iov_base: std::ptr::without_provenance_mut(start),
                iov_len: usize::from_str_radix(end, 16)? - start,
            };
            // SAFETY: the descriptor is open, and one range is told of. Where the other's pages lie
            // changes nothing of what is in them.
            let done = unsafe {
                libc::syscall(
                    libc::SYS_process_madvise,
                    pidfd.as_raw_fd(),
                    &raw const range,
                    1_usize,
                    libc::MADV_PAGEOUT,
                    0_u32,
                )
            };
            ensure!(done >= 0, "{}", std::io::Error::last_os_error());
        }
        Ok(began.elapsed())
    }

    /// Bytes of it that are in swap.
    ///
    /// # Errors
    /// When it has ended.
    pub fn swapped(&self) -> anyhow::Result<u64> {
        let status = std::fs::read_to_string(self.file("status"))?;
        let line = status.lines().find_map(|it| it.strip_prefix("VmSwap:"));
        let kib: u64 = (line.context("no VmSwap")?.trim().trim_end_matches(" kB")).parse()?;
        Ok(kib << 10)
    }

    fn file(&self, name: &str) -> String {
        format!("/proc/{}/{name}", self.pid.as_raw_nonzero())
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
