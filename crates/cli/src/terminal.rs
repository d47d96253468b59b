//! The terminal that we run on.

use std::io;

use rustix::fd::AsFd;
use rustix::termios::{self, OptionalActions, Termios};

/// A terminal in raw mode; dropping it gives it back as it was, also when a panic unwinds.
pub(crate) struct RawMode {
    before: Termios,
}

impl RawMode {
    /// Puts the terminal on stdin into raw mode; `None` where stdin is no terminal.
    pub(crate) fn enter() -> io::Result<Option<Self>> {
        let stdin = io::stdin();
        if !termios::isatty(stdin.as_fd()) {
            return Ok(None);
        }
        let before = termios::tcgetattr(&stdin)?;
        let mut raw = before.clone();
        raw.make_raw();
        termios::tcsetattr(&stdin, OptionalActions::Now, &raw)?;
        Ok(Some(Self { before }))
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        // Nothing can be done about a terminal that will not be given back.
        let _ = termios::tcsetattr(io::stdin(), OptionalActions::Now, &self.before);
    }
}

/// Rows and columns of the terminal, whichever of our three is one.
pub(crate) fn size() -> Option<(u32, u32)> {
    let known = termios::tcgetwinsize(io::stdout())
        .or_else(|_| termios::tcgetwinsize(io::stdin()))
        .or_else(|_| termios::tcgetwinsize(io::stderr()))
        .ok()?;
    (known.ws_row > 0 && known.ws_col > 0)
        .then(|| (u32::from(known.ws_row), u32::from(known.ws_col)))
}
