//! `overwinter process list`

use clap::{Args, Subcommand};
use overwinter_client::raw;

use crate::context::Context;
use crate::failure::Failure;
use crate::output::{Format, Output, OutputArgs, Rows};
use crate::text::age;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the live processes and the kept results; of a sleeping sandbox, the results
    #[command(visible_alias = "ls")]
    List(List),
}

#[derive(Debug, Args)]
pub(crate) struct List {
    /// The sandbox; may be left out where there is just one
    name: Option<String>,
    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) async fn run(context: &Context, command: Command) -> Result<u8, Failure> {
    let Command::List(args) = command;
    let sandbox = context.sandbox(args.name).await?;
    let processes = context.client.processes(sandbox).await?;
    let mut out = Output::new();
    match args.output.output {
        Format::Json => out.json(&processes)?,
        Format::Name => {
            for process in &processes {
                out.line(&process.process_id)?;
            }
        }
        Format::Table => {
            let header = ["PROCESS", "PID", "STATE", "USER", "AGE", "COMMAND"];
            let mut rows = Rows::with_header(header);
            for process in &processes {
                rows.add([
                    process.process_id.clone(),
                    if process.running {
                        process.pid.to_string()
                    } else {
                        String::new()
                    },
                    state(process),
                    process.user.clone(),
                    process
                        .started_at
                        .as_option()
                        .map_or_else(String::new, |at| age(at.seconds)),
                    command_line(&process.command),
                ]);
            }
            out.rows(rows)?;
        }
    }
    out.finish()?;
    Ok(0)
}

fn state(process: &raw::ProcessInfo) -> String {
    let mut state = match process.exit.as_option() {
        None if process.running => "running".to_owned(),
        None => "unknown".to_owned(),
        Some(exit) => match raw::label(exit.cause, "EXIT_CAUSE_").as_str() {
            "suspension" => format!("ended {} (suspended)", exit.code),
            "lost" => "lost".to_owned(),
            _ => format!("ended {}", exit.code),
        },
    };
    if process.main {
        state.push_str(", main");
    }
    state
}

/// As it could be typed: words with spaces or nothing in them are quoted.
fn command_line(words: &[String]) -> String {
    let quoted = words.iter().map(|word| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@%+".contains(c);
        if !word.is_empty() && word.chars().all(plain) {
            word.clone()
        } else {
            format!("'{}'", word.replace('\'', "'\\''"))
        }
    });
    quoted.collect::<Vec<_>>().join(" ")
}
