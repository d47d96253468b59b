//! The proof that the lifecycle keeps its promises: nothing lost, never two, always a way out.
//!
//! | module | its one idea |
//! |---|---|
//! | [`model`] | one sandbox and all that may happen to it, around the shipped pure core |
//! | [`search`] | every state of it |
//! | [`history`] | the whole gateway, simulated: one seed, one history |
//! | [`report`] | what was seen, as a table; a violation, as the shortest history |

mod calm;
pub mod history;
pub mod model;
pub mod report;
pub mod search;
