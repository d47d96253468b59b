//! A program that is started, and ends before a deadline or is killed.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use rustix::fs::{MemfdFlags, memfd_create};

use crate::error::{At, LocalError};
use crate::process;

/// Killed and reaped when dropped before its end.
pub(super) struct Started {
    name: &'static str,
    child: Child,
}

/// `input` is what it reads.
pub(super) fn start(
    name: &'static str,
    mut command: Command,
    input: Option<&str>,
) -> Result<Started, LocalError> {
    let path = Path::new(name);
    let stdin = match input {
        Some(input) => held(input).at("writing what is read by", path)?.into(),
        None => Stdio::null(),
    };
    command
        .stdin(stdin)
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let child = command.spawn().at("starting", path)?;
    Ok(Started { name, child })
}

/// In memory: a pipe holds less than a host may have addresses, and one that does not read would be
/// waited for.
fn held(input: &str) -> std::io::Result<File> {
    let mut file = File::from(memfd_create("input", MemfdFlags::CLOEXEC)?);
    file.write_all(input.as_bytes())?;
    file.rewind()?;
    Ok(file)
}

impl Started {
    /// Waits for its end, and that it is a good one.
    pub(super) fn ended(mut self, until: Instant) -> Result<(), LocalError> {
        let program = self.name;
        let path = Path::new(program);
        // Not reaped yet, so the number is its own.
        let pidfd = process::open_child(&self.child).at("opening a descriptor of", path)?;
        if !process::wait(&pidfd, until) {
            return Err(LocalError::NetworkHung { program });
        }
        let status = self.child.wait().at("waiting for", path)?;
        if status.success() {
            return Ok(());
        }
        let mut said = Vec::new();
        if let Some(stderr) = self.child.stderr.take() {
            // As much as a pipe holds; what it may have left behind keeps the rest to itself.
            let _ = stderr.take(MOST_SAID).read_to_end(&mut said);
        }
        let said = String::from_utf8_lossy(&said);
        let last = said.lines().map(str::trim).rfind(|line| !line.is_empty());
        Err(LocalError::Network {
            program,
            message: last.map_or_else(|| status.to_string(), str::to_owned),
        })
    }
}

const MOST_SAID: u64 = 4096;

impl Drop for Started {
    fn drop(&mut self) {
        // Nothing to do for one that has ended and was waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
