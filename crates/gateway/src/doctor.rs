//! `overwinter doctor`: what this host has, and what to install.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

use clap::ValueEnum;
use overwinter_driver_docker::{Finding, Flavor};
use overwinter_driver_local::{Check, Status, doctor};
use overwinter_gateway::config::{Config, EngineConfig};

use crate::failure::Failure;

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Output {
    Table,
    Json,
    Name,
}

/// Fails, after all is printed, where something is missing.
pub(crate) fn run(config: &Config, output: Output) -> Result<ExitCode, Failure> {
    let mut checks = Vec::new();
    if config.local.enabled {
        let state = config.data_dir().join("local");
        checks.extend(doctor(&state, config.local.runtime.as_ref()));
    }
    let data = config.data_dir();
    checks.extend(engine(Flavor::Docker, "Docker", &config.docker, &data)?);
    checks.extend(engine(Flavor::Podman, "Podman", &config.podman, &data)?);
    let text = match output {
        Output::Json => json(&checks),
        Output::Table => table(&checks),
        Output::Name => checks.iter().map(|it| format!("{}\n", it.name)).collect(),
    };
    let mut stdout = io::stdout().lock();
    stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
        .map_err(Failure::output)?;
    let missing = checks.iter().any(|check| check.status == Status::Missing);
    Ok(if missing {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

const fn word(status: Status) -> &'static str {
    match status {
        Status::Ok => "ok",
        Status::Warn => "warn",
        Status::Missing => "missing",
    }
}

fn json(checks: &[Check]) -> String {
    let rows: Vec<_> = checks
        .iter()
        .map(|check| {
            serde_json::json!({
                "name": check.name,
                "status": word(check.status),
                "detail": check.detail,
                "fix": check.fix,
            })
        })
        .collect();
    format!("{:#}\n", serde_json::Value::from(rows))
}

fn table(checks: &[Check]) -> String {
    let width = checks
        .iter()
        .map(|check| check.name.len())
        .max()
        .unwrap_or(0);
    let mut text = String::new();
    for Check {
        name,
        status,
        detail,
        fix,
    } in checks
    {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{:<7}  {name:<width$}  {detail}", word(*status));
        if !fix.is_empty() {
            let _ = writeln!(text, "{:<7}  {:<width$}  → {fix}", "", "");
        }
    }
    text
}

/// Asked for, it must be there; else it is named where it happens to be.
fn engine(
    flavor: Flavor,
    name: &'static str,
    config: &EngineConfig,
    data: &Path,
) -> Result<Vec<Check>, Failure> {
    let socket = config.socket.as_deref().unwrap_or(flavor.socket());
    if !config.enabled && !socket.exists() {
        return Ok(Vec::new());
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Failure::Runtime)?;
    let finding = runtime.block_on(overwinter_driver_docker::doctor(flavor, socket, data));
    let check = |status, detail, fix| Check {
        name,
        status,
        detail,
        fix,
    };
    let none = String::new;
    Ok(match (finding, config.enabled) {
        (Finding::Usable { what, lacks }, true) => {
            let lacks = lacks.into_iter();
            let lacks = lacks.map(|it| check(Status::Warn, it.what, it.fix));
            [check(Status::Ok, what, none())]
                .into_iter()
                .chain(lacks)
                .collect()
        }
        (Finding::Usable { what, .. }, false) => {
            let detail = format!("{what}; not used: {}.enabled is not set", flavor.name());
            vec![check(Status::Ok, detail, none())]
        }
        (Finding::Unusable { why, fix }, true) => vec![check(Status::Missing, why, fix)],
        (Finding::Unusable { why, .. }, false) => {
            vec![check(Status::Ok, format!("not used; {why}"), none())]
        }
    })
}
