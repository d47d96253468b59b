//! `overwinter driver list`

use clap::Subcommand;
use overwinter_client::raw;

use crate::context::Context;
use crate::failure::Failure;
use crate::output::{Format, Output, OutputArgs, Rows};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the drivers: what each depth keeps, gives back and survives
    #[command(visible_alias = "ls")]
    List(OutputArgs),
}

pub(crate) async fn run(context: &Context, command: Command) -> Result<u8, Failure> {
    let Command::List(args) = command;
    let drivers = context.client.drivers().await?;
    let mut out = Output::new();
    match args.output {
        Format::Json => out.json(&drivers)?,
        Format::Name => {
            for driver in &drivers {
                out.line(&driver.name)?;
            }
        }
        Format::Table => {
            let header = ["DRIVER", "VERSION", "DEPTH", "KEEPS", "FREES", "SURVIVES"];
            let mut rows = Rows::with_header(header);
            for driver in &drivers {
                add(&mut rows, driver);
            }
            out.rows(rows)?;
            out.line("")?;
            let mut rows = Rows::with_header(["DRIVER", "NETWORK", "AVAILABLE"]);
            for driver in &drivers {
                add_networks(&mut rows, driver);
            }
            out.rows(rows)?;
        }
    }
    out.finish()?;
    Ok(0)
}

fn add(rows: &mut Rows, driver: &raw::Driver) {
    let mut name = driver.name.clone();
    if driver.is_default {
        name.push_str(" (default)");
    }
    let mut head = [name, driver.version.clone()];
    for mode in &driver.modes {
        let [name, version] = std::mem::take(&mut head);
        rows.add([
            name,
            version,
            raw::label(mode.depth, "DEPTH_"),
            mode.preserves.join(", "),
            releases(mode),
            mode.survives.join(", "),
        ]);
    }
    for mode in &driver.modes {
        if !mode.no_reclaim.is_empty() {
            let what = format!("{} --reclaim", raw::label(mode.depth, "DEPTH_"));
            let why = format!("not here: {}", mode.no_reclaim);
            let [name, version] = std::mem::take(&mut head);
            rows.add([name, version, what, why, String::new(), String::new()]);
        }
    }
    for mode in &driver.modes {
        let mut lacking: Vec<_> = mode.not_on.iter().collect();
        lacking.sort();
        for (runtime, why) in lacking {
            let what = format!("{} on {runtime}", raw::label(mode.depth, "DEPTH_"));
            let [name, version] = std::mem::take(&mut head);
            let (none, why) = (String::new(), format!("no: {why}"));
            rows.add([name, version, what, why, none.clone(), none]);
        }
    }
    let mut missing: Vec<_> = driver.unavailable.iter().collect();
    missing.sort();
    for (depth, why) in missing {
        let [name, version] = std::mem::take(&mut head);
        let (none, why) = (String::new(), format!("not here: {why}"));
        rows.add([name, version, depth.clone(), why, none.clone(), none]);
    }
    if !head[0].is_empty() {
        let [name, version] = head;
        let none = String::new;
        rows.add([name, version, "none".into(), none(), none(), none()]);
    }
}

fn releases(mode: &raw::SuspensionMode) -> String {
    let mut releases = mode.releases.clone();
    if mode.can_reclaim {
        releases.push("memory (--reclaim)".to_owned());
    }
    releases.join(", ")
}

fn add_networks(rows: &mut Rows, driver: &raw::Driver) {
    let mut head = driver.name.clone();
    for network in &driver.networks {
        let mut without: Vec<_> = network.not_on.iter().collect();
        without.sort();
        let available = match (network.missing.as_str(), without.as_slice()) {
            ("", []) => "yes".to_owned(),
            ("", without) => {
                let each = without.iter();
                let each = each.map(|(runtime, why)| format!("not on {runtime}: {why}"));
                format!("yes; {}", each.collect::<Vec<_>>().join("; "))
            }
            (missing, _) => format!("not here: {missing}"),
        };
        rows.add([std::mem::take(&mut head), network.name.clone(), available]);
    }
}
