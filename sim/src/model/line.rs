//! A verb's transaction, as `crates/store` runs it: admission and beginning are the lifecycle's, who
//! takes which place in line is written down here as `store/src/tx/accept.rs` does.

use overwinter_lifecycle::admission::{Disposition, Request, admit, call};
use overwinter_lifecycle::begin::{Begun, begin};
use overwinter_lifecycle::capacity::{Limits, Usage};
use overwinter_lifecycle::ids::Millis;
use overwinter_lifecycle::operation::{Operation, Stopping, Verb};
use overwinter_lifecycle::record::{Desired, Sandbox};

use super::flaw::Flaw;
use super::state::NEW;

/// One sandbox at a time may run.
pub(crate) const LIMITS: Limits = Limits {
    running: Some(1),
    cpu_millis: None,
    memory_bytes: None,
    disk_bytes: None,
};

pub(crate) fn others(full: bool) -> Usage {
    Usage {
        running: u64::from(full),
        ..Usage::default()
    }
}

/// What came of a verb.
pub(crate) enum Accepted {
    /// It runs; its owner starts.
    Begun,
    /// It ended where it began.
    Ended(Operation),
    Waits {
        superseded: Option<Operation>,
    },
    /// Denied, joined, or so already: nothing was written.
    Nothing,
}

pub(crate) fn accept(
    sandbox: &mut Sandbox,
    request: Request,
    full: bool,
    flaw: Option<Flaw>,
) -> Accepted {
    let mut disposition = admit(sandbox, request);
    if flaw == Some(Flaw::ReplaceDelete)
        && let Some(Verb::Delete { .. }) = sandbox.waiting.as_ref().map(|op| op.verb)
        && let Request::Start = request
    {
        disposition = Disposition::Queue {
            verb: Verb::Start,
            supersedes: None,
        };
    }
    match disposition {
        Disposition::Deny(_) | Disposition::NoOp | Disposition::Join(_) => Accepted::Nothing,
        Disposition::Accept(verb) => {
            let op = operation(sandbox, verb);
            match begin(sandbox, op, others(full), &LIMITS, Millis(0)) {
                Begun::Running => Accepted::Begun,
                Begun::Ended(op) => Accepted::Ended(*op),
            }
        }
        Disposition::Queue { verb, .. } => {
            if let Verb::Delete { .. } = verb {
                sandbox.desired = Desired::Deleted;
                stop_running(sandbox, Stopping::Delete(NEW));
            }
            wait(sandbox, verb)
        }
        Disposition::TurnBack { verb, .. } => {
            stop_running(sandbox, Stopping::TurnBack(Some(NEW)));
            wait(sandbox, verb)
        }
    }
}

/// A call of the data plane; true if it turns an idle suspend back.
pub(crate) fn turn_back_for_call(sandbox: &mut Sandbox) -> bool {
    let turns = matches!(call::admit(sandbox), call::CallAdmission::TurnBack(_));
    if turns {
        stop_running(sandbox, Stopping::TurnBack(None));
    }
    turns
}

fn wait(sandbox: &mut Sandbox, verb: Verb) -> Accepted {
    let superseded = sandbox.waiting.take();
    sandbox.waiting = Some(operation(sandbox, verb));
    Accepted::Waits { superseded }
}

fn operation(sandbox: &Sandbox, verb: Verb) -> Operation {
    Operation::new(NEW, sandbox.id, verb, "", Millis(0))
}

fn stop_running(sandbox: &mut Sandbox, stopping: Stopping) {
    if let Some(running) = &mut sandbox.running {
        running.stopping = Some(stopping);
    }
}
