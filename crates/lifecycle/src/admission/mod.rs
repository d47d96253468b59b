//! Admission: one pure function of the verb, the record and who is in line.
//!
//! It reads; it never calls a driver. So what it promises is only what the record can know; whether
//! the backend *can* is asked in the prepare step, which may still reject.
//!
//! **Who is in line**: one operation runs and one waits. *The last intent* is the waiting one, else
//! the running one. Rules are tried in this order:
//!
//! | # | when | create | suspend d | suspend (no depth) | resume f | start | delete |
//! |---|------|--------|-----------|--------------------|----------|-------|--------|
//! | 1 | a delete is in line | – | Deny | Deny | Deny | Deny | Join; abandon over a running plain delete: Queue; over a waiting one: Deny |
//! | 2 | the last intent is equal, parameters included, and not being turned back | – | Join | Join any suspend | Join | Join | – |
//! | 3 | a suspend runs, before its point of no turning back | – | Queue | Queue | **TurnBack** | Queue | Queue |
//! | 4 | anything else runs | – | Queue | Queue | Queue | Queue | Queue |
//! | 5 | Ready | – | Accept | Accept (policy's depth) | NoOp | NoOp | Accept |
//! | 6 | Failed | – | Accept | Accept (policy's depth) | Accept | Accept | Accept |
//! | 7 | Suspended at s: d = s | – | NoOp | NoOp | Accept | Accept | Accept |
//! | 8 | Suspended at s: d deeper | – | Accept | NoOp | Accept | Accept | Accept |
//! | 9 | Suspended at s: d shallower | – | Deny | NoOp | Accept | Accept | Accept |
//!
//! A create is admitted by its name being free, which the store decides in the same transaction.
//! `Queue` and `TurnBack` name the waiting operation that they replace, if there is one. An *idle*
//! suspend (asked for by the policy) is admitted only where it is alone and the sandbox is Ready.
//! A call of the data plane is admitted by [`call::admit`].

pub mod call;

use crate::ids::OperationId;
use crate::operation::{Operation, Verb};
use crate::phase::Rest;
use crate::record::{Desired, Sandbox};
use crate::{Depth, Reason};

/// A verb as it is asked for, before a missing depth is resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Request {
    Suspend {
        /// None: the policy's, or nothing to do where it sleeps already.
        depth: Option<Depth>,
        idle: bool,
        reclaim: bool,
    },
    Resume {
        fallback: bool,
        prefetch: bool,
    },
    Start,
    Delete {
        abandon: bool,
    },
}

/// The answer to a verb, before anything has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// Begin this now.
    Accept(Verb),
    /// An equal intent is in line: share its outcome.
    Join(OperationId),
    /// Wait, while this suspend is turned back.
    TurnBack {
        verb: Verb,
        suspend: OperationId,
        supersedes: Option<OperationId>,
    },
    /// Take the waiting place.
    Queue {
        verb: Verb,
        supersedes: Option<OperationId>,
    },
    /// It is so already.
    NoOp,
    Deny(Reason),
}

/// Decides. Every phase is named: a new one does not compile until someone has thought about it.
#[must_use]
pub fn admit(sandbox: &Sandbox, request: Request) -> Disposition {
    #[cfg(feature = "mutants")]
    if let (Some(delete), false) = (&sandbox.waiting, matches!(request, Request::Delete { .. }))
        && sandbox.desired == Desired::Deleted
        && crate::mutant!(DeleteReplaced)
    {
        return Disposition::Queue {
            verb: resolve(sandbox, request),
            supersedes: Some(delete.id),
        };
    }
    if sandbox.desired == Desired::Deleted {
        return admit_while_deleting(sandbox, request);
    }
    let verb = resolve(sandbox, request);
    if let Some(last) = sandbox.waiting.as_ref().or(sandbox.running.as_ref())
        && last.stopping.is_none()
        && joins(last, request, verb)
    {
        return Disposition::Join(last.id);
    }
    match &sandbox.running {
        Some(running) => admit_behind(sandbox, running, request, verb),
        None => admit_alone(sandbox, request, verb),
    }
}

/// Fills in a depth that was left out.
fn resolve(sandbox: &Sandbox, request: Request) -> Verb {
    match request {
        Request::Suspend {
            depth,
            idle,
            reclaim,
        } => Verb::Suspend {
            depth: depth.unwrap_or(sandbox.config.policy.default_depth),
            idle,
            reclaim,
        },
        Request::Resume { fallback, prefetch } => Verb::Resume { fallback, prefetch },
        Request::Start => Verb::Start,
        Request::Delete { abandon } => Verb::Delete { abandon },
    }
}

