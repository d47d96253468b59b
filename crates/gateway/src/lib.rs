//! The gateway: it accepts verbs, completes every operation in tasks of its own, holds the sessions
//! with the supervisors, and carries the data plane.
//!
//! | module | its one idea |
//! |---|---|
//! | [`ports`] | clock, ids and crash points, injected |
//! | [`sessions`] | supervisors: credentials, gates, connections |
//! | [`reconciler`] | one owner for each unfinished operation |
//! | [`dataplane`] | processes and files of sandboxes that are Ready |
//! | [`api`] | the services, in the core's terms |
//! | [`server`] | the socket |
//! | `strict` | JSON by the schema |
//! | [`run`] | putting it together |
//! | `stop` | the signals that end it |

pub mod api;
pub mod config;
pub mod crash;
pub mod dataplane;
pub mod ports;
pub mod reconciler;
pub mod run;
pub mod server;
pub mod sessions;
mod stop;
mod strict;
pub mod telemetry;
