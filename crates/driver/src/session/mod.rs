//! The gateway's side of one supervisor connection.
//!
//! ```text
//!   driver's socket ─ connection ─► read_request ─ the gateway checks ─┬─► refuse   (401, 403, 409)
//!                                                                      └─► accept ─► SupervisorAgent
//! ```
//!
//! The supervisor has dialled; after the 101 the roles turn and the gateway is the HTTP/2 client on
//! the same stream. The connection is owned here: when it ends, the supervisor is gone, and nothing
//! dials it again from this side.

mod agent;
mod budget;
mod error;
mod handshake;
mod link;
mod transport;

pub use agent::{SupervisorAgent, accept};
pub use handshake::{AttachRequest, read_request, refuse};
