//! Networks, on the real host: what is reached, what is not, that nothing inside can change that, and
//! that nothing is left.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on is one that has failed"
)]

#[path = "../common/mod.rs"]
mod common;
mod inside;
mod lives;
mod reach;
mod target;
