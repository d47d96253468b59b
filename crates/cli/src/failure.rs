//! What went wrong: what happened, its reason code, what to do next; and the exit code.

use std::fmt;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::PathBuf;

use miette::{Diagnostic, GraphicalReportHandler, GraphicalTheme};
use overwinter_client::{Code, Error, reason};

use crate::signals;
use crate::text::printable;

/// As a shell reports a command that SIGPIPE ended.
const BROKEN_PIPE: u8 = 128 + 13;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{}", printable(.0.message()))]
    Gateway(#[from] Error),
    /// As above, of one of several sandboxes.
    #[error("{}: {}", printable(.name), printable(.error.message()))]
    Named { name: String, error: Error },
    #[error("{failed} of {all} failed")]
    SomeFailed { failed: usize, all: usize },
    #[error("no sandbox is named, and there is none")]
    NoSandbox,
    #[error("no sandbox is named, and there are several: {}", printable(.names))]
    WhichSandbox { names: String },
    #[error("{} reached {phase}{}", printable(.name), .reason.as_deref().map(|it| format!(": {}", printable(it))).unwrap_or_default())]
    WaitedInVain {
        name: String,
        phase: &'static str,
        reason: Option<String>,
    },
    #[error("{} is not {what} after {limit}", printable(.name))]
    WaitTimeout {
        name: String,
        what: &'static str,
        limit: String,
    },
    #[error("one of the two must be in a sandbox, as NAME:/path, and one here")]
    CopyBetween,
    #[error("{} is a folder", printable(.0))]
    CopyFolder(String),
    #[error("the command to run stands after `--`")]
    NoDashes { name: String, command: String },
    #[error("nothing was asked to be changed")]
    NothingToChange,
    #[error("{}: {}", printable(.what), .error)]
    Local { what: String, error: io::Error },
    #[error("cannot run {}: {error}", .program.display())]
    Program { program: PathBuf, error: io::Error },
    /// The sandbox could not start it. `code`: as a shell has it, 126 or 127.
    #[error("{}", printable(.message))]
    Unstartable { code: u8, message: String },
    #[error("cannot set up: {0}")]
    Runtime(io::Error),
    /// A signal came while a verb was waited for, whose operation goes on.
    #[error("{}", left(.operation.as_deref()))]
    Left {
        signal: i32,
        operation: Option<String>,
    },
    /// A signal ended us, and nothing goes on.
    #[error("signal {signal}")]
    Interrupted { signal: i32 },
    /// Whoever read our output has closed it: nothing to say, and nobody to say it to.
    #[error("the output was closed")]
    BrokenPipe,
}

impl Failure {
    pub(crate) fn local(what: impl Into<String>, error: io::Error) -> Self {
        Self::Local {
            what: what.into(),
            error,
        }
    }

    /// Writing to our own output failed.
    pub(crate) fn output(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            Self::BrokenPipe
        } else {
            Self::local("cannot write the output", error)
        }
    }

    fn reason(&self) -> &str {
        match self {
            Self::Gateway(error) | Self::Named { error, .. } => error.reason(),
            Self::SomeFailed { .. } => "SOME_FAILED",
            Self::NoSandbox => "NO_SANDBOX",
            Self::WhichSandbox { .. } => "SANDBOX_AMBIGUOUS",
            Self::WaitedInVain { .. } => "WAITED_IN_VAIN",
            Self::WaitTimeout { .. } => "WAIT_TIMEOUT",
            Self::CopyBetween => "COPY_BETWEEN",
            Self::CopyFolder(_) => "IS_A_FOLDER",
            Self::NoDashes { .. } => "NO_DASHES",
            Self::NothingToChange => "NOTHING_TO_CHANGE",
            Self::Local { .. } => "LOCAL_IO",
            Self::Program { .. } => "PROGRAM_MISSING",
            Self::Unstartable { code: 127, .. } => "COMMAND_NOT_FOUND",
            Self::Unstartable { .. } => "COMMAND_NOT_EXECUTABLE",
            Self::Runtime(_) => "RUNTIME",
            Self::Left { .. } | Self::Interrupted { .. } => "INTERRUPTED",
            Self::BrokenPipe => "BROKEN_PIPE",
        }
    }

    fn next(&self) -> Option<String> {
        Some(match self {
            Self::Gateway(error) | Self::Named { error, .. } => {
                match (error.next(), error.io_error()) {
                    (Some(next), _) => printable(next).into_owned(),
                    (None, Some(local)) if error.reason() == reason::LOCAL_IO => {
                        next_of_io(local).into()
                    }
                    (None, _) => next_of_code(error.code()).into(),
                }
            }
            Self::NoSandbox => "make one: overwinter sandbox create --image IMAGE NAME".into(),
            Self::WhichSandbox { .. } => "name the one that you mean".into(),
            Self::WaitedInVain { name, .. } => {
                format!("overwinter sandbox get {}", printable(name))
            }
            Self::WaitTimeout { name, .. } => {
                format!(
                    "overwinter sandbox get {} says what it does",
                    printable(name)
                )
            }
            Self::CopyBetween => "overwinter sandbox cp ./file NAME:/workspace/file".into(),
            Self::CopyFolder(_) => {
                "pack it: tar -c FOLDER | overwinter sandbox exec NAME -- tar -x".into()
            }
            Self::NoDashes { name, command } => format!(
                "overwinter sandbox exec {} -- {}",
                printable(name),
                printable(command)
            ),
            Self::NothingToChange => "overwinter sandbox update --help lists what can be".into(),
            Self::Program { .. } => "install it beside `overwinter`, or put it in PATH".into(),
            Self::SomeFailed { .. } => {
                "what to do about each stands above; the others are done".into()
            }
            Self::Local { error, .. } => next_of_io(error).into(),
            Self::Unstartable { code: 127, .. } => {
                "check its name and the sandbox's PATH, or give its path as it is inside".into()
            }
            Self::Unstartable { .. } => {
                "correct what the message names: the program's permissions, --user or --workdir"
                    .into()
            }
            Self::Runtime(_) => {
                "raise what this user may have of processes and open files (ulimit -u, ulimit -n)"
                    .into()
            }
            Self::Left { .. } | Self::Interrupted { .. } | Self::BrokenPipe => {
                return None;
            }
        })
    }

    /// Where it is not that of the command's own failures.
    pub(crate) fn exit_code(&self) -> Option<u8> {
        match self {
            Self::BrokenPipe => Some(BROKEN_PIPE),
            Self::Unstartable { code, .. } => Some(*code),
            Self::Left { signal, .. } | Self::Interrupted { signal } => {
                Some(signals::exit_code(*signal))
            }
            _ => None,
        }
    }

    /// Tells it on stderr: for a person on a terminal, else on lines that a program can cut.
    pub(crate) fn report(&self) {
        match self {
            // Nobody to say it to; whoever sent the signal knows.
            Self::BrokenPipe | Self::Interrupted { .. } => return,
            // No error: it is as it was asked for.
            Self::Left { .. } => {
                let _ = io::stderr().write_all(format!("overwinter: {self}\n").as_bytes());
                return;
            }
            _ => {}
        }
        let stderr = io::stderr();
        let text = if stderr.is_terminal() {
            let theme = if std::env::var_os("NO_COLOR").is_some() {
                GraphicalTheme::unicode_nocolor()
            } else {
                GraphicalTheme::unicode()
            };
            let mut text = String::new();
            // The message says it all; its causes say it again.
            let handler = GraphicalReportHandler::new_themed(theme).without_cause_chain();
            match handler.render_report(&mut text, self) {
                Ok(()) => text + "\n",
                Err(fmt::Error) => self.plain(),
            }
        } else {
            self.plain()
        };
        // There is no third place to tell that this could not be told.
        let _ = stderr.lock().write_all(text.as_bytes());
    }

    fn plain(&self) -> String {
        let mut text = format!("error[{}]: {self}\n", printable(self.reason()));
        if let Some(next) = self.next() {
            text.push_str(&format!("  next: {next}\n"));
        }
        text
    }
}

