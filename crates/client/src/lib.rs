//! Overwinter for Rust programs.
