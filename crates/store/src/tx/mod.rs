//! The transactions. Each reads the record, lets `overwinter-lifecycle` decide, and writes down
//! what it returned.

pub(crate) mod accept;
pub(crate) mod record;
pub(crate) mod sweep;
pub(crate) mod upkeep;
