//! `overwinter-bench [SECTION…] [--quick] [--json FILE]`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use overwinter_bench::child::{self, Child};
use overwinter_bench::report::Report;
use overwinter_bench::sections::{self, Plan, Section};

/// Overwinter's figures beside the bare tools, in one run. A bound that is missed is shown, and
/// fails nothing: machines differ. The count of durable commits is asserted.
#[derive(Parser)]
struct Arguments {
    /// Which to measure; without any, all
    #[arg(value_enum)]
    sections: Vec<Section>,
    /// Few rounds: a look, not a figure to publish
    #[arg(long)]
    quick: bool,
    /// Also the median of each step of the operations
    #[arg(long)]
    steps: bool,
    /// Where the figures go as JSON
    #[arg(long)]
    json: Option<PathBuf>,
    /// The folder below which the gateways' own are made: its disk is what is measured
    #[arg(long, default_value_os_t = std::env::temp_dir())]
    folder: PathBuf,
    /// This process is one that a section has started
    #[arg(long, hide = true, value_enum)]
    child: Option<Child>,
    #[arg(long, hide = true)]
    socket: Option<PathBuf>,
    #[arg(long, hide = true, default_value_t = 0)]
    slow_deletes_ms: u64,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(run(arguments))
}

async fn run(arguments: Arguments) -> anyhow::Result<()> {
    if let Some(kind) = arguments.child {
        let socket = arguments.socket.context("a child needs --socket")?;
        let slow = Duration::from_millis(arguments.slow_deletes_ms);
        return child::run(kind, &arguments.folder, &socket, slow).await;
    }
    let plan = Plan {
        quick: arguments.quick,
        steps: arguments.steps,
        folder: arguments.folder,
    };
    let mut report = Report::default();
    for section in Section::all() {
        if arguments.sections.is_empty() || arguments.sections.contains(&section) {
            eprintln!("measuring {section} …");
            let measured = sections::measure(section, &plan, &mut report).await;
            if let Err(error) = measured {
                // What was measured until then took its time, and is so all the same.
                report.print();
                return Err(error.context(section.to_string()));
            }
        }
    }
    report.print();
    if let Some(path) = arguments.json {
        std::fs::write(&path, report.json()?).with_context(|| path.display().to_string())?;
    }
    Ok(())
}
