//! The `overwinter` command, as a user runs it.

use std::ffi::OsStr;
use std::process::{Output, Stdio};

use anyhow::ensure;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};

use crate::gateway::{Gateway, program};

/// What a command printed, and its exit code.
#[derive(Debug)]
pub struct Said {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl From<Output> for Said {
    fn from(output: Output) -> Self {
        Self {
            // A signal, as a shell has it, is no code of the command's.
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Said {
    /// # Errors
    /// When it failed.
    pub fn well(self) -> anyhow::Result<String> {
        ensure!(self.code == 0, "it ended with {}: {}", self.code, self.err);
        Ok(self.out)
    }

    /// The error that it must have ended with: its reason code, and words of its text.
    ///
    /// # Errors
    /// When it did not, or does not say what to do next.
    pub fn refused(&self, reason: &str, words: &str) -> anyhow::Result<()> {
        ensure!(self.code != 0, "it ended well: {self:?}");
        let first = self.err.lines().next().unwrap_or_default();
        ensure!(
            first.starts_with(&format!("error[{reason}]: ")),
            "not {reason}: {self:?}"
        );
        ensure!(
            self.err.contains(words),
            "it does not say {words:?}: {self:?}"
        );
        ensure!(
            self.err.contains("\n  next: "),
            "it does not say what to do next: {self:?}"
        );
        Ok(())
    }
}

impl Gateway {
    /// The command with its arguments, its streams piped; ended with SIGKILL when it is dropped.
    ///
    /// # Errors
    /// When it is not built.
    pub fn cli<A: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = A>,
    ) -> anyhow::Result<Command> {
        let mut command = Command::new(program("overwinter")?);
        command
            .arg("--socket")
            .arg(self.socket())
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        Ok(command)
    }

    /// Runs the command to its end.
    ///
    /// # Errors
    /// When it cannot be run; how it ended is no error.
    pub async fn say<A: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = A>,
    ) -> anyhow::Result<Said> {
        Ok(self.cli(arguments)?.output().await?.into())
    }

    /// The same, with stdin.
    ///
    /// # Errors
    /// As [`Gateway::say`].
    pub async fn say_with<A: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = A>,
        input: &[u8],
    ) -> anyhow::Result<Said> {
        let mut child: Child = self.cli(arguments)?.stdin(Stdio::piped()).spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(input).await?;
        }
        Ok(child.wait_with_output().await?.into())
    }
}
