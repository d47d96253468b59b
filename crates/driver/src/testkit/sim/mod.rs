//! A backend in memory.
//!
//! ```text
//!   SimDriver ── calls ──► SimWorld ── one cell a sandbox ──► storage, compute, artifact, lock, keys
//!       │                     ▲                                   │
//!       └── its AttachPort ◄──┴── SimAgent ◄── Guest (memory) ◄───┘
//! ```
//!
//! The world outlives any driver, as a backend outlives a gateway: a test that kills its gateway
//! makes a new [`SimDriver`] on the same world. Nothing here reads a clock or makes a random choice
//! of its own.
//!
//! How each way to fail shows itself: see [`Fault`](super::Fault). What must never be so is recorded
//! as a [`Violation`], and [`SimWorld::assert_sound`] fails on any.

mod agent;
mod config;
mod driver;
mod effect;
mod exec;
mod files;
mod guest;
mod process;
mod program;
mod seen;
mod signal;
mod storage;
mod truth;
mod world;

pub use agent::SimAgent;
pub use config::{CrashHook, SimConfig, checkpoint_mode, freeze_mode, stop_mode};
pub use driver::SimDriver;
pub use seen::{Landing, Looked, Violation};
pub use truth::ArtifactTruth;
pub use world::SimWorld;
