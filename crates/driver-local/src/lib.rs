//! The local driver: sandboxes on this host by an OCI runtime, with no daemon.
//!
//! A sandbox is a folder of storage, a range of host user ids and, while it runs, one container that
//! `runc` or gVisor's `runsc` has started. After the start runc is not asked any more: freezing,
//! ending, looking and clearing up are done on control groups, process descriptors and files. gVisor's
//! is, to halt and wake what runs inside and to write its memory to disk.
//!
//! | module | its one idea |
//! |---|---|
//! | [`driver`] | the trait: turns, fences, deadlines |
//! | `effects` | one file a kind of effect |
//! | `compute` | what is there, found without the runtime |
//! | `teardown` | ending a compute, and all of it but the storage |
//! | `recover` | finding one's own again after a restart |
//! | `host`, `layout` | this host's folders and facilities |
//! | `cgroup`, `mounts`, `userns`, `process`, `quota` | the kernel's interfaces |
//! | `bundle`, `seccomp`, `runtime`, `lock` | how the runtime is called |
//! | `live` | who is watched, and the socket that its supervisor attaches by |
//! | `artifact` | memory on disk |
//! | `network` | what a sandbox reaches, and what keeps it from the rest |
//! | `image`, `supervisors`, `ranges` | what is kept beside the storage |
//! | `reclaim` | memory of what is frozen, given back |
//! | [`doctor`] | what this host has and what it lacks |

mod artifact;
mod bundle;
mod cgroup;
mod compute;
mod config;
mod describe;
pub mod doctor;
pub mod driver;
mod effects;
mod error;
#[cfg(fuzzing)]
pub mod fuzz;
mod host;
mod image;
mod layout;
mod list;
mod live;
mod lock;
mod mounts;
mod network;
mod process;
mod quota;
mod ranges;
mod reclaim;
mod recover;
mod runtime;
mod seccomp;
mod supervisors;
mod teardown;
mod userns;

pub use config::{LocalConfig, NetworkConfig};
pub use doctor::{Check, Status, doctor};
pub use driver::LocalDriver;
pub use error::OpenError;
