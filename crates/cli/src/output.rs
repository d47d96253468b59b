//! What commands print: tables for people, JSON for programs, names for scripts.
//!
//! All goes through [`Output`], whose errors are told apart from others: a pipe that its reader has
//! closed ends the command quietly.

use std::io::{self, BufWriter, StdoutLock, Write as _};

use comfy_table::{Cell, Table, presets};
use serde::Serialize;

use crate::failure::Failure;
use crate::text::printable;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// For people
    #[default]
    Table,
    /// The API's messages in protobuf's JSON; an array where there may be several
    Json,
    /// Names (or ids) alone, one a line
    Name,
}

impl Format {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Table => "table",
            Self::Json => "json",
            Self::Name => "name",
        }
    }
}

#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct OutputArgs {
    /// How to print it
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t)]
    pub(crate) output: Format,
}

pub(crate) struct Output(BufWriter<StdoutLock<'static>>);

impl Output {
    pub(crate) fn new() -> Self {
        Self(BufWriter::new(io::stdout().lock()))
    }

    pub(crate) fn line(&mut self, text: &str) -> Result<(), Failure> {
        writeln!(self.0, "{}", printable(text)).map_err(Failure::output)
    }

    pub(crate) fn json(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        serde_json::to_writer_pretty(&mut self.0, value)
            .map_err(|error| Failure::output(io::Error::from(error)))?;
        writeln!(self.0).map_err(Failure::output)
    }

    pub(crate) fn rows(&mut self, rows: Rows) -> Result<(), Failure> {
        for line in rows.0.lines() {
            writeln!(self.0, "{}", line.trim_end()).map_err(Failure::output)?;
        }
        Ok(())
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.0.write_all(bytes).map_err(Failure::output)
    }

    /// Hands all of it over; must be called, since a drop could not tell an error.
    pub(crate) fn finish(mut self) -> Result<(), Failure> {
        self.0.flush().map_err(Failure::output)
    }
}

/// One line that is all there is to say.
pub(crate) fn say(text: &str) -> Result<(), Failure> {
    let mut out = Output::new();
    out.line(text)?;
    out.finish()
}

/// A table without borders.
pub(crate) struct Rows(Table);

impl Rows {
    pub(crate) fn with_header<const N: usize>(header: [&str; N]) -> Self {
        let mut rows = Self::plain(N);
        rows.0.set_header(header);
        // Columns exist from the header on.
        rows.pad();
        rows
    }

    /// Two columns: what, and its value.
    pub(crate) fn pairs() -> Self {
        Self::plain(2)
    }

    fn plain(_columns: usize) -> Self {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        Self(table)
    }

    pub(crate) fn add<const N: usize>(&mut self, cells: [String; N]) {
        self.0
            .add_row(cells.map(|cell| Cell::new(printable(&cell))));
        self.pad();
    }

    /// Adds a pair unless the value is empty.
    pub(crate) fn pair(&mut self, what: &str, value: impl Into<String>) {
        let value = value.into();
        if !value.is_empty() {
            self.add([format!("{what}:"), value]);
        }
    }

    fn pad(&mut self) {
        for column in self.0.column_iter_mut() {
            column.set_padding((0, 3));
        }
    }
}
