//! Overwinter measured.
