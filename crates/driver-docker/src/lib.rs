//! The drivers `docker` and `podman`: a sandbox is one container of a daemon on this host, for its whole
//! life.
//!
//! The container is made once and then stopped, started, paused and unpaused: its writable layer, id
//! and name stay. The workspace is a folder of the gateway's, mounted into it, so that it outlives a
//! container that somebody removes. PID 1 is the supervisor, mounted read-only beside the attach
//! folder; whatever the image would start by itself is started under it.
//!
//! | module | its one idea |
//! |---|---|
//! | [`driver`] | the trait: turns, fences, deadlines |
//! | `effects` | one file a kind of effect |
//! | `engine` | the daemon's API, which daemon answers, and what a failed call says |
//! | `flavor` | what differs between the daemons |
//! | `look` | what is there of a sandbox: container, run, receipt |
//! | `receipt` | which effect started what runs now |
//! | `container` | from a spec to what the daemon is asked to make |
//! | `watch` | the daemon's events, and what was missed between two streams |
//! | `describe`, `list`, `image` | what is offered, what is there, what is run |
//! | `reference` | the parts of an image's name |
//! | `registry` | credentials, from what `docker login` writes |
//! | `home` | the folders |
//! | `host` | what the daemon may do on its host |
//! | `users` | whom the users of a container are on this host |
//! | `libpod` | what Podman says in its own API alone |
//! | `testkit` | a daemon of a test's own (feature `testkit`) |
//! | [`doctor`] | whether a daemon can be used |

mod config;
mod container;
mod describe;
pub mod doctor;
pub mod driver;
mod effects;
mod engine;
mod error;
mod flavor;
mod home;
mod host;
mod image;
mod libpod;
mod list;
mod look;
mod receipt;
mod reference;
mod registry;
#[cfg(feature = "testkit")]
pub mod testkit;
mod users;
mod watch;

pub use config::{DockerConfig, PullPolicy};
pub use doctor::{Finding, doctor};
pub use driver::DockerDriver;
pub use error::OpenError;
pub use flavor::Flavor;
pub use host::Lack;