fn joins(last: &Operation, request: Request, verb: Verb) -> bool {
    #[cfg(feature = "mutants")]
    if crate::mutant!(JoinUnequal) {
        return last.verb.as_str() == verb.as_str();
    }
    match request {
        // Whoever names no depth is content with any.
        Request::Suspend {
            depth: None,
            idle: false,
            reclaim: false,
        } => {
            matches!(last.verb, Verb::Suspend { idle: false, .. })
        }
        Request::Suspend { .. }
        | Request::Resume { .. }
        | Request::Start
        | Request::Delete { .. } => last.verb == verb,
    }
}

fn admit_while_deleting(sandbox: &Sandbox, request: Request) -> Disposition {
    let Request::Delete { abandon } = request else {
        #[cfg(feature = "mutants")]
        if crate::mutant!(WakeWhileDeleting)
            && sandbox.running.is_some()
            && sandbox.waiting.is_none()
        {
            return Disposition::Queue {
                verb: Verb::Resume {
                    fallback: true,
                    prefetch: false,
                },
                supersedes: None,
            };
        }
        return Disposition::Deny(Reason::Deleting);
    };
    // It is gone: a second delete would begin on a tombstone, and make it anew.
    if sandbox.tombstone_at.is_some() {
        return Disposition::Deny(Reason::Deleting);
    }
    let is_delete = |op: &&Operation| matches!(op.verb, Verb::Delete { .. });
    let covers = |op: &Operation| op.verb == Verb::Delete { abandon } || !abandon;
    let waiting = sandbox.waiting.as_ref().filter(is_delete);
    let running = sandbox.running.as_ref().filter(is_delete);
    match (waiting, running) {
        (Some(last), _) | (None, Some(last)) if covers(last) => Disposition::Join(last.id),
        // Nothing replaces a waiting delete. It begins at the running operation's next boundary.
        (Some(_), _) => Disposition::Deny(Reason::DeleteInLine),
        (None, Some(_)) => Disposition::Queue {
            verb: Verb::Delete { abandon },
            supersedes: None,
        },
        // A delete that failed left the tombstone's wish standing: try again.
        (None, None) => Disposition::Accept(Verb::Delete { abandon }),
    }
}

fn admit_behind(
    sandbox: &Sandbox,
    running: &Operation,
    request: Request,
    verb: Verb,
) -> Disposition {
    let supersedes = sandbox.waiting.as_ref().map(|op| op.id);
    match request {
        Request::Suspend { idle: true, .. } => Disposition::Deny(Reason::NotIdle),
        Request::Resume { .. } if running.can_turn_back() => Disposition::TurnBack {
            verb,
            suspend: running.id,
            supersedes,
        },
        Request::Suspend { idle: false, .. }
        | Request::Resume { .. }
        | Request::Start
        | Request::Delete { .. } => Disposition::Queue { verb, supersedes },
    }
}

fn admit_alone(sandbox: &Sandbox, request: Request, verb: Verb) -> Disposition {
    #[cfg(feature = "mutants")]
    match (Rest::of(sandbox), request) {
        (Rest::Suspended(_), Request::Delete { .. }) if crate::mutant!(SleepersStay) => {
            return Disposition::Deny(Reason::NotIdle);
        }
        (Rest::Failed, Request::Suspend { .. } | Request::Resume { .. } | Request::Start)
            if crate::mutant!(FailedForEver) =>
        {
            return Disposition::Deny(Reason::NotIdle);
        }
        _ => {}
    }
    match (Rest::of(sandbox), request) {
        (_, Request::Delete { .. }) => Disposition::Accept(verb),
        (Rest::Ready, Request::Suspend { .. }) => Disposition::Accept(verb),
        (Rest::Ready, Request::Resume { .. } | Request::Start) => Disposition::NoOp,
        (_, Request::Suspend { idle: true, .. }) => Disposition::Deny(Reason::NotIdle),
        // A failed sandbox may still hold live compute. Suspending it settles that: it is the way
        // out that keeps the storage.
        (Rest::Failed, Request::Suspend { .. } | Request::Resume { .. } | Request::Start) => {
            Disposition::Accept(verb)
        }
        (Rest::Suspended(_), Request::Resume { .. } | Request::Start) => Disposition::Accept(verb),
        (Rest::Suspended(_), Request::Suspend { depth: None, .. }) => Disposition::NoOp,
        (
            Rest::Suspended(now),
            Request::Suspend {
                depth: Some(asked), ..
            },
        ) => match asked.cmp(&now) {
            std::cmp::Ordering::Equal => Disposition::NoOp,
            std::cmp::Ordering::Greater => Disposition::Accept(verb),
            std::cmp::Ordering::Less => Disposition::Deny(Reason::AlreadyDeeper),
        },
    }
}
