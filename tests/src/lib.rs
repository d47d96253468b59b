//! The harness of the end-to-end tests and of the demo: a real gateway in folders of its own, on this
//! host, and a check that nothing of it is left.

pub mod cli;
pub mod compute;
mod elf;
pub mod gateway;
pub mod image;
pub mod leftovers;
pub mod orphans;
pub mod watcher;
pub mod zram;

pub use gateway::Gateway;
pub use image::Image;
