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

/// Bytes of a command that are kept.
const COMMAND_KEPT: usize = 4096;
/// And of a text of the supervisor's own: a user's name, why a program could not be run.
const TEXT_KEPT: usize = 1024;
const SIGKILL: i32 = 9;

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

/// What a supervisor tells of a process, as the store keeps it; none where the supervisor made up
/// an id.
#[must_use]
pub fn learnt(info: &wire::ProcessInfo) -> Option<ProcessResult> {
    let mut learnt = running(&info.process_id)?;
    learnt.body = json!({
        "command": shortened(&info.command),
        "pid": info.pid,
        "started_at_ms": info.started_at_ms,
        "tty": info.tty,
        "main": info.main,
        "user": cut(&info.user),
    });
    if let Some(end) = info.exit.as_option().and_then(ended) {
        complete(&mut learnt, end);
    }
    Some(learnt)
}

/// One of which no more is known than that it runs.
#[must_use]
pub fn running(process_id: &str) -> Option<ProcessResult> {
    Some(ProcessResult {
        process: Uuid::parse_str(process_id).ok()?,
        exited_at: None,
        body: json!({}),
    })
}

/// A result, as the store keeps it.
#[must_use]
pub fn ended(exit: &wire::ExitResult) -> Option<ProcessResult> {
    let cause = match exit.cause.as_known() {
        Some(wire::ExitCause::EXIT_CAUSE_OWN) => "own",
        Some(wire::ExitCause::EXIT_CAUSE_SUSPENSION) => ProcessResult::SUSPENSION,
        Some(wire::ExitCause::EXIT_CAUSE_LOST) => ProcessResult::LOST,
        Some(wire::ExitCause::EXIT_CAUSE_UNSPECIFIED) | None => "unspecified",
    };
    Some(ProcessResult {
        process: Uuid::parse_str(&exit.process_id).ok()?,
        exited_at: Some(Millis(exit.exited_at_ms)),
        body: json!({
            "code": exit.code,
            "signal": exit.signal,
            ProcessResult::CAUSE: cause,
            "error": cut(&exit.error),
            "stdout_bytes": exit.stdout_bytes,
            "stderr_bytes": exit.stderr_bytes,
        }),
    })
}

/// One that ran and is not there any more; nobody knows how it ended.
#[must_use]
pub fn lost(process: Uuid, now: Millis) -> ProcessResult {
    ProcessResult {
        process,
        exited_at: Some(now),
        body: json!({ ProcessResult::CAUSE: ProcessResult::LOST }),
    }
}

/// Adds to what is known of a process what came later. The first end stays.
pub fn complete(known: &mut ProcessResult, later: ProcessResult) {
    if known.exited_at.is_some() {
        return;
    }
    known.exited_at = later.exited_at;
    if let (Some(body), serde_json::Value::Object(more)) = (known.body.as_object_mut(), later.body)
    {
        body.extend(more);
    }
}

/// As much of a text as is worth keeping.
fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_KEPT)]
}

/// How many bytes it takes to keep, about.
#[must_use]
pub fn weight(result: &ProcessResult) -> usize {
    const EACH: usize = 200;
    let texts = |value: &serde_json::Value| value.as_str().map_or(0, str::len);
    let body = result
        .body
        .as_object()
        .into_iter()
        .flat_map(|body| body.values());
    EACH + body
        .map(|value| match value.as_array() {
            Some(words) => words.iter().map(|word| texts(word) + EACH / 4).sum(),
            None => texts(value),
        })
        .sum::<usize>()
}

/// As much of a command as is worth keeping of a thousand.
fn shortened(command: &[String]) -> Vec<&str> {
    let mut room = COMMAND_KEPT;
    let mut kept = Vec::new();
    for word in command {
        // A word of nothing costs as well.
        let cost = word.len() + 1;
        if cost > room {
            kept.push("…");
            break;
        }
        room -= cost;
        kept.push(word.as_str());
    }
    kept
}

/// What is stored, as the API shows it.
#[must_use]
pub fn from_stored(result: &ProcessResult) -> v1::ProcessInfo {
    let process_id = result.process.to_string();
    let number = |key: &str| result.body[key].as_i64();
    let small = |key: &str| number(key).and_then(|number| i32::try_from(number).ok());
    let text = |key: &str| result.body[key].as_str().unwrap_or_default().to_owned();
    let exit = result.exited_at.map(|at| {
        // Where nobody has told: a suspension that must kill does it so, and of what is lost
        // nothing is known.
        let (cause, code, signal) = match result.body[ProcessResult::CAUSE].as_str() {
            Some("own") => (v1::ExitCause::EXIT_CAUSE_OWN, -1, 0),
            Some(ProcessResult::SUSPENSION) => {
                (v1::ExitCause::EXIT_CAUSE_SUSPENSION, 128 + SIGKILL, SIGKILL)
            }
            Some(ProcessResult::LOST) => (v1::ExitCause::EXIT_CAUSE_LOST, -1, 0),
            Some(_) | None => (v1::ExitCause::EXIT_CAUSE_UNSPECIFIED, -1, 0),
        };
        v1::ExitResult {
            process_id: process_id.clone(),
            code: small("code").unwrap_or(code),
            signal: small("signal").unwrap_or(signal),
            cause: cause.into(),
            error: text("error"),
            stdout_bytes: number("stdout_bytes").unwrap_or(0).unsigned_abs(),
            stderr_bytes: number("stderr_bytes").unwrap_or(0).unsigned_abs(),
            exited_at: timestamp(at.0),
        }
    });
    let command = result.body["command"].as_array();
    v1::ProcessInfo {
        command: command
            .into_iter()
            .flatten()
            .filter_map(|word| word.as_str().map(str::to_owned))
            .collect(),
        pid: small("pid").unwrap_or(0),
        running: exit.is_none(),
        exit: exit.into(),
        started_at: number("started_at_ms").map_or_else(MessageField::none, timestamp),
        tty: result.body["tty"] == true,
        main: result.body["main"] == true,
        user: text("user"),
        process_id,
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
