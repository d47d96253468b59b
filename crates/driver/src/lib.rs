//! The driver contract. A driver is an adapter to one backend; all that is special to that backend
//! lives in it. Core reads [`SuspensionMode`]s and never asks which driver it talks to.
//!
//! | module | its one idea |
//! |---|---|
//! | [`driver`] | the trait: prepare, effects, observations |
//! | [`types`] | what goes in and comes out |
//! | [`error`] | the five ways to fail |
//! | [`attach`] | how a supervisor, or a backend's own agent, reaches the gateway |
//! | [`agent`] | what the gateway asks of whoever is inside |
//! | [`ledger`] | the receipts, through a port to the gateway's store |
//! | [`turns`] | one effect at a time on a sandbox, and none after a newer one |
//! | [`watchers`] | who is told that compute has changed |
//! | `door` | the folder and the socket that a supervisor on this host attaches by (feature `door`) |
//! | `session` | the gateway's side of a supervisor's connection (feature `session`) |
//! | `testkit` | a simulated backend and the conformance suite (feature `testkit`) |

pub mod agent;
pub mod attach;
#[cfg(feature = "door")]
pub mod door;
pub mod driver;
pub mod error;
pub mod ledger;
#[cfg(feature = "session")]
pub mod session;
#[cfg(feature = "testkit")]
pub mod testkit;
pub mod turns;
pub mod types;
pub mod watchers;

pub use agent::{Agent, AgentError};
pub use attach::{AttachPort, Credentials, Peer, Token};
pub use driver::Driver;
pub use error::{DriverError, Unusable, is_full};
pub use ledger::Ledger;
pub use types::*;
pub use watchers::Watchers;
