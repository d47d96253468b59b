//! Attackers: programs in Python that try one thing after another, and say what came of each.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde_json::Value;

use crate::stage::Stage;

/// What came of each thing that was tried: `ok`, the name of an error, or what was found.
pub(crate) type Outcomes = BTreeMap<String, String>;

/// More than any attack takes.
const STUCK: Duration = Duration::from_secs(30);

/// What the programs share: a call by its number, and how an outcome is told.
pub(crate) const PRELUDE: &str = include_str!("programs/prelude.py");

/// Runs `program` inside as `user`, with what it is to know.
pub(crate) async fn run(
    stage: &Stage,
    sandbox: &str,
    user: &str,
    program: &str,
    knows: &Value,
) -> anyhow::Result<Outcomes> {
    let text = format!("{PRELUDE}\n{program}");
    let command = ["/usr/bin/python3", "-c", &text, &knows.to_string()];
    let running = stage.client.command(sandbox, command).user(user).run();
    let ran = tokio::time::timeout(STUCK, running)
        .await
        .context("the attacker does not end")??;
    ensure!(
        ran.exit.code == 0,
        "the attacker ended with {:?}: {}",
        ran.exit,
        String::from_utf8_lossy(&ran.stderr)
    );
    let said = String::from_utf8_lossy(&ran.stdout);
    let last = said.lines().last().unwrap_or_default();
    serde_json::from_str(last).with_context(|| format!("not what came of it: {said}"))
}

/// Every outcome must be one that is allowed for it; and each of the table must have been tried.
pub(crate) fn check(
    who: &str,
    outcomes: &Outcomes,
    allowed: &[(&str, &[&str])],
) -> anyhow::Result<()> {
    let mut wrong = Vec::new();
    for (name, outcome) in outcomes {
        // A row stands for all that begin with it.
        let row = allowed.iter().filter(|(row, _)| name.starts_with(row));
        let row = row.max_by_key(|(row, _)| row.len());
        match row {
            Some((_, allowed)) if allowed.contains(&outcome.as_str()) => {}
            Some((_, allowed)) => wrong.push(format!("{name}: {outcome}, not {allowed:?}")),
            None => wrong.push(format!("{name}: {outcome}, which is in no row")),
        }
    }
    for (row, _) in allowed {
        if !outcomes.keys().any(|name| name.starts_with(row)) {
            wrong.push(format!("{row}: not tried"));
        }
    }
    if wrong.is_empty() {
        Ok(())
    } else {
        bail!("{who}:\n  {}", wrong.join("\n  "))
    }
}
