//! Spans are made where the work is done; here are the counters and durations that go with them, and
//! how logs are written.
//!
//! Counters go to OpenTelemetry's global meter: whoever embeds the gateway installs a provider for
//! it; without one they cost next to nothing.

use std::io::IsTerminal;
use std::time::Duration;

use opentelemetry::metrics::{Counter, Histogram};
use opentelemetry::{KeyValue, global};
use overwinter_lifecycle::operation::{Operation, Outcome, Verb};

/// Of the reconciler. Cheap to clone.
#[derive(Clone)]
pub struct Telemetry {
    steps: Counter<u64>,
    step_time: Histogram<f64>,
    operations: Counter<u64>,
    calls: Counter<u64>,
}

impl Default for Telemetry {
    fn default() -> Self {
        let meter = global::meter("overwinter.gateway");
        Self {
            steps: meter
                .u64_counter("overwinter.operation.steps")
                .with_description("steps of operations carried out, by verb and step")
                .build(),
            step_time: meter
                .f64_histogram("overwinter.operation.step.duration")
                .with_unit("s")
                .with_description("how long each step took")
                .build(),
            operations: meter
                .u64_counter("overwinter.operations")
                .with_description("operations ended, by verb and outcome")
                .build(),
            calls: meter
                .u64_counter("overwinter.calls")
                .with_description("calls of the data plane admitted, by kind")
                .build(),
        }
    }
}

impl Telemetry {
    pub fn step(&self, verb: Verb, step: &'static str, took: Duration) {
        let labels = [
            KeyValue::new("verb", verb.as_str()),
            KeyValue::new("step", step),
        ];
        self.steps.add(1, &labels);
        self.step_time.record(took.as_secs_f64(), &labels);
    }

    pub fn ended(&self, operation: &Operation) {
        let outcome = match &operation.outcome {
            Some(Outcome::Succeeded { .. }) => "succeeded",
            Some(Outcome::Failed(fault)) => {
                tracing::warn!(
                    operation = %operation.id, sandbox = %operation.sandbox,
                    verb = operation.verb.as_str(), reason = fault.reason.code(), %fault,
                    "operation failed"
                );
                fault.reason.code()
            }
            Some(Outcome::SupersededBy(_)) => "superseded",
            Some(Outcome::TurnedBack(_)) => "turned_back",
            None => "unfinished",
        };
        tracing::debug!(operation = %operation.id, outcome, "operation ended");
        let labels = [
            KeyValue::new("verb", operation.verb.as_str()),
            KeyValue::new("outcome", outcome),
        ];
        self.operations.add(1, &labels);
    }

    pub fn call(&self, kind: &'static str) {
        self.calls.add(1, &[KeyValue::new("kind", kind)]);
    }
}

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

/// Writes logs to standard error, filtered by `OVERWINTER_LOG` (else `info`).
pub fn start_logging(format: LogFormat) {
    let filter = tracing_subscriber::EnvFilter::try_from_env("OVERWINTER_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // It would tell a line that could not be written with `eprintln`, which panics where stderr is
        // the broken one, and take the task that logs with it.
        .log_internal_errors(false)
        .with_ansi(std::io::stderr().is_terminal());
    // A second call in one process (tests) keeps the first subscriber.
    let _ = match format {
        LogFormat::Text => builder.with_target(false).try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
}
