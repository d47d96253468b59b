//! The invariants of rest: what must be so where nothing happens by itself any more, and what a user
//! can do from there.

use overwinter_lifecycle::admission::Request;
use overwinter_lifecycle::record::Desired;
use overwinter_lifecycle::{Depth, Phase};

use super::checks::{Checked, ensure};
use super::invariant::{Invariant, Violation};
use super::moves::{MOVES, Move, Setup, make};
use super::state::State;
use super::world::Leftover;
use crate::search::Tally;

/// Of a state in which nothing happens by itself any more.
pub fn at_rest(state: &State, setup: &Setup, tally: &mut Tally) -> Checked {
    let sandbox = &state.sandbox;
    tally.met(Invariant::EveryOperationEnds);
    let quiet = sandbox.running.is_none() && state.world.flying.is_none();
    ensure(quiet, Invariant::EveryOperationEnds, || {
        "nothing goes on, and it is not over".to_owned()
    })?;
    if sandbox.tombstone_at.is_some() {
        let bare = state.abandoned || state.world.leftover == Leftover::Nothing;
        let empty = state.world.compute().is_none() && bare;
        ensure(empty, Invariant::NothingIsLeft, || {
            "compute is left".to_owned()
        })?;
        let kept = (state.world.storage || !state.world.artifacts.is_empty()) && !state.abandoned;
        return ensure(!kept, Invariant::NothingIsLeft, || {
            "storage is left".to_owned()
        });
    }
    ensure(
        sandbox.desired != Desired::Deleted,
        Invariant::EveryOperationEnds,
        || "a delete is not gone on with".to_owned(),
    )?;
    let died = sandbox.compute.held().is_some() && state.world.compute().is_none();
    ensure(!died, Invariant::RecordIsTrue, || {
        "a death is never seen".to_owned()
    })?;
    ways_out(state, setup, tally)
}

/// Verbs that must lead out, tried in a world without faults.
fn ways_out(state: &State, setup: &Setup, tally: &mut Tally) -> Checked {
    tally.met(Invariant::AWayOut);
    let deleted = ask_calmly(state, Request::Delete { abandon: false }, setup)?;
    let gone = deleted.sandbox.phase() == Phase::Tombstone
        && deleted.world.compute().is_none()
        && !deleted.world.storage;
    ensure(gone, Invariant::AWayOut, || {
        format!("a delete leads to {:?}", deleted.sandbox)
    })?;
    if !state.world.storage {
        // Its create was lost on the way and nobody could look: there is nothing to bring back.
        return Ok(());
    }
    // A late effect that nobody saw land is found by the first resume and taken in by the second.
    let mut resumed = ask_calmly(
        state,
        Request::Resume {
            fallback: true,
            prefetch: false,
        },
        setup,
    )?;
    if resumed.sandbox.phase() != Phase::Ready && state.unseen {
        resumed = ask_calmly(
            &resumed,
            Request::Resume {
                fallback: true,
                prefetch: false,
            },
            setup,
        )?;
    }
    ensure(
        resumed.sandbox.phase() == Phase::Ready,
        Invariant::AWayOut,
        || format!("a resume leads to {:?}", resumed.sandbox),
    )?;
    let started = ask_calmly(state, Request::Start, setup)?;
    ensure(
        started.sandbox.phase() == Phase::Ready || state.unseen,
        Invariant::AWayOut,
        || format!("a start leads to {:?}", started.sandbox),
    )?;
    let stop = Request::Suspend {
        depth: Some(Depth::Stop),
        idle: false,
        reclaim: false,
    };
    let stopped = ask_calmly(state, stop, setup)?;
    ensure(
        stopped.sandbox.phase() == Phase::Suspended(Depth::Stop),
        Invariant::AWayOut,
        || format!("a stop leads to {:?}", stopped.sandbox),
    )
}

/// More moves than anything needs that ends.
const MANY: usize = 500;

fn ask_calmly(state: &State, request: Request, setup: &Setup) -> Result<State, Violation> {
    let mut now = state.clone();
    now.full = false;
    now.left.verbs = 1;
    if let Some(taken) = make(&now, Move::Ask(request), setup)? {
        now = taken.state;
    }
    for _ in 0..MANY {
        let mut next = None;
        for mv in MOVES.iter().filter(|mv| mv.is_calm()) {
            if let Some(taken) = make(&now, *mv, setup)? {
                next = Some(taken.state);
                break;
            }
        }
        match next {
            Some(next) => now = next,
            None => return Ok(now),
        }
    }
    Err(Invariant::AWayOut.broken(format!("{request:?} does not end")))
}