/// Arguments that could not be understood: the parser's own words, on lines that a program can cut
/// where stderr is no terminal.
pub(crate) fn report_usage(error: &clap::Error, help: &str) {
    let stderr = io::stderr();
    if stderr.is_terminal() {
        // There is no third place to tell that this could not be told.
        let _ = error.print();
        return;
    }
    let said = error.render().to_string();
    let said = match said.strip_prefix("error: ") {
        Some(said) => said.to_owned(),
        // The help alone, where a command was left out.
        None => format!("a command is missing\n\n{said}"),
    };
    let lines: Vec<_> = said.trim_end().lines().map(printable).collect();
    let text = format!("error[USAGE]: {}\n  next: {help}\n", lines.join("\n"));
    let _ = stderr.lock().write_all(text.as_bytes());
}

/// What to do about a file or stream of our own that failed.
fn next_of_io(error: &io::Error) -> &'static str {
    use io::ErrorKind as K;
    match error.kind() {
        K::NotFound => "check the path: nothing is there",
        K::PermissionDenied => "ask as a user who may, or choose another path",
        K::StorageFull | K::QuotaExceeded | K::FileTooLarge => {
            "make room there, or choose another place"
        }
        K::ReadOnlyFilesystem => "choose a place that can be written",
        K::IsADirectory => "it is a folder: name a file in it",
        K::NotADirectory => "a part of the path is no folder: correct it",
        K::AlreadyExists => "choose another name, or remove what is there",
        K::InvalidFilename | K::InvalidInput => "choose a shorter path, or a plainer one",
        K::ResourceBusy | K::ExecutableFileBusy => "end what uses it, then try again",
        _ => "look at that file or stream, then try again",
    }
}

/// What to do about an answer that does not say it.
fn next_of_code(code: Code) -> &'static str {
    match code {
        Code::NotFound => "check its name; the `list` commands show what is there",
        Code::AlreadyExists => "choose another name, or remove what is there",
        Code::InvalidArgument | Code::OutOfRange => "correct what the message names",
        Code::PermissionDenied | Code::Unauthenticated => "ask as a user who may",
        Code::ResourceExhausted => "make room, or ask for less, then try again",
        Code::FailedPrecondition | Code::Aborted => "look at how it stands, then try again",
        Code::Unimplemented => "check that client and gateway are of versions that fit",
        _ => "look at the gateway's log, then try again",
    }
}

fn left(operation: Option<&str>) -> String {
    match operation {
        Some(id) => format!(
            "operation {0} goes on; to follow it: overwinter operation wait {0}",
            printable(id)
        ),
        None => "what was asked for may go on; to see it: overwinter operation list --unfinished"
            .to_owned(),
    }
}

impl Diagnostic for Failure {
    fn code<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        Some(Box::new(printable(self.reason())))
    }

    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        Some(Box::new(self.next()?))
    }
}
