//! Processes: between the supervisor's words, the API's and the store's.

use std::sync::Arc;

use buffa::{Inline, MessageField};
use buffa_types::google::protobuf::Timestamp;
use futures::StreamExt;
use overwinter_api::supervisor as wire;
use overwinter_api::v1;
use overwinter_driver::{Agent, AgentError};
use overwinter_lifecycle::ids::Millis;
use overwinter_store::ProcessResult;
use serde_json::json;
use uuid::Uuid;

#[must_use]
pub fn timestamp(ms: i64) -> MessageField<Timestamp, Inline<Timestamp>> {
    MessageField::some(Timestamp {
        seconds: ms.div_euclid(1_000),
        nanos: i32::try_from(ms.rem_euclid(1_000) * 1_000_000).unwrap_or(0),
        ..Default::default()
    })
}

#[must_use]
pub fn spec(spec: v1::ProcessSpec, sandbox_env: &[(String, String)]) -> wire::ProcessSpec {
    let mut env: std::collections::HashMap<String, String> = sandbox_env.iter().cloned().collect();
    env.extend(spec.env);
    wire::ProcessSpec {
        command: spec.command,
        env: env.into_iter().collect(),
        workdir: spec.workdir,
        user: spec.user,
        tty: match spec.tty.into_option() {
            Some(size) => MessageField::some(window(&size)),
            None => MessageField::none(),
        },
        stdin: spec.stdin,
        main: false,
    }
}

#[must_use]
pub fn window(size: &v1::WindowSize) -> wire::WindowSize {
    wire::WindowSize {
        rows: size.rows,
        columns: size.columns,
    }
}

#[must_use]
pub fn exit(exit: &wire::ExitResult) -> v1::ExitResult {
    let cause = match exit.cause.as_known() {
        Some(wire::ExitCause::EXIT_CAUSE_OWN) => v1::ExitCause::EXIT_CAUSE_OWN,
        Some(wire::ExitCause::EXIT_CAUSE_SUSPENSION) => v1::ExitCause::EXIT_CAUSE_SUSPENSION,
        Some(wire::ExitCause::EXIT_CAUSE_LOST) => v1::ExitCause::EXIT_CAUSE_LOST,
        Some(wire::ExitCause::EXIT_CAUSE_UNSPECIFIED) | None => {
            v1::ExitCause::EXIT_CAUSE_UNSPECIFIED
        }
    };
    v1::ExitResult {
        process_id: exit.process_id.clone(),
        code: exit.code,
        signal: exit.signal,
        cause: cause.into(),
        error: exit.error.clone(),
        stdout_bytes: exit.stdout_bytes,
        stderr_bytes: exit.stderr_bytes,
        exited_at: timestamp(exit.exited_at_ms),
    }
}

#[must_use]
pub fn info(info: &wire::ProcessInfo) -> v1::ProcessInfo {
    v1::ProcessInfo {
        process_id: info.process_id.clone(),
        command: info.command.clone(),
        pid: info.pid,
        running: info.running,
        exit: info.exit.as_option().map(exit).into(),
        started_at: timestamp(info.started_at_ms),
        tty: info.tty,
        main: info.main,
        user: info.user.clone(),
    }
}

/// A result as the store keeps it; none where the supervisor made up an id.
#[must_use]
pub fn to_stored(exit: &wire::ExitResult) -> Option<ProcessResult> {
    let cause = match exit.cause.as_known() {
        Some(wire::ExitCause::EXIT_CAUSE_OWN) => "own",
        Some(wire::ExitCause::EXIT_CAUSE_SUSPENSION) => "suspension",
        Some(wire::ExitCause::EXIT_CAUSE_LOST) => "lost",
        Some(wire::ExitCause::EXIT_CAUSE_UNSPECIFIED) | None => "unspecified",
    };
    Some(ProcessResult {
        process: Uuid::parse_str(&exit.process_id).ok()?,
        exited_at: Millis(exit.exited_at_ms),
        body: json!({
            "code": exit.code,
            "signal": exit.signal,
            "cause": cause,
            "error": exit.error,
            "stdout_bytes": exit.stdout_bytes,
            "stderr_bytes": exit.stderr_bytes,
        }),
    })
}

/// A stored result as the API shows it.
#[must_use]
pub fn from_stored(result: &ProcessResult) -> v1::ProcessInfo {
    let number = |key: &str| result.body[key].as_i64().unwrap_or(0);
    let cause = match result.body["cause"].as_str() {
        Some("own") => v1::ExitCause::EXIT_CAUSE_OWN,
        Some("suspension") => v1::ExitCause::EXIT_CAUSE_SUSPENSION,
        Some("lost") => v1::ExitCause::EXIT_CAUSE_LOST,
        Some(_) | None => v1::ExitCause::EXIT_CAUSE_UNSPECIFIED,
    };
    let process_id = result.process.to_string();
    v1::ProcessInfo {
        process_id: process_id.clone(),
        exit: MessageField::some(v1::ExitResult {
            process_id,
            code: i32::try_from(number("code")).unwrap_or(-1),
            signal: i32::try_from(number("signal")).unwrap_or(0),
            cause: cause.into(),
            error: result.body["error"].as_str().unwrap_or_default().to_owned(),
            stdout_bytes: number("stdout_bytes").unsigned_abs(),
            stderr_bytes: number("stderr_bytes").unsigned_abs(),
            exited_at: timestamp(result.exited_at.0),
        }),
        ..Default::default()
    }
}

/// The exit of the main process in an event, if it is in there. `main`: its id, once it was seen.
#[must_use]
pub fn main_exit(event: &wire::ProcessEvent, main: &mut Option<String>) -> Option<(i32, i32)> {
    match event.event.as_ref()? {
        wire::process_event::Event::Snapshot(list) => {
            let found = list.processes.iter().find(|process| process.main)?;
            *main = Some(found.process_id.clone());
            found.exit.as_option().map(|exit| (exit.code, exit.signal))
        }
        wire::process_event::Event::Started(process) => {
            if process.main {
                *main = Some(process.process_id.clone());
            }
            None
        }
        wire::process_event::Event::Exited(exit) => {
            (Some(&exit.process_id) == main.as_ref()).then_some((exit.code, exit.signal))
        }
    }
}

/// Runs one process to its end and drops what it prints.
///
/// # Errors
/// As the agent says.
pub async fn run(
    agent: &Arc<dyn Agent>,
    process_id: String,
    process: wire::ProcessSpec,
) -> Result<wire::ExitResult, AgentError> {
    let start = wire::ExecStart {
        process_id,
        process: MessageField::some(process),
    };
    let request = wire::ExecRequest {
        message: Some(wire::exec_request::Message::Start(Box::new(start))),
    };
    // The request side stays open: closing it is end of input, not of the call.
    let input = futures::stream::iter([request]).chain(futures::stream::pending());
    let mut output = agent.exec(input.boxed()).await?;
    while let Some(message) = output.next().await {
        if let Some(wire::exec_response::Message::Exited(exit)) = message?.message {
            return Ok(*exit);
        }
    }
    Err(AgentError::Gone)
}
