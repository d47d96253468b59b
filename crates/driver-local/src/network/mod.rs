//! What a sandbox reaches, and what keeps it from the rest.
//!
//! ```text
//! none       a network namespace with loopback alone
//! internet   user ─ kernel of a prepared namespace ─ filter ─ tap ─ pasta ─ sockets of this host
//! host       this host's own namespace
//! ```
//!
//! The namespace of `internet` is in a user namespace that is not the sandbox's. So whatever right a
//! program gets inside, it has none over addresses, routes and the filter. It is made, filtered and
//! connected before the runtime is called: nothing inside ever ran without.
//!
//! | module | its one idea |
//! |---|---|
//! | `offer` | what there is, and why the rest is not |
//! | `networks` | what this host offers, given to one compute after another |
//! | `joining` | a network that is being set up |
//! | `filter` | the rules: what is closed, what is let through |
//! | `addresses` | this host's own addresses and name servers |
//! | `own` | what the kernel routes to this host itself, and that it has changed |
//! | `pasta` | the process that carries packets, in a group of its own beside the compute's |
//! | `inside` | what is done in the prepared namespace |
//! | `filtered` | the networks that are filtered, and what is closed in each |
//! | `watch` | addresses that this host gets later |
//! | `command` | a program that ends before a deadline |

mod addresses;
mod command;
mod filter;
mod filtered;
mod inside;
mod joining;
mod networks;
mod offer;
mod own;
mod pasta;
mod watch;

use std::time::Duration;

pub(crate) use filtered::Net;
pub(crate) use joining::{Joined, Joining};
pub(crate) use networks::Networks;
pub(crate) use offer::{Network, NoNetwork, Programs};
pub(crate) use watch::Watch;

const TRIED_WITHIN: Duration = Duration::from_secs(5);
