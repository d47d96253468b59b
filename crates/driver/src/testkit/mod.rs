//! For tests: a simulated backend with every fault that a real one has, and the conformance suite
//! that every driver passes on its real backend.
//!
//! | module | its one idea |
//! |---|---|
//! | [`clock`] | time, injected |
//! | [`fault`] | what may go wrong at a call, and the plans that say when it does |
//! | [`conformance`] | what every driver must do |
//! | [`spawn`] | where the backend's own work runs |
//! | [`sim`] | the backend in memory, its driver and its agent |

pub mod clock;
pub mod conformance;
pub mod fault;
pub mod sim;
pub mod spawn;

pub use clock::{Clock, TokioClock};
pub use fault::{
    CallKind, CallSite, CrashPoint, Dials, Dice, Fault, FaultPlan, Late, NoFaults, Script, Seeded,
};
pub use sim::{CrashHook, Landing, Looked, SimConfig, SimDriver, SimWorld, Violation};
pub use spawn::{Spawn, TokioSpawn};
