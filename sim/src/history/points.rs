//! Every point at which a gateway of these histories can die besides its await points, written out: each
//! step of each verb and each commit, before and after it. What is met and is not here fails a proof, and
//! so does what is here and is never met.

use std::collections::BTreeSet;

use overwinter_driver::testkit::CallKind;
use overwinter_store::label;

/// A step (`verb.depth.action`) or a commit (`commit label`), and on which side of it.
pub(crate) type Point = (String, &'static str);

pub(crate) const SIDES: [&str; 2] = ["before", "after"];

/// Of each verb at each depth, what its owner does and records; by the names of `Action::name`. These
/// sandboxes have no main process and no post-resume hook: no `start_main`, no `hook`.
const STEPS: [(&str, &[&str]); 7] = [
    (
        "create.any",
        &[
            "pin",
            "record_intent",
            "create",
            "observe",
            "attach",
            "record_end",
        ],
    ),
    (
        "start.any",
        &[
            "observe",
            "suspend_stop",
            "record_intent",
            "start",
            "attach",
            "record_end",
        ],
    ),
    (
        "resume.any",
        &[
            "observe",
            "resume_freeze",
            "resume_checkpoint",
            "record_intent",
            "record_give_up_memory",
            "suspend_stop",
            "record_fallback",
            "start",
            "reattach",
            "attach",
            "lift_quiesce",
            "record_end",
        ],
    ),
    (
        "suspend.freeze",
        &[
            "prepare",
            "quiesce",
            "unquiesce",
            "record_intent",
            "detach",
            "suspend_freeze",
            "observe",
            "record_reattach",
            "reattach",
            "attach",
            "record_end",
        ],
    ),
    (
        "suspend.checkpoint",
        &[
            "prepare",
            "quiesce",
            "unquiesce",
            "record_intent",
            "detach",
            "suspend_checkpoint",
            "observe",
            "record_reattach",
            "reattach",
            "attach",
            "record_end",
        ],
    ),
    (
        "suspend.stop",
        &[
            "prepare",
            "quiesce",
            "unquiesce",
            "record_intent",
            "terminate",
            "record_terminated",
            "suspend_stop",
            "observe",
            "record_end",
        ],
    ),
    ("delete.any", &["delete", "observe", "record_end"]),
];

/// Not among them: `MAIN_EXIT`, for these sandboxes have no main process, and `UPDATE`, which no client
/// asks for.
pub(crate) const COMMITS: [&str; 15] = [
    label::ACCEPT_CREATE,
    label::ACCEPT,
    label::TURN_BACK,
    label::INTENT,
    label::TERMINATED,
    label::FALL_BACK,
    label::REATTACH,
    label::END,
    label::END_TURNED_BACK,
    label::END_INTERRUPTED,
    label::RECOVER,
    label::LOSS,
    label::EXITS,
    label::DEBT,
    label::SWEEP,
];

pub(crate) const SLEEP: &str = "a sleep";
pub(crate) const SLEPT: &str = "the end of a sleep";
pub(crate) const SLOW_COMMIT: &str = "a slow commit";

/// The await points: every call of the backend and of a supervisor, sleeps, and commits that take their
/// time.
pub(crate) fn moments() -> BTreeSet<String> {
    let calls = CallKind::ALL.iter().map(|kind| format!("{kind:?}"));
    let others = [SLEEP, SLEPT, SLOW_COMMIT].map(str::to_owned);
    calls.chain(others).collect()
}

/// All of them, on both sides.
pub(crate) fn all() -> Vec<Point> {
    let steps = STEPS
        .iter()
        .flat_map(|(verb, actions)| actions.iter().map(move |action| format!("{verb}.{action}")));
    let commits = COMMITS.iter().map(|label| format!("commit {label}"));
    steps
        .chain(commits)
        .flat_map(|what| SIDES.map(|side| (what.clone(), side)))
        .collect()
}
